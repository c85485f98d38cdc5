//! The only place where rooms meet: a request's way from cache to origin and decoder, and back into the cache.
//!
//! A [`Reader`] owns no bytes and no sockets. It knows its rooms as faces ([`Origin`], [`Store`], [`Decoder`], [`Peers`]), so that a
//! whole node runs in memory under a paused clock. Its parts:
//! - `raw`: heads and pages, pinned to one version;
//! - `fills`: how what is missing is brought;
//! - `frames`: decoded pictures, one flight a decode unit;
//! - `units`: what a unit's flight does;
//! - `video`: indexes of videos; `clips`: their frames, unit by unit;
//! - `others`: what other nodes hold, serve and decode;
//! - `flight`: one fill for all who wait for it;
//! - `lately`: what was brought in last, and from where;
//! - `error`: why a read failed.
//!
//! What is missing here comes by one of two ways ([`Way`]): from the node that serves the key, or, on that node itself, from those that
//! may hold it and else from the origin. Nodes ask each other only downwards, so that no request goes in a circle.
//!
//! What holds for every request: authorisation came before; memory is reserved before it is used, and nothing is held while
//! waiting for it; a fill runs on the node's task set under its own deadline, so that no caller's end harms another; bytes of two
//! versions never meet.

mod clips;
mod error;
mod fills;
mod flight;
mod frames;
mod lately;
mod others;
mod ranges;
mod raw;
mod units;
mod video;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use framecache::{ObjectId, Page, Tensor, Version};
use tokio::sync::Semaphore;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use crate::budget::{Budget, Level, Reservation};
use crate::cache::{Entry, EntryKey, Freshness, Head, Heads, Store, pages};
use crate::cluster::{Paces, Peers};
use crate::decode::{Decoder, Limits};
use crate::origin::Origin;
pub use error::ReadError;
use fills::{Fill, FillResult};
use flight::{Flights, Grounded};
pub use frames::Specs;
use frames::{Unit, UnitResult};
use lately::Lately;
pub use lately::{LastFill, Source};
pub use raw::Opened;
use video::{Survey, SurveyResult, Videos};

/// Longest life of a fill, whoever waits for it: an origin's retries and a decoder's limit fit, and a hung one ends.
const FLIGHT_MAX: Duration = Duration::from_secs(60);

/// How often a read begins that meets a replaced object each time: one that is replaced faster than it is read has no version to give.
const BEGINNINGS_MAX: usize = 4;

/// Bytes that [`Reader::outdated`] may take: some 3,000 objects that were replaced while they are held. Under the slack of
/// `PROCESS_BYTES`.
const OUTDATED_BYTES: u64 = 1 << 20;

/// Fills for requests. Cheap to share by `Arc`.
pub struct Reader {
    origin: Arc<dyn Origin>,
    store: Arc<dyn Store>,
    decoder: Arc<dyn Decoder>,
    peers: Arc<dyn Peers>,
    budget: Arc<Budget>,
    heads: Heads,
    /// Versions that the origin was seen without, and when: what was fetched before is no longer a word on what is current.
    outdated: Heads,
    freshness: HashMap<String, Freshness>,
    limits: Limits,
    clock: Clock,
    tasks: TaskTracker,
    fills: Flights<Fill, FillResult>,
    units: Flights<Unit, UnitResult>,
    surveys: Flights<Survey, SurveyResult>,
    videos: Videos,
    lately: Lately,
    /// A turn for each core: cutting is all work and no waiting.
    cuts: Arc<Semaphore>,
    counts: ReadCounts,
    /// Whether this node decodes, if others can.
    decodes: bool,
    paces: Paces,
}

/// The faces and settings of a [`Reader`].
pub struct ReaderParts {
    /// Where the truth is.
    pub origin: Arc<dyn Origin>,
    /// What is held here.
    pub store: Arc<dyn Store>,
    /// What makes pixels.
    pub decoder: Arc<dyn Decoder>,
    /// The other nodes.
    pub peers: Arc<dyn Peers>,
    /// Whether this node has the role of a decoder: without it, it decodes only what nobody else can.
    pub decodes: bool,
    /// Memory.
    pub budget: Arc<Budget>,
    /// How long a head holds, by bucket. A bucket that is not here is [`Freshness::Immutable`].
    pub freshness: HashMap<String, Freshness>,
    /// Bounds of pictures.
    pub limits: Limits,
    /// Tasks of the node, so that its end can wait for them.
    pub tasks: TaskTracker,
}

/// What a reader has done since its start.
#[derive(Debug, Default)]
pub struct ReadCounts {
    fills: AtomicU64,
    units: AtomicU64,
    changed: AtomicU64,
    peeks: AtomicU64,
    peeked: AtomicU64,
    forwards: AtomicU64,
    lost_servers: AtomicU64,
    decoded_there: AtomicU64,
    indexes: AtomicU64,
    indexes_differed: AtomicU64,
}

