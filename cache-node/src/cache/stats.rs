//! What the cache counts: plain atomics, read as one snapshot. Telemetry exports them; nothing here knows how.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The live counters.
        #[derive(Debug, Default)]
        pub(super) struct Counters { $(pub(super) $name: AtomicU64,)* }

        /// The cache's counters at one moment, and its levels.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct CacheStats {
            $($(#[$doc])* pub $name: u64,)*
            /// Bytes in the RAM tier of raw pages.
            pub ram_raw_bytes: u64,
            /// Bytes in the RAM tier of decoded frames.
            pub ram_decoded_bytes: u64,
            /// Bytes that the disk tier may fill; 0 without one.
            pub disk_capacity_bytes: u64,
            /// Bytes of entries on disk that admission knows of: written or read since the start.
            pub disk_held_bytes: u64,
            /// Bytes that wait to be written.
            pub disk_queued_bytes: u64,
            /// Why the disk tier is off, if it should be on.
            pub disk_off: Option<String>,
        }

        impl Counters {
            pub(super) fn snapshot(&self) -> CacheStats {
                CacheStats { $($name: self.$name.load(Relaxed),)* ..CacheStats::default() }
            }
        }
    };
}

counters! {
    /// Look-ups answered from RAM (or from the write queue).
    hits_ram,
    /// Look-ups answered from disk.
    hits_disk,
    /// Look-ups that found nothing.
    misses,
    /// Look-ups that found another version only; also in `misses`.
    misses_version,
    /// Entries taken in.
    inserts,
    /// Entries that admission sent to disk.
    admitted,
    /// Entries that were written to disk.
    flushed,
    /// Bytes of them.
    flushed_bytes,
    /// Admitted entries that did not reach the disk: the write queue was full.
    dropped_queue,
    /// Admitted entries that did not reach the disk: too large for it.
    dropped_large,
    /// Admitted entries that did not reach the disk: the write failed, or the tier was switched off meanwhile.
    dropped_write,
    /// Admitted entries that were replaced or removed before they were written.
    superseded,
    /// Disk entries whose bytes, checksum or identity were wrong; each was a miss, and was removed.
    corrupt,
    /// Disk entries of another format; each was a miss.
    foreign_format,
    /// Disk reads that failed.
    read_errors,
    /// Entries evicted from disk.
    evicted_disk,
    /// Times the disk tier was switched off.
    disk_switched_off,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
