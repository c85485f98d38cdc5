//! The disk tier: foyer's block store, used without its memory, behind our own header, pacing and fault handling.
//!
//! What foyer leaves open is closed here:
//! - it drops what it cannot write, in silence: [`writer`] keeps what is in flight under half of the submit queue, and looks after
//!   each wait whether the batch is there; what is not is counted;
//! - it logs write errors and goes on: a batch that is missing is followed by a probe, and the tier is switched off;
//! - its files are sparse: [`folder`] reserves the space at the start, or refuses;
//! - its admission filter deletes what it rejects: none is set; the decision is made before the insert;
//! - it drops damaged entries without a count: [`Disk::load`] tells them from evicted ones, and [`census`] counts
//!   those whose index was damaged while nobody looked.
//!
//! The format of the values is [`entry`]'s; foyer's key is the entry's 128-bit name.

mod census;
mod folder;
mod tier;
mod writer;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use foyer::Load;
use framecache::Version;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::admission::Admission;
use super::entry::{self, Refusal};
use super::ram::Held;
use super::stats::{Counters, add, count};
use super::{CacheError, CacheSettings, DiskPresence, Entry, EntryKey};

pub(super) use tier::Engine;

/// foyer's flush buffers: two of the pool's size.
pub(super) const BUFFERS_BYTES: u64 = 2 * tier::POOL_BYTES as u64 + READS_MAX as u64 * 2 * tier::CHUNK_BYTES_MAX as u64;

/// Bytes that may wait to be written; beyond, an insert is dropped from disk. A second of an origin at 128 MB/s that meets a disk
/// which pauses for as long.
pub(super) const QUEUE_BYTES_MAX: u64 = 128 << 20;

/// Disk reads at a time. Four saturate an NVMe with pages; more is memory, not rate.
const READS_MAX: usize = 16;

/// A read or a write that takes longer than this is a hanging disk.
const HANG: Duration = Duration::from_secs(5);

/// The tier; the writer task holds its other end.
pub(super) struct Disk {
    shared: Arc<Shared>,
    queue: mpsc::UnboundedSender<Job>,
    writer: Mutex<Option<JoinHandle<()>>>,
    reads: Semaphore,
}

/// What the face and the writer share.
struct Shared {
    engine: Engine,
    counters: Arc<Counters>,
    admission: Arc<Mutex<Admission>>,
    folder: folder::Folder,
    /// Entries on their way to disk, by name: the write that counts is the one of that serial.
    pending: Mutex<HashMap<u128, Pending>>,
    serial: AtomicU64,
    queued_bytes: AtomicU64,
    drained: Notify,
    on: AtomicBool,
    off_reason: Mutex<Option<String>>,
}

struct Pending {
    serial: u64,
    held: Arc<Held>,
}

enum Job {
    Write { name: u128, serial: u64, bytes: u64, held: Arc<Held> },
    Barrier(oneshot::Sender<()>),
}

/// What the disk knows of a key.
pub(super) enum Loaded {
    Hit(Entry),
    OtherVersion,
    Miss,
}

/// Why there is no tier: a person is needed, or the node goes on without.
pub(super) enum OpenError {
    Refused(CacheError),
    Off(String),
}

