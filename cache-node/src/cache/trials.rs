//! Trials of the whole room: seeded data, restarts, `kill -9`, damage, full and failing disks, hit ratios.
//!
//! Small by default; `FRAMECACHE_SOAK=1` runs them at full size.

mod damage;
mod faults;
mod keep;
mod model;
mod rate;
mod restart;

use std::path::Path;

use bytes::Bytes;
use framecache::frame::{Dtype, Layout};
use framecache::{ObjectId, Page, Tensor, TensorHead, Version};

use super::{AdmissionMode, Body, CacheSettings, Entry, EntryKey, FoyerStore, Head, frames, pages};

pub(super) fn soak() -> bool {
    std::env::var_os("FRAMECACHE_SOAK").is_some_and(|v| v == "1")
}

/// A seeded stream of numbers.
pub(super) fn dice(seed: u64) -> impl FnMut() -> u64 {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    }
}

/// 0..n in seeded order.
pub(super) fn shuffled(n: u64, seed: u64) -> Vec<u64> {
    let mut roll = dice(seed + 1);
    let mut order: Vec<u64> = (0..n).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, (roll() % (at as u64 + 1)) as usize);
    }
    order
}

/// Bytes that depend on the seed alone.
pub(super) fn bytes(seed: u64, len: usize) -> Bytes {
    let mut roll = dice(seed ^ 0x00C0_FFEE);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&roll().to_le_bytes());
    }
    out.truncate(len);
    Bytes::from(out)
}

pub(super) fn id(key: &str) -> ObjectId {
    ObjectId::new("photos", key).expect("id")
}

pub(super) fn head(version: u64, size: u64) -> Head {
    Head {
        version: Version::new(&format!("\"v{version}\"")).expect("version"),
        size,
        fetched_unix_ms: 1_700_000_000_000 + version,
    }
}

pub(super) fn page_key(key: &str, page: u64) -> EntryKey {
    pages::key(&id(key), Page::new(page))
}

/// A whole short object of `len` bytes, whose bytes depend on its version.
pub(super) fn page_entry(version: u64, len: usize) -> Entry {
    Entry { head: head(version, len as u64), body: Body::Raw(bytes(version, len)) }
}

pub(super) fn frame_key(key: &str, frame: u64) -> EntryKey {
    frames::key(&id(key), &format!("video?frames={frame}&short=256").parse().expect("spec"))
}

/// A square frame.
pub(super) fn frame_entry(version: u64, side: u32) -> Entry {
    let look = TensorHead {
        shape: [side, side, 3],
        dtype: Dtype::U8,
        layout: Layout::Hwc,
        source: (640, 480),
        orientation: 6,
        pts_seconds: 1.25,
        format: None,
    };
    frames::entry(head(version, 9999), Tensor { head: look, data: bytes(version, look.bytes() as usize) }).expect("frame")
}

pub(super) fn settings(dir: &Path, disk: u64) -> CacheSettings {
    CacheSettings {
        dir: Some(dir.to_owned()),
        raw_ram: 8 << 20,
        decoded_ram: 8 << 20,
        disk,
        admission: AdmissionMode::Keep,
        seed: 5,
    }
}

/// A folder on a real disk (not tmpfs, which may refuse direct I/O).
pub(super) fn folder() -> tempfile::TempDir {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp");
    std::fs::create_dir_all(&base).expect("target/tmp");
    tempfile::tempdir_in(base).expect("folder")
}

pub(super) async fn open(dir: &Path, disk: u64) -> FoyerStore {
    FoyerStore::open(settings(dir, disk)).await.expect("open")
}
