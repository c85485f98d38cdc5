//! Whether a node answers: judged by the packets that come from it, not by how long it works.
//!
//! A node that is alive acknowledges packets within milliseconds, however long its reply takes; one that was killed, frozen or cut off
//! sends nothing. So a node is *silent* when somebody has asked it for something and no packet has come for [`SILENT`], although packets
//! were sent to it that a living one acknowledges; who asked may have gone meanwhile, to another node or for good. Its connection is
//! left, and what is in flight moves on at once. One probe at a time finds out when it is back.

use std::time::Duration;

/// How often a node is listened to while somebody waits for it, or has in vain.
pub const TICK: Duration = Duration::from_millis(50);

/// Without a packet for this long a node is silent. Six times the longest time that a node takes to acknowledge over a wide network,
/// and short enough that two silent nodes in a row are left within a second.
pub const SILENT: Duration = Duration::from_millis(300);

/// The same as [`SILENT`] where there is no other node to go to: nothing is gained by leaving, but that a node which was started again, and
/// does not know its old connections, is found.
const SILENT_ALONE: Duration = Duration::from_secs(2);

/// Longest that a node is waited for because its round trips take long of late: past it only the least that they ever took counts.
const FAR_MAX: Duration = Duration::from_millis(1500);

/// Longest that a node is waited for which has been silent and was not dead: clients move on within two seconds.
const PATIENCE_MAX: Duration = Duration::from_millis(900);

/// A silence that ends within this was a stumble: of a machine with too few processors, say. The next one is waited out for longer.
const STUMBLE: Duration = Duration::from_secs(1);

/// First and longest pause between two probes.
const PROBE_FIRST: Duration = Duration::from_millis(200);
const PROBE_MAX: Duration = Duration::from_secs(2);

/// Longest handshake with a node where others can be asked: past it requests move on.
const DIAL_FIRST: Duration = Duration::from_secs(1);
/// Longest of any: a node under an onslaught of handshakes takes long, and one that is given up costs it as much as one that is not.
pub const DIAL_MAX: Duration = Duration::from_secs(5);

/// Whether a node may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// As far as is known.
    Good,
    /// It was silent, or could not be reached, and no probe has found it since.
    Silent,
    /// It said that it leaves.
    Leaving,
}

/// What is seen of a node at a tick.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Time since the last tick.
    pub slept: Duration,
    /// Packets that have come from it so far.
    pub datagrams: u64,
    /// Whether there is another node to ask.
    pub elsewhere: bool,
    /// Round trip time.
    pub rtt: Duration,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing: a packet came.
    Alive,
    /// Nothing: it has not been quiet for long.
    Fine,
    /// Send it a packet that it has to acknowledge.
    Nudge,
    /// Leave it.
    Silent,
}

/// Listens to one node.
#[derive(Clone, Copy, Debug)]
pub struct Ear {
    datagrams: u64,
    quiet: Duration,
    patience: Duration,
    /// The least round trip that was seen.
    least: Duration,
    /// Quiet of so long is silence, by the last tick.
    limit: Duration,
    /// A sign of life was asked for, when that many packets had come and it had been quiet for so long; none has come since.
    asked: Option<(u64, Duration)>,
}

impl Default for Ear {
    fn default() -> Self {
        Self { datagrams: 0, quiet: Duration::ZERO, patience: SILENT, least: Duration::MAX, limit: SILENT, asked: None }
    }
}

impl Ear {
    /// Takes in what is seen now.
    pub fn tick(&mut self, now: Moment) -> Heard {
        self.least = self.least.min(now.rtt);
        if now.datagrams != self.datagrams {
            self.datagrams = now.datagrams;
            self.quiet = Duration::ZERO;
            self.asked = self.asked.filter(|(at, _)| *at == now.datagrams).map(|(at, _)| (at, Duration::ZERO));
            return Heard::Alive;
        }
        // Who slept too long has not listened: packets may lie unread in the socket.
        if now.slept > 2 * TICK {
            return Heard::Nudge;
        }
        self.quiet += now.slept.min(TICK);
        let limit = if now.elsewhere { self.patience } else { SILENT_ALONE };
        // The mean forgets slow times only as packets come, and of a lost node none do.
        let far = now.rtt.saturating_mul(4).min(FAR_MAX.max(self.least.saturating_mul(4)));
        let limit = limit.max(far);
        self.limit = limit;
        match self.quiet {
            quiet if quiet >= limit => {
                self.quiet = Duration::ZERO;
                Heard::Silent
            }
            quiet if self.asked.is_some() || quiet * 2 >= limit => Heard::Nudge,
            _ => Heard::Fine,
        }
    }

