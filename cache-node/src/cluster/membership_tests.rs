//! What membership promises, as tables: who says what, who is heard, and the view that comes of it.

use super::*;
use crate::cluster::rumour::with_liveness;

const NOW: u64 = 1_000_000;

fn row(id: &str, version: u64) -> NodeRow {
    let row = NodeRow { quic: format!("{id}:1"), incarnation: 1, version, ..NodeRow::member(id, 100) };
    with_liveness(row, address())
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

fn silent(ids: &[&str]) -> Rumour {
    Rumour { silent: ids.iter().map(|id| (id.to_string(), 1, 2)).collect(), gone: Vec::new() }
}

fn gone(id: &str, version: u64) -> Rumour {
    Rumour { silent: Vec::new(), gone: vec![Gone { id: id.into(), incarnation: 1, version, since_s: NOW - 100 }] }
}

fn heard_not(ids: &[&str]) -> Heard {
    Heard { silent: ids.iter().map(|id| ((id.to_string(), 1), 2)).collect(), ..Heard::default() }
}

/// The membership of `me`, in which these say that, and have proved who they are.
fn membership(said: &[(&str, Rumour)]) -> Membership {
    let mut membership = Membership::new("me");
    for (id, rumour) in said {
        assert!(membership.hear(row(id, 2), rumour.clone(), address()));
        membership.prove(&row(id, 2));
    }
    membership
}

/// The nodes of the view that are not gone, and those that are, with version.
fn judge(membership: &mut Membership, heard: &Heard, now: u64) -> (Vec<String>, Vec<(String, u64)>) {
    let view = membership.judge(&row("me", 2), heard, now).view;
    let here = view.rows().filter(|row| row.state < 3 && row.id != "me").map(|row| row.id.clone());
    let gone = view.rows().filter(|row| row.state == 3).map(|row| (row.id.clone(), row.version));
    (here.collect(), gone.collect())
}

/// Promise: a node is lost when more than half of the live others cannot hear it, and not before.
#[test]
fn the_majority_of_the_live_decides() {
    // Who says of whom that it is silent; whom we do not hear; who is lost.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a [&'a str])], &'a [&'a str], &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        ("all is well", &[("a", &[]), ("b", &[])], &[], &[]),
        ("the only other one is silent", &[("a", &[])], &["a"], &["a"]),
        ("one of two links is cut: by us", &[("a", &[]), ("b", &[])], &["a"], &[]),
        ("one of two links is cut: by another", &[("a", &[]), ("b", &["a"])], &[], &[]),
        ("both others cannot hear it", &[("a", &[]), ("b", &["a"])], &["a"], &["a"]),
        ("it alone accuses everybody", &[("a", &["b", "me"]), ("b", &[])], &[], &[]),
        ("two of four is not the majority", &[("a", &[]), ("b", &["a"]), ("c", &["a"]), ("d", &[])], &[], &[]),
        ("three of four is, though we hear it", &[("a", &[]), ("b", &["a"]), ("c", &["a"]), ("d", &["a"])], &[], &["a"]),
        ("who is silent does not vote", &[("a", &[]), ("b", &[]), ("c", &[]), ("d", &[])], &["a", "b", "c"], &[]),
        ("we are cut off", &[("a", &[]), ("b", &[]), ("c", &[])], &["a", "b", "c"], &["a", "b", "c"]),
        ("a partition, two to two", &[("a", &["b", "c"]), ("b", &["a"]), ("c", &["a"])], &["b", "c"], &["b", "c"]),
        ("an accusation of another life", &[("a", &[]), ("b", &["x"])], &[], &[]),
    ];
    for (name, said, unheard, lost) in cases {
        let said: Vec<_> = said.iter().map(|(id, of)| (*id, silent(of))).collect();
        let mut membership = membership(&said);
        let found = membership.judge(&row("me", 2), &heard_not(unheard), NOW).lost;
        assert_eq!(&found, lost, "{name}");
    }
}

