//! What every [`Store`] must do: one suite, run on each engine.

use super::trials::{folder, frame_entry, frame_key, head, open, page_entry, page_key};
use super::*;

/// Runs the suite on an empty store with room for 4 MiB at least.
async fn conforms(store: &dyn Store) {
    what_is_inserted_is_found(store).await;
    versions_never_mix(store).await;
    keys_are_told_apart(store).await;
    what_is_removed_is_gone(store).await;
    hints_are_obeyed(store).await;
    counters_count(store).await;
    store.close().await;
    assert!(store.get(&page_key("absent", 0), None).await.is_none(), "a closed store answers");
}

async fn what_is_inserted_is_found(store: &dyn Store) {
    for (key, entry) in [
        (page_key("a", 0), page_entry(1, 100_000)),
        (page_key("empty", 0), page_entry(1, 0)),
        (frame_key("a", 0), frame_entry(1, 64)),
    ] {
        assert!(store.get(&key, None).await.is_none());
        assert!(store.insert(key.clone(), entry.clone(), InsertHint::Normal).ram);
        assert_eq!(store.get_ram(&key, None).as_ref(), Some(&entry));
        assert_eq!(store.get(&key, Some(&entry.head.version)).await.as_ref(), Some(&entry));
        store.flush().await;
        assert_eq!(store.get(&key, None).await.as_ref(), Some(&entry));
        assert_ne!(store.presence(&key).await.disk, DiskPresence::Queued, "flush leaves nothing queued");
    }
}

async fn versions_never_mix(store: &dyn Store) {
    let key = page_key("versions", 0);
    let (old, new) = (page_entry(1, 5000), page_entry(2, 6000));
    store.insert(key.clone(), old.clone(), InsertHint::Normal);
    assert_eq!(store.get(&key, Some(&new.head.version)).await, None);
    store.insert(key.clone(), new.clone(), InsertHint::Normal);
    for _ in 0..2 {
        assert_eq!(store.get(&key, Some(&old.head.version)).await, None);
        assert_eq!(store.get(&key, None).await.as_ref(), Some(&new));
        assert_eq!(store.get(&key, Some(&new.head.version)).await.as_ref(), Some(&new));
        store.flush().await;
    }
}

async fn keys_are_told_apart(store: &dyn Store) {
    let other = frames::key(&trials::id("k"), &"video?frames=3&short=128".parse().expect("spec"));
    let keys = [page_key("k", 0), page_key("k", 1), page_key("k/0", 0), frame_key("k", 0), frame_key("k", 3), other];
    for (n, key) in keys.iter().enumerate() {
        let entry = match key {
            EntryKey::Page { .. } | EntryKey::Index { .. } => page_entry(n as u64, 3000 + n),
            EntryKey::Frame { .. } => frame_entry(n as u64, 20),
        };
        store.insert(key.clone(), entry, InsertHint::Normal);
    }
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(store.get(key, None).await.expect("held").head, head(n as u64, if n < 3 { 3000 + n as u64 } else { 9999 }));
    }
}

async fn what_is_removed_is_gone(store: &dyn Store) {
    let key = page_key("removed", 0);
    for flushed in [false, true] {
        store.insert(key.clone(), page_entry(1, 4000), InsertHint::Normal);
        if flushed {
            store.flush().await;
        }
        store.remove(&key).await;
        assert_eq!(store.get(&key, None).await, None);
        assert_eq!(store.presence(&key).await, Presence { ram: false, disk: DiskPresence::No });
        store.flush().await;
        assert_eq!(store.get(&key, None).await, None);
    }
}

async fn hints_are_obeyed(store: &dyn Store) {
    let key = page_key("hints", 0);
    assert!(!store.insert(key.clone(), page_entry(1, 4000), InsertHint::RamOnly).disk);
    store.flush().await;
    assert_eq!(store.presence(&key).await, Presence { ram: true, disk: DiskPresence::No });
    let key = page_key("hints", 1);
    assert_ne!(store.place(&key, 4000), Place::Pass);
    assert_eq!(store.insert(key.clone(), page_entry(1, 4000), InsertHint::As(Place::Pass)), Placed { ram: false, disk: false });
    assert_eq!(store.get(&key, None).await, None);
}

async fn counters_count(store: &dyn Store) {
    let before = store.stats();
    let key = page_key("counted", 0);
    store.get(&key, None).await;
    store.insert(key.clone(), page_entry(1, 4000), InsertHint::Normal);
    store.get(&key, None).await;
    store.get(&key, Some(&head(9, 0).version)).await;
    let after = store.stats();
    let gained = (after.misses - before.misses, after.hits_ram - before.hits_ram, after.inserts - before.inserts);
    assert_eq!(gained, (2, 1, 1));
    assert_eq!(after.misses_version - before.misses_version, 1);
}

#[tokio::test]
async fn memory_conforms() {
    conforms(&MemoryStore::new(16 << 20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foyer_with_disk_conforms() {
    let dir = folder();
    conforms(&open(dir.path(), 64 << 20).await).await;
}

#[tokio::test]
async fn foyer_without_disk_conforms() {
    let settings = CacheSettings { dir: None, ..trials::settings(std::path::Path::new(""), 0) };
    conforms(&FoyerStore::open(settings).await.expect("open")).await;
}