    /// Whether it was asked for something and has not been heard since: then it is listened to until it is, whoever waits.
    pub fn is_listening(&self) -> bool {
        self.asked.is_some() || !self.quiet.is_zero()
    }

    /// Somebody waits for it in vain, of whom `datagrams` packets have come so far: it is listened to closely until there is another.
    /// Whether it has to be asked for one.
    pub fn doubt(&mut self, datagrams: u64) -> bool {
        if !self.is_listening() {
            self.datagrams = datagrams;
        }
        let since = self.asked.map_or(self.quiet, |(_, since)| since);
        self.asked.replace((datagrams, since)).is_none()
    }

    /// Whether it has not given the sign of life that it was asked for, at each tick, for half of the time after which it is left: another
    /// is asked first. What was quiet before anybody asked does not count.
    pub fn is_doubtful(&self) -> bool {
        self.asked.is_some_and(|(_, since)| (self.quiet - since.min(self.quiet)) * 2 >= self.limit)
    }

    /// The node is connected again, after a silence of that length.
    pub fn back_after(&mut self, silence: Duration) {
        let patience = if silence < STUMBLE { (self.patience * 2).min(PATIENCE_MAX) } else { SILENT };
        *self = Self { patience, ..Self::default() };
    }
}

/// The pause before probe `failures` + 1, with half of it left to `random`: clients that lost a node together do not return together.
pub fn probe_pause(failures: u32, random: u64) -> Duration {
    let longest = PROBE_FIRST.saturating_mul(1 << failures.min(10)).min(PROBE_MAX);
    longest / 2 + fraction(longest / 2, random)
}

/// How long a handshake may take after so many failed ones.
pub fn dial_limit(failures: u32, elsewhere: bool) -> Duration {
    match (failures, elsewhere) {
        (0, false) => DIAL_MAX,
        _ => DIAL_FIRST.saturating_mul(1 << (failures / 2).min(10)).min(DIAL_MAX),
    }
}

