//! Who is silent: the policy of liveness, on its own thread's clock.
//!
//! Every known node is pinged each [`interval`], and silent when no pong came for [`silent_after`]. A pong also carries the node's
//! progress, a counter that a task on its runtime advances: one whose thread answers while the runtime stands still for
//! [`STALLED_AFTER`] is as good as silent. A busy node is neither: its thread has little to do, and needs no lock of the runtime's.
//!
//! Where our own thread did not run (the process was stopped, the machine suspended) nobody could be heard, and all begin anew:
//! whoever wakes up accuses nobody.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use super::rumour::NUMBER_MAX;

/// Time between two pings to the same node in a small cluster: six chances to be heard before it counts as silent.
const INTERVAL_MIN: Duration = Duration::from_millis(500);

/// At most 250 pings a second, and as many pongs: a percent or two of a core.
const PING_SPACING: Duration = Duration::from_millis(4);

/// Without a pong for this long a node is silent: a second and more than the whole way from there to every view's change (pings,
/// gossip, the others' word) under the 5 s within which a frozen node is out.
const SILENT_AFTER_MIN: Duration = Duration::from_secs(3);

/// A runtime that has run no task for this long will not. Under overload a task may wait for a core for a second or two.
const STALLED_AFTER: Duration = Duration::from_secs(15);

/// Up to this many nodes each answers news with a ping at once; in larger clusters all would answer one.
const ANSWER_NODES_MAX: usize = 64;

/// Our own thread wakes 20 times a second; when it did not for this long it was kept from running.
pub(super) const FROZEN_AFTER: Duration = Duration::from_secs(1);

/// `max(500 ms, 4 ms for each node)`.
pub(super) fn interval(nodes: usize) -> Duration {
    INTERVAL_MIN.max(PING_SPACING.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX)))
}

/// `max(3 s, 4 intervals)`: 3 s up to 187 nodes.
pub(super) fn silent_after(nodes: usize) -> Duration {
    SILENT_AFTER_MIN.max(interval(nodes).saturating_mul(4))
}

/// A life of a node.
pub(super) type Life = (String, u64);

/// Whom to listen to, and what we hold of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) life: Life,
    /// The newest of its rows that we know.
    pub(super) version: u64,
    pub(super) address: SocketAddr,
    /// Whether we hold it for gone at that version.
    pub(super) gone: bool,
    /// False where it said itself that it is gone.
    pub(super) pinged: bool,
    /// Whether its certificate proved its name: only then it can make us refute.
    pub(super) counts: bool,
}

/// A ping or a pong. Who sends it stands in its seal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Beat {
    pub(super) pong: bool,
    /// Version of the sender's own row.
    pub(super) version: u64,
    /// How often the task on the sender's runtime ran.
    pub(super) progress: u64,
    /// What the sender holds of the receiver: incarnation, version, and whether it is held for gone. Zeros: nothing.
    pub(super) yours: (u64, u64, bool),
}

impl Beat {
    pub(super) const BYTES: usize = 1 + 4 * 8 + 1;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = u8::from(self.pong);
        let numbers = [self.version, self.progress, self.yours.0, self.yours.1];
        for (slot, number) in bytes[1..33].chunks_exact_mut(8).zip(numbers) {
            slot.copy_from_slice(&number.to_le_bytes());
        }
        bytes[33] = u8::from(self.yours.2);
        bytes
    }

    /// Longer ones are of a later release, and begin the same. Numbers that no row has are refused.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (pong, rest) = bytes.split_first()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (progress, rest) = rest.split_first_chunk()?;
        let (incarnation, rest) = rest.split_first_chunk()?;
        let (known, rest) = rest.split_first_chunk()?;
        let gone = *rest.first()? != 0;
        let number = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let yours = (number(incarnation), number(known), gone);
        let beat = Self { pong: *pong != 0, version: number(version), progress: number(progress), yours };
        (beat.version.max(yours.0).max(yours.1) <= NUMBER_MAX).then_some(beat)
    }
}

/// What is heard, as the rest of the room needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// Who is silent, or stalled, and the version of its row that it has said nothing after.
    pub(super) silent: BTreeMap<Life, u64>,
    /// The newest version of our own row at which somebody holds us for gone.
    pub(super) told_gone: Option<u64>,
    /// Whose own row is newer than what we know of it.
    pub(super) ahead: BTreeSet<String>,
    /// At which version of our row each node that counts knows us.
    pub(super) known_at: BTreeMap<String, u64>,
}

