//! The RAM tiers: one per class, by bytes, so that pixels cannot push out raw pages nor the reverse.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use foyer::{Cache, CacheBuilder, Event, EventListener, S3FifoConfig};

use super::{Class, Entry, EntryKey};

/// A value in RAM with its full key: names are 128-bit hashes that a stranger could collide.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) key: EntryKey,
    pub(super) entry: Entry,
}

impl Held {
    /// Bytes in memory: the value, the texts of key and version, and what foyer and the allocator add.
    pub(super) fn weight(&self) -> usize {
        let id = self.key.id();
        let texts = id.bucket().len() + id.key().len() + id.member().map_or(0, str::len);
        self.entry.body.bytes().len() + texts + self.entry.head.version.as_str().len() + RECORD_BYTES
    }
}

/// Told when an entry has left RAM: name, class.
pub(super) type OnLeave = Arc<dyn Fn(u128, Class) + Send + Sync>;

/// Both tiers.
pub(super) struct Ram {
    tiers: [Tier; 2],
}

struct Tier {
    cache: Cache<u128, Arc<Held>, Names>,
    budget: u64,
    /// The largest value: a shard's share.
    value_max: usize,
}

impl Ram {
    pub(super) fn new(raw: u64, decoded: u64, on_leave: Option<OnLeave>) -> Self {
        Self { tiers: [Tier::new(raw, Class::Raw, on_leave.clone()), Tier::new(decoded, Class::Decoded, on_leave)] }
    }

    /// The entry of that name and key.
    pub(super) fn get(&self, name: u128, key: &EntryKey) -> Option<Arc<Held>> {
        let record = self.tier(key.class()).cache.get(&name)?;
        let held = record.value();
        (held.key == *key).then(|| held.clone())
    }

    /// Takes `held` in, unless its class has no room for one as large.
    pub(super) fn insert(&self, name: u128, held: Arc<Held>) -> bool {
        let tier = self.tier(held.key.class());
        if held.weight() > tier.value_max {
            // An older version must not outlive this insert.
            tier.cache.remove(&name);
            return false;
        }
        tier.cache.insert(name, held);
        true
    }

    pub(super) fn remove(&self, name: u128, class: Class) {
        self.tier(class).cache.remove(&name);
    }

    pub(super) fn contains(&self, name: u128, class: Class) -> bool {
        self.tier(class).cache.contains(&name)
    }

    /// Whether a value of that size could be held at all.
    pub(super) fn fits(&self, class: Class, bytes: u64) -> bool {
        bytes + (RECORD_BYTES as u64) < self.tier(class).value_max as u64
    }

    /// Whether it could be held without an eviction. Shards fill unevenly: the last 1/16 is not called free.
    pub(super) fn has_room(&self, class: Class, bytes: u64) -> bool {
        let tier = self.tier(class);
        tier.cache.usage() as u64 + bytes <= tier.budget - tier.budget / 16
    }

    pub(super) fn usage(&self, class: Class) -> u64 {
        self.tier(class).cache.usage() as u64
    }

    fn tier(&self, class: Class) -> &Tier {
        &self.tiers[class as usize]
    }
}

impl Tier {
    fn new(budget: u64, class: Class, on_leave: Option<OnLeave>) -> Self {
        // A shard must hold several large values, or a few of them evict everything.
        let shards = (budget / (64 << 20)).clamp(1, 32) as usize;
        let mut builder = CacheBuilder::new(budget as usize)
            .with_shards(shards)
            .with_eviction_config(S3FifoConfig::default())
            .with_hash_builder(Names)
            .with_weighter(|_: &u128, held: &Arc<Held>| held.weight());
        if let Some(tell) = on_leave {
            builder = builder.with_event_listener(Arc::new(Leaving { class, tell }));
        }
        Self { cache: builder.build(), budget, value_max: budget as usize / shards / 2 }
    }
}

struct Leaving {
    class: Class,
    tell: OnLeave,
}

impl EventListener for Leaving {
    type Key = u128;
    type Value = Arc<Held>;

    fn on_leave(&self, _: Event, name: &u128, _: &Arc<Held>) {
        (self.tell)(*name, self.class);
    }
}

/// Names are hashes already: foyer's 64-bit hash is their lower half.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Names;

#[derive(Debug, Default)]
pub(super) struct LowerHalf(u64);

impl BuildHasher for Names {
    type Hasher = LowerHalf;

    fn build_hasher(&self) -> LowerHalf {
        LowerHalf(0)
    }
}

impl Hasher for LowerHalf {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only names are hashed; this keeps the trait whole.
        self.0 = xxhash_rust::xxh3::xxh3_64_with_seed(bytes, self.0);
    }

    fn write_u128(&mut self, name: u128) {
        self.0 = name as u64;
    }
}

/// What a record takes beside its value and texts: foyer's record, hash table slots, two reference counts, key and entry structs.
const RECORD_BYTES: usize = 400;
