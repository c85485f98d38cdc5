//! The decode room as a whole, with real worker processes of this binary.

mod devices;
mod faults;
// Of the tests of the whole, which this crate cannot name: they stand on it.
#[path = "../../../tests/src/mutants.rs"]
#[expect(unreachable_pub, reason = "public where it lives")]
mod made;
mod mutants;
mod pixels;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use framecache::{ByteRange, ObjectId, Tensor, Version};
use framecache_node::decode::{DecodeError, DecodeJob, Decoder, PoolSettings, Source, SourceError, WorkerPool};
use tokio::time::Instant;

/// An object in memory that counts the bytes read from it.
struct Object {
    bytes: Bytes,
    read: AtomicU64,
}

#[async_trait]
impl Source for Object {
    async fn read(&self, range: ByteRange) -> Result<Bytes, SourceError> {
        self.read.fetch_add(range.len(), Relaxed);
        Ok(self.bytes.slice(range.start() as usize..range.end() as usize))
    }
}

fn object(bytes: impl Into<Bytes>) -> Arc<Object> {
    Arc::new(Object { bytes: bytes.into(), read: AtomicU64::new(0) })
}

/// Two workers, each with little of everything, obeying planted faults.
fn settings() -> PoolSettings {
    PoolSettings { workers: 2, test_codecs: true, ..PoolSettings::new(env!("CARGO_BIN_EXE_framecache-node")) }
}

async fn start(settings: PoolSettings) -> WorkerPool {
    WorkerPool::start(settings).await.expect("start the pool")
}

fn job(key: &str, source: Arc<dyn Source>, size: u64, specs: &[&str]) -> DecodeJob {
    DecodeJob {
        id: ObjectId::new("abc", key).expect("id"),
        version: Version::new("\"1\"").expect("version"),
        size,
        source,
        specs: specs.iter().map(|text| text.parse().expect("spec")).collect(),
    }
}

type Answer = Result<Vec<Result<Tensor, DecodeError>>, DecodeError>;

async fn ask(pool: &impl Decoder, key: &str, bytes: impl Into<Bytes>, specs: &[&str]) -> Answer {
    let object = object(bytes);
    let size = object.bytes.len() as u64;
    pool.decode(job(key, object, size, specs), deadline()).await
}

async fn ask_one(pool: &impl Decoder, key: &str, bytes: impl Into<Bytes>) -> Result<Tensor, DecodeError> {
    ask(pool, key, bytes, &["image"]).await.and_then(|mut answers| answers.remove(0))
}

/// Far off: what ends a test sooner is the limit under test.
fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// A sound picture of 67x45.
const PICTURE: &[u8] = include_bytes!("../golden/jpeg/baseline420.jpg");
