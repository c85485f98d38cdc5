//! Admission: what may take the place of what is held. Values in, an answer out; it waits for nobody.
//!
//! Training reads every sample once an epoch, in any order. Under such a stream every replacement is a loss: what is thrown out
//! would have been read just as soon as what comes in. So, once full, `keep` admits only
//!
//! 1. from a pool of bytes whose data sets have *gone cold* (a switch of data set refills at once);
//! 2. for a data set whose re-reads have earned it a larger share than it holds (a second job, a set that lost blocks to others);
//! 3. for a data set whose re-reads no longer hit what it holds (new keys under an old prefix);
//! 4. one in 256 of the misses on keys that were read before.
//!
//! A scan (keys read once) earns nothing: it gets free space and cold space, and never pushes out a set that is being read.
//!
//! The clock of this file is bytes asked for, so that an idle night ages nothing. A *turn* is one capacity of them. Who reads
//! again is told by a sample of all keys (by hash, at a rate that fits its bound), whatever the length of the epoch.

use std::collections::HashMap;

use framecache::ObjectId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::settings::AdmissionMode;

/// Bound of this file's tables but for `resident` (a line of the index budget): sample, sets and the hash tables' slack.
pub const MEMORY_BYTES: u64 = 8 << 20;

/// Where an entry goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// To RAM at once, to disk behind.
    RamAndDisk,
    /// To RAM: useful to those who ask about now.
    RamOnly,
    /// Nowhere: it is answered and forgotten.
    Pass,
}

/// A data set, as far as a cache can tell: the bucket and the first two folders of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataSet(u64);

impl DataSet {
    /// The data set of an object or member.
    pub fn of(id: &ObjectId) -> Self {
        let key = id.key();
        let folders = key.match_indices('/').nth(1).or_else(|| key.rmatch_indices('/').next());
        let prefix = folders.map_or("", |(end, _)| &key[..end]);
        Self(xxh3_64_with_seed(prefix.as_bytes(), xxh3_64_with_seed(id.bucket().as_bytes(), 0)))
    }
}

/// The policy and what it remembers.
pub struct Admission {
    mode: AdmissionMode,
    capacity: u64,
    clock: u64,
    tick_at: u64,
    dice: u64,
    /// Bytes of sets gone cold that anybody may still replace.
    pool: u64,
    sets: HashMap<DataSet, Set>,
    /// Key hash -> whose it is and how large: what was written or hit since the start.
    resident: HashMap<u64, (DataSet, u32)>,
    /// Bytes found at start, nobody's until they are hit.
    found: Found,
    sample: Sample,
}

#[derive(Default)]
struct Set {
    held: u64,
    /// Clock of the last access, and the longest pause before which it came back.
    last: u64,
    pause: u64,
    /// Its bytes are in the pool already.
    given_up: bool,
    /// Bytes asked for, ever; bytes asked for again, and those of them that hit (both decay by tick).
    traffic: u64,
    again: f64,
    hits: f64,
    /// Bytes that it may still replace, and the traffic before which it gets no more.
    refill: u64,
    rest_until: u64,
}

#[derive(Default)]
struct Found {
    held: u64,
    last: u64,
}

impl Admission {
    /// A policy for `capacity` bytes, of which `found` were there at the start.
    pub fn new(mode: AdmissionMode, capacity: u64, found: u64, seed: u64) -> Self {
        Self {
            mode,
            capacity: capacity.max(1),
            clock: 0,
            tick_at: 0,
            dice: seed | 1,
            pool: 0,
            sets: HashMap::new(),
            resident: HashMap::new(),
            found: Found { held: found, last: 0 },
            sample: Sample::default(),
        }
    }

    /// Notes that `key` (of `bytes`) was asked for, and whether it was held. `weight` is how many such accesses this one stands for.
    pub fn accessed(&mut self, set: DataSet, key: u64, bytes: u64, hit: bool, weight: u32) {
        if self.mode == AdmissionMode::All {
            return;
        }
        self.clock += bytes * u64::from(weight);
        let clock = self.clock;
        if hit {
            self.claim(set, key, bytes);
        }
        self.make_room_for(set);
        let state = self.sets.entry(set).or_insert_with(|| Set { last: clock, ..Set::default() });
        let away = clock - state.last;
        if state.given_up || away > self.capacity / 8 {
            // It was away and is back: its next pause is judged by this one.
            state.pause = state.pause.max(away);
            state.given_up = false;
        }
        state.last = clock;
        state.traffic += bytes * u64::from(weight);
        let seen = self.sample.see(key, set, bytes, clock);
        // Hits and misses of re-reads both count at the sample's rate, scaled back to bytes.
        if (hit || seen > 1) && self.sample.takes(key) {
            let bytes = bytes as f64 * f64::from(weight) / self.sample.rate();
            state.again += bytes;
            state.hits += if hit { bytes } else { 0.0 };
        }
        if clock >= self.tick_at {
            self.tick();
        }
    }

