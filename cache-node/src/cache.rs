//! The cache: what a node holds of the origin's bytes, raw and decoded, in RAM and on NVMe.
//!
//! One face, [`Store`], over two RAM tiers (raw pages, decoded frames; a hit is a handle, never a copy) and one disk tier that
//! both share. The room has never heard of the origin: what is missing is filled by `read`, which then [inserts](Store::insert).
//!
//! What holds here:
//! - **Never wrong bytes.** Every disk entry begins with a header that binds bucket, key, member, version, page or frame and
//!   spec, length and checksum; all of it is checked on each disk read ([`entry`]). A difference is a miss, and is counted.
//! - **Keys are not versioned, entries are.** A look-up that names a version finds that one or nothing; one that names none gets
//!   what is held, and is told which. Each entry carries its object's [`Head`], so that after a restart any entry of an object
//!   of an immutable bucket yields its version and size without an origin request.
//! - **Keep what you have.** Training reads every sample once an epoch, where LRU thrashes: once full, little is admitted
//!   ([`admission`]), so that hits = cache / data set.
//! - **The disk is optional at any moment.** A full, read-only, failing or hanging disk turns its tier off, loudly, and serving
//!   goes on from RAM and origin ([`disk`]). Inserts never wait; what the disk cannot take is dropped and counted.
//!
//! Two engines stand behind the face: [`FoyerStore`], and [`MemoryStore`] for nodes that run in memory under a paused clock.
//! `conformance` is the suite that both pass.

pub mod admission;
pub mod disk;
pub mod entry;
pub mod frames;
pub mod heads;
mod memory;
pub mod pages;
mod ram;
mod settings;
mod stats;
mod store;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod trials;

use async_trait::async_trait;
use bytes::Bytes;
use framecache::{DecodeSpec, ObjectId, Page, Tensor, Version};

pub use admission::Place;
pub use heads::{Freshness, Head, Heads, Judgement};
pub use memory::MemoryStore;
pub use settings::{AdmissionMode, CacheSettings};
pub use stats::CacheStats;
pub use store::FoyerStore;

/// What a node holds, by key. Cheap to call; share it by `Arc`.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The entry of `key`, from RAM or else from disk; a disk hit is promoted to RAM. With a version: that version or nothing.
    /// Dropping the future stops the wait and leaves nothing behind.
    async fn get(&self, key: &EntryKey, version: Option<&Version>) -> Option<Entry>;

    /// The same from RAM alone, without waiting. A hit counts as an access, a miss does not: [`Store::get`] follows it.
    fn get_ram(&self, key: &EntryKey, version: Option<&Version>) -> Option<Entry>;

    /// What would become of an entry of `bytes` under `key`. Asked before a fill, so that what is passed is fetched by its exact
    /// range; hand the answer back with [`InsertHint::As`].
    fn place(&self, key: &EntryKey, bytes: u64) -> Place;

    /// Takes an entry in. RAM holds it at once; the disk tier writes it behind, in the order of insertion. Never waits: if the disk
    /// cannot follow, the disk copy is dropped and counted ([`Store::room`] tells when it can). Replaces whatever version was held.
    fn insert(&self, key: EntryKey, entry: Entry, hint: InsertHint) -> Placed;

    /// Resolves when the disk's write queue is under half, or after a second: what paces a fill that is faster than the disk.
    async fn room(&self);

    /// Where the entry of `key` lies now.
    async fn presence(&self, key: &EntryKey) -> Presence;

    /// Forgets `key`, in RAM and on disk. After a restart the disk copy may be back: it is still what its header says.
    async fn remove(&self, key: &EntryKey);

    /// The counters.
    fn stats(&self) -> CacheStats;

    /// Resolves when all that was inserted before this call is on disk, or was dropped.
    async fn flush(&self);

    /// Flushes and lets go of the files. Afterwards RAM still answers; the disk does not.
    async fn close(&self);
}

/// The name of an entry, without its version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EntryKey {
    /// A raw page of an object (never of a member).
    Page {
        /// The object.
        object: ObjectId,
        /// Which page.
        page: Page,
    },
    /// A decoded picture or frame.
    Frame {
        /// The picture, video or archive member.
        id: ObjectId,
        /// Index by presentation order; 0 for a picture.
        frame: u64,
        /// How it was made.
        spec: DecodeSpec,
    },
    /// The index of a video's frames.
    Index {
        /// The video.
        object: ObjectId,
        /// Which of its streams, if not FFmpeg's best.
        stream: Option<u32>,
    },
}

impl EntryKey {
    /// The object, video or member whose bytes these are.
    pub fn id(&self) -> &ObjectId {
        match self {
            EntryKey::Page { object, .. } | EntryKey::Index { object, .. } => object,
            EntryKey::Frame { id, .. } => id,
        }
    }

    /// The class, which has its own RAM budget.
    pub fn class(&self) -> Class {
        match self {
            EntryKey::Page { .. } | EntryKey::Index { .. } => Class::Raw,
            EntryKey::Frame { .. } => Class::Decoded,
        }
    }
}

/// The two classes of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// The origin's bytes.
    Raw = 0,
    /// Pixels.
    Decoded = 1,
}

/// What is held under a key: the object's head as it was at the fill, and the bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Version, size and age of the object.
    pub head: Head,
    /// The bytes.
    pub body: Body,
}

/// The bytes of an entry; cloning shares them.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A raw page, short at the end of an object; or an index.
    Raw(Bytes),
    /// A decoded frame.
    Frame(Tensor),
}

impl Body {
    /// The bytes, whatever they mean.
    pub fn bytes(&self) -> &Bytes {
        match self {
            Body::Raw(bytes) => bytes,
            Body::Frame(tensor) => &tensor.data,
        }
    }

    fn class(&self) -> Class {
        match self {
            Body::Raw(_) => Class::Raw,
            Body::Frame(_) => Class::Decoded,
        }
    }
}

/// What the caller knows about an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertHint {
    /// Let admission decide.
    Normal,
    /// Not worth a disk write: raw bytes that were fetched only to be decoded.
    RamOnly,
    /// Admission was asked already ([`Store::place`]).
    As(Place),
}

/// What became of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// RAM took it.
    pub ram: bool,
    /// The disk's write queue took it.
    pub disk: bool,
}

/// Where an entry lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// In RAM.
    pub ram: bool,
    /// On disk.
    pub disk: DiskPresence,
}

/// How far an entry has come on its way to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskPresence {
    /// Not there.
    No,
    /// Waits to be written.
    Queued,
    /// Written: it would be read back after a `kill -9`.
    Flushed,
}

/// Why the cache does not open. All of these need a person; a disk that is merely full, read-only or broken does not stop the
/// node (its tier is off, and [`CacheStats::disk_off`] says why).
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The folder holds something else. Name another, or empty it.
    #[error("cache folder {dir} holds {found:?}, which is not the cache's: empty it or set node.data_dir to another folder")]
    Foreign {
        /// The folder.
        dir: String,
        /// A file in it.
        found: String,
    },
    /// Another process has it open. Stop that one, or name another folder.
    #[error("cache folder {dir} is in use by another process: stop it or set node.data_dir to another folder")]
    InUse {
        /// The folder.
        dir: String,
    },
    /// The disk is smaller than what foyer needs. Give it more, or none.
    #[error("cache.disk of {bytes} bytes is too small: give it at least {least}, or 0 for none")]
    TooSmall {
        /// What was asked.
        bytes: u64,
        /// What would do.
        least: u64,
    },
}