/// Promise: only who proved its name counts: in the view, as a witness, and with the life and address that it proved.
#[test]
fn rows_count_by_proof() {
    let mut membership = membership(&[("a", Rumour::default()), ("b", Rumour::default())]);
    assert!(membership.hear(row("liar", 2), silent(&["a"]), address()));
    assert!(membership.hear(row("liar2", 2), silent(&["a"]), address()));
    assert_eq!(membership.unproved().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["liar", "liar2"]);
    assert_eq!(judge(&mut membership, &Heard::default(), NOW).0, ["a", "b"]);

    let moved = NodeRow { quic: "elsewhere:1".into(), version: 4, ..row("a", 4) };
    assert!(membership.hear(moved.clone(), Rumour::default(), address()));
    let quic = |membership: &mut Membership| {
        let view = membership.judge(&row("me", 2), &Heard::default(), NOW).view;
        view.node("a").map(|row| row.quic.clone())
    };
    assert_eq!(quic(&mut membership).as_deref(), Some("a:1"), "what counted stands");
    membership.prove(&row("a", 4));
    assert_eq!(quic(&mut membership).as_deref(), Some("a:1"), "proved for the old address");
    membership.prove(&moved);
    assert_eq!(quic(&mut membership).as_deref(), Some("elsewhere:1"));
    let restarted = NodeRow { incarnation: 9, version: 2, ..row("b", 2) };
    assert!(membership.hear(restarted.clone(), Rumour::default(), address()));
    let lives: Vec<_> =
        membership.targets(&row("me", 2)).into_iter().filter(|t| t.life.0 == "b").map(|t| (t.life.1, t.counts)).collect();
    assert_eq!(lives, [(1, true), (9, false)], "both lives are listened to");
    membership.prove(&restarted);
    assert_eq!(membership.targets(&row("me", 2)).iter().filter(|t| t.life.0 == "b").count(), 1);
}

/// Promise: a lost node is its last row, one version up, until it says more; it is pinged and told; others' word is not needed twice.
#[test]
fn gone_is_sticky_until_refuted() {
    let mut membership = membership(&[("a", Rumour::default()), ("b", silent(&["a"]))]);
    assert_eq!(judge(&mut membership, &heard_not(&["a"]), NOW), (vec!["b".into()], vec![("a".into(), 3)]));
    assert_eq!(judge(&mut membership, &Heard::default(), NOW + 1).1, [("a".into(), 3)], "heard again, and still gone");
    let told = membership.targets(&row("me", 2)).into_iter().find(|target| target.life.0 == "a").expect("pinged");
    assert!(told.gone && told.pinged && told.version == 2);
    let rumour = membership.rumour(&heard_not(&["a"]));
    assert_eq!((rumour.silent.len(), rumour.gone[0].version), (0, 2), "held for gone is more than silent");

    assert!(membership.hear(row("a", 2), Rumour::default(), address()));
    assert_eq!(judge(&mut membership, &Heard::default(), NOW + 2).1, [("a".into(), 3)], "nothing new was said");
    assert!(membership.hear(row("b", 4), Rumour::default(), address()));
    assert!(membership.hear(row("a", 4), Rumour::default(), address()));
    assert_eq!(judge(&mut membership, &Heard::default(), NOW + 3), (vec!["a".into(), "b".into()], vec![]));
    assert!(membership.hear(row("a", 2), Rumour::default(), address()), "older news");
    assert_eq!(judge(&mut membership, &Heard::default(), NOW + 4).0, ["a", "b"]);
}

/// Promise: who holds a node for gone accuses it; a judgement that the node has answered since accuses it no more.
#[test]
fn judgements_accuse_until_they_are_answered() {
    let mut held = membership(&[("a", Rumour::default()), ("b", gone("a", 2)), ("c", gone("a", 2))]);
    assert_eq!(judge(&mut held, &Heard::default(), NOW).1, [("a".into(), 3)]);
    let mut answered = membership(&[("a", Rumour::default()), ("b", gone("a", 2)), ("c", gone("a", 2))]);
    assert!(answered.hear(row("a", 4), Rumour::default(), address()));
    assert_eq!(judge(&mut answered, &Heard::default(), NOW).0, ["a", "b", "c"]);
}