    /// Whether `bytes` under `key` may be written, after its miss was noted. `free`: there is room without replacing anything.
    pub fn admit(&mut self, set: DataSet, key: u64, bytes: u64, free: bool) -> bool {
        if self.mode == AdmissionMode::All || free {
            return true;
        }
        if self.pool >= bytes {
            self.pool -= bytes;
            return true;
        }
        let Some(state) = self.sets.get_mut(&set) else { return false };
        if state.refill >= bytes {
            state.refill -= bytes;
            return true;
        }
        self.sample.times(key) > 1 && self.roll() < RARE / self.sample.rate()
    }

    /// Notes that `key` was written.
    pub fn stored(&mut self, set: DataSet, key: u64, bytes: u64) {
        if self.mode == AdmissionMode::All {
            return;
        }
        self.evicted(key, 0);
        self.resident.insert(key, (set, u32::try_from(bytes).unwrap_or(u32::MAX)));
        self.sets.entry(set).or_default().held += bytes;
    }

    /// Notes that `key` (of about `bytes`) is gone.
    pub fn evicted(&mut self, key: u64, bytes: u64) {
        match self.resident.remove(&key) {
            Some((set, bytes)) => {
                if let Some(state) = self.sets.get_mut(&set) {
                    state.held = state.held.saturating_sub(u64::from(bytes));
                }
            }
            None => self.found.held = self.found.held.saturating_sub(bytes),
        }
    }

    /// Bytes that are known to be held.
    pub fn held(&self) -> u64 {
        self.sets.values().map(|set| set.held).sum()
    }

    /// An entry that was there at the start turns out to be `set`'s.
    fn claim(&mut self, set: DataSet, key: u64, bytes: u64) {
        if self.found.held == 0 || self.resident.contains_key(&key) {
            return;
        }
        self.found.last = self.clock;
        self.found.held = self.found.held.saturating_sub(bytes);
        self.resident.insert(key, (set, u32::try_from(bytes).unwrap_or(u32::MAX)));
        self.sets.entry(set).or_default().held += bytes;
    }

    /// Rules 1 to 3 look around once in a while rather than at every access.
    fn tick(&mut self) {
        self.tick_at = self.clock + self.capacity / TICKS_PER_TURN;
        let (clock, turn) = (self.clock, self.capacity);
        self.sample.forget_before(clock.saturating_sub(turn.saturating_mul(SAMPLE_TURNS)), &mut self.sets);
        if clock - self.found.last > turn / 8 {
            self.pool += std::mem::take(&mut self.found.held);
        }
        let again_all: f64 = self.sets.values().map(|set| set.again).sum();
        for (&name, set) in &mut self.sets {
            if !set.given_up && clock - set.last > (turn / 8).max(set.pause.saturating_mul(2)) {
                set.given_up = true;
                self.pool += set.held;
            }
            if set.refill == 0 && set.traffic >= set.rest_until && set.again > 0.0 {
                let distinct = self.sample.bytes_of(name);
                let refill = set.wants(again_all, distinct, turn, self.found.held);
                if refill > 0 {
                    set.refill = refill;
                    // What is admitted now is read again an epoch later; judging earlier would replace it again.
                    set.rest_until = set.traffic + turn.max(distinct + distinct / 2);
                    (set.again, set.hits) = (0.0, 0.0);
                }
            }
            set.again *= DECAY;
            set.hits *= DECAY;
        }
        self.pool = self.pool.min(turn);
    }

    /// The table is bounded: of many, the one that holds least and was away longest is forgotten.
    fn make_room_for(&mut self, set: DataSet) {
        if self.sets.len() >= SETS_MAX && !self.sets.contains_key(&set) {
            let least = self.sets.iter().min_by_key(|(_, set)| (set.held, set.last)).map(|(&name, _)| name);
            if let Some(name) = least {
                self.sets.remove(&name);
                self.sample.bytes.remove(&name);
            }
        }
    }

    /// Uniform in [0, 1).
    fn roll(&mut self) -> f64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Admission({:?}, {} bytes)", self.mode, self.capacity)
    }
}

