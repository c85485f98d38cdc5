//! The origin of a world: the model's truth, late, sometimes not at all.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use framecache::{ByteRange, ObjectId, Version};
use framecache_node::origin::{Fetched, Listed, Listing, ObjectFacts, Origin, OriginError};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::fleet::Switch;
use super::{BUCKET, Climate};
use crate::dice::Dice;
use crate::model::Model;

/// See the module.
pub struct ScriptedOrigin {
    model: Arc<Model>,
    climate: Climate,
    dice: Mutex<Dice>,
    versions: AtomicU32,
    takes: Mutex<Option<(Duration, Duration)>>,
    requests: AtomicU64,
    pins_forgotten: Switch,
    /// Whole answers by key, first byte and version.
    answered: Mutex<HashMap<(String, u64, Version), u64>>,
}

impl ScriptedOrigin {
    pub(super) fn new(model: Arc<Model>, climate: Climate, dice: Dice) -> Self {
        Self {
            model,
            climate,
            dice: Mutex::new(dice),
            versions: AtomicU32::new(0),
            takes: Mutex::default(),
            requests: AtomicU64::new(0),
            pins_forgotten: Switch::default(),
            answered: Mutex::default(),
        }
    }

    /// Requests from now on take exactly so long there and back; in between they see what there is.
    pub fn takes(&self, there_ms: u64, back_ms: u64) {
        *self.takes.lock() = Some((Duration::from_millis(there_ms), Duration::from_millis(back_ms)));
    }

    /// From now on it is asked as if nobody had a version in mind.
    pub fn forget_pins(&self) {
        self.pins_forgotten.turn();
    }

    /// Calls so far, of whatever kind and end.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Reads that were answered with bytes, by key, first byte and version.
    pub fn answered(&self) -> HashMap<(String, u64, Version), u64> {
        self.answered.lock().clone()
    }

    /// From now on `key` is `bytes`, under a version of its own.
    pub fn put(&self, key: &str, bytes: Bytes) -> Version {
        let version = Version::new(&format!("\"{key}-{}\"", self.versions.fetch_add(1, Ordering::Relaxed))).expect("version");
        self.model.set(key, Some((version.clone(), bytes)));
        version
    }

    /// From now on there is no `key`.
    pub fn delete(&self, key: &str) {
        self.model.set(key, None);
    }

    /// The way there; what fails, fails on it.
    async fn way(&self, deadline: Instant) -> Result<Duration, OriginError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (there, back, hangs, fails, how) = {
            let mut dice = self.dice.lock();
            let half = self.climate.origin_ms_max / 2 + 1;
            let way = |dice: &mut Dice| Duration::from_millis(dice.within(0..half));
            let (there, back) = self.takes.lock().unwrap_or_else(|| (way(&mut dice), way(&mut dice)));
            let hangs = self.climate.strikes(self.climate.origin_hangs, &mut dice);
            let fails = self.climate.strikes(self.climate.origin_fails, &mut dice);
            (there, back, hangs, fails, dice.chance(50))
        };
        if hangs {
            sleep_until(deadline).await;
            return Err(OriginError::Deadline);
        }
        let arrived = timeout_at(deadline, sleep(there)).await;
        match (arrived, fails, how) {
            (Err(_), ..) => Err(OriginError::Deadline),
            (_, true, true) => Err(OriginError::Unavailable("scripted".into())),
            (_, true, false) => Err(OriginError::Busy { retry_after: Duration::from_millis(50) }),
            _ => Ok(back),
        }
    }

    /// The way back.
    async fn back(&self, way: Duration, deadline: Instant) -> Result<(), OriginError> {
        timeout_at(deadline, sleep(way)).await.map_err(|_| OriginError::Deadline)
    }
}

#[async_trait]
impl Origin for ScriptedOrigin {
    async fn read(
        &self,
        id: &ObjectId,
        range: ByteRange,
        pin: Option<&Version>,
        deadline: Instant,
    ) -> Result<Fetched, OriginError> {
        assert!(deadline > Instant::now(), "the origin was asked after the deadline");
        let way = self.way(deadline).await?;
        let there = self.model.current(id.key());
        self.back(way, deadline).await?;
        let (version, bytes) = there.ok_or(OriginError::NotFound)?;
        if let Some(old) = pin.filter(|pin| **pin != version && !self.pins_forgotten.is_on()) {
            return Err(OriginError::Changed { old: old.clone(), new: Some(version) });
        }
        *self.answered.lock().entry((id.key().to_owned(), range.start(), version.clone())).or_default() += 1;
        let size = bytes.len() as u64;
        let range = range.clamp(size);
        let body = bytes.slice(range.start() as usize..range.end() as usize);
        Ok(Fetched { version, size, range, body })
    }

    async fn head(&self, id: &ObjectId, deadline: Instant) -> Result<ObjectFacts, OriginError> {
        let way = self.way(deadline).await?;
        let there = self.model.current(id.key());
        self.back(way, deadline).await?;
        let (version, bytes) = there.ok_or(OriginError::NotFound)?;
        Ok(ObjectFacts { version, size: bytes.len() as u64 })
    }

    async fn list(&self, _: &str, _: &str, _: Option<&str>, _: usize, _: Instant) -> Result<Listing, OriginError> {
        Ok(Listing { objects: Vec::<Listed>::new(), next: None })
    }

    fn knows(&self, bucket: &str) -> bool {
        bucket == BUCKET
    }
}
