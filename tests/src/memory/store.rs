//! The store of a world: forgets when the dice say so, and has a slow disk.

use std::time::Duration;

use async_trait::async_trait;
use framecache::Version;
use framecache_node::cache::{Body, CacheStats, Entry, EntryKey, InsertHint, MemoryStore, Place, Placed, Presence, Store};
use futures::FutureExt;
use parking_lot::Mutex;
use tokio::time::sleep;

use super::Climate;
use super::fleet::Switch;
use crate::dice::Dice;

/// See the module.
pub struct FickleStore {
    held: MemoryStore,
    climate: Climate,
    dice: Mutex<Dice>,
    flips: Switch,
}

impl FickleStore {
    pub(super) fn new(climate: Climate, dice: Dice) -> Self {
        Self { held: MemoryStore::new(1 << 30), climate, dice: Mutex::new(dice), flips: Switch::default() }
    }

    /// From now on its disk gives a wrong bit now and then, and nobody looks.
    pub fn flip_bits(&self) {
        self.flips.turn();
    }

    /// Forgets `key` now.
    pub fn evict(&self, key: &EntryKey) {
        self.held.remove(key).now_or_never();
    }

    fn strikes(&self, percent: u64) -> bool {
        self.climate.strikes(percent, &mut self.dice.lock())
    }
}

#[async_trait]
impl Store for FickleStore {
    async fn get(&self, key: &EntryKey, version: Option<&Version>) -> Option<Entry> {
        if self.strikes(self.climate.store_slow) {
            // A disk under load; now and then one that has failed and does not know it yet.
            let wait = self.dice.lock().within(0..20);
            sleep(Duration::from_millis(if wait == 0 { 20_000 } else { wait })).await;
        }
        let entry = self.held.get(key, version).await?;
        Some(if self.flips.is_on() && self.dice.lock().chance(10) { flipped(entry) } else { entry })
    }

    fn get_ram(&self, key: &EntryKey, version: Option<&Version>) -> Option<Entry> {
        if self.strikes(self.climate.evicts) {
            self.evict(key);
        }
        self.held.get_ram(key, version)
    }

    fn place(&self, key: &EntryKey, bytes: u64) -> Place {
        if self.strikes(self.climate.passes) { Place::Pass } else { self.held.place(key, bytes) }
    }

    fn insert(&self, key: EntryKey, entry: Entry, hint: InsertHint) -> Placed {
        if self.strikes(self.climate.evicts) {
            self.evict(&key);
            return Placed { ram: false, disk: false };
        }
        self.held.insert(key, entry, hint)
    }

    async fn room(&self) {}

    async fn presence(&self, key: &EntryKey) -> Presence {
        self.held.presence(key).await
    }

    async fn remove(&self, key: &EntryKey) {
        self.held.remove(key).await;
    }

    fn stats(&self) -> CacheStats {
        self.held.stats()
    }

    async fn flush(&self) {}

    async fn close(&self) {}
}

fn flipped(entry: Entry) -> Entry {
    let Entry { head, body } = entry;
    let body = match body {
        Body::Raw(bytes) if !bytes.is_empty() => {
            let mut bytes = bytes.to_vec();
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            Body::Raw(bytes.into())
        }
        body => body,
    };
    Entry { head, body }
}