impl Disk {
    /// Opens the tier in the settings' folder and recovers what is there.
    pub(super) async fn open(
        settings: &CacheSettings,
        counters: Arc<Counters>,
    ) -> Result<(Self, Arc<Mutex<Admission>>), OpenError> {
        let folder = folder::Folder::open(settings)?;
        let admission = Arc::new(Mutex::new(Admission::new(settings.admission, folder.capacity(), 0, settings.seed)));
        let engine = Engine::open(&folder, admission.clone(), counters.clone()).await.map_err(OpenError::Off)?;
        *admission.lock() = Admission::new(settings.admission, folder.capacity(), engine.found_bytes(), settings.seed);
        if folder.damaged() > 0 {
            add(&counters.corrupt, folder.damaged());
            tracing::warn!(folder = %folder.path().display(), entries = folder.damaged(), "damaged block indices: their entries are lost");
        }
        let (queue, jobs) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            engine,
            counters,
            admission: admission.clone(),
            folder,
            pending: Mutex::default(),
            serial: AtomicU64::new(0),
            queued_bytes: AtomicU64::new(0),
            drained: Notify::new(),
            on: AtomicBool::new(true),
            off_reason: Mutex::new(None),
        });
        let writer = tokio::spawn(writer::run(shared.clone(), jobs));
        let disk = Self { shared, queue, writer: Mutex::new(Some(writer)), reads: Semaphore::new(READS_MAX) };
        Ok((disk, admission))
    }

    /// Whether an entry of `bytes` finds room without replacing anything, what is queued already included.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.shared.engine.free_bytes() >= self.shared.queued_bytes.load(Relaxed) + bytes
    }

    /// Queues `held` for writing; `false` if the tier is off or its queue is full, which is counted.
    pub(super) fn enqueue(&self, name: u128, held: Arc<Held>) -> bool {
        let shared = &self.shared;
        if !shared.is_on() {
            return false;
        }
        let bytes = held.weight() as u64;
        if shared.queued_bytes.load(Relaxed) + bytes > QUEUE_BYTES_MAX {
            count(&shared.counters.dropped_queue);
            return false;
        }
        let serial = shared.serial.fetch_add(1, Relaxed);
        shared.queued_bytes.fetch_add(bytes, Relaxed);
        shared.pending.lock().insert(name, Pending { serial, held: held.clone() });
        if self.queue.send(Job::Write { name, serial, bytes, held }).is_err() {
            // Closed: nobody will write it.
            shared.settle(name, serial, bytes);
            count(&shared.counters.dropped_write);
            return false;
        }
        true
    }

    /// Resolves when the queue is under half, or after a second.
    pub(super) async fn room(&self) {
        let under = async {
            loop {
                let drained = self.shared.drained.notified();
                if self.shared.queued_bytes.load(Relaxed) <= QUEUE_BYTES_MAX / 2 || !self.shared.is_on() {
                    return;
                }
                drained.await;
            }
        };
        let _ = timeout(Duration::from_secs(1), under).await;
    }

    /// An entry that waits to be written.
    pub(super) fn pending(&self, name: u128, key: &EntryKey) -> Option<Arc<Held>> {
        let pending = self.shared.pending.lock();
        pending.get(&name).map(|pending| pending.held.clone()).filter(|held| held.key == *key)
    }

    /// Whether something lies on disk under that name.
    pub(super) fn holds(&self, name: u128) -> bool {
        self.shared.is_on() && self.shared.engine.contains(name)
    }

    /// Reads the entry of `key`. All that is read is checked against `key`; what fails is removed, counted, and a miss.
    pub(super) async fn load(&self, name: u128, key: &EntryKey, version: Option<&Version>) -> Loaded {
        if !self.holds(name) {
            return Loaded::Miss;
        }
        let Ok(_permit) = self.reads.acquire().await else { return Loaded::Miss };
        let Some(first) = self.chunk(name, key, 0).await else { return Loaded::Miss };
        if version.is_some_and(|wanted| *wanted != first.head.version) {
            return Loaded::OtherVersion;
        }
        let mut chunks = Vec::with_capacity(usize::from(first.chunks));
        chunks.push(first);
        for at in 1..chunks[0].chunks {
            match self.chunk(entry::name(key, at), key, at).await {
                Some(chunk) => chunks.push(chunk),
                None => return Loaded::Miss,
            }
        }
        // Chunks of two inserts: the value was replaced while it was read, or a chunk of the newer one was evicted.
        entry::assemble(chunks).map_or(Loaded::Miss, Loaded::Hit)
    }

    async fn chunk(&self, name: u128, key: &EntryKey, at: u16) -> Option<entry::Chunk> {
        let shared = &self.shared;
        if !shared.engine.contains(name) {
            return None;
        }
        let packed = match timeout(HANG, shared.engine.load(name)).await {
            Err(_) => {
                shared.switch_off("a read hangs for 5 s");
                return None;
            }
            Ok(Ok(Load::Entry { value, .. })) => value,
            Ok(Ok(Load::Piece { piece, .. })) => piece.value().clone(),
            Ok(Ok(Load::Throttled)) => return None,
            Ok(Ok(Load::Miss)) => {
                if shared.engine.vanished(name) {
                    shared.refuse(name, "entry is damaged");
                }
                return None;
            }
            Ok(Err(error)) => {
                match tier::read_fault(&error) {
                    tier::ReadFault::Damage => shared.refuse(name, "entry is cut short"),
                    tier::ReadFault::Device(reason) => {
                        count(&shared.counters.read_errors);
                        shared.switch_off(&format!("a read failed: {reason}"));
                    }
                }
                return None;
            }
        };
        match entry::unpack(&packed, key, at) {
            Ok(chunk) => Some(chunk),
            Err(Refusal::Format) => {
                count(&shared.counters.foreign_format);
                shared.engine.delete(name);
                None
            }
            Err(Refusal::Corrupt(what)) => {
                shared.refuse(name, what);
                None
            }
        }
    }

    /// How far `name` has come.
    pub(super) fn presence(&self, name: u128) -> DiskPresence {
        if !self.shared.is_on() {
            DiskPresence::No
        } else if self.shared.pending.lock().contains_key(&name) {
            DiskPresence::Queued
        } else if self.shared.engine.contains(name) {
            DiskPresence::Flushed
        } else {
            DiskPresence::No
        }
    }

    /// Forgets `name`, and what is on its way.
    pub(super) async fn remove(&self, name: u128) {
        let queued = self.shared.pending.lock().remove(&name).is_some();
        if queued || self.holds(name) {
            // A write of it may be under way: it must have landed before its removal can be final.
            self.barrier().await;
            self.shared.engine.delete(name);
            let _ = timeout(HANG, self.shared.engine.wait()).await;
            self.shared.admission.lock().evicted(name as u64, 0);
        }
    }

    /// Resolves when everything queued so far was written or dropped.
    pub(super) async fn barrier(&self) {
        let (done, wait) = oneshot::channel();
        if self.queue.send(Job::Barrier(done)).is_ok() {
            let _ = wait.await;
        }
    }

    /// Writes what is queued, and lets go of the files.
    pub(super) async fn close(&self) {
        self.barrier().await;
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            self.shared.on.store(false, Relaxed);
            let _ = timeout(HANG, self.shared.engine.close()).await;
            writer.abort();
            let _ = writer.await;
            self.shared.folder.unlock();
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.shared.is_on()
    }

    pub(super) fn off_reason(&self) -> Option<String> {
        self.shared.off_reason.lock().clone()
    }

    pub(super) fn queued_bytes(&self) -> u64 {
        self.shared.queued_bytes.load(Relaxed)
    }

    pub(super) fn capacity(&self) -> u64 {
        self.shared.folder.capacity()
    }
}

