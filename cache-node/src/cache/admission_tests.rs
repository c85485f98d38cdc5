//! The policy on a model of the disk: blocks of entries, the oldest block goes first. Counts, no clock, no disk.

use std::collections::{HashSet, VecDeque};

use super::*;
use crate::cache::trials::{dice, shuffled};

const KEY_BYTES: u64 = 100;

/// A disk of `blocks` blocks of 16 entries, under the policy.
struct Model {
    policy: Admission,
    blocks: usize,
    full: VecDeque<Vec<u64>>,
    open: Vec<u64>,
    held: HashSet<u64>,
    written: u64,
}

impl Model {
    fn new(blocks: usize) -> Self {
        let capacity = blocks as u64 * 16 * KEY_BYTES;
        let policy = Admission::new(AdmissionMode::Keep, capacity, 0, 7);
        Self { policy, blocks, full: VecDeque::new(), open: Vec::new(), held: HashSet::new(), written: 0 }
    }

    fn restart(&mut self) {
        let capacity = self.blocks as u64 * 16 * KEY_BYTES;
        self.policy = Admission::new(AdmissionMode::Keep, capacity, self.held.len() as u64 * KEY_BYTES, 9);
    }

    /// Reads `key` of set `set`; whether it hit.
    fn read(&mut self, set: u64, key: u64) -> bool {
        let key = key + (set << 32);
        let hit = self.held.contains(&key);
        self.policy.accessed(DataSet(set), key, KEY_BYTES, hit, 1);
        let free = self.full.len() + 2 < self.blocks;
        if !hit && self.policy.admit(DataSet(set), key, KEY_BYTES, free) {
            self.write(DataSet(set), key);
        }
        hit
    }

    fn write(&mut self, set: DataSet, key: u64) {
        self.written += 1;
        self.open.push(key);
        self.held.insert(key);
        self.policy.stored(set, key, KEY_BYTES);
        if self.open.len() == 16 {
            self.full.push_back(std::mem::take(&mut self.open));
            if self.full.len() >= self.blocks {
                for key in self.full.pop_front().expect("block") {
                    self.held.remove(&key);
                    self.policy.evicted(key, KEY_BYTES);
                }
            }
        }
    }

    /// One epoch over `keys` keys of `set` in shuffled order, `scan` foreign keys between any two; hits / (cache / data set).
    fn epoch(&mut self, set: u64, keys: u64, scan: u64, seed: u64) -> f64 {
        let mut hits = 0;
        for (at, key) in shuffled(keys, seed).into_iter().enumerate() {
            hits += u64::from(self.read(set, key));
            for n in 0..scan {
                self.read(99, seed << 24 | (at as u64 * scan + n));
            }
        }
        hits as f64 / keys as f64 / (self.blocks as f64 * 16.0 / keys as f64)
    }
}

const BLOCKS: usize = 128;
const CACHE: f64 = BLOCKS as f64 * 16.0;

fn keys(ratio: f64) -> u64 {
    (CACHE / ratio) as u64
}

/// Promise: five shuffled epochs hit cache / data set, and write little once full.
#[test]
fn keep_is_steady() {
    for ratio in [0.2, 0.5, 0.8] {
        let mut model = Model::new(BLOCKS);
        let rel: Vec<f64> = (0..5).map(|n| model.epoch(1, keys(ratio), 0, n)).collect();
        println!("keep r={ratio}: {rel:.3?}");
        assert!(rel[1..].iter().all(|rel| *rel >= 0.95), "r={ratio} {rel:?}");
        assert!(model.written < CACHE as u64 * 5 / 4, "r={ratio}: {} written", model.written);
    }
}