/// Uniform in `[0, most)`, for uniform `random`.
pub fn fraction(most: Duration, random: u64) -> Duration {
    most.mul_f64((random >> 11) as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment { slept: TICK, datagrams: 5, elsewhere: true, rtt: Duration::ZERO };

    /// Ticks until a node of which nothing is heard is left, and how many nudges it had.
    fn silent_after(ear: &mut Ear, now: Moment) -> (u32, u32) {
        let mut nudges = 0;
        ear.tick(now);
        for tick in 1..1000 {
            match ear.tick(now) {
                Heard::Alive | Heard::Fine => {}
                Heard::Nudge => nudges += 1,
                Heard::Silent => return (tick, nudges),
            }
        }
        (1000, nudges)
    }

    /// Promise: a dead node is left within 300 ms, and not before it was asked for a sign of life more than once.
    #[test]
    fn silence_is_found_soon() {
        let (ticks, nudges) = silent_after(&mut Ear::default(), NOW);
        assert_eq!(ticks * TICK, SILENT);
        assert!(nudges >= 2, "{nudges}");
        let alone = Moment { elsewhere: false, ..NOW };
        assert_eq!(silent_after(&mut Ear::default(), alone).0 * TICK, SILENT_ALONE);
        let far = Moment { rtt: Duration::from_millis(200), ..NOW };
        assert_eq!(silent_after(&mut Ear::default(), far).0 * TICK, Duration::from_millis(800));
    }

    /// Promise: slow times that are over do not keep a dead node for long; one that was never nearer has its time.
    #[test]
    fn silence_is_found_soon_after_slow_times() {
        let late = Moment { rtt: Duration::from_millis(700), ..NOW };
        assert_eq!(silent_after(&mut Ear::default(), late).0 * TICK, Duration::from_millis(2800));
        let mut ear = Ear::default();
        ear.tick(NOW);
        assert_eq!(silent_after(&mut ear, Moment { datagrams: 6, ..late }).0 * TICK, FAR_MAX);
    }

    /// Promise: a node that sends packets, and one to which we did not listen, are not silent.
    #[test]
    fn living_nodes_are_kept() {
        let mut ear = Ear::default();
        for tick in 0..1000 {
            assert_ne!(ear.tick(Moment { datagrams: tick / 5, ..NOW }), Heard::Silent, "a packet each 250 ms");
        }
        let mut ear = Ear::default();
        ear.tick(NOW);
        assert!((0..1000).all(|_| ear.tick(Moment { slept: 3 * TICK, ..NOW }) == Heard::Nudge));
    }

    /// Promise: who is doubted is asked for a sign of life at each tick: without one it is doubtful after half the silence, and left no
    /// sooner than others; with one the doubt is over, and so is the listening.
    #[test]
    fn doubts_are_cleared_up() {
        let mut ear = Ear::default();
        ear.tick(NOW);
        assert!(ear.doubt(NOW.datagrams) && ear.is_listening() && !ear.doubt(NOW.datagrams), "asked for it once");
        for tick in 1..=5 {
            assert_eq!(ear.tick(NOW), Heard::Nudge);
            assert_eq!(ear.is_doubtful(), tick * TICK * 2 >= SILENT, "{tick}");
        }
        assert_eq!((ear.tick(NOW), 6 * TICK), (Heard::Silent, SILENT));
        let mut ear = Ear::default();
        // What came before nobody listened is no sign.
        assert!(ear.doubt(7) && ear.tick(Moment { datagrams: 7, ..NOW }) == Heard::Nudge);
        assert_eq!(ear.tick(Moment { datagrams: 8, ..NOW }), Heard::Alive);
        assert!(!ear.is_listening() && !ear.is_doubtful() && ear.doubt(8));
        // Whoever has been quiet for another reason has the same time.
        let mut ear = Ear::default();
        for _ in 0..5 {
            ear.tick(NOW);
        }
        assert!(ear.doubt(NOW.datagrams) && !ear.is_doubtful());
        let far = Moment { rtt: Duration::from_millis(200), ..NOW };
        let mut ear = Ear::default();
        for _ in 0..3 {
            ear.tick(far);
        }
        ear.doubt(NOW.datagrams);
        for _ in 0..7 {
            ear.tick(far);
        }
        assert!(!ear.is_doubtful(), "nor is a far one doubtful before half of its silence");
        ear.tick(far);
        assert!(ear.is_doubtful());
        let mut ear = Ear::default();
        ear.tick(Moment { datagrams: 8, ..NOW });
        ear.doubt(8);
        // Nor is what came before somebody doubted it again.
        assert!(!ear.doubt(9) && ear.tick(Moment { datagrams: 9, ..NOW }) == Heard::Alive && ear.is_listening());
        assert_eq!(ear.tick(Moment { datagrams: 9, ..NOW }), Heard::Nudge);
        assert_eq!(ear.tick(Moment { datagrams: 10, ..NOW }), Heard::Alive);
        assert!(!ear.is_listening());
    }

    /// Promise: a node that stumbles is waited for longer, never so long that clients take two seconds; one that was dead is not.
    #[test]
    fn stumbles_are_learnt() {
        let mut ear = Ear::default();
        let mut waits = Vec::new();
        for _ in 0..5 {
            waits.push(silent_after(&mut ear, NOW).0 * TICK);
            ear.back_after(Duration::from_millis(250));
        }
        assert_eq!(waits.iter().map(Duration::as_millis).collect::<Vec<_>>(), [300, 600, 900, 900, 900]);
        ear.back_after(Duration::from_secs(5));
        assert_eq!(silent_after(&mut ear, NOW).0 * TICK, SILENT);
    }

    /// Promise: probes are spread, and never rarer than every two seconds; handshakes of busy nodes are given their time.
    #[test]
    fn pauses_are_bounded() {
        assert_eq!(probe_pause(0, 0), Duration::from_millis(100));
        for failures in 0..100 {
            let (least, most) = (probe_pause(failures, 0), probe_pause(failures, u64::MAX));
            assert!(most <= PROBE_MAX && least * 2 >= most && least >= PROBE_FIRST / 2, "{failures}: {least:?} {most:?}");
            assert!(dial_limit(failures, true) <= DIAL_MAX && dial_limit(failures, true) >= DIAL_FIRST);
        }
        assert_eq!((dial_limit(0, true), dial_limit(0, false), dial_limit(50, true)), (DIAL_FIRST, DIAL_MAX, DIAL_MAX));
    }
}