/// [`ReadCounts`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// Pages that were filled from the origin.
    pub fills: u64,
    /// Decode units that were begun.
    pub units: u64,
    /// Requests that waited for a fill or unit that ran already.
    pub joined: u64,
    /// Reads that met a replaced object.
    pub changed: u64,
    /// Times that another node was asked whether it holds something.
    pub peeks: u64,
    /// Times that it did: what the origin need not give again.
    pub peeked: u64,
    /// Fills from the node that serves the key.
    pub forwards: u64,
    /// Fills that this node made itself because that one could not be reached.
    pub lost_servers: u64,
    /// Decode units that another node decoded.
    pub decoded_there: u64,
    /// Indexes of videos that were made.
    pub indexes: u64,
    /// Indexes that a decode found wrong.
    pub indexes_differed: u64,
}

/// How a node comes by what it does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From the node that serves the key, if that is another one. It is not kept here.
    Server,
    /// The same, and it is kept: this node is one of several that serve a hot key.
    Replica,
    /// By itself, from those that may hold it or from the origin: the node that serves the key does not answer, or not soon enough.
    Itself,
    /// By itself, for another node, which waits for it.
    ForPeer,
}

/// What holds for all of one request's reads.
#[derive(Clone, Debug)]
pub struct Terms {
    /// When the caller leaves.
    pub deadline: Instant,
    /// How what is missing is come by.
    pub way: Way,
    /// Whether the caller was not answered by the node that serves it, or not in time.
    pub doubts: bool,
    /// Who asked, for the nodes that are asked in turn.
    pub caller: Arc<str>,
}

impl Terms {
    /// Those of a client that asks the right node, until `deadline`.
    pub fn until(deadline: Instant) -> Self {
        Self { deadline, way: Way::Server, doubts: false, caller: "".into() }
    }

    /// The same until `deadline`, at most.
    fn by(&self, deadline: Instant) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// The level of replies with raw bytes.
    fn read_level(&self) -> Level {
        if self.way == Way::ForPeer { Level::Lend } else { Level::Read }
    }

    /// The level of replies with frames.
    fn frames_level(&self) -> Level {
        if self.way == Way::ForPeer { Level::Relay } else { Level::Frames }
    }
}

/// Bytes for a reply, with the memory they count against: drop it when they are sent.
#[derive(Debug)]
pub struct Served {
    /// The bytes.
    pub bytes: Bytes,
    /// Their budget.
    pub reservation: Reservation,
}

/// A decoded picture for a reply.
#[derive(Debug)]
pub struct ServedFrame {
    /// The object's version and size.
    pub head: Head,
    /// Shape and pixels.
    pub tensor: Tensor,
    /// Their budget.
    pub reservation: Reservation,
}

