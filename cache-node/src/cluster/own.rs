//! What a node says of itself, and when: the life of its own row. Values in, a row out; time is since the start.
//!
//! A node's own statements have even versions; the odd one above each is how others publish that they hold the node for gone at
//! that statement. So whoever merges by maximum, clients too, lets the judgement stand until the node itself says more.
//!
//! The row begins as serving, with a ramp of zero and unsettled: where nobody is settled it is served at once all the same, so that
//! a node that starts alone waits for nothing. The ramp grows in [`RAMP_STEPS`] steps over the first half of `settle`; a member of
//! `settle` is settled. A node that returns after it was held for gone keeps its ramp, for it still has its bytes, and is unsettled,
//! for others filled in its place meanwhile. If that happens often, it stays off the ring for longer each time.
//!
//! Nobody but the node can state its row, yet whoever has the cluster's key can write one in its name: above what it said, or of a
//! life that never was. The node sees that and goes on as a new life, above all of it, at most once in [`RENEW_GAP`].

use std::collections::VecDeque;
use std::time::Duration;

use framecache::view::NodeState;
use framecache::wire::{NodeRow, RAMP_FULL};

/// Each takes an eighth of the keys over, small enough that the cluster's fills are spread, and few enough rows to gossip.
const RAMP_STEPS: u32 = 8;

/// A row that changes more often than this is old before it has been heard everywhere.
const RAMP_STEP_MIN: Duration = Duration::from_secs(1);

/// A node that was held for gone this long ago is forgiven.
const FLAPPING_WINDOW: Duration = Duration::from_secs(600);

/// Within this time those who judged it by different rows have all told it.
const SAME_EVENT: Duration = Duration::from_secs(10);

/// The longest that a flapping node stays off the ring, and how many refutations lead there: `2^6 > 60`.
const PENANCE_MAX: Duration = Duration::from_secs(60);
const REFUTATIONS_KEPT: usize = 7;

/// Time between two new lives: each is proved anew by everybody, and nobody's forgery may make that a flood.
const RENEW_GAP: Duration = Duration::from_secs(2);

/// The own row, and what will become of it.
#[derive(Debug)]
pub(super) struct Own {
    row: NodeRow,
    settle: Duration,
    /// Since when it is a member without interruption, and since when its ramp grows.
    member_since: Duration,
    ramp_since: Duration,
    /// When it may serve again.
    penance_until: Option<Duration>,
    /// Until when a weight that was larger is still looked for here.
    held_until: Option<Duration>,
    refuted: VecDeque<Duration>,
    /// The newest judgement that it was told of.
    told: u64,
    /// The incarnation above which it has to live, and when it began to live anew last.
    beyond: Option<u64>,
    renewed: Option<Duration>,
}

impl Own {
    /// The row of a node that starts now, as `row` describes it: its state, ramp and version are decided here.
    pub(super) fn new(row: NodeRow, settle: Duration) -> Self {
        let known = settle.is_zero();
        let ramp = if known { RAMP_FULL } else { 0 };
        let held_weight = row.weight;
        let row = NodeRow { version: 2, state: number(NodeState::Serving), ramp, settled: known, held_weight, ..row };
        let (member_since, ramp_since) = (Duration::ZERO, Duration::ZERO);
        Self {
            row,
            settle,
            member_since,
            ramp_since,
            penance_until: None,
            held_until: None,
            refuted: VecDeque::new(),
            told: 0,
            beyond: None,
            renewed: None,
        }
    }

    pub(super) fn row(&self) -> &NodeRow {
        &self.row
    }

    /// What time alone changes.
    pub(super) fn tick(&mut self, now: Duration) {
        self.renew(now);
        let mut row = self.row.clone();
        if self.penance_until.is_some_and(|until| until <= now) {
            self.penance_until = None;
            self.member_since = now;
            if row.state == number(NodeState::Joining) {
                row.state = number(NodeState::Serving);
            }
        }
        if self.held_until.is_some_and(|until| until <= now) {
            self.held_until = None;
            row.held_weight = row.weight;
        }
        if row.state == number(NodeState::Serving) {
            row.ramp = row.ramp.max(ramp(now.saturating_sub(self.ramp_since), self.settle));
            if now.saturating_sub(self.member_since) >= self.settle {
                (row.settled, row.ramp) = (true, RAMP_FULL);
            }
        }
        self.state(row);
    }

    /// Another share of the keys; the larger old one is still looked for here until `settle` has passed. To what a larger one adds the node
    /// is a newcomer: others look behind it.
    pub(super) fn set_weight(&mut self, weight: u32, now: Duration) {
        let held_weight = self.row.held_weight.max(self.row.weight).max(weight);
        self.held_until = (held_weight > weight).then_some(now + self.settle);
        let grows = weight > self.row.weight;
        if grows {
            self.member_since = now;
        }
        self.state(NodeRow { weight, held_weight, settled: self.row.settled && !grows, ..self.row.clone() });
    }

