//! Data and orders, all from a seed: the same seed gives the same bytes and the same orders on every machine.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, and enough for data that must only be incompressible and distinct.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// What the state moves by.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Random {
    /// The stream of `seed`; `part` tells streams of one seed apart.
    pub fn new(seed: u64, part: u64) -> Self {
        let mut random = Self(seed ^ part.wrapping_mul(0xD1B5_4A32_D192_ED03));
        random.next();
        random
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The same stream, `numbers` later.
    pub fn skip(mut self, numbers: u64) -> Self {
        self.0 = self.0.wrapping_add(numbers.wrapping_mul(STEP));
        self
    }

    /// A number under `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }

    /// `0..count` in random order (Fisher and Yates).
    pub fn order(&mut self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        for at in (1..count).rev() {
            order.swap(at, self.below(at as u64 + 1) as usize);
        }
        order
    }
}

/// The bytes of one object of a seed.
pub fn object(seed: u64, number: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    Random::new(seed, number).fill(&mut data);
    data
}

/// A set of objects of one kind, as files below a folder: `PREFIX/00000`, …
#[derive(Clone, Debug)]
pub struct Objects {
    /// Beginning of their keys.
    pub prefix: String,
    /// How many.
    pub count: usize,
    /// Bytes of the smallest and of the largest.
    pub bytes: (usize, usize),
    /// What their bytes come from.
    pub seed: u64,
}

impl Objects {
    /// Bytes of object `number`.
    pub fn size(&self, number: usize) -> usize {
        let spread = (self.bytes.1 - self.bytes.0) as u64 + 1;
        self.bytes.0 + Random::new(self.seed, !(number as u64)).below(spread) as usize
    }

    /// Bytes of all.
    pub fn total(&self) -> u64 {
        (0..self.count).map(|number| self.size(number) as u64).sum()
    }

    /// The key of object `number`.
    pub fn key(&self, number: usize) -> String {
        format!("{}/{number:05}", self.prefix)
    }

    /// The bytes of object `number`.
    pub fn data(&self, number: usize) -> Vec<u8> {
        object(self.seed, number as u64, self.size(number))
    }

    /// The place of the first byte of `bytes`, which begin at `start`, that is not object `number`'s. Nothing is looked up: each byte
    /// follows from seed, number and place, so that any reader can check any range.
    pub fn first_wrong(&self, number: usize, start: u64, bytes: &[u8]) -> Option<u64> {
        let random = Random::new(self.seed, number as u64);
        let word = |place: u64| random.clone().skip(place / 8).next().to_le_bytes()[(place % 8) as usize];
        // To the next whole word byte by byte, then by words.
        let ragged = ((8 - start % 8) % 8).min(bytes.len() as u64) as usize;
        let (head, tail) = bytes.split_at(ragged);
        let first = head.iter().zip(start..).find(|(byte, place)| **byte != word(*place));
        if let Some((_, place)) = first {
            return Some(place);
        }
        let mut words = random.clone().skip((start + ragged as u64) / 8);
        for (index, chunk) in tail.chunks(8).enumerate() {
            let right = words.next().to_le_bytes();
            if chunk != &right[..chunk.len()] {
                let at = chunk.iter().zip(right).position(|(a, b)| *a != b).unwrap_or_default();
                return Some(start + (ragged + 8 * index + at) as u64);
            }
        }
        None
    }

    /// Writes all of them below `folder`.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder.join(&self.prefix))?;
        (0..self.count).try_for_each(|number| fs::write(folder.join(self.key(number)), self.data(number)))
    }
}

/// A scratch folder of one run, removed with it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new folder below `parent`.
    pub fn new(parent: &Path) -> io::Result<Self> {
        let path = parent.join(format!("framecache-bench-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path.canonicalize()?))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A folder inside, made if it is not there.
    pub fn folder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            // Nothing depends on it but the disk's space.
            let _ = writeln!(io::stderr(), "framecache-bench: {} stays: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: orders hold each number once, and a seed's data is the same each time and different for each object.
    #[test]
    fn seeds_decide() {
        let mut order = Random::new(17, 0).order(1000);
        assert_ne!(order[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
        assert_eq!(object(17, 3, 1001), object(17, 3, 1001));
        assert_ne!(object(17, 3, 64), object(17, 4, 64));
    }

    /// Promise: any range of an object is known by itself, and one turned bit in it is found where it is.
    #[test]
    fn any_byte_can_be_checked() {
        let objects = Objects { prefix: "o".into(), count: 1, bytes: (1003, 1003), seed: 5 };
        let data = objects.data(0);
        for (start, end) in [(0, 1003), (0, 0), (1, 2), (7, 9), (8, 1003), (13, 14), (999, 1003)] {
            assert_eq!(objects.first_wrong(0, start as u64, &data[start..end]), None, "{start}..{end}");
            for at in start..end {
                let mut turned = data[start..end].to_vec();
                turned[at - start] ^= 4;
                assert_eq!(objects.first_wrong(0, start as u64, &turned), Some(at as u64), "{start}..{end}");
            }
        }
        assert_eq!(objects.first_wrong(0, 8, &data[..8]), Some(8));
    }
}