impl Reader {
    /// A reader over `parts`.
    pub fn new(parts: ReaderParts) -> Arc<Self> {
        let ReaderParts { origin, store, decoder, peers, decodes, budget, freshness, limits, tasks } = parts;
        let (fills, units, surveys) = (Flights::new(tasks.clone()), Flights::new(tasks.clone()), Flights::new(tasks.clone()));
        let cuts = Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(1, Into::into)));
        let (heads, outdated) = (Heads::default(), Heads::within(OUTDATED_BYTES));
        let (clock, counts) = (Clock::start(), ReadCounts::default());
        Arc::new(Self {
            origin,
            store,
            decoder,
            peers,
            budget,
            heads,
            outdated,
            freshness,
            limits,
            clock,
            tasks,
            fills,
            units,
            surveys,
            videos: Videos::default(),
            lately: Lately::default(),
            cuts,
            counts,
            decodes,
            paces: Paces::default(),
        })
    }

    /// What it has done.
    pub fn stats(&self) -> ReadStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let joined = self.fills.joined() + self.units.joined();
        let ReadCounts { fills, units, changed, peeks, peeked, forwards, lost_servers, decoded_there, indexes, indexes_differed } =
            &self.counts;
        ReadStats {
            fills: of(fills),
            units: of(units),
            joined,
            changed: of(changed),
            peeks: of(peeks),
            peeked: of(peeked),
            forwards: of(forwards),
            lost_servers: of(lost_servers),
            decoded_there: of(decoded_there),
            indexes: of(indexes),
            indexes_differed: of(indexes_differed),
        }
    }

    /// Memory of `level`, if there is some at once.
    pub fn try_reserve(&self, level: Level, bytes: u64) -> Result<Reservation, ReadError> {
        Ok(self.budget.try_reserve(level, bytes)?)
    }

    /// What is held here, for `explain`.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The origin, for listings.
    pub fn origin(&self) -> &dyn Origin {
        &*self.origin
    }

    /// The set on which fills run.
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Refuses what no look-up can answer: a bucket that is not configured, and archive members.
    fn check(&self, id: &ObjectId) -> Result<(), ReadError> {
        if !self.origin.knows(id.bucket()) {
            return Err(ReadError::NotConfigured(id.bucket().to_owned()));
        }
        match id.member() {
            Some(_) => Err(ReadError::Unsupported("archive members are not served by this version".into())),
            None => Ok(()),
        }
    }

    /// The bucket's freshness policy, in words.
    pub fn policy_text(&self, id: &ObjectId) -> String {
        match self.policy(id) {
            Freshness::Immutable => "immutable".into(),
            Freshness::MaxAge(age) => format!("max-age of {} s", age.as_secs()),
            Freshness::Always => "always".into(),
        }
    }

    /// The head that this node holds, current or not; asks nobody.
    pub async fn held_head(&self, id: &ObjectId) -> Option<Head> {
        let object = id.object();
        match self.heads.get(&object) {
            Some(head) => Some(head),
            None => self.store.get(&pages::key(&object, Page::new(0)), None).await.map(|entry| entry.head),
        }
    }

    fn policy(&self, id: &ObjectId) -> Freshness {
        self.freshness.get(id.bucket()).copied().unwrap_or(Freshness::Immutable)
    }

    /// A read that meets a replaced object begins again with what is there now, if its caller has pinned nothing: none of its bytes are
    /// out yet. Not in a bucket that is said not to change: there the caller wants to know.
    ///
    /// # Errors
    /// As `read`; `Changed` too, where the object is replaced again each time.
    pub async fn afresh<T, F>(&self, id: &ObjectId, pin: Option<&Version>, mut read: impl FnMut() -> F) -> Result<T, ReadError>
    where
        F: Future<Output = Result<T, ReadError>>,
    {
        let told = pin.is_some() || self.policy(id) == Freshness::Immutable;
        for _ in 1..BEGINNINGS_MAX {
            match read().await {
                Err(ReadError::Changed { .. }) if !told => {}
                ended => return ended,
            }
        }
        read().await
    }

    /// What is held under `key`, by `deadline`: a disk may take longer than a caller waits.
    async fn held(&self, key: &EntryKey, version: Option<&Version>, deadline: Instant) -> Result<Option<Entry>, ReadError> {
        timeout_at(deadline, self.store.get(key, version)).await.map_err(|_| ReadError::Deadline)
    }

    /// Whether the object is known to have been replaced since `head`, which was found in an entry, was fetched.
    fn is_outdated(&self, object: &ObjectId, head: &Head) -> bool {
        let known = self.outdated.get(object);
        known.is_some_and(|known| known.version == head.version || known.fetched_unix_ms >= head.fetched_unix_ms)
    }

    /// Whether the origin said that this version is not what it has.
    fn is_replaced(&self, object: &ObjectId, version: &Version) -> bool {
        self.outdated.get(object).is_some_and(|known| known.version == *version)
    }

    /// Notes that `old` is not what the origin has: the next read asks anew, whatever entries of `old` are held.
    fn changed(&self, id: &ObjectId, old: Version, new: Option<Version>) -> ReadError {
        self.counts.changed.fetch_add(1, Ordering::Relaxed);
        let object = id.object();
        if self.heads.get(&object).is_some_and(|head| head.version == old) {
            self.heads.remove(&object);
        }
        self.outdated.insert(&object, Head { version: old.clone(), size: 0, fetched_unix_ms: self.clock.now_unix_ms() });
        ReadError::Changed { old, new }
    }
}

/// What a request that was let in does with a deeper room that is busy: it waits and asks again, until its own deadline. Refusing it
/// now would be late, and throw away its place.
async fn inside<T, F>(deadline: Instant, mut ask: impl FnMut() -> F) -> Result<T, ReadError>
where
    F: Future<Output = Result<T, ReadError>>,
{
    loop {
        match ask().await {
            Err(ReadError::Busy { .. }) if Instant::now() >= deadline => return Err(ReadError::Deadline),
            Err(ReadError::Busy { retry_after }) => {
                tokio::time::sleep_until(deadline.min(Instant::now() + retry_after.max(AGAIN_MIN))).await;
            }
            answer => return answer,
        }
    }
}

/// Shortest pause before a busy room is asked again.
const AGAIN_MIN: Duration = Duration::from_millis(5);

/// What a flight gave by the caller's deadline, in the caller's terms.
fn landed<V>(answer: Result<Result<V, Grounded>, Elapsed>, what: &str) -> Result<V, ReadError> {
    match answer {
        Err(_) => Err(ReadError::Deadline),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Grounded::Full)) => Err(ReadError::Busy { retry_after: Duration::from_millis(200) }),
        Ok(Err(Grounded::Lost)) => Err(ReadError::Unavailable(format!("{what} was lost; the node's log says why"))),
    }
}

/// A flight's error as its caller's, whose own deadline has not passed.
fn in_time(error: ReadError, who: &str) -> ReadError {
    match error {
        ReadError::Deadline => ReadError::Unavailable(format!("{who} did not answer within {} s", FLIGHT_MAX.as_secs())),
        error => error,
    }
}

/// Unix time that moves with tokio's clock, so that it stands still when a test pauses that, and never jumps back when the
/// system's is set.
#[derive(Clone, Copy, Debug)]
struct Clock {
    start: Instant,
    start_unix_ms: u64,
}

impl Clock {
    fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_unix_ms: unix.as_millis() as u64 }
    }

    fn now_unix_ms(self) -> u64 {
        self.start_unix_ms + self.start.elapsed().as_millis() as u64
    }
}