/// Promise: a new data set holds 0.9 of its share in its second epoch, and writes no more than about a cache.
#[test]
fn a_new_data_set_refills_at_once() {
    for ratio in [0.2, 0.5, 0.8] {
        let mut model = Model::new(BLOCKS);
        (0..3).for_each(|n| _ = model.epoch(1, keys(ratio), 0, n));
        let before = model.written;
        let rel: Vec<f64> = (3..7).map(|n| model.epoch(2, keys(ratio), 0, n)).collect();
        println!("switch r={ratio}: {rel:.3?}");
        assert!(rel[1..].iter().all(|rel| *rel >= 0.9), "r={ratio} {rel:?}");
        assert!(model.written - before < CACHE as u64 * 3 / 2, "r={ratio}: {} written", model.written - before);
    }
}

/// Promise: the same after a restart, when nobody knows whose the old entries were.
#[test]
fn a_new_data_set_refills_after_a_restart() {
    let mut model = Model::new(BLOCKS);
    (0..3).for_each(|n| _ = model.epoch(1, keys(0.5), 0, n));
    model.restart();
    let rel: Vec<f64> = (3..6).map(|n| model.epoch(2, keys(0.5), 0, n)).collect();
    println!("switch at restart: {rel:.3?}");
    assert!(rel[1] >= 0.9, "{rel:?}");
}

/// Promise: a restart alone changes nothing: the same data set goes on hitting, and nothing is rewritten.
#[test]
fn a_restart_keeps_what_is_held() {
    for ratio in [0.2, 0.8] {
        let mut model = Model::new(BLOCKS);
        (0..2).for_each(|n| _ = model.epoch(1, keys(ratio), 0, n));
        model.restart();
        let before = model.written;
        let rel: Vec<f64> = (2..6).map(|n| model.epoch(1, keys(ratio), 0, n)).collect();
        println!("restart r={ratio}: {rel:.3?}");
        assert!(rel.iter().all(|rel| *rel >= 0.95), "{rel:?}");
        assert!(model.written - before < CACHE as u64 / 8, "{} written", model.written - before);
    }
}

/// Promise: keys that are read once, three to one, do not push out a set that is being read; not under its own prefix either.
#[test]
fn a_scan_flushes_nothing() {
    for ratio in [0.2, 0.5, 0.8] {
        let mut model = Model::new(BLOCKS);
        (0..2).for_each(|n| _ = model.epoch(1, keys(ratio), 0, n));
        let rel: Vec<f64> = (2..8).map(|n| model.epoch(1, keys(ratio), 3, n)).collect();
        println!("scan r={ratio}: {rel:.3?}");
        assert!(rel.iter().all(|rel| *rel >= 0.9), "r={ratio} {rel:?}");
    }
    let mut model = Model::new(BLOCKS);
    (0..2).for_each(|n| _ = model.epoch(99, keys(0.5), 0, n));
    let rel: Vec<f64> = (2..6).map(|n| model.epoch(99, keys(0.5), 3, n + 1000)).collect();
    println!("scan under the same prefix: {rel:.3?}");
    assert!(rel.iter().all(|rel| *rel >= 0.9), "{rel:?}");
}

/// Promise: a set that arrives while a scan already holds the cache gets its share from its re-reads.
#[test]
fn a_set_overcomes_an_older_scan() {
    let mut model = Model::new(BLOCKS);
    (0..3 * CACHE as u64).for_each(|n| _ = model.read(99, 1 << 30 | n));
    let rel: Vec<f64> = (0..5).map(|n| model.epoch(1, keys(0.5), 3, n + 50)).collect();
    println!("after a scan: {rel:.3?}");
    assert!(rel[3] >= 0.9, "{rel:?}");
}

/// Promise: new keys under an old prefix are noticed by their re-reads, two epochs late at most.
#[test]
fn new_keys_under_an_old_prefix_refill() {
    for ratio in [0.2, 0.5, 0.8] {
        let mut model = Model::new(BLOCKS);
        (0..3).for_each(|n| _ = model.epoch(1, keys(ratio), 0, n));
        let mut rel = Vec::new();
        for n in 3..9 {
            let order = shuffled(keys(ratio), n);
            let hits = order.iter().filter(|key| model.read(1, **key + (1 << 28))).count();
            rel.push(hits as f64 / CACHE);
        }
        println!("same prefix r={ratio}: {rel:.3?}");
        assert!(rel[4..].iter().all(|rel| *rel >= 0.9), "r={ratio} {rel:?}");
    }
}