impl Shared {
    fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Turns the tier off for good: once, loudly. It takes a restart, and a person, to trust the disk again.
    fn switch_off(&self, reason: &str) {
        if self.on.swap(false, Relaxed) {
            *self.off_reason.lock() = Some(reason.to_owned());
            count(&self.counters.disk_switched_off);
            tracing::error!(folder = %self.folder.path().display(), reason, "disk tier is off: serving goes on without it");
            self.drained.notify_waiters();
        }
    }

    /// A damaged or foreign entry: counted, removed, never served.
    fn refuse(&self, name: u128, what: &str) {
        count(&self.counters.corrupt);
        tracing::warn!(name = format_args!("{name:032x}"), what, "disk entry refused");
        self.engine.delete(name);
        self.admission.lock().evicted(name as u64, 0);
    }

    /// A job is done, one way or the other.
    fn settle(&self, name: u128, serial: u64, bytes: u64) {
        let mut pending = self.pending.lock();
        if pending.get(&name).is_some_and(|pending| pending.serial == serial) {
            pending.remove(&name);
        }
        drop(pending);
        self.queued_bytes.fetch_sub(bytes, Relaxed);
        self.drained.notify_waiters();
    }

    fn is_current(&self, name: u128, serial: u64) -> bool {
        self.pending.lock().get(&name).is_some_and(|pending| pending.serial == serial)
    }

    fn wrote(&self, entries: u64, bytes: u64) {
        add(&self.counters.flushed, entries);
        add(&self.counters.flushed_bytes, bytes);
    }
}