/// One target's clock.
#[derive(Debug)]
struct Clock {
    target: Target,
    /// When it was heard last, or came to be listened to.
    heard: Duration,
    progress: u64,
    moved: Duration,
    due: Duration,
    /// It said something new: a ping at once lets it know that this has arrived, even if it was its last word.
    owed: bool,
    /// The version that its own beats claim.
    claims: u64,
    knows_us_at: u64,
    told_gone: Option<u64>,
}

/// Every target's clock. Time is since some beginning.
#[derive(Debug)]
pub(super) struct Clocks {
    incarnation: u64,
    clocks: HashMap<Life, Clock>,
}

impl Clocks {
    /// Of a node of that incarnation.
    pub(super) fn new(incarnation: u64) -> Self {
        Self { incarnation, clocks: HashMap::new() }
    }

    /// Takes over whom to listen to. `incarnation` is our own.
    pub(super) fn aim(&mut self, incarnation: u64, targets: &[Target], now: Duration) {
        if incarnation != self.incarnation {
            self.incarnation = incarnation;
            self.clocks.values_mut().for_each(|clock| (clock.knows_us_at, clock.told_gone) = (0, None));
        }
        let wanted: BTreeSet<&Life> = targets.iter().map(|target| &target.life).collect();
        self.clocks.retain(|life, _| wanted.contains(life));
        let silence = silent_after(targets.len());
        let every = interval(targets.len());
        for (index, target) in targets.iter().enumerate() {
            let fresh = || Clock {
                target: target.clone(),
                heard: now,
                progress: 0,
                moved: now,
                // Spread, so that they do not all answer at once.
                due: now + every.mul_f64((index % 64) as f64 / 64.0) / 4,
                owed: false,
                claims: 0,
                knows_us_at: 0,
                told_gone: None,
            };
            let clock = self.clocks.entry(target.life.clone()).or_insert_with(fresh);
            if clock.target.version < target.version && clock.silent(now, silence) {
                // It was silent and says something: it is listened to anew.
                (clock.heard, clock.moved, clock.due) = (now, now, now);
            }
            clock.owed |= clock.target.version < target.version && targets.len() <= ANSWER_NODES_MAX;
            if clock.target.address != target.address {
                clock.due = now;
            }
            clock.target = target.clone();
        }
    }

    /// Whom to ping now, and with what.
    pub(super) fn due(&mut self, now: Duration) -> Vec<(SocketAddr, (u64, u64, bool))> {
        let every = interval(self.clocks.len());
        let due = self.clocks.values_mut().filter(|clock| clock.owed || (clock.target.pinged && clock.due <= now));
        due.map(|clock| {
            clock.owed = false;
            clock.due = now + every;
            (clock.target.address, yours(&clock.target))
        })
        .collect()
    }

    /// What is believed of a beat that came from there. Its seal is everybody's, the name in it anybody's: what it tells of rows is its
    /// sender's word only from where that life is known to be.
    pub(super) fn believed(&self, life: &Life, from: SocketAddr, beat: Beat) -> Beat {
        match self.clocks.get(life) {
            Some(clock) if clock.target.address == from => beat,
            _ => Beat { version: 0, yours: (0, 0, false), ..beat },
        }
    }

    /// A ping or pong came from that life of a node. What to answer, if it was a ping: what we hold of it.
    pub(super) fn beat(&mut self, life: &Life, beat: &Beat, now: Duration) -> Option<(u64, u64, bool)> {
        let own = self.incarnation;
        let Some(clock) = self.clocks.get_mut(life) else { return (!beat.pong).then_some((0, 0, false)) };
        clock.claims = clock.claims.max(beat.version);
        if beat.yours.0 == own {
            if clock.target.counts {
                clock.knows_us_at = clock.knows_us_at.max(beat.yours.1);
            }
            clock.told_gone = (beat.yours.2 && clock.target.counts).then_some(beat.yours.1);
        }
        if beat.progress != clock.progress {
            (clock.progress, clock.moved) = (beat.progress, now);
        }
        if !beat.pong {
            return Some(yours(&clock.target));
        }
        clock.heard = now;
        None
    }

    /// That address was met: what was sent there so far was not taken.
    pub(super) fn met(&mut self, address: SocketAddr, now: Duration) {
        self.clocks.values_mut().filter(|clock| clock.target.address == address).for_each(|clock| clock.due = now);
    }

    /// We ourselves did not run: everybody begins anew.
    pub(super) fn woke(&mut self, now: Duration) {
        self.clocks.values_mut().for_each(|clock| (clock.heard, clock.moved, clock.due) = (now, now, now));
    }

