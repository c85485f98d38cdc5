//! How far pictures are apart, in levels of 256.

use serde::{Deserialize, Serialize};

/// The differences of all samples looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    /// The largest.
    pub max: u8,
    sum: u64,
    samples: u64,
}

impl Levels {
    /// Of two pictures of equal length; what one has more counts as wholly different.
    pub fn between(one: &[u8], other: &[u8]) -> Self {
        let samples = one.len().max(other.len()) as u64;
        if one == other {
            return Self { samples, ..Self::default() };
        }
        let missing = one.len().abs_diff(other.len()) as u64;
        let start = Self { max: if missing > 0 { 255 } else { 0 }, sum: 255 * missing, samples };
        one.iter().zip(other).map(|(a, b)| a.abs_diff(*b)).fold(start, |levels, difference| Self {
            max: levels.max.max(difference),
            sum: levels.sum + u64::from(difference),
            ..levels
        })
    }

    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self { max: self.max.max(other.max), sum: self.sum + other.sum, samples: self.samples + other.samples }
    }

    /// The mean.
    pub fn mean(self) -> f64 {
        self.sum as f64 / self.samples.max(1) as f64
    }

    /// Whether nothing differs.
    pub fn is_none(self) -> bool {
        self.max == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: maximum and mean are of all samples, and a missing one is no equal one.
    #[test]
    fn differences_are_counted() {
        let levels = Levels::between(&[1, 2, 3, 4], &[1, 5, 2, 4]);
        assert_eq!((levels.max, levels.mean()), (3, 1.0));
        assert!(Levels::between(&[7; 9], &[7; 9]).is_none());
        let both = levels.and(Levels::between(&[0], &[8]));
        assert_eq!((both.max, both.mean()), (8, 12.0 / 5.0));
        assert!(!Levels::between(&[7; 9], &[7; 8]).is_none());
    }
}
