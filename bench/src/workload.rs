//! Data and orders, all from a seed: the same seed gives the same bytes and the same orders on every machine.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, and enough for data that must only be incompressible and distinct.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`; `part` tells streams of one seed apart.
    pub fn new(seed: u64, part: u64) -> Self {
        let mut random = Self(seed ^ part.wrapping_mul(0xD1B5_4A32_D192_ED03));
        random.next();
        random
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
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
}