    /// How it stands.
    pub(super) fn heard(&self, now: Duration) -> Heard {
        let silence = silent_after(self.clocks.len());
        let pinged = || self.clocks.iter().filter(|(_, clock)| clock.target.pinged);
        let silent = |(life, clock): (&Life, &Clock)| (life.clone(), clock.target.version);
        let name = |(life, _): (&Life, &Clock)| life.0.clone();
        Heard {
            silent: pinged().filter(|(_, clock)| clock.silent(now, silence)).map(silent).collect(),
            told_gone: self.clocks.values().filter_map(|clock| clock.told_gone).max(),
            ahead: pinged().filter(|(_, clock)| clock.claims > clock.target.version).map(name).collect(),
            known_at: self.clocks.iter().map(|(life, clock)| (life.0.clone(), clock.knows_us_at)).collect(),
        }
    }
}

impl Heard {
    /// Whether that life has been silent since it stated `version`. What was heard, or not, before it said that is no evidence any more.
    pub(super) fn is_silent(&self, life: &Life, version: u64) -> bool {
        self.silent.get(life).is_some_and(|since| *since >= version)
    }
}

impl Clock {
    fn silent(&self, now: Duration, silence: Duration) -> bool {
        now.saturating_sub(self.heard) >= silence || now.saturating_sub(self.moved) >= STALLED_AFTER
    }
}