/// Promise: two sets that are both read share the cache, and neither thrashes.
#[test]
fn two_jobs_share() {
    let mut model = Model::new(BLOCKS);
    let size = keys(0.5);
    (0..2).for_each(|n| _ = model.epoch(1, size, 0, n));
    let mut both = Vec::new();
    for n in 0..8 {
        let (one, two) = (shuffled(size, n), shuffled(size, n + 100));
        let before = model.written;
        let hits: usize =
            one.iter().zip(&two).map(|(a, b)| usize::from(model.read(1, *a)) + usize::from(model.read(2, *b))).sum();
        both.push((hits as f64 / CACHE, model.written - before));
    }
    println!("two jobs: {both:.3?}");
    assert!(both[5..].iter().all(|(rel, written)| *rel >= 0.85 && *written < CACHE as u64 / 4), "{both:?}");
}

/// Promise: folders read one after the other, each for a while, are one another's neighbours, not cold, from their second pass on.
#[test]
fn folders_in_order_are_kept() {
    let mut model = Model::new(BLOCKS);
    let folders = 40;
    let size = keys(0.5) / folders;
    let mut rel = Vec::new();
    for n in 0..6 {
        let mut hits = 0;
        for folder in 0..folders {
            hits += shuffled(size, n * folders + folder).into_iter().filter(|key| model.read(folder + 1, *key)).count();
        }
        rel.push(hits as f64 / CACHE);
    }
    println!("folders in order: {rel:.3?}");
    assert!(rel[4..].iter().all(|rel| *rel >= 0.85), "{rel:?}");
}

/// Promise: `all` admits; free space admits; a full cache admits no stranger. The same seed gives the same answers.
#[test]
fn table() {
    let mut all = Admission::new(AdmissionMode::All, 1000, 0, 1);
    assert!(all.admit(DataSet(1), 1, 10, false));
    let mut keep = Admission::new(AdmissionMode::Keep, 1000, 0, 1);
    assert!(keep.admit(DataSet(1), 1, 10, true));
    assert!(!keep.admit(DataSet(1), 2, 10, false));
    let run = |seed| {
        let mut model = Model::new(16);
        model.policy.dice = seed;
        (0..4).map(|n| model.epoch(1, 1000, 1, n)).collect::<Vec<_>>()
    };
    assert_eq!(run(5), run(5));
}

/// Promise: the tables are bounded, whatever is asked for.
#[test]
fn memory_is_bounded() {
    let mut policy = Admission::new(AdmissionMode::Keep, 1 << 30, 0, 1);
    let mut roll = dice(3);
    for _ in 0..400_000 {
        policy.accessed(DataSet(roll() % 5000), roll(), 1000, false, 1);
    }
    assert!(policy.sets.len() <= SETS_MAX && policy.sample.seen.len() <= SAMPLE_MAX && policy.sample.bytes.len() <= 5000);
}

/// Promise: a data set is the bucket and at most two folders.
#[test]
fn data_sets_are_folders() {
    let of = |text: &str| DataSet::of(&text.parse().expect("id"));
    assert_eq!(of("s3://abc/a/b/c/d.jpg"), of("s3://abc/a/b/e.jpg"));
    assert_eq!(of("s3://abc/a/x.jpg"), of("s3://abc/a/y.jpg"));
    assert_eq!(of("s3://abc/x.jpg"), of("s3://abc/y.tar!/m/n/o"));
    assert_ne!(of("s3://abc/a/b/c.jpg"), of("s3://abc/a/c/c.jpg"));
    assert_ne!(of("s3://abc/x.jpg"), of("s3://abd/x.jpg"));
}
