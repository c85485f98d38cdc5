//! Chance that can be repeated: one seed, one story.

use std::ops::Range;

/// splitmix64. The same seed throws the same numbers for ever.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice of that seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `range`; its start if it is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.bits() % range.end.saturating_sub(range.start).max(1)
    }

    /// True `percent` times in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.bits() % 100 < percent
    }

    /// One of `choices`.
    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.within(0..choices.len() as u64) as usize]
    }

    /// Other dice, whose numbers do not depend on how often these are thrown later.
    pub fn fork(&mut self) -> Self {
        Self(self.bits())
    }
}