/// Promise: a newer row answers all that was said and not heard before it, even if that comes to be known later.
#[test]
fn a_newer_row_answers_old_silence() {
    let mut membership = membership(&[("a", Rumour::default()), ("b", silent(&["a"]))]);
    assert!(membership.hear(row("a", 4), Rumour::default(), address()));
    assert!(membership.judge(&row("me", 2), &heard_not(&["a"]), NOW).lost.is_empty());
    let since = Rumour { silent: vec![("a".into(), 1, 4)], gone: Vec::new() };
    assert!(membership.hear(row("b", 4), since, address()));
    assert!(membership.judge(&row("me", 2), &heard_not(&["a"]), NOW).lost.is_empty(), "our own silence is the old one");
    let still = Heard { silent: BTreeMap::from([(("a".into(), 1), 4)]), ..Heard::default() };
    assert_eq!(membership.judge(&row("me", 2), &still, NOW).lost, ["a"]);
}

/// Promise: a node that is held for gone learns it from whoever counts, for its own life alone.
#[test]
fn nodes_hear_of_their_own_end() {
    let own = row("me", 8);
    let told = |rumour| membership(&[("a", rumour)]).told_gone(&own);
    assert_eq!(told(gone("me", 8)), Some(8));
    assert_eq!(told(gone("b", 8)), None);
    assert_eq!(membership(&[("a", gone("me", 8))]).told_gone(&NodeRow { incarnation: 2, ..own.clone() }), None);
    let mut unproved = Membership::new("me");
    assert!(unproved.hear(row("a", 2), gone("me", 8), address()));
    assert_eq!(unproved.told_gone(&own), None);
}

/// Promise: who is gone is forgotten ten minutes after, at the same time by those who saw it and those who were told.
#[test]
fn gone_nodes_are_forgotten() {
    let last_word = NodeRow { state: 3, ..row("left", 6) };
    let mut saw = membership(&[("a", Rumour::default()), ("left", Rumour::default()), ("b", silent(&["a"]))]);
    assert!(saw.hear(last_word, silent(&["b"]), address()));
    let first = judge(&mut saw, &heard_not(&["a"]), NOW);
    assert_eq!(first, (vec!["b".into()], vec![("a".into(), 3), ("left".into(), 6)]));
    assert_eq!(judge(&mut saw, &heard_not(&["a"]), NOW + GONE_KEPT_S - 1), first);
    assert_eq!(judge(&mut saw, &heard_not(&["a"]), NOW + GONE_KEPT_S), (vec!["b".into()], vec![]));

    // Held for gone since 100 s, by one who counts; never proved here.
    let mut told = membership(&[("b", gone("a", 2))]);
    assert!(told.hear(row("a", 2), Rumour::default(), address()));
    assert_eq!(judge(&mut told, &Heard::default(), NOW).1, [("a".into(), 3)]);
    assert_eq!(judge(&mut told, &Heard::default(), NOW + GONE_KEPT_S - 100).1, []);
}

/// Promise: of two lives of our own name the later has it; one that is over, or stood at our own address, gives it back.
#[test]
fn the_later_start_has_the_name() {
    let own = row("me", 2);
    let rival = |incarnation, quic: &str| {
        let mut membership = Membership::new("me");
        assert!(membership.hear(NodeRow { incarnation, quic: quic.into(), ..row("me", 2) }, Rumour::default(), address()));
        membership
    };
    let lives = |membership: &Membership, heard: &Heard| membership.rival(&own, heard, NOW * 1000).map(|(_, lives)| lives);
    assert_eq!(lives(&Membership::new("me"), &Heard::default()), None);
    assert_eq!(lives(&rival(1, "x:1"), &Heard::default()), None, "a former life");
    assert_eq!(lives(&rival(7, "me:1"), &Heard::default()), Some(false), "nobody else can be at our address");
    let mut other = rival(7, "x:1");
    assert_eq!(lives(&other, &Heard::default()), Some(true));
    let over = Heard { silent: BTreeMap::from([(("me".into(), 7), 2)]), ..Heard::default() };
    assert_eq!(lives(&other, &over), Some(false));
    assert_eq!(other.judge(&own, &Heard::default(), NOW).view.node("me").map(|row| row.incarnation), Some(1));
    other.prove(&NodeRow { incarnation: 7, quic: "x:1".into(), ..row("me", 2) });
    assert_eq!(other.judge(&own, &Heard::default(), NOW).view.node("me").map(|row| row.incarnation), Some(7));
}