fn yours(target: &Target) -> (u64, u64, bool) {
    (target.life.1, target.version, target.gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn target(port: u16) -> Target {
        let life = (format!("n{port}"), 1);
        Target { life, version: 2, address: SocketAddr::from(([127, 0, 0, 1], port)), gone: false, pinged: true, counts: true }
    }

    fn pong(progress: u64) -> Beat {
        Beat { pong: true, version: 2, progress, yours: (9, 4, false) }
    }

    fn silent(clocks: &Clocks, now: u64) -> usize {
        clocks.heard(at(now)).silent.len()
    }

    /// Promise: a ping says what it said, and what is no ping is refused.
    #[test]
    fn beats_round_trip() {
        let beat = Beat { pong: true, version: 7, progress: 1 << 40, yours: (3, 5, true) };
        assert_eq!(Beat::from_bytes(&beat.to_bytes()), Some(beat));
        for forged in [Beat { version: u64::MAX, ..beat }, Beat { yours: (3, NUMBER_MAX + 1, true), ..beat }] {
            assert_eq!(Beat::from_bytes(&forged.to_bytes()), None);
        }
        assert!((0..Beat::BYTES).all(|length| Beat::from_bytes(&beat.to_bytes()[..length]).is_none()));
    }

    /// Promise: pings stay under 250 a second, and silence is never judged by fewer than four of them.
    #[test]
    fn intervals_grow_with_the_cluster() {
        let ms = |nodes| (interval(nodes).as_millis(), silent_after(nodes).as_millis());
        assert_eq!((ms(1), ms(100), ms(187)), ((500, 3000), (500, 3000), (748, 3000)));
        assert_eq!(ms(1000), (4000, 16_000));
        let mut clocks = Clocks::new(9);
        clocks.aim(9, &(0..1000).map(target).collect::<Vec<_>>(), at(0));
        let pings: usize = (0..100).map(|tick| clocks.due(at(8000 + tick * 50)).len()).sum();
        assert!((1000..=2000).contains(&pings), "{pings} in 5 s");
    }

    /// Promise: a node that answers is heard, however late each time; one that stops is silent 3 s after its last pong; a new one
    /// has 3 s to be heard at all; one that answers again is heard at once.
    #[test]
    fn silence_is_three_seconds_without_a_pong() {
        let mut clocks = Clocks::new(9);
        clocks.aim(9, &[target(1), target(2)], at(0));
        assert_eq!((silent(&clocks, 2999), silent(&clocks, 3000)), (0, 2));
        for tick in 1..=4 {
            assert_eq!(clocks.beat(&("n1".into(), 1), &pong(tick), at(tick * 2900)), None);
        }
        assert_eq!(clocks.heard(at(11_700)).silent, BTreeMap::from([(("n2".into(), 1), 2)]));
        assert_eq!(silent(&clocks, 14_600), 2);
        clocks.beat(&("n1".into(), 1), &pong(5), at(14_700));
        assert_eq!(silent(&clocks, 14_700), 1);
        clocks.beat(&("n2".into(), 7), &pong(5), at(14_700));
        assert_eq!(silent(&clocks, 14_700), 1, "another life of it is not it");
    }

    /// Promise: a node whose thread answers and whose runtime stands still is out after 15 s, and one that is merely slow is not.
    #[test]
    fn a_dead_runtime_shows() {
        let mut clocks = Clocks::new(9);
        clocks.aim(9, &[target(1), target(2)], at(0));
        for second in 1..=40 {
            clocks.beat(&("n1".into(), 1), &pong(3), at(second * 1000));
            clocks.beat(&("n2".into(), 1), &pong(second / 10), at(second * 1000));
            let stalled = clocks.heard(at(second * 1000)).silent;
            assert_eq!(stalled.contains_key(&("n1".into(), 1)), second >= 16, "{second} s");
            assert!(!stalled.contains_key(&("n2".into(), 1)), "{second} s");
        }
    }

    /// Promise: what a beat tells of rows is believed from its sender's own address alone, and of those who count alone.
    #[test]
    fn words_in_anothers_name_are_not_believed() {
        // What we are told, from which port, by one who counts; the version at which we are then known.
        let cases = [(1, true, 8), (2, true, 0), (1, false, 0)];
        for (port, counts, known_at) in cases {
            let mut clocks = Clocks::new(9);
            clocks.aim(9, &[Target { counts, ..target(1) }], at(0));
            let life = target(1).life;
            let beat = clocks.believed(&life, target(port).address, Beat { yours: (9, 8, true), ..pong(1) });
            clocks.beat(&life, &beat, at(100));
            let heard = clocks.heard(at(100));
            assert_eq!((heard.known_at["n1"], heard.told_gone), (known_at, (known_at > 0).then_some(8)), "{port} {counts}");
        }
    }

    /// Promise: a node that was frozen itself accuses nobody when it wakes.
    #[test]
    fn who_wakes_accuses_nobody() {
        let mut clocks = Clocks::new(9);
        clocks.aim(9, &[target(1)], at(0));
        clocks.beat(&("n1".into(), 1), &pong(1), at(500));
        clocks.woke(at(60_000));
        assert_eq!((silent(&clocks, 60_000), silent(&clocks, 62_999), silent(&clocks, 63_000)), (0, 0, 1));
        assert_eq!(clocks.due(at(60_000)).len(), 1, "and asks at once");
    }

    /// Promise: a silent node that states a newer row is listened to anew; a row alone does not make a heard one younger.
    #[test]
    fn a_newer_row_gets_a_new_hearing() {
        let mut clocks = Clocks::new(9);
        clocks.aim(9, &[target(1)], at(0));
        assert_eq!(silent(&clocks, 3000), 1);
        clocks.aim(9, &[Target { version: 4, ..target(1) }], at(3000));
        assert_eq!((silent(&clocks, 5999), silent(&clocks, 6000)), (0, 1));
        let mut clocks = Clocks::new(9);
        clocks.aim(9, &[target(1)], at(0));
        clocks.aim(9, &[Target { version: 4, ..target(1) }], at(2900));
        assert_eq!(silent(&clocks, 3000), 1);
    }

    /// Promise: pings tell a node that it is held for gone, and whether its news has arrived; what concerns a former life of it
    /// does not.
    #[test]
    fn nodes_learn_how_they_are_held() {
        let mut clocks = Clocks::new(9);
        clocks.aim(9, &[Target { gone: true, ..target(1) }, Target { pinged: false, ..target(2) }], at(0));
        let pings = clocks.due(at(200));
        assert_eq!(pings, [(target(1).address, (1, 2, true))]);
        let answer = clocks.beat(&("n2".into(), 1), &Beat { pong: false, ..pong(1) }, at(200));
        assert_eq!(answer, Some((1, 2, false)), "who has left is answered, not pinged");
        assert_eq!(clocks.beat(&("stranger".into(), 1), &Beat::default(), at(200)), Some((0, 0, false)));
        let from = |clocks: &mut Clocks, yours| clocks.beat(&("n1".into(), 1), &Beat { yours, version: 6, ..pong(1) }, at(300));
        from(&mut clocks, (8, 100, true));
        assert_eq!(clocks.heard(at(300)).told_gone, None);
        from(&mut clocks, (9, 4, true));
        let heard = clocks.heard(at(300));
        assert_eq!((heard.told_gone, heard.known_at["n1"], heard.ahead.len()), (Some(4), 4, 1));
        from(&mut clocks, (9, 6, false));
        assert_eq!(clocks.heard(at(300)).told_gone, None);
        clocks.aim(9, &[Target { counts: false, ..target(1) }], at(300));
        from(&mut clocks, (9, 6, true));
        assert_eq!(clocks.heard(at(300)).told_gone, None, "said by nobody who counts");
        clocks.aim(10, &[target(1)], at(400));
        assert_eq!(clocks.heard(at(400)).known_at["n1"], 0, "of another incarnation of ours");
    }
}
