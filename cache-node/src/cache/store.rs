//! The real [`Store`]: RAM tiers, the disk tier behind them, admission before it.

use std::cell::Cell;
use std::sync::Arc;

use async_trait::async_trait;
use framecache::Version;
use parking_lot::Mutex;

use super::admission::{Admission, DataSet, Place};
use super::disk::{Disk, Loaded, OpenError};
use super::ram::{Held, OnLeave, Ram};
use super::stats::{Counters, count};
use super::{
    CacheError, CacheSettings, CacheStats, Class, DiskPresence, Entry, EntryKey, InsertHint, Placed, Presence, Store, entry,
};

/// RAM and disk over `foyer`.
pub struct FoyerStore {
    ram: Ram,
    tier: Tier,
    counters: Arc<Counters>,
    /// Why there is no disk although one was asked for.
    off_at_start: Option<String>,
}

/// What admission guards: the disk, or RAM where there is none.
enum Tier {
    Disk { disk: Disk, admission: Arc<Mutex<Admission>> },
    Ram { admissions: [Arc<Mutex<Admission>>; 2] },
}

impl FoyerStore {
    /// Opens the tiers. A disk that cannot be used does not stop the node; a folder that must not be used does.
    pub async fn open(settings: CacheSettings) -> Result<Self, CacheError> {
        let counters = Arc::new(Counters::default());
        let mut off_at_start = None;
        if settings.has_disk() {
            match Disk::open(&settings, counters.clone()).await {
                Ok((disk, admission)) => {
                    let ram = Ram::new(settings.raw_ram, settings.decoded_ram, None);
                    return Ok(Self { ram, tier: Tier::Disk { disk, admission }, counters, off_at_start });
                }
                Err(OpenError::Refused(error)) => return Err(error),
                Err(OpenError::Off(reason)) => {
                    tracing::error!(reason, "disk tier is off: serving goes on without it");
                    count(&counters.disk_switched_off);
                    off_at_start = Some(reason);
                }
            }
        }
        let admission = |bytes| Arc::new(Mutex::new(Admission::new(settings.admission, bytes, 0, settings.seed)));
        let admissions = [admission(settings.raw_ram), admission(settings.decoded_ram)];
        let told = admissions.clone();
        let on_leave: OnLeave = Arc::new(move |name, class| told[class as usize].lock().evicted(name as u64, 0));
        let ram = Ram::new(settings.raw_ram, settings.decoded_ram, Some(on_leave));
        Ok(Self { ram, tier: Tier::Ram { admissions }, counters, off_at_start })
    }

    fn disk(&self) -> Option<&Disk> {
        match &self.tier {
            Tier::Disk { disk, .. } => Some(disk),
            Tier::Ram { .. } => None,
        }
    }

    fn admission(&self, class: Class) -> &Mutex<Admission> {
        match &self.tier {
            Tier::Disk { admission, .. } => admission,
            Tier::Ram { admissions } => &admissions[class as usize],
        }
    }

    /// A hit, for admission: hits in RAM are frequent and stand sixteen for one.
    fn hit(&self, name: u128, key: &EntryKey, bytes: usize, weight: u32) {
        thread_local!(static HITS: Cell<u32> = const { Cell::new(0) });
        let turn = HITS.with(|hits| {
            hits.set(hits.get().wrapping_add(1));
            hits.get().is_multiple_of(weight)
        });
        if turn {
            let set = DataSet::of(key.id());
            self.admission(key.class()).lock().accessed(set, name as u64, bytes as u64, true, weight);
        }
    }

    /// What RAM, or the disk's write queue, holds under that name, in whatever version.
    fn held(&self, name: u128, key: &EntryKey) -> Option<Arc<Held>> {
        self.ram.get(name, key).or_else(|| self.disk()?.pending(name, key))
    }

    fn ram_hit(&self, name: u128, key: &EntryKey, version: Option<&Version>) -> Option<Entry> {
        let held = self.held(name, key).filter(|held| matches(held, version))?;
        count(&self.counters.hits_ram);
        self.hit(name, key, held.entry.body.bytes().len(), RAM_HITS_PER_SAMPLE);
        Some(held.entry.clone())
    }

    fn decide(&self, name: u128, key: &EntryKey, bytes: u64) -> Place {
        let class = key.class();
        let fits = self.ram.fits(class, bytes);
        let set = DataSet::of(key.id());
        let mut admission = self.admission(class).lock();
        admission.accessed(set, name as u64, bytes, false, 1);
        match &self.tier {
            // What lies there under this name is an older version: replacing it takes nobody's place.
            Tier::Disk { disk, .. } if disk.is_on() => {
                match disk.holds(name) || admission.admit(set, name as u64, bytes, disk.has_room(bytes)) {
                    true => Place::RamAndDisk,
                    false if fits => Place::RamOnly,
                    false => Place::Pass,
                }
            }
            // The disk went off: RAM is a buffer then, and takes what comes.
            Tier::Disk { .. } if fits => Place::RamOnly,
            Tier::Disk { .. } => Place::Pass,
            Tier::Ram { .. } => {
                let admitted = fits && admission.admit(set, name as u64, bytes, self.ram.has_room(class, bytes));
                if admitted { Place::RamOnly } else { Place::Pass }
            }
        }
    }
}

