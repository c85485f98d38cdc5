//! A [`Store`] without disk, threads or time: for nodes that run in memory under a paused clock, and as the plain reference that
//! the conformance suite holds the real one against.

use std::collections::{HashMap, VecDeque};

use async_trait::async_trait;
use framecache::Version;
use parking_lot::Mutex;

use super::{CacheStats, DiskPresence, Entry, EntryKey, InsertHint, Place, Placed, Presence, Store};

/// Entries in a map, the oldest out first beyond a bound.
pub struct MemoryStore {
    bytes_max: u64,
    held: Mutex<Map>,
}

#[derive(Default)]
struct Map {
    entries: HashMap<EntryKey, Entry>,
    order: VecDeque<EntryKey>,
    bytes: u64,
    stats: CacheStats,
}

impl MemoryStore {
    /// A store of at most `bytes_max` bytes of values.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, held: Mutex::default() }
    }
}

impl Map {
    fn take(&mut self, key: &EntryKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.body.bytes().len() as u64;
            self.order.retain(|held| held != key);
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &EntryKey, version: Option<&Version>) -> Option<Entry> {
        let found = self.get_ram(key, version);
        if found.is_none() {
            let mut map = self.held.lock();
            map.stats.misses += 1;
            map.stats.misses_version += u64::from(map.entries.contains_key(key));
        }
        found
    }

    fn get_ram(&self, key: &EntryKey, version: Option<&Version>) -> Option<Entry> {
        let mut map = self.held.lock();
        let found = map.entries.get(key).filter(|entry| version.is_none_or(|wanted| *wanted == entry.head.version)).cloned();
        map.stats.hits_ram += u64::from(found.is_some());
        found
    }

    fn place(&self, _: &EntryKey, bytes: u64) -> Place {
        if bytes > self.bytes_max { Place::Pass } else { Place::RamOnly }
    }

    fn insert(&self, key: EntryKey, entry: Entry, hint: InsertHint) -> Placed {
        let bytes = entry.body.bytes().len() as u64;
        let mut map = self.held.lock();
        map.stats.inserts += 1;
        map.take(&key);
        if bytes > self.bytes_max || hint == InsertHint::As(Place::Pass) {
            return Placed { ram: false, disk: false };
        }
        map.bytes += bytes;
        map.order.push_back(key.clone());
        map.entries.insert(key, entry);
        while map.bytes > self.bytes_max {
            let Some(oldest) = map.order.front().cloned() else { break };
            map.take(&oldest);
        }
        Placed { ram: true, disk: false }
    }

    async fn room(&self) {}

    async fn presence(&self, key: &EntryKey) -> Presence {
        Presence { ram: self.held.lock().entries.contains_key(key), disk: DiskPresence::No }
    }

    async fn remove(&self, key: &EntryKey) {
        self.held.lock().take(key);
    }

    fn stats(&self) -> CacheStats {
        let map = self.held.lock();
        CacheStats { ram_raw_bytes: map.bytes, ..map.stats.clone() }
    }

    async fn flush(&self) {}

    async fn close(&self) {}
}
