//! What the cache is told at start, and what memory it will take for it.

use std::path::PathBuf;

use super::{admission, disk, heads};

/// Whether to keep or to replace once full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AdmissionMode {
    /// Keep what is held; admit rarely once full. For data that is read again and again in any order.
    #[default]
    Keep,
    /// Admit everything; the oldest goes.
    All,
}

/// The cache's settings, in bytes.
#[derive(Clone, Debug)]
pub struct CacheSettings {
    /// Where the disk tier lives; no disk tier without it. The folder is the cache's own.
    pub dir: Option<PathBuf>,
    /// RAM for raw pages.
    pub raw_ram: u64,
    /// RAM for decoded frames.
    pub decoded_ram: u64,
    /// Disk for both; 0 for none.
    pub disk: u64,
    /// Keep or replace.
    pub admission: AdmissionMode,
    /// Seed of admission's dice, so that a run can be repeated.
    pub seed: u64,
}

/// Mean bytes of a disk entry for the estimate of index memory: under the smallest common one, a 224-pixel picture of 150 KB.
const ENTRY_BYTES_MEAN: u64 = 128 << 10;

/// Index bytes per disk entry: up to 300 in foyer (measured at a million entries), the rest is admission's account.
const INDEX_BYTES: u64 = 340;

impl CacheSettings {
    /// Whether a disk tier is wanted.
    pub fn has_disk(&self) -> bool {
        self.dir.is_some() && self.disk > 0
    }

    /// Upper bounds of the memory the room takes, in bytes, for the node's budget: each under the key that changes it, or a word.
    pub fn memory_lines(&self) -> Vec<(&'static str, u64)> {
        let mut lines = vec![
            ("cache.raw_ram", self.raw_ram),
            ("cache.decoded_ram", self.decoded_ram),
            ("object heads", heads::HEADS_BYTES),
            ("admission account", admission::MEMORY_BYTES),
        ];
        if self.has_disk() {
            lines.extend([
                ("disk buffers", disk::BUFFERS_BYTES),
                ("disk queue", disk::QUEUE_BYTES_MAX),
                ("cache.disk", self.disk / ENTRY_BYTES_MEAN * INDEX_BYTES),
            ]);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::is_key;

    /// Promise: a line that looks like a key is one, for operators are told to change it.
    #[test]
    fn lines_are_keys_or_words() {
        let settings = CacheSettings {
            dir: Some("/cache".into()),
            raw_ram: 1 << 30,
            decoded_ram: 1 << 30,
            disk: 1 << 40,
            admission: AdmissionMode::Keep,
            seed: 1,
        };
        let lines = settings.memory_lines();
        assert!(lines.iter().all(|(name, _)| is_key(name) != name.contains(' ')), "{lines:?}");
    }
}