fn matches(held: &Held, version: Option<&Version>) -> bool {
    version.is_none_or(|wanted| *wanted == held.entry.head.version)
}

#[async_trait]
impl Store for FoyerStore {
    async fn get(&self, key: &EntryKey, version: Option<&Version>) -> Option<Entry> {
        let name = entry::name(key, 0);
        if let Some(entry) = self.ram_hit(name, key, version) {
            return Some(entry);
        }
        // Another version in RAM, or on its way to disk, is the newer one: what lies on disk has been replaced already.
        let loaded = match self.disk() {
            Some(disk) if self.held(name, key).is_none() => disk.load(name, key, version).await,
            _ => Loaded::Miss,
        };
        match loaded {
            Loaded::Hit(entry) => {
                count(&self.counters.hits_disk);
                self.hit(name, key, entry.body.bytes().len(), 1);
                // Unless a newer one came in while this was read.
                if self.held(name, key).is_none() {
                    self.ram.insert(name, Arc::new(Held { key: key.clone(), entry: entry.clone() }));
                }
                Some(entry)
            }
            Loaded::OtherVersion => {
                count(&self.counters.misses);
                count(&self.counters.misses_version);
                None
            }
            Loaded::Miss => {
                count(&self.counters.misses);
                if self.held(name, key).is_some() {
                    count(&self.counters.misses_version);
                }
                None
            }
        }
    }

    fn get_ram(&self, key: &EntryKey, version: Option<&Version>) -> Option<Entry> {
        self.ram_hit(entry::name(key, 0), key, version)
    }

    fn place(&self, key: &EntryKey, bytes: u64) -> Place {
        self.decide(entry::name(key, 0), key, bytes)
    }

    fn insert(&self, key: EntryKey, entry: Entry, hint: InsertHint) -> Placed {
        count(&self.counters.inserts);
        let name = entry::name(&key, 0);
        let bytes = entry.body.bytes().len() as u64;
        if key.class() != entry.body.class() {
            return Placed { ram: false, disk: false };
        }
        let place = match hint {
            InsertHint::Normal => self.decide(name, &key, bytes),
            InsertHint::RamOnly => Place::RamOnly,
            InsertHint::As(place) => place,
        };
        let set = DataSet::of(key.id());
        let class = key.class();
        let held = Arc::new(Held { key, entry });
        match place {
            Place::Pass => {
                self.ram.remove(name, class);
                Placed { ram: false, disk: false }
            }
            Place::RamOnly => {
                let ram = self.ram.insert(name, held);
                if let (Tier::Ram { admissions }, true) = (&self.tier, ram) {
                    admissions[class as usize].lock().stored(set, name as u64, bytes);
                }
                Placed { ram, disk: false }
            }
            Place::RamAndDisk => {
                let ram = self.ram.insert(name, held.clone());
                let disk = self.disk().filter(|disk| disk.is_on()).is_some_and(|disk| {
                    count(&self.counters.admitted);
                    disk.enqueue(name, held)
                });
                Placed { ram, disk }
            }
        }
    }

    async fn room(&self) {
        if let Some(disk) = self.disk() {
            disk.room().await;
        }
    }

    async fn presence(&self, key: &EntryKey) -> Presence {
        let name = entry::name(key, 0);
        let disk = self.disk().map_or(DiskPresence::No, |disk| disk.presence(name));
        Presence { ram: self.ram.contains(name, key.class()), disk }
    }

    async fn remove(&self, key: &EntryKey) {
        let name = entry::name(key, 0);
        self.ram.remove(name, key.class());
        if let Some(disk) = self.disk() {
            disk.remove(name).await;
        }
    }

    fn stats(&self) -> CacheStats {
        let mut stats = self.counters.snapshot();
        stats.ram_raw_bytes = self.ram.usage(Class::Raw);
        stats.ram_decoded_bytes = self.ram.usage(Class::Decoded);
        stats.disk_off = self.off_at_start.clone();
        if let Tier::Disk { disk, admission } = &self.tier {
            stats.disk_capacity_bytes = disk.capacity();
            stats.disk_held_bytes = admission.lock().held();
            stats.disk_queued_bytes = disk.queued_bytes();
            stats.disk_off = disk.off_reason();
        }
        stats
    }

    async fn flush(&self) {
        if let Some(disk) = self.disk() {
            disk.barrier().await;
        }
    }

    async fn close(&self) {
        if let Some(disk) = self.disk() {
            disk.close().await;
        }
    }
}

/// Admission looks at one RAM hit in so many: its lock must not be what RAM hits wait for.
const RAM_HITS_PER_SAMPLE: u32 = 16;