    /// A row of this name, not of a later life, came back. What a former life weighed it may still hold, on its disk, so that it is
    /// looked for here until `settle` has passed. What this life never said, somebody else said in its name: it lives anew.
    pub(super) fn remember(&mut self, former: &NodeRow, now: Duration) {
        let version = (former.incarnation == self.row.incarnation).then_some(former.version);
        if version > Some(self.row.version) || (version == Some(self.row.version) && *former != self.row) {
            self.succeed(former.incarnation);
        }
        let held_weight = former.held_weight.max(former.weight);
        if held_weight > self.row.held_weight && former.incarnation < self.row.incarnation && now < self.settle {
            self.held_until = Some(now + self.settle);
            self.state(NodeRow { held_weight, ..self.row.clone() });
        }
    }

    /// Others hold this node for gone at `version`: says that it is not, if that is news. Whether it was.
    ///
    /// It is news as well where something newer was said meanwhile for another reason, unless it is the same event told once more.
    /// A version that was never said is no judgement but a forgery: the node lives anew. It is told until then, and for a moment after.
    pub(super) fn refute(&mut self, version: u64, now: Duration) -> bool {
        if version > self.row.version {
            if !self.is_renewed(now) {
                self.succeed(self.row.incarnation);
            }
            return false;
        }
        let unknown = version > self.told && self.refuted.back().is_none_or(|then| now.saturating_sub(*then) >= SAME_EVENT);
        self.told = self.told.max(version);
        if self.row.state == number(NodeState::Gone) || !(unknown || version == self.row.version) {
            return false;
        }
        self.refuted.retain(|then| now.saturating_sub(*then) < FLAPPING_WINDOW);
        if self.refuted.len() == REFUTATIONS_KEPT {
            self.refuted.pop_front();
        }
        self.refuted.push_back(now);
        let mut row = NodeRow { settled: false, ..self.row.clone() };
        // Zero of the first time is no time off the ring.
        let penance = penance(self.refuted.len());
        if row.state != number(NodeState::Leaving) && !penance.is_zero() {
            self.penance_until = Some(now + penance);
            row.state = number(NodeState::Joining);
        }
        self.member_since = now;
        row.version = next(row.version);
        self.row = row;
        true
    }

    /// Off the ring from now on, still answering.
    pub(super) fn leave(&mut self) {
        if self.row.state != number(NodeState::Gone) {
            self.state(NodeRow { state: number(NodeState::Leaving), ..self.row.clone() });
        }
    }

    /// The last word.
    pub(super) fn end(&mut self) {
        self.state(NodeRow { state: number(NodeState::Gone), ..self.row.clone() });
    }

    /// Takes the name, soon, from that life of it, which is over (a predecessor with a clock that went wrong) or never was.
    pub(super) fn succeed(&mut self, incarnation: u64) {
        self.beyond = self.beyond.max(Some(incarnation));
    }

    fn renew(&mut self, now: Duration) {
        if self.is_renewed(now) {
            return;
        }
        let beyond = self.beyond.take().filter(|beyond| *beyond >= self.row.incarnation);
        // The last word stands: nobody would prove another life of who is gone.
        if let Some(beyond) = beyond.filter(|_| self.row.state != number(NodeState::Gone)) {
            self.row.incarnation = beyond.saturating_add(1);
            self.row.version = next(self.row.version);
            (self.told, self.renewed) = (0, Some(now));
        }
    }

    fn is_renewed(&self, now: Duration) -> bool {
        self.renewed.is_some_and(|then| now.saturating_sub(then) < RENEW_GAP)
    }

    /// States `row`, if it says anything new.
    fn state(&mut self, row: NodeRow) {
        if row != self.row {
            self.row = NodeRow { version: next(self.row.version), ..row };
        }
    }
}

/// A state's number on the wire.
pub(super) fn number(state: NodeState) -> u8 {
    match state {
        NodeState::Joining => 0,
        NodeState::Serving => 1,
        NodeState::Leaving => 2,
        NodeState::Gone => 3,
    }
}

/// The even number above `version`.
fn next(version: u64) -> u64 {
    (version | 1).saturating_add(1)
}

/// The ramp of a member of that age.
fn ramp(age: Duration, settle: Duration) -> u16 {
    let step = (settle / (2 * RAMP_STEPS)).max(RAMP_STEP_MIN);
    let steps = (age.as_millis() / step.as_millis()).min(u128::from(RAMP_STEPS));
    let full = u128::from(RAMP_FULL);
    u16::try_from(full * steps / u128::from(RAMP_STEPS)).unwrap_or(RAMP_FULL)
}