impl Set {
    /// How many bytes this set should replace now, by what its re-reads earned or miss.
    fn wants(&self, again_all: f64, distinct: u64, turn: u64, found: u64) -> u64 {
        let share = self.again / again_all.max(1.0);
        // A set cannot use more than it is; what nobody has claimed yet may be its own.
        let target = ((turn as f64 * share) as u64).min(distinct);
        let held = self.held + found;
        if self.again > turn as f64 / EVIDENCE && held < target / 4 * 3 {
            return target - held;
        }
        let expected = (self.held as f64 / distinct.max(1) as f64).min(1.0);
        let missed = self.again > turn as f64 / EVIDENCE && self.hits < self.again * expected / 2.0;
        if missed && share > 0.5 { self.held } else { 0 }
    }
}

/// Keys that were read, by hash: all of those below a threshold, which falls as they grow in number.
struct Sample {
    below: u64,
    seen: HashMap<u64, Seen>,
    /// Bytes in the sample, per set.
    bytes: HashMap<DataSet, u64>,
}

struct Seen {
    set: DataSet,
    last: u64,
    bytes: u32,
    times: u32,
}

impl Default for Sample {
    fn default() -> Self {
        Self { below: u64::MAX, seen: HashMap::new(), bytes: HashMap::new() }
    }
}

impl Sample {
    /// How often `key` was seen, this time included; 1 for what is not sampled.
    fn see(&mut self, key: u64, set: DataSet, bytes: u64, clock: u64) -> u32 {
        if !self.takes(key) {
            return 1;
        }
        if self.seen.len() >= SAMPLE_MAX {
            self.below /= 2;
            let below = self.below;
            self.retain(|key, _| scatter(key) < below);
        }
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        let seen = self.seen.entry(key).or_insert_with(|| {
            *self.bytes.entry(set).or_default() += u64::from(size);
            Seen { set, last: clock, bytes: size, times: 0 }
        });
        seen.last = clock;
        seen.times = seen.times.saturating_add(1);
        seen.times
    }

    fn takes(&self, key: u64) -> bool {
        scatter(key) <= self.below
    }

    fn times(&self, key: u64) -> u32 {
        self.seen.get(&key).map_or(0, |seen| seen.times)
    }

    fn rate(&self) -> f64 {
        self.below as f64 / u64::MAX as f64
    }

    /// Estimated bytes of all distinct keys of `set`.
    fn bytes_of(&self, set: DataSet) -> u64 {
        (self.bytes.get(&set).copied().unwrap_or(0) as f64 / self.rate()) as u64
    }

    /// Drops what nobody reads any more, so that the rate can rise again and sets are not thought larger than they are.
    fn forget_before(&mut self, clock: u64, sets: &mut HashMap<DataSet, Set>) {
        if clock > 0 && self.seen.values().any(|seen| seen.last < clock) {
            self.retain(|_, seen| seen.last >= clock && sets.contains_key(&seen.set));
        }
    }

    fn retain(&mut self, keep: impl Fn(u64, &Seen) -> bool) {
        let bytes = &mut self.bytes;
        self.seen.retain(|&key, seen| {
            let kept = keep(key, seen);
            if !kept && let Some(total) = bytes.get_mut(&seen.set) {
                *total = total.saturating_sub(u64::from(seen.bytes));
            }
            kept
        });
    }
}

/// Key hashes are cut by other bits elsewhere (shards): the sample must not depend on theirs.
fn scatter(key: u64) -> u64 {
    let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Data sets that are told apart; a node serves tens.
const SETS_MAX: usize = 1024;

/// Keys in the sample: 64 Ki of 40 bytes are under 5 MB with the table's slack, and 1 % exact in any share that matters.
const SAMPLE_MAX: usize = 64 << 10;

/// Turns after which an unread key leaves the sample: a data set of 64 times the cache still shows its re-reads.
const SAMPLE_TURNS: u64 = 64;

/// A set is judged 32 times per turn: a cold one is found with a delay of 3 % of the cache.
const TICKS_PER_TURN: u64 = 32;

/// Per tick: what a set did a turn ago weighs a fifth.
const DECAY: f64 = 0.95;

/// Re-reads of less than 1/64 of a turn are chance.
const EVIDENCE: f64 = 64.0;

/// One in 256 (measured: 1/64 costs 2 % of the hits, 1/16 costs 12 %, never gains half a per cent).
const RARE: f64 = 1.0 / 256.0;

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
