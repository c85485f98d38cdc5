//! foyer's block store as this tier uses it: one flusher, oldest block first, no filter, no memory of its own.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, Code, DeviceBuilder, Error, ErrorKind, EvictionInfo, EvictionPicker, FifoPicker, FsDeviceBuilder,
    HybridCache, HybridCacheBuilder, HybridCachePolicy, HybridCacheProperties, Load, PsyncIoEngineConfig, RecoverMode,
    Statistics, StorageFilter, StorageFilterCondition, StorageFilterResult,
};
use parking_lot::Mutex;

use super::folder::Folder;
use crate::cache::admission::Admission;
use crate::cache::entry::{HEADER_BYTES_MAX, Packed};
use crate::cache::ram::Names;
use crate::cache::stats::{Counters, count};

/// One of foyer's two flush buffers.
pub(super) const POOL_BYTES: usize = 32 << 20;

/// Bytes beyond which foyer drops what it is given; twice what is ever in flight.
const SUBMIT_BYTES: usize = 2 * POOL_BYTES;

/// Largest payload of one disk entry: one read, one buffer.
pub(super) const CHUNK_BYTES_MAX: usize = 8 << 20;

/// foyer's own header and key, before ours.
const FOYER_BYTES: usize = 36 + 16;

const PAGE: usize = 4096;

/// The open block store.
pub(in crate::cache) struct Engine {
    cache: HybridCache<u128, Packed, Names>,
    gauge: Arc<Gauge>,
    block_bytes: usize,
    capacity: usize,
}

/// What foyer tells its picker: the blocks that are clean, of how many.
#[derive(Debug, Default)]
struct Gauge {
    blocks: AtomicUsize,
    clean: AtomicUsize,
    /// Hashes of what was evicted lately, to tell an evicted entry from a damaged one.
    evicted: Mutex<[HashSet<u64>; 2]>,
}

impl Engine {
    pub(super) async fn open(folder: &Folder, admission: Arc<Mutex<Admission>>, counters: Arc<Counters>) -> Result<Self, String> {
        let gauge = Arc::new(Gauge::default());
        let cache = build(folder, &gauge, admission, counters).await.map_err(|error| error.to_string())?;
        Ok(Self { cache, gauge, block_bytes: folder.block_bytes() as usize, capacity: folder.capacity() as usize })
    }

    /// Hands one chunk to the flusher; how many bytes of disk it takes.
    pub(super) fn put(&self, name: u128, packed: Packed) -> u64 {
        let bytes = disk_bytes(FOYER_BYTES + packed.header.len() + packed.payload.len());
        drop(self.cache.storage_writer(name).force().insert(packed));
        bytes as u64
    }

    pub(super) async fn load(&self, name: u128) -> foyer::Result<Load<u128, Packed, HybridCacheProperties>> {
        self.cache.storage().load(&name).await
    }

    pub(super) fn contains(&self, name: u128) -> bool {
        self.cache.storage().may_contains(&name)
    }

    pub(super) fn delete(&self, name: u128) {
        self.cache.storage().delete(&name);
    }

    /// After a miss of what was indexed: whether foyer found it damaged (it has then dropped it), rather than evicted.
    pub(super) fn vanished(&self, name: u128) -> bool {
        let hash = name as u64;
        !self.gauge.evicted.lock().iter().any(|evicted| evicted.contains(&hash))
    }

    pub(super) async fn wait(&self) {
        self.cache.storage().wait().await;
    }

    pub(super) async fn close(&self) {
        if let Err(error) = self.cache.close().await {
            tracing::warn!(%error, "close disk tier");
        }
    }

    /// Bytes that can be written without an eviction. The last clean block counts as taken: using it makes foyer evict one.
    pub(super) fn free_bytes(&self) -> u64 {
        self.gauge.clean.load(Relaxed).saturating_sub(1) as u64 * self.block_bytes as u64
    }

    /// Bytes of the blocks that were not clean when the store was opened.
    pub(super) fn found_bytes(&self) -> u64 {
        let (blocks, clean) = (self.gauge.blocks.load(Relaxed), self.gauge.clean.load(Relaxed));
        blocks.saturating_sub(clean) as u64 * self.block_bytes as u64
    }

    /// Bytes to hand over before waiting: half of a buffer, so that a batch and the largest chunk fit whatever is being written.
    pub(super) fn batch_bytes(&self) -> usize {
        (POOL_BYTES / 2).min(self.capacity / 8)
    }

    /// The largest payload that a block takes with the longest header.
    pub(super) fn chunk_bytes(&self) -> usize {
        let room = self.block_bytes - PAGE;
        let with_page = room.saturating_sub(PAGE);
        // Page keys are short: a page and its header always fit the block's page and one.
        if with_page <= 1 << 20 { with_page } else { (room - disk_bytes(FOYER_BYTES + HEADER_BYTES_MAX)).min(CHUNK_BYTES_MAX) }
    }
}

