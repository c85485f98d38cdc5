//! Heads: which version of an object is current, how large it is, and since when we know.
//!
//! They live in RAM, bounded, and inside every entry's header; there are no entries of their own on disk. Whether a head may
//! be used without asking the origin is the bucket's policy, [`Freshness`].

use std::time::Duration;

use foyer::{Cache, CacheBuilder, LruConfig};
use framecache::{ObjectId, Version};

/// Bytes that heads may take in RAM: some 50,000 objects with keys of usual length.
pub const HEADS_BYTES: u64 = 16 << 20;

/// What is known of an object without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The origin's etag.
    pub version: Version,
    /// Bytes of the whole object.
    pub size: u64,
    /// When the origin last said so, in milliseconds of the Unix epoch.
    pub fetched_unix_ms: u64,
}

/// A bucket's policy: how long a head holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Objects never change; any head holds for ever, across restarts too.
    Immutable,
    /// A head holds this long after the origin gave it.
    MaxAge(Duration),
    /// The origin is asked on every read.
    Always,
}

/// What a policy says of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Use it.
    Fresh,
    /// Ask the origin whether it still holds.
    Stale,
    /// There is none.
    Unknown,
}

impl Freshness {
    /// Judges `head` at `now_unix_ms`. A head from the future (a clock was set back) is stale: its age cannot be known.
    pub fn judge(self, head: Option<&Head>, now_unix_ms: u64) -> Judgement {
        let Some(head) = head else { return Judgement::Unknown };
        let fresh = match self {
            Freshness::Immutable => true,
            Freshness::Always => false,
            Freshness::MaxAge(age) => {
                let held_ms = now_unix_ms.checked_sub(head.fetched_unix_ms);
                held_ms.is_some_and(|held| u128::from(held) < age.as_millis())
            }
        };
        if fresh { Judgement::Fresh } else { Judgement::Stale }
    }
}

/// The heads in RAM: the most recently used ones, within [`HEADS_BYTES`].
pub struct Heads {
    held: Cache<ObjectId, Head>,
}

impl Default for Heads {
    fn default() -> Self {
        Self::within(HEADS_BYTES)
    }
}

impl Heads {
    /// Heads within `bytes`.
    pub fn within(bytes: u64) -> Self {
        let held = CacheBuilder::new(bytes as usize)
            .with_shards(8)
            .with_eviction_config(LruConfig::default())
            .with_weighter(|id: &ObjectId, head: &Head| {
                // The strings, and what foyer and the allocator add to a record.
                id.bucket().len() + id.key().len() + id.member().map_or(0, str::len) + head.version.as_str().len() + 200
            })
            .build();
        Self { held }
    }

    /// What is known of `object` (not of a member: those have their archive's head).
    pub fn get(&self, object: &ObjectId) -> Option<Head> {
        self.held.get(object).map(|head| head.value().clone())
    }

    /// Notes `head`, unless a later word of the origin is held.
    pub fn insert(&self, object: &ObjectId, head: Head) {
        let later = self.held.get(object).is_some_and(|held| held.value().fetched_unix_ms > head.fetched_unix_ms);
        if !later {
            self.held.insert(object.clone(), head);
        }
    }

    /// Forgets `object`.
    pub fn remove(&self, object: &ObjectId) {
        self.held.remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(etag: &str, fetched_unix_ms: u64) -> Head {
        Head { version: Version::new(etag).expect("version"), size: 9, fetched_unix_ms }
    }

    /// Promise: immutable heads hold for ever, aged ones to the millisecond, and "always" never.
    #[test]
    fn policy_judges_by_age() {
        let age = Freshness::MaxAge(Duration::from_millis(100));
        let held = head("a", 1000);
        for (policy, now, want) in [
            (Freshness::Immutable, 0, Judgement::Fresh),
            (Freshness::Immutable, u64::MAX, Judgement::Fresh),
            (Freshness::Always, 1000, Judgement::Stale),
            (age, 1000, Judgement::Fresh),
            (age, 1099, Judgement::Fresh),
            (age, 1100, Judgement::Stale),
            (age, 999, Judgement::Stale),
        ] {
            assert_eq!(policy.judge(Some(&held), now), want, "{policy:?} at {now}");
        }
        assert_eq!(Freshness::Immutable.judge(None, 0), Judgement::Unknown);
    }

    /// Promise: a late answer does not overwrite a later one; memory is bounded.
    #[test]
    fn heads_keep_the_latest_within_their_bytes() {
        let heads = Heads::within(1 << 20);
        let id: ObjectId = "s3://abc/k".parse().expect("id");
        heads.insert(&id, head("new", 20));
        heads.insert(&id, head("old", 10));
        assert_eq!(heads.get(&id).map(|h| h.fetched_unix_ms), Some(20));
        heads.remove(&id);
        assert_eq!(heads.get(&id), None);
        for i in 0..20_000 {
            heads.insert(&format!("s3://abc/{i}").parse().expect("id"), head("v", 1));
        }
        assert!(heads.held.usage() <= 1 << 20);
        assert!(heads.held.entries() > 3000);
    }
}
