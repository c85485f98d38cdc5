//! What a start will not find: entries whose block index was damaged while the cache was closed.
//!
//! foyer ends its recovery of a block at an index page that does not check out, in silence, because that is also how a block
//! ends. Here the two are told apart: a page that still looks like an index, and is not older than what comes before it, was
//! damaged. The layout (0.22): an index page of 4 KiB, then the entries it lists; the next index follows them.
//!
//! ```text
//! xxh64 of the rest 8 | entries 4 | then per entry: hash 8 | sequence 8 | offset 4 | length 4      big endian
//! ```

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use xxhash_rust::xxh64::xxh64;

/// Entries that are lost to damaged or cut indices in the blocks of `dir`; a block that was cut counts for one at least.
pub(super) fn lost_entries(dir: &Path, prefix: &str, block_bytes: u64) -> u64 {
    let Ok(files) = fs::read_dir(dir) else { return 0 };
    let ours = |name: &std::ffi::OsString| name.to_str().is_some_and(|name| name.starts_with(prefix));
    let blocks: Vec<_> = files.flatten().filter(|file| ours(&file.file_name())).map(|file| file.path()).collect();
    let (next, lost) = (AtomicUsize::new(0), AtomicU64::new(0));
    // One page per 170 entries is read: threads hide the latency of a large disk's thousands of blocks.
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(blocks.len()) {
            scope.spawn(|| {
                while let Some(path) = blocks.get(next.fetch_add(1, Relaxed)) {
                    if let Ok(file) = File::open(path) {
                        lost.fetch_add(lost_in(&file, block_bytes), Relaxed);
                    }
                }
            });
        }
    });
    lost.into_inner()
}

fn lost_in(file: &File, block_bytes: u64) -> u64 {
    let cut = file.metadata().is_ok_and(|held| held.len() < block_bytes);
    let (mut at, mut sequence, mut damaged, mut lost) = (0, 0, false, 0);
    let mut page = [0u8; PAGE];
    while at + (PAGE as u64) < block_bytes && file.read_exact_at(&mut page, at).is_ok() {
        let index = Index { page: &page, room: block_bytes - at };
        let sound = index.is_sound();
        let entries = if sound { index.count() } else { index.guess() };
        // Zeros, bytes of a value, an older index: the end of the block.
        let Some(last) = entries.checked_sub(1) else { break };
        let newest = (0..entries).map(|n| index.sequence(n)).max().unwrap_or(0);
        if newest < sequence {
            break;
        }
        damaged |= !sound;
        if damaged {
            lost += entries as u64;
        }
        if sound {
            sequence = newest;
        }
        let Some(step) = index.end(last) else { break };
        at += step;
    }
    lost.max(u64::from(cut))
}

/// A page that should be an index.
struct Index<'a> {
    page: &'a [u8; PAGE],
    room: u64,
}

impl Index<'_> {
    fn is_sound(&self) -> bool {
        self.count() <= ENTRIES_MAX && xxh64(&self.page[8..], 0) == self.u64_at(0)
    }

    fn count(&self) -> usize {
        self.u32_at(8) as usize
    }

    /// How many entries a page lists that does not check out: its count if about as many fit, else the run that does; 0 if it
    /// is no index. A wrong field breaks at most two entries.
    fn guess(&self) -> usize {
        let count = self.count();
        if (1..=ENTRIES_MAX).contains(&count) {
            let good = (0..count).filter(|&n| self.follows(n)).count();
            if good + 2 >= count && (good > 0 || self.offset(0) == PAGE as u64) {
                return count;
            }
        }
        (0..ENTRIES_MAX).take_while(|&n| self.follows(n)).count()
    }

    /// Whether entry `n` lies right behind its predecessor.
    fn follows(&self, n: usize) -> bool {
        let before = if n == 0 { Some(PAGE as u64) } else { self.end(n - 1) };
        before == Some(self.offset(n)) && self.end(n).is_some()
    }

    /// Where entry `n` ends, if it lies in the block.
    fn end(&self, n: usize) -> Option<u64> {
        let len = u64::from(self.u32_at(12 + 24 * n + 20));
        let end = self.offset(n) + len.next_multiple_of(PAGE as u64);
        (len > 0 && end <= self.room).then_some(end)
    }

    fn offset(&self, n: usize) -> u64 {
        u64::from(self.u32_at(12 + 24 * n + 16))
    }

    fn sequence(&self, n: usize) -> u64 {
        self.u64_at(12 + 24 * n + 8)
    }

    fn u32_at(&self, at: usize) -> u32 {
        self.page[at..at + 4].iter().fold(0, |n, &byte| n << 8 | u32::from(byte))
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from(self.u32_at(at)) << 32 | u64::from(self.u32_at(at + 4))
    }
}

const PAGE: usize = 4096;

/// Entries that one index page lists at most.
const ENTRIES_MAX: usize = (PAGE - 12) / 24;

const THREADS: usize = 8;
