//! Flipped bits, cut files, swapped blocks: counted, missed, never served.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::*;
use crate::cache::{InsertHint, Place, Store};

const ENTRIES: u64 = 600;
const DISK: u64 = 64 << 20;

fn key(n: u64) -> EntryKey {
    if n.is_multiple_of(2) { page_key(&format!("d/{n}"), 0) } else { frame_key(&format!("d/{n}"), n) }
}

fn entry(n: u64) -> Entry {
    if n.is_multiple_of(2) { page_entry(n, 70_000) } else { frame_entry(n, 150) }
}

/// A store whose RAM holds nothing, filled.
async fn filled(dir: &Path) -> FoyerStore {
    let store = reopened(dir).await;
    for n in 0..ENTRIES {
        store.insert(key(n), entry(n), InsertHint::As(Place::RamAndDisk));
        store.room().await;
    }
    store.flush().await;
    assert_eq!(store.stats().flushed, ENTRIES);
    store
}

async fn reopened(dir: &Path) -> FoyerStore {
    FoyerStore::open(CacheSettings { raw_ram: 0, decoded_ram: 0, ..settings(dir, DISK) }).await.expect("open")
}

fn blocks(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir.join("blocks")).expect("blocks").map(|f| f.expect("file").path()).collect();
    files.sort();
    files
}

/// Reads everything; how many are held. Panics on a wrong byte.
async fn held(store: &FoyerStore) -> u64 {
    let mut held = 0;
    for n in 0..ENTRIES {
        if let Some(got) = store.get(&key(n), None).await {
            assert_eq!(got, entry(n), "wrong bytes of {n}");
            held += 1;
        }
    }
    held
}

/// Promise: whatever is flipped or cut in the files while they are in use, no wrong byte is served, and each entry that is lost is
/// counted once and not found again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_counted_and_never_served() {
    let dir = folder();
    let store = filled(dir.path()).await;
    let files = blocks(dir.path());
    let mut roll = dice(77);
    let (mut lost, mut rounds) = (0, 0);
    let goal = if soak() { 1000 } else { 200 };
    let mut flips = 0;
    while flips < goal && lost < ENTRIES * 3 / 4 {
        rounds += 1;
        for _ in 0..25 {
            let path = &files[roll() as usize % files.len()];
            let file = OpenOptions::new().read(true).write(true).open(path).expect("block");
            let len = file.metadata().expect("len").len();
            if roll().is_multiple_of(25) && len > 4096 {
                file.set_len(len - roll() % (len / 8)).expect("cut");
            } else {
                let at = roll() % len.max(1);
                let mut byte = [0];
                if file.read_exact_at(&mut byte, at).is_ok() {
                    file.write_all_at(&[byte[0] ^ (1 << (roll() % 8))], at).expect("flip");
                    file.sync_all().expect("sync");
                }
            }
            flips += 1;
        }
        let now = held(&store).await;
        lost = ENTRIES - now;
        assert_eq!(store.stats().corrupt, lost, "each lost entry is counted once");
        assert_eq!(now, held(&store).await);
    }
    println!("{flips} flips and cuts in {rounds} rounds: {lost} of {ENTRIES} entries refused, none wrong; {:?}", store.stats());
    assert!(lost > 0);
    assert_eq!(store.stats().disk_off, None, "damage is not a failing disk");
    store.close().await;
}

/// Promise: the same for damage that happens while nobody looks, and for whole blocks that change places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_before_a_start_is_never_served() {
    let dir = folder();
    let store = filled(dir.path()).await;
    store.close().await;
    drop(store);
    let files = blocks(dir.path());
    let mut roll = dice(78);
    for n in 0..if soak() { 1000 } else { 200 } {
        let file = OpenOptions::new().read(true).write(true).open(&files[roll() as usize % files.len()]).expect("block");
        // Some hit a block's index, by which foyer finds its entries at a start.
        let span = if n % 40 == 0 { 400 } else { file.metadata().expect("len").len() };
        let at = roll() % span;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ (1 << (roll() % 8))], at).expect("flip");
        file.sync_all().expect("sync");
    }
    std::fs::rename(&files[0], files[0].with_extension("x")).expect("swap");
    std::fs::rename(&files[1], &files[0]).expect("swap");
    std::fs::rename(files[0].with_extension("x"), &files[1]).expect("swap");
    OpenOptions::new().write(true).open(&files[2]).expect("block").set_len(10_000).expect("cut");
    let store = reopened(dir.path()).await;
    let now = held(&store).await;
    println!("after a start: {now} of {ENTRIES} held, {} refused", store.stats().corrupt);
    assert!(now > 0 && now < ENTRIES);
    assert!(now + store.stats().corrupt >= ENTRIES, "every lost entry is counted: {:?}", store.stats());
    store.close().await;
}