/// Time off the ring after the k-th refutation of late: `min(2^(k-1), 60)` s, none for the first.
fn penance(refutations: usize) -> Duration {
    match refutations {
        0 | 1 => Duration::ZERO,
        more => u32::try_from(more - 1)
            .ok()
            .and_then(|power| 1u64.checked_shl(power))
            .map_or(PENANCE_MAX, |seconds| PENANCE_MAX.min(Duration::from_secs(seconds))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn own(settle: u64) -> Own {
        Own::new(NodeRow { incarnation: 5, ..NodeRow::member("a", 100) }, s(settle))
    }

    fn ticked(own: &mut Own, now: Duration) -> (u64, u8, u16, bool) {
        own.tick(now);
        (own.row().version, own.row().state, own.row().ramp, own.row().settled)
    }

    /// Promise: a node that starts again with a smaller weight is asked for what it held, until it is settled.
    #[test]
    fn a_former_weight_is_held() {
        let mut a = own(160);
        let former = NodeRow { incarnation: 4, held_weight: 300, ..NodeRow::member("a", 200) };
        a.remember(&NodeRow { incarnation: 5, ..former.clone() }, s(1));
        assert_eq!(a.row().held_weight, 100, "its own statement");
        a.remember(&former, s(2));
        assert_eq!((a.row().weight, a.row().held_weight), (100, 300));
        a.tick(s(161));
        assert_eq!(a.row().held_weight, 300);
        a.tick(s(162));
        a.remember(&former, s(163));
        assert_eq!(a.row().held_weight, 100, "that was long ago");
    }

    /// Promise: a newcomer serves at once, takes its keys over in eight steps in half of the settling time, and is settled after it;
    /// nothing is said when nothing changed.
    #[test]
    fn a_newcomer_ramps_and_settles() {
        let mut a = own(160);
        let cases = [
            (s(0), (2, 1, 0, false)),
            (s(9), (2, 1, 0, false)),
            (s(10), (4, 1, 32, false)),
            (s(11), (4, 1, 32, false)),
            (s(45), (6, 1, 128, false)),
            (s(80), (8, 1, 256, false)),
            (s(159), (8, 1, 256, false)),
            (s(160), (10, 1, 256, true)),
            (s(9999), (10, 1, 256, true)),
        ];
        for (now, wanted) in cases {
            assert_eq!(ticked(&mut a, now), wanted, "{now:?}");
        }
        assert_eq!(ticked(&mut own(0), s(0)), (2, 1, 256, true), "no settling wanted");
        let mut short = own(4);
        assert_eq!(ticked(&mut short, s(1)), (4, 1, 32, false), "steps are a second apart");
        assert_eq!(ticked(&mut short, s(4)), (6, 1, 256, true), "who is settled serves all");
    }

    /// Promise: a weight that shrank is looked for as it was until settled; one that grew counts at once, and others look behind the node
    /// until it is settled again.
    #[test]
    fn a_weight_that_shrank_is_held() {
        let mut a = own(100);
        let weights = |own: &Own| (own.row().version, own.row().weight, own.row().held_weight);
        a.set_weight(300, s(1));
        assert_eq!(weights(&a), (4, 300, 300));
        a.set_weight(50, s(2));
        a.set_weight(80, s(50));
        assert_eq!(weights(&a), (8, 80, 300));
        a.tick(s(149));
        assert_eq!(a.row().held_weight, 300);
        a.tick(s(150));
        assert_eq!(a.row().held_weight, 80);
        a.set_weight(80, s(151));
        assert_eq!((a.row().weight, a.row().settled), (80, true));
        a.set_weight(90, s(200));
        assert_eq!((a.row().weight, a.row().settled, a.row().ramp), (90, false, RAMP_FULL));
        a.tick(s(299));
        assert!(!a.row().settled);
        a.tick(s(300));
        assert!(a.row().settled);
    }

    /// Promise: who is held for gone says once that it is not, with a row above that judgement; old and wrong news is let lie.
    #[test]
    fn gone_is_refuted_once() {
        let mut a = own(100);
        a.tick(s(100));
        let stated = a.row().version;
        assert!(a.refute(stated, s(200)));
        assert!(!a.refute(stated - 2, s(200)), "an older row");
        assert_eq!((a.row().version, a.row().state, a.row().settled, a.row().ramp), (stated + 2, 1, false, 256));
        assert!(!a.refute(stated, s(200)));
        assert_eq!(ticked(&mut a, s(299)), (stated + 2, 1, 256, false));
        assert_eq!(ticked(&mut a, s(300)), (stated + 4, 1, 256, true));

        let mut busy = own(160);
        busy.tick(s(30));
        assert!(busy.refute(2, s(31)), "it was gone, though it said more since");
        assert!(!busy.refute(2, s(60)) && busy.row().version == 6);
        busy.tick(s(40));
        assert!(!busy.refute(6, s(40)), "the same event, told by another");
    }

    /// Promise: flapping is damped: the k-th refutation within ten minutes costs min(2^(k-1), 60) s off the ring, and is forgiven.
    #[test]
    fn flapping_is_damped() {
        let (mut a, mut now) = (own(1000), s(10));
        for (k, off) in [0, 2, 4, 8, 16, 32, 60, 60, 60].into_iter().enumerate() {
            assert!(a.refute(a.row().version, now));
            assert_eq!(a.row().state, u8::from(off == 0), "refutation {}", k + 1);
            if off > 0 {
                a.tick(now + s(off) - Duration::from_millis(1));
                assert_eq!(a.row().state, 0, "refutation {}: {off} s", k + 1);
                now += s(off);
            }
            a.tick(now);
            assert_eq!(a.row().state, 1, "refutation {}: {off} s", k + 1);
        }
        now += FLAPPING_WINDOW;
        assert!(a.refute(a.row().version, now));
        assert_eq!(a.row().state, 1, "forgiven");
    }

    /// Promise: who leaves is not talked back onto the ring, by time or by refutation; the last word is the last.
    #[test]
    fn leaving_is_final() {
        let mut a = own(10);
        assert!(a.refute(a.row().version, s(1)) && a.refute(a.row().version, s(1)));
        a.leave();
        assert_eq!(ticked(&mut a, s(100)).1, 2);
        assert!(a.refute(a.row().version, s(101)));
        assert_eq!(a.row().state, 2);
        a.end();
        let last = a.row().version;
        assert!(!a.refute(last, s(102)));
        a.leave();
        a.tick(s(500));
        assert_eq!((a.row().version, a.row().state), (last, 3));
        assert_eq!(last % 2, 0);
    }

    /// Promise: a node whose clock went back takes its own name again; a row of an older life changes nothing.
    #[test]
    fn a_name_is_taken_over() {
        let mut a = own(10);
        a.succeed(4);
        a.tick(s(0));
        assert_eq!((a.row().incarnation, a.row().version), (5, 2));
        a.succeed(77);
        a.tick(s(0));
        assert_eq!((a.row().incarnation, a.row().version), (78, 4));
    }

    /// Promise: what others said in a node's name, in whatever way it learns of it, makes it live anew above that within seconds, once
    /// in two of them, with its ramp and without penance; its own statements and older lives do not.
    #[test]
    fn forgeries_are_outlived() {
        let row = |incarnation, version, state| NodeRow { incarnation, version, state, ..own(0).row().clone() };
        type Told = fn(&mut Own, &NodeRow);
        let came: Told = |own, row| own.remember(row, s(9));
        let told: Told = |own, row| assert!(!own.refute(row.version, s(9)));
        let cases = [
            ("its own row", came, row(5, 2, 1), 5),
            ("an older life", came, row(4, 1000, 3), 5),
            ("gone, at the version that it said", came, row(5, 2, 3), 6),
            ("gone, above what it said", came, row(5, 1002, 3), 6),
            ("serving, above what it said", came, row(5, 1 << 53, 1), 6),
            ("a judgement above what it said", told, row(5, 3, 3), 6),
            ("a judgement that cannot be answered", told, row(5, u64::MAX, 3), 6),
        ];
        for (name, tell, forged, incarnation) in cases {
            let mut a = own(0);
            tell(&mut a, &forged);
            a.tick(s(9));
            let row = a.row();
            assert_eq!((row.incarnation, row.version), (incarnation, if incarnation == 5 { 2 } else { 4 }), "{name}");
            assert_eq!((row.state, row.ramp, row.settled), (1, RAMP_FULL, true), "{name}");
            assert!(a.refute(a.row().version, s(10)), "{name}: real judgements are answered");
        }
        let mut a = own(0);
        for tenth in 0..100 {
            let now = Duration::from_millis(tenth * 100);
            a.remember(&NodeRow { version: u64::MAX, ..a.row().clone() }, now);
            a.refute(u64::MAX, now);
            a.tick(now);
        }
        assert_eq!(a.row().incarnation, 10, "once in two seconds");
        a.end();
        a.succeed(99);
        a.tick(s(99));
        assert_eq!(a.row().incarnation, 10, "the last word");
    }
}