/// Promise: a forged later life without proof hides nothing that the life which counts says; not its end either.
#[test]
fn forged_lives_hide_nothing() {
    for state in [1, 3] {
        let mut membership = membership(&[("a", Rumour::default()), ("b", Rumour::default())]);
        let forged = NodeRow { incarnation: 77, quic: "x:1".into(), state, ..row("a", 2) };
        assert!(membership.hear(forged, Rumour::default(), address()));
        assert!(membership.hear(NodeRow { weight: 300, ..row("a", 4) }, Rumour::default(), address()));
        let weight = |membership: &mut Membership| {
            let view = membership.judge(&row("me", 2), &Heard::default(), NOW).view;
            view.node("a").map(|row| (row.incarnation, row.weight, row.state))
        };
        let serving = row("a", 2).state;
        assert_eq!(weight(&mut membership), Some((1, 300, serving)), "{state}");
        assert!(membership.hear(row("a", 2), Rumour::default(), address()), "older news");
        assert_eq!(weight(&mut membership), Some((1, 300, serving)), "{state}");
        assert!(membership.hear(NodeRow { state: 3, ..row("a", 6) }, Rumour::default(), address()));
        assert_eq!(weight(&mut membership), Some((1, 100, 3)), "{state}");
    }
}

/// Promise: whatever later life of a node somebody forges, the node is heard above it by everybody within seconds: lives from afar
/// are not heard, and its own clock need not be theirs to the second.
#[test]
fn no_forged_life_is_the_last() {
    let now = NOW * 1000;
    let me = |incarnation| NodeRow { incarnation, state: 3, ..row("me", 2) };
    // Relative to what the others hear at most; seconds by which our clock is ahead of theirs; after how long we answer, in ms.
    let cases = [(-3_600_000, 0, 0), (-5000, 0, 0), (0, 0, 5000), (0, 4, 1000), (0, -5, 10_000)];
    for (beyond, ahead_s, after) in cases {
        let incarnation = (now + AHEAD).checked_add_signed(beyond).expect("a time");
        let ours = now.checked_add_signed(ahead_s * 1000).expect("a time");
        let mut membership = Membership::new("me");
        assert!(membership.is_due(&me(incarnation), ours), "what others hear we hear: {beyond} {ahead_s}");
        assert!(membership.hear(me(incarnation), Rumour::default(), address()));
        let answered = |ms| membership.rival(&row("me", 2), &Heard::default(), ours + ms).is_some();
        assert!(answered(after) && (after == 0 || !answered(after - 1)), "{beyond} {ahead_s}");
        let others = Membership::new("b");
        assert!(others.is_due(&me(incarnation + 1), now + after), "what we answer others hear: {beyond} {ahead_s}");
    }
    for (id, incarnation) in [("me", now + AHEAD + SKEW + 1), ("a", now + AHEAD + 1), ("a", 1 << 53), ("a", u64::MAX)] {
        assert!(!Membership::new("me").is_due(&NodeRow { incarnation, ..row(id, 2) }, now), "{id} {incarnation}");
    }
}

/// Promise: there are never more nodes than a view holds, and those that are here come before those that are gone.
#[test]
fn membership_is_bounded() {
    let mut membership = Membership::new("me");
    for n in 0..NODES_MAX {
        assert!(membership.hear(NodeRow { state: 3, ..row(&format!("n{n}"), 2) }, Rumour::default(), address()));
    }
    assert!(!membership.hear(row("one-more", 2), Rumour::default(), address()));
    let view = membership.judge(&row("me", 2), &Heard::default(), NOW).view;
    assert_eq!((view.rows().count(), view.members().count()), (NODES_MAX, 1));
    membership.keep(&BTreeSet::from(["n7".to_owned()]));
    assert!(membership.hear(row("one-more", 2), Rumour::default(), address()));
}
