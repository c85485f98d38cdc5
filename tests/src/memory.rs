//! A whole node in memory, under a paused clock: the real `read` and the real budget between an origin, a store and a decoder that
//! do what a script and the dice say.
//!
//! No socket, no thread, no second passes; a seed tells one story, again and again.

mod decoder;
pub mod fleet;
mod origin;
mod store;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use framecache::{ByteRange, DecodeSpec, Lent, ObjectId, Tensor, Version};
use framecache_node::budget::{Budget, BudgetLines};
use framecache_node::cache::{Freshness, Head};
use framecache_node::cluster::{Alone, Peers};
use framecache_node::decode::Limits;
use framecache_node::read::{Opened, ReadError, Reader, ReaderParts, Terms};
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use crate::dice::Dice;
use crate::model::Model;
pub use decoder::{ScriptedDecoder, pixels};
pub use origin::ScriptedOrigin;
pub use store::FickleStore;

/// The bucket that every world has.
pub const BUCKET: &str = "photos";

/// How a world behaves. Chances are in percent of calls.
#[derive(Clone, Debug)]
pub struct Climate {
    /// The bucket's policy.
    pub freshness: Freshness,
    /// Memory: the floors of `Read`, `Decode` and `Frames`, and what they share.
    pub memory: [u64; 4],
    /// Longest that the origin takes, in milliseconds.
    pub origin_ms_max: u64,
    /// Origin calls that fail.
    pub origin_fails: u64,
    /// Origin calls that hang until their deadline.
    pub origin_hangs: u64,
    /// Look-ups that find their entry evicted.
    pub evicts: u64,
    /// Look-ups that wait for a disk.
    pub store_slow: u64,
    /// Entries that no tier takes.
    pub passes: u64,
    /// Jobs that find the decoders busy, or lose their worker.
    pub decoder_fails: u64,
    /// Whether all that is over.
    pub over: Arc<AtomicBool>,
}

impl Climate {
    /// Nothing fails, nothing is forgotten, memory is ample; the origin takes up to 50 ms.
    pub fn calm(freshness: Freshness) -> Self {
        Self {
            freshness,
            memory: [256 << 20; 4],
            origin_ms_max: 50,
            origin_fails: 0,
            origin_hangs: 0,
            evicts: 0,
            store_slow: 0,
            passes: 0,
            decoder_fails: 0,
            over: Arc::default(),
        }
    }

    /// Whether what happens in `percent` of cases happens now.
    fn strikes(&self, percent: u64, dice: &mut Dice) -> bool {
        percent > 0 && dice.chance(percent) && !self.over.load(Ordering::Relaxed)
    }
}

/// A node in memory.
pub struct World {
    /// The room under test.
    pub reader: Arc<Reader>,
    /// What the truth is.
    pub model: Arc<Model>,
    /// Where the reader looks for it.
    pub origin: Arc<ScriptedOrigin>,
    /// What is held.
    pub store: Arc<FickleStore>,
    /// What makes pixels.
    pub decoder: Arc<ScriptedDecoder>,
    /// Memory.
    pub budget: Arc<Budget>,
    /// The node's tasks.
    pub tasks: TaskTracker,
    climate: Climate,
}

/// Raw bytes as a reply would carry them.
#[derive(Debug)]
pub struct Replied {
    /// What the first item named.
    pub head: Head,
    /// All items' bytes, or as many as came before the error.
    pub bytes: Vec<u8>,
    /// Why it ended early.
    pub error: Option<ReadError>,
}

impl World {
    /// A world of that climate; the same seed gives the same weather.
    pub fn new(climate: Climate, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let model = Arc::new(Model::default());
        let origin = Arc::new(ScriptedOrigin::new(model.clone(), climate.clone(), dice.fork()));
        Self::before(model, origin, Arc::new(Alone), climate, dice)
    }

    /// Another node before the same origin.
    pub fn beside(&self, seed: u64) -> Self {
        Self::before(self.model.clone(), self.origin.clone(), Arc::new(Alone), self.climate.clone(), Dice::new(seed))
    }

    /// Another node before the same origin, with others around it.
    pub fn among(&self, peers: Arc<dyn Peers>, dice: Dice) -> Self {
        Self::before(self.model.clone(), self.origin.clone(), peers, self.climate.clone(), dice)
    }

    fn before(model: Arc<Model>, origin: Arc<ScriptedOrigin>, peers: Arc<dyn Peers>, climate: Climate, mut dice: Dice) -> Self {
        let store = Arc::new(FickleStore::new(climate.clone(), dice.fork()));
        let decoder = Arc::new(ScriptedDecoder::new(climate.clone(), dice.fork()));
        let [read, decode, frames, shared] = climate.memory;
        // Each at least one item: a page, or the largest rendition.
        let floors = [1 << 20, 2 << 20, 1 << 20, 1 << 20, read, decode, 4 << 20, 4 << 20, 4 << 20, frames];
        let total = floors.iter().sum::<u64>() + shared;
        let budget = Budget::new(BudgetLines { total, fixed: Vec::new(), floors }).expect("budget");
        let tasks = TaskTracker::new();
        let reader = Reader::new(ReaderParts {
            origin: origin.clone(),
            store: store.clone(),
            decoder: decoder.clone(),
            peers,
            decodes: true,
            budget: budget.clone(),
            freshness: HashMap::from([(BUCKET.to_owned(), climate.freshness)]),
            limits: Limits::default(),
            tasks: tasks.clone(),
        });
        Self { reader, model, origin, store, decoder, budget, tasks, climate }
    }

