//! The dumb model: what the origin has held and when, and which replies are therefore true.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use framecache::{ByteRange, Version};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Objects by key, with all their past.
#[derive(Debug, Default)]
pub struct Model {
    objects: Mutex<HashMap<String, Vec<Held>>>,
}

/// What was there from a moment on.
#[derive(Clone, Debug)]
pub struct Held {
    /// Since when.
    pub from: Instant,
    /// What: `None` is nothing.
    pub object: Option<(Version, Bytes)>,
}

/// How long a version that is no longer current may still be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// For ever.
    Ever,
    /// This long; zero: it was current at some time during the call.
    Age(Duration),
}

impl Model {
    /// From now on `key` is `object`.
    pub fn set(&self, key: &str, object: Option<(Version, Bytes)>) {
        self.objects.lock().entry(key.to_owned()).or_default().push(Held { from: Instant::now(), object });
    }

    /// What is there now.
    pub fn current(&self, key: &str) -> Option<(Version, Bytes)> {
        self.objects.lock().get(key)?.last()?.object.clone()
    }

    /// All that was there at some time from `since` until now; nothing at all counts too.
    pub fn since(&self, key: &str, since: Instant) -> Vec<Option<(Version, Bytes)>> {
        let objects = self.objects.lock();
        let past = objects.get(key).map_or(&[][..], Vec::as_slice);
        // A change in the very instant of the start may have come before or after it.
        let first = past.iter().rposition(|held| held.from < since);
        let nothing = first.is_none().then_some(None);
        nothing.into_iter().chain(past[first.unwrap_or(0)..].iter().map(|held| held.object.clone())).collect()
    }

    /// The bytes of a version, if it ever was.
    pub fn bytes(&self, key: &str, version: &Version) -> Option<Bytes> {
        let objects = self.objects.lock();
        let found = objects.get(key)?.iter().filter_map(|held| held.object.as_ref()).find(|(held, _)| held == version);
        found.map(|(_, bytes)| bytes.clone())
    }

    /// Whether `key` ever had that many bytes.
    pub fn ever_had(&self, key: &str, bytes: u64) -> bool {
        let objects = self.objects.lock();
        let past = objects.get(key).map_or(&[][..], Vec::as_slice);
        past.iter().filter_map(|held| held.object.as_ref()).any(|(_, held)| held.len() as u64 == bytes)
    }

    /// Whether `version` may be the answer to a question that was asked at `start`.
    pub fn may_answer(&self, key: &str, version: &Version, start: Instant, trust: Trust) -> bool {
        let is = |held: &Option<(Version, Bytes)>| held.as_ref().is_some_and(|(held, _)| held == version);
        match trust {
            Trust::Ever => self.bytes(key, version).is_some(),
            Trust::Age(age) => self.since(key, start.checked_sub(age).unwrap_or(start)).iter().any(is),
        }
    }

    /// Whether `version` was there all the time from `start` until now.
    pub fn held_throughout(&self, key: &str, version: &Version, start: Instant) -> bool {
        self.since(key, start).iter().all(|held| held.as_ref().is_some_and(|(held, _)| held == version))
    }

    /// Panics unless `reply` is exactly `range` of `version`, cut at its end: no other bytes, and none of another version.
    pub fn expect(&self, key: &str, version: &Version, range: ByteRange, reply: &[u8]) {
        let bytes = self.bytes(key, version).unwrap_or_else(|| panic!("{key}: version {version} never was"));
        let part = range.clamp(bytes.len() as u64);
        let want = &bytes[part.start() as usize..part.end() as usize];
        assert_eq!(reply.len(), want.len(), "{key}: length of {range:?} of {version}");
        if reply != want {
            let at = reply.iter().zip(want).position(|(a, b)| a != b).unwrap_or_default();
            panic!("{key}: byte {} is not that of {version}", range.start() + at as u64);
        }
    }
}

/// `length` bytes that tell their place and their generation, each eighth one the generation itself.
pub fn stamped(generation: u32, length: usize) -> Vec<u8> {
    let place = |at: usize| (at as u32).wrapping_mul(2_654_435_761).wrapping_add(generation.wrapping_mul(0x9e37_79b9)) >> 11;
    (0..length).map(|at| if at % 8 == 0 { generation as u8 } else { place(at) as u8 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the model calls true what was there during the call, and nothing else.
    #[tokio::test(start_paused = true)]
    async fn truth_has_its_time() {
        let model = Model::default();
        let version = |name: &str| Version::new(name).expect("version");
        let second = Duration::from_secs(1);
        let put = |name: &str| model.set("k", Some((version(name), Bytes::copy_from_slice(name.as_bytes()))));
        put("a");
        tokio::time::advance(second).await;
        let start = Instant::now();
        tokio::time::advance(second).await;
        put("b");
        assert!(model.may_answer("k", &version("a"), start, Trust::Age(Duration::ZERO)));
        assert!(model.may_answer("k", &version("b"), start, Trust::Age(Duration::ZERO)));
        assert!(!model.held_throughout("k", &version("b"), start));
        tokio::time::advance(second).await;
        let late = Instant::now();
        assert!(!model.may_answer("k", &version("a"), late, Trust::Age(second / 2)));
        assert!(model.may_answer("k", &version("a"), late, Trust::Age(2 * second)));
        assert!(model.may_answer("k", &version("a"), late, Trust::Ever));
        assert!(!model.may_answer("k", &version("c"), late, Trust::Ever));
        model.expect("k", &version("a"), ByteRange::at(0, 9).expect("range"), b"a");
    }

    /// Promise: bytes of another version are seen.
    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "byte 1 is not that of")]
    async fn mixtures_are_seen() {
        let (model, version) = (Model::default(), Version::new("a").expect("version"));
        model.set("k", Some((version.clone(), Bytes::from_static(b"aaa"))));
        model.expect("k", &version, ByteRange::at(0, 3).expect("range"), b"aba");
    }
}
