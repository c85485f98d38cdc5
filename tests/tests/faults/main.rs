//! Real processes in trouble: frozen, cut off, behind a bad network. Whoever reads meanwhile gets the right bytes, soon.

mod batch;
mod frozen;
mod lossy;
mod partition;
mod readers;
mod stutter;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use framecache_node::dev::origin::FolderOrigin;
use framecache_tests::harness::{BUCKET, program};
use framecache_tests::processes::Settings;
use tokio::net::TcpListener;

/// Whether the full durations are run.
fn soak() -> bool {
    std::env::var_os("FRAMECACHE_SOAK").is_some()
}

/// A bound in time that is promised on a machine of its own; where other tests run beside it, three times as long.
fn within(promised: Duration) -> Duration {
    if soak() { promised } else { 3 * promised }
}

/// A folder as the bucket, at a free port of `ip`, as long as the runtime lives.
async fn origin(folder: &Path, ip: IpAddr) -> SocketAddr {
    let listener = TcpListener::bind((ip, 0)).await.expect("listen");
    let address = listener.local_addr().expect("address");
    tokio::spawn(FolderOrigin::open(folder, BUCKET).expect("open").serve(listener, std::future::pending()));
    address
}

/// Small nodes with a disk, which ask about what is current on each read.
fn settings(folder: &Path, origin: SocketAddr) -> Settings {
    Settings {
        program: program("framecache-node"),
        folder: folder.to_owned(),
        bucket: BUCKET.into(),
        origin,
        freshness: "always",
        memory: 1 << 30,
        raw_ram: 64 << 20,
        decoded_ram: 16 << 20,
        disk: 256 << 20,
        workers: 1,
        settle: Duration::from_secs(5),
        drain: Duration::from_secs(5),
    }
}
