//! The origin room against the folder origin, healthy and faulty.

mod faults;
mod folder;
mod pressure;
mod reads;

use std::future::pending;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use framecache::object::PAGE_BYTES;
use framecache::{ByteRange, ObjectId, Version};
use framecache_node::dev::origin::FolderOrigin;
use framecache_node::origin::{
    Credentials, Fetched, Origin, OriginError, OriginLimits, OriginSettings, S3Origin, Secret, StaticKey,
};
use framecache_tests::faulty::{Fault, FaultyOrigin, Rule, Script};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

const BUCKET: &str = "photos";
const MARKER: &str = "marker5ecret";

/// A folder, its S3 face, a proxy that fails on demand, and the room under test before it.
struct World {
    folder: TempDir,
    dev: FolderOrigin,
    dev_addr: SocketAddr,
    faulty: FaultyOrigin,
    s3: S3Origin,
    server: AbortHandle,
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn limits() -> OriginLimits {
    OriginLimits {
        attempts: 3,
        first_byte: Duration::from_millis(400),
        idle: Duration::from_millis(400),
        seed: Some(17),
        ..OriginLimits::default()
    }
}

fn settings(addr: SocketAddr, credentials: Credentials) -> OriginSettings {
    let endpoint = Some(format!("http://{addr}"));
    OriginSettings { name: BUCKET.into(), endpoint, region: None, path_style: true, credentials }
}

async fn world(limits: OriginLimits) -> World {
    let folder = tempfile::tempdir().expect("folder");
    let dev = FolderOrigin::open(folder.path(), BUCKET).expect("open");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let dev_addr = listener.local_addr().expect("address");
    let server = tokio::spawn(dev.clone().serve(listener, pending())).abort_handle();
    let faulty = FaultyOrigin::start(dev_addr, Script::default()).await.expect("proxy");
    let key = StaticKey { access_key_id: Secret::new("AKIDmarker5ecret"), secret_access_key: Secret::new(MARKER) };
    let s3 = S3Origin::new(vec![settings(faulty.addr(), Credentials::Static(key))], limits).await.expect("origin");
    World { folder, dev, dev_addr, faulty, s3, server }
}

impl World {
    fn put(&self, key: &str, bytes: &[u8]) {
        put(self.folder.path(), key, bytes);
    }

    async fn read(&self, key: &str, start: u64, end: u64, pin: Option<&Version>) -> Result<Fetched, OriginError> {
        self.s3.read(&id(key), range(start, end), pin, soon()).await
    }
}

/// Whole or not at all, under a new inode, as a careful writer replaces a file.
fn put(folder: &Path, key: &str, bytes: &[u8]) {
    let path = folder.join(key);
    std::fs::create_dir_all(path.parent().expect("parent")).expect("folders");
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, bytes).expect("write");
    std::fs::rename(fresh, path).expect("rename");
}

fn id(key: &str) -> ObjectId {
    ObjectId::new(BUCKET, key).expect("id")
}

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).expect("range")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Bytes that tell where they are from.
fn bytes(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}
