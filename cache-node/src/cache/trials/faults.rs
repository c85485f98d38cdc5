//! Disks that are full, read-only or failing: the tier goes off, loudly, and serving goes on.
//!
//! Real file systems on loop devices; without the right to mount, the trial says so and is skipped.

use std::path::PathBuf;
use std::process::Command;

use super::*;
use crate::cache::{InsertHint, Place, Store};

/// ext4 of `inner` MiB in an image on a tmpfs of `outer` MiB: where the image outgrows the tmpfs, writes fail with EIO.
struct Loop {
    base: tempfile::TempDir,
}

fn run(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

impl Loop {
    fn mount(outer: u64, inner: u64) -> Option<Self> {
        let base = tempfile::tempdir().expect("folder");
        let at = base.path().to_str().expect("path").to_owned();
        let this = Self { base };
        let image = format!("{at}/image");
        let ready = run("mount", &["-t", "tmpfs", "-o", &format!("size={outer}m"), "none", &at])
            && run("truncate", &["-s", &format!("{inner}M"), &image])
            && run("mkfs.ext4", &["-q", "-O", "^has_journal", &image])
            && std::fs::create_dir(this.dir()).is_ok()
            && run("mount", &["-o", "loop,errors=continue", &image, &format!("{at}/m")]);
        if !ready {
            println!("skipped: no right to mount a loop device here");
        }
        ready.then_some(this)
    }

    fn dir(&self) -> PathBuf {
        self.base.path().join("m")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("umount", &["-l", self.dir().to_str().expect("path")]);
        run("umount", &["-l", self.base.path().to_str().expect("path")]);
    }
}

async fn serves_from_ram(store: &FoyerStore) {
    let key = page_key("still/served", 0);
    store.insert(key.clone(), page_entry(1, 50_000), InsertHint::Normal);
    store.flush().await;
    assert_eq!(store.get(&key, None).await, Some(page_entry(1, 50_000)));
}

/// Promise: a disk without the room is not half used: the tier stays off, says how much is missing, and the node serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_refused_at_the_start() {
    let Some(disk) = Loop::mount(200, 100) else { return };
    let store = open(&disk.dir().join("cache"), 128 << 20).await;
    let off = store.stats().disk_off.expect("off");
    println!("full: {off}");
    assert!(off.contains("needs") && off.contains("free"), "{off}");
    serves_from_ram(&store).await;
    store.close().await;
}

/// Promise: a read-only file system at the start is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_disk_is_refused_at_the_start() {
    let Some(disk) = Loop::mount(200, 150) else { return };
    assert!(run("mount", &["-o", "remount,ro", disk.dir().to_str().expect("path")]));
    let store = open(&disk.dir().join("cache"), 64 << 20).await;
    println!("read-only: {}", store.stats().disk_off.expect("off"));
    serves_from_ram(&store).await;
}

/// Promise: a disk that hangs turns the tier off after 5 s; inserts never wait for it, and RAM goes on serving.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_disk_turns_the_tier_off() {
    let Some(disk) = Loop::mount(200, 150) else { return };
    let mount = disk.dir().to_str().expect("path").to_owned();
    let store = open(&disk.dir().join("cache"), 64 << 20).await;
    if !run("fsfreeze", &["-f", &mount]) {
        return println!("skipped: no right to freeze a file system here");
    }
    let began = std::time::Instant::now();
    store.insert(page_key("hang", 0), page_entry(1, 50_000), InsertHint::As(Place::RamAndDisk));
    let inserted = began.elapsed();
    let held = store.get(&page_key("hang", 0), None).await;
    store.flush().await;
    let off = store.stats().disk_off;
    assert!(run("fsfreeze", &["-u", &mount]));
    println!("hanging: inserted in {inserted:?}, {off:?} after {:?}", began.elapsed());
    assert_eq!(held, Some(page_entry(1, 50_000)));
    assert!(off.is_some_and(|reason| reason.contains("hangs")));
    assert_eq!(store.stats().dropped_write, 1);
    serves_from_ram(&store).await;
    store.close().await;
}

/// Promise: a disk that fails under way turns the tier off; every insert that it lost is counted, nothing wrong is served, and what
/// is in RAM still is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_disk_turns_the_tier_off() {
    let Some(disk) = Loop::mount(40, 150) else { return };
    let store = open(&disk.dir().join("cache"), 96 << 20).await;
    assert_eq!(store.stats().disk_off, None);
    let mut served = 0;
    for n in 0..1200 {
        store.insert(page_key(&format!("f/{n}"), 0), page_entry(n, 60_000), InsertHint::As(Place::RamAndDisk));
        store.room().await;
        if n % 50 == 0 {
            store.flush().await;
        }
    }
    store.flush().await;
    for n in 0..1200 {
        if let Some(got) = store.get(&page_key(&format!("f/{n}"), 0), None).await {
            assert_eq!(got, page_entry(n, 60_000));
            served += 1;
        }
    }
    let stats = store.stats();
    println!("failing: {:?}; {served} served; {stats:?}", stats.disk_off);
    assert!(stats.disk_off.is_some() && stats.disk_switched_off == 1);
    assert_eq!(stats.admitted, stats.flushed + stats.superseded + stats.dropped_write, "every drop is counted");
    assert!(stats.dropped_write > 0 && served > 0);
    serves_from_ram(&store).await;
    store.close().await;
}