fn disk_bytes(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

async fn build(
    folder: &Folder,
    gauge: &Arc<Gauge>,
    admission: Arc<Mutex<Admission>>,
    counters: Arc<Counters>,
) -> foyer::Result<HybridCache<u128, Packed, Names>> {
    let device = FsDeviceBuilder::new(folder.block_dir()).with_capacity(folder.capacity() as usize).with_direct(true).build()?;
    let picker = Oldest { fifo: FifoPicker::new(0.0), gauge: gauge.clone() };
    let engine = BlockEngineConfig::new(device)
        .with_block_size(folder.block_bytes() as usize)
        .with_flushers(1)
        .with_reclaimers(1)
        .with_clean_block_threshold(1)
        .with_recover_concurrency(16)
        .with_eviction_pickers(vec![Box::new(picker)])
        .with_buffer_pool_size(POOL_BYTES)
        .with_submit_queue_size_threshold(SUBMIT_BYTES)
        .with_reinsertion_filter(StorageFilter::new().with_condition(Evicting { gauge: gauge.clone(), admission, counters }));
    HybridCacheBuilder::new()
        .with_name("framecache")
        .with_policy(HybridCachePolicy::WriteOnInsertion)
        .with_flush_on_close(false)
        // Nothing stays in foyer's own memory: entries are written by storage_writer and read by load.
        .memory(1 << 20)
        .with_shards(1)
        .with_hash_builder(Names)
        .with_weighter(|_: &u128, packed: &Packed| packed.header.len() + packed.payload.len())
        .storage()
        .with_io_engine_config(PsyncIoEngineConfig::new())
        .with_engine_config(engine)
        .with_recover_mode(RecoverMode::Quiet)
        .build()
        .await
}

/// Oldest block first, and foyer's own count of clean blocks, right after recovery too.
#[derive(Debug)]
struct Oldest {
    fifo: FifoPicker,
    gauge: Arc<Gauge>,
}

impl EvictionPicker for Oldest {
    fn init(&mut self, blocks: &[u32], block_bytes: usize) {
        self.gauge.blocks.store(blocks.len(), Relaxed);
        self.gauge.clean.store(blocks.len(), Relaxed);
        self.fifo.init(blocks, block_bytes);
    }

    fn pick(&mut self, info: EvictionInfo<'_>) -> Option<u32> {
        self.gauge.clean.store(info.clean, Relaxed);
        self.fifo.pick(info)
    }

    fn on_block_evictable(&mut self, info: EvictionInfo<'_>, block: u32) {
        self.gauge.clean.store(info.clean, Relaxed);
        self.fifo.on_block_evictable(info, block);
    }

    fn on_block_evict(&mut self, info: EvictionInfo<'_>, block: u32) {
        self.fifo.on_block_evict(info, block);
    }
}

/// foyer asks this filter about each entry of a block that it reclaims. Nothing is reinserted (it livelocks); the question is the
/// only word of an eviction.
#[derive(Debug)]
struct Evicting {
    gauge: Arc<Gauge>,
    admission: Arc<Mutex<Admission>>,
    counters: Arc<Counters>,
}

impl StorageFilterCondition for Evicting {
    fn filter(&self, _: &Arc<Statistics>, hash: u64, bytes: usize) -> StorageFilterResult {
        count(&self.counters.evicted_disk);
        self.admission.lock().evicted(hash, disk_bytes(bytes) as u64);
        let [young, old] = &mut *self.gauge.evicted.lock();
        if young.len() >= EVICTED_MAX {
            std::mem::swap(young, old);
            young.clear();
        }
        young.insert(hash);
        StorageFilterResult::Reject
    }
}

/// More than a block holds of the smallest entries.
const EVICTED_MAX: usize = 16 << 10;

impl Code for Packed {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        writer.write_all(&self.header).and_then(|()| writer.write_all(&self.payload)).map_err(Error::io_error)
    }

    /// One copy, out of foyer's read buffer; bounded by what foyer read. What it means is for [`entry`](crate::cache::entry).
    fn decode(reader: &mut impl Read) -> foyer::Result<Self> {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).map_err(Error::io_error)?;
        Ok(Self { header: Bytes::from(all), payload: Bytes::new() })
    }

    fn estimated_size(&self) -> usize {
        self.header.len() + self.payload.len()
    }
}

/// What a failed read says.
pub(super) enum ReadFault {
    /// This entry's file is not what it was.
    Damage,
    /// The device, or the file system.
    Device(String),
}

pub(super) fn read_fault(error: &Error) -> ReadFault {
    let cause = error.source().and_then(|source| source.chain().find_map(|cause| cause.downcast_ref::<io::Error>()));
    if let Some(cause) = cause {
        let short = cause.kind() == io::ErrorKind::UnexpectedEof;
        return if short { ReadFault::Damage } else { ReadFault::Device(cause.to_string()) };
    }
    match error.kind() {
        ErrorKind::Io | ErrorKind::Join | ErrorKind::TaskCancelled => ReadFault::Device(error.to_string()),
        _ => ReadFault::Damage,
    }
}
