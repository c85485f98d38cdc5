//! Which units are not to be tried: those that killed a worker twice within the hour. Values in, an answer out.

use std::collections::HashMap;
use std::time::Duration;

use framecache::{DecodeSpec, ObjectId, Version};
use tokio::time::Instant;

use super::Engine;

/// Deaths after which a unit is left alone. One may be bad luck (a bit flip in memory); two are the picture.
pub(super) const DEATHS_MAX: u32 = 2;

/// How long a unit is left alone after its last death, and how long a first death is remembered.
pub(super) const TTL: Duration = Duration::from_secs(3600);

/// Most units that are remembered; an attacker with more poisoned objects than this pays with two workers for each again.
const UNITS_MAX: usize = 10_000;

/// What is judged: one decode unit, made one way, by one engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Suspect {
    pub(super) id: ObjectId,
    pub(super) version: Version,
    pub(super) unit: u64,
    pub(super) spec: DecodeSpec,
    /// A unit that kills one engine may be fine on another.
    pub(super) engine: Engine,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Try it.
    Free,
    /// Leave it alone for `left`.
    Banned { deaths: u32, cause: String, left: Duration },
}

struct Record {
    deaths: u32,
    cause: String,
    last: Instant,
}

/// The memory of deaths.
#[derive(Default)]
pub(super) struct Quarantine {
    records: HashMap<Suspect, Record>,
}

impl Quarantine {
    /// Whether this may be tried at `now`.
    pub(super) fn verdict(&self, suspect: &Suspect, now: Instant) -> Verdict {
        match self.records.get(suspect) {
            Some(record) if record.deaths >= DEATHS_MAX && record.lives(now) => record.banned(now),
            _ => Verdict::Free,
        }
    }

    /// Counts a death against it, and judges anew.
    pub(super) fn record(&mut self, suspect: &Suspect, cause: &str, now: Instant) -> Verdict {
        if !self.records.contains_key(suspect) {
            self.make_room(now);
        }
        let record = self.records.entry(suspect.clone()).or_insert(Record { deaths: 0, cause: String::new(), last: now });
        record.deaths = if record.lives(now) { record.deaths + 1 } else { 1 };
        record.last = now;
        record.cause = cause.into();
        self.verdict(suspect, now)
    }

    /// Units that are banned at `now`.
    pub(super) fn banned(&self, now: Instant) -> usize {
        self.records.values().filter(|record| record.deaths >= DEATHS_MAX && record.lives(now)).count()
    }

    fn make_room(&mut self, now: Instant) {
        if self.records.len() < UNITS_MAX {
            return;
        }
        self.records.retain(|_, record| record.lives(now));
        if self.records.len() >= UNITS_MAX {
            let oldest = self.records.iter().min_by_key(|(_, record)| record.last).map(|(suspect, _)| suspect.clone());
            oldest.map(|suspect| self.records.remove(&suspect));
        }
    }
}

impl Record {
    fn lives(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < TTL
    }

    fn banned(&self, now: Instant) -> Verdict {
        let left = TTL.saturating_sub(now.saturating_duration_since(self.last));
        Verdict::Banned { deaths: self.deaths, cause: self.cause.clone(), left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspect(key: &str) -> Suspect {
        let id = ObjectId::new("abc", key).expect("id");
        let version = Version::new("\"1\"").expect("version");
        Suspect { id, version, unit: 0, spec: "image".parse().expect("spec"), engine: Engine::Cpu }
    }

    /// Promise: the second death within the hour bans, for an hour from then, and nobody else.
    #[test]
    fn second_death_bans_for_an_hour() {
        let (mut quarantine, start) = (Quarantine::default(), Instant::now());
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let (bad, good) = (suspect("bad"), suspect("good"));
        for (minute, died, want) in [
            (0, true, None),
            (59, true, Some(60)),
            (60, false, Some(59)),
            (118, false, Some(1)),
            (119, false, None),
            (120, true, None),
            (180, true, None), // the first death is an hour old: it counts no more
            (181, true, Some(60)),
        ] {
            let now = at(minute);
            let verdict = if died { quarantine.record(&bad, "SIGSEGV", now) } else { quarantine.verdict(&bad, now) };
            let left = match verdict {
                Verdict::Free => None,
                Verdict::Banned { left, .. } => Some(left.as_secs() / 60),
            };
            assert_eq!(left, want, "minute {minute}");
            let elsewhere = Suspect { engine: Engine::Gpu, ..bad.clone() };
            assert_eq!([&good, &elsewhere].map(|suspect| quarantine.verdict(suspect, now)), [Verdict::Free, Verdict::Free]);
        }
        assert_eq!((quarantine.banned(at(181)), quarantine.banned(at(300))), (1, 0));
    }

    /// Promise: the memory is bounded, and the oldest is forgotten first.
    #[test]
    fn memory_is_bounded() {
        let (mut quarantine, start) = (Quarantine::default(), Instant::now());
        for n in 0..UNITS_MAX + 10 {
            quarantine.record(&suspect(&n.to_string()), "SIGSEGV", start + Duration::from_millis(n as u64));
        }
        assert_eq!(quarantine.records.len(), UNITS_MAX);
        assert!(!quarantine.records.contains_key(&suspect("0")) && quarantine.records.contains_key(&suspect("10")));
    }
}