    /// From now on the origin has these bytes under `key`; the version that they got.
    pub fn put(&self, key: &str, bytes: impl Into<Bytes>) -> Version {
        self.origin.put(key, bytes.into())
    }

    /// From now on nothing fails, hangs or is forgotten.
    pub fn calm_down(&self) {
        self.climate.over.store(true, Ordering::Relaxed);
    }

    /// A raw read, as `serve` makes it of the reader: a head, then page by page while the next ones are brought in. Each page is
    /// held for `drain`, as long as a client takes to receive it.
    pub async fn read(
        &self,
        key: &str,
        range: ByteRange,
        pin: Option<&Version>,
        deadline: Instant,
        drain: Duration,
    ) -> Result<Replied, ReadError> {
        self.read_by(key, range, pin, &Terms::until(deadline), drain).await
    }

    /// The same, on the caller's terms.
    pub async fn read_by(
        &self,
        key: &str,
        range: ByteRange,
        pin: Option<&Version>,
        terms: &Terms,
        drain: Duration,
    ) -> Result<Replied, ReadError> {
        let deadline = terms.deadline;
        let id = id(key);
        let Opened { head, range, mut first } = in_time(deadline, self.reader.open(&id, pin, range, terms)).await?;
        let mut replied = Replied { head, bytes: Vec::new(), error: None };
        for page in range.pages() {
            let served = match first.take() {
                Some(served) => Ok(served),
                None => in_time(deadline, self.reader.page(&id, page, range, &replied.head, terms)).await,
            };
            match served {
                Ok(served) => {
                    if !drain.is_zero() {
                        sleep(drain).await;
                    }
                    replied.bytes.extend_from_slice(&served.bytes);
                }
                Err(error) => {
                    replied.error = Some(error);
                    break;
                }
            }
        }
        Ok(replied)
    }

    /// A range on one page for another node, as `serve` answers it.
    async fn read_for_peer(
        &self,
        id: &ObjectId,
        range: ByteRange,
        pin: Option<&Version>,
        terms: &Terms,
    ) -> Result<Lent, ReadError> {
        let Opened { head, first, .. } = self.reader.open(id, pin, range, terms).await?;
        let bytes = first.map_or_else(Bytes::new, |served| served.bytes);
        let age = self.reader.age(&head);
        Ok(Lent { version: head.version, size: head.size, age, tensor: None, bytes })
    }

    /// A picture, held for `drain`.
    pub async fn frame(
        &self,
        key: &str,
        spec: &DecodeSpec,
        pin: Option<&Version>,
        deadline: Instant,
        drain: Duration,
    ) -> Result<(Head, Tensor), ReadError> {
        self.frame_by(key, spec, pin, &Terms::until(deadline), drain).await
    }

    /// The same, on the caller's terms.
    pub async fn frame_by(
        &self,
        key: &str,
        spec: &DecodeSpec,
        pin: Option<&Version>,
        terms: &Terms,
        drain: Duration,
    ) -> Result<(Head, Tensor), ReadError> {
        let id = id(key);
        let served = in_time(terms.deadline, self.reader.frame(&id, spec, pin, terms)).await?;
        if !drain.is_zero() {
            sleep(drain).await;
        }
        Ok((served.head.clone(), served.tensor.clone()))
    }

    /// Waits for the node's tasks; panics if they outlive every flight, or if memory is missing afterwards.
    pub async fn end(&self) {
        self.tasks.close();
        let ended = tokio::time::timeout(Duration::from_secs(90), self.tasks.wait()).await;
        assert!(ended.is_ok(), "{} tasks do not end", self.tasks.len());
        for level in self.budget.usage() {
            assert_eq!((level.in_use, level.waiting), (0, 0), "memory is missing: {:?}", self.budget.usage());
        }
    }
}

/// The answer of a call; panics if it comes after its deadline, or says that the deadline passed before it has.
async fn in_time<T>(deadline: Instant, call: impl Future<Output = Result<T, ReadError>>) -> Result<T, ReadError> {
    let latest = deadline.max(Instant::now()) + TICK;
    let answer = call.await;
    let now = Instant::now();
    assert!(now <= latest, "answered {:?} after the deadline", now - deadline);
    let early = matches!(answer, Err(ReadError::Deadline)) && now < deadline;
    assert!(!early, "`deadline passed` was answered {:?} before it", deadline - now);
    answer
}

/// The paused clock moves in steps of a millisecond.
const TICK: Duration = Duration::from_millis(2);

/// An object of the world's bucket.
pub fn id(key: &str) -> ObjectId {
    ObjectId::new(BUCKET, key).expect("id")
}
