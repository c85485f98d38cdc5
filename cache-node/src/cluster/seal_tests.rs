//! What a seal promises, with two sockets that are only addresses.

use super::*;
use crate::cluster::keys::{Keys, Purpose, Secret};

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn secret(byte: u8) -> Secret {
    let line = format!("{byte:02x}").repeat(32);
    let file = tempfile::NamedTempFile::new().expect("file");
    std::fs::write(file.path(), line).expect("write");
    Keys::file(file.path()).read().expect("key").remove(0)
}

fn keychain(secrets: &[Secret]) -> Arc<ArcSwap<Keychain>> {
    Arc::new(ArcSwap::from_pointee(Keychain::derive(secrets, Purpose::Gossip, "test")))
}

fn seal(id: &str, secrets: &[Secret]) -> Seal {
    Seal::new(keychain(secrets), id, 1).expect("seal")
}

/// Sends `payload` from `a` to `b`, greeting first where they have not met; what `b` got.
fn deliver(a: &mut Seal, b: &mut Seal, payload: &[u8]) -> Option<Vec<u8>> {
    let (from, to) = (address(1), address(2));
    for _ in 0..2 {
        let mut datagram = a.seal(to, payload).expect("seal");
        match b.open(from, &mut datagram, Instant::now()) {
            Opened::Payload(_, payload) => return Some(payload.to_vec()),
            Opened::Greet(mut greeting) => assert_eq!(a.open(to, &mut greeting, Instant::now()), Opened::Met),
            _ => return None,
        }
    }
    None
}

/// Promise: strangers meet in one exchange; from then on each datagram is taken once, in whatever order.
#[test]
fn strangers_meet_and_nothing_is_taken_twice() {
    let (mut a, mut b) = (seal("a", &[secret(1)]), seal("b", &[secret(1)]));
    assert!(!a.knows(address(2)));
    assert_eq!(deliver(&mut a, &mut b, b"hello").expect("met"), b"hello");
    assert!(a.knows(address(2)) && b.knows(address(1)));
    let sent: Vec<_> = (0..10u8).map(|n| a.seal(address(2), &[n]).expect("seal")).collect();
    for n in [3, 0, 9, 1, 2, 8, 7, 4, 5, 6] {
        let opened = b.open(address(1), &mut sent[n].clone(), Instant::now()).is_payload(&[n as u8]);
        assert!(opened, "{n}");
        assert_eq!(b.open(address(1), &mut sent[n].clone(), Instant::now()), Opened::Refused(Refusal::Replayed));
    }
}

impl Opened<'_> {
    fn is_payload(&self, wanted: &[u8]) -> bool {
        matches!(self, Opened::Payload(sender, payload) if sender.id == "a" && sender.incarnation == 1 && *payload == wanted)
    }
}

/// Promise: what was recorded before a receiver's start is not taken after it, however fresh; a new exchange is.
#[test]
fn recordings_outlive_no_restart() {
    let (mut a, mut b) = (seal("a", &[secret(1)]), seal("b", &[secret(1)]));
    deliver(&mut a, &mut b, b"met").expect("met");
    let never_delivered = a.seal(address(2), b"late").expect("seal");
    let mut b = seal("b", &[secret(1)]);
    for _ in 0..3 {
        assert!(matches!(b.open(address(1), &mut never_delivered.clone(), Instant::now()), Opened::Greet(_)));
    }
    assert!(!b.knows(address(1)), "a recording introduces nobody");
    assert_eq!(deliver(&mut a, &mut b, b"again").expect("met anew"), b"again");
    // An old greeting is worthless to a sender that restarted.
    let Opened::Greet(mut greeting) = b.open(address(1), &mut never_delivered.clone(), Instant::now()) else {
        panic!("greeting")
    };
    let mut a = seal("a", &[secret(1)]);
    assert_eq!(a.open(address(2), &mut greeting, Instant::now()), Opened::Refused(Refusal::Stranger));
}

/// Promise: no flipped bit, cut or lengthened datagram is taken, and none makes it panic.
#[test]
fn damaged_datagrams_are_refused() {
    let (mut a, mut b) = (seal("a", &[secret(1)]), seal("b", &[secret(1)]));
    deliver(&mut a, &mut b, b"met").expect("met");
    let good = a.seal(address(2), b"payload").expect("seal");
    let refused = |b: &mut Seal, mut bytes: Vec<u8>| match b.open(address(1), &mut bytes, Instant::now()) {
        Opened::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            let refusal = refused(&mut b, bytes);
            let fits = match at {
                0 => refusal == Refusal::Malformed,
                1..=8 => refusal == Refusal::UnknownKey,
                _ => refusal == Refusal::Forged,
            };
            assert!(fits, "byte {at}: {refusal:?}");
        }
        refused(&mut b, good[..at].to_vec());
    }
    assert_eq!(refused(&mut b, [&good[..], &[0]].concat()), Refusal::Forged);
    assert_eq!(refused(&mut b, vec![1; DATAGRAM_MAX + 1]), Refusal::Oversized);
    assert!(b.open(address(1), &mut good.clone(), Instant::now()).is_payload(b"payload"), "the real one still counts");
}

/// Promise: keys rotate without a gap (add, move to the top, delete); a key that was deleted, and another cluster's, open nothing.
#[test]
fn keys_rotate_without_a_gap() {
    let (old, new) = (secret(1), secret(2));
    let steps: [&[Secret]; 4] =
        [std::slice::from_ref(&old), &[old.clone(), new.clone()], &[new.clone(), old.clone()], std::slice::from_ref(&new)];
    let (mut a, mut b) = (seal("a", steps[0]), seal("b", steps[0]));
    for pair in steps.windows(2) {
        for (at_a, at_b) in [(pair[0], pair[1]), (pair[1], pair[0]), (pair[1], pair[1])] {
            for (seal, secrets) in [(&mut a, at_a), (&mut b, at_b)] {
                seal.keychain.store(Arc::new(Keychain::derive(secrets, Purpose::Gossip, "test")));
            }
            assert!(deliver(&mut a, &mut b, b"x").is_some() && deliver(&mut b, &mut a, b"x").is_some());
        }
    }
    let mut datagram = seal("a", &[old]).seal(address(2), b"x").expect("seal");
    assert_eq!(b.open(address(1), &mut datagram, Instant::now()), Opened::Refused(Refusal::UnknownKey));
    let other = Arc::new(ArcSwap::from_pointee(Keychain::derive(&[new], Purpose::Gossip, "other")));
    let mut datagram = Seal::new(other, "a", 1).expect("seal").seal(address(2), b"x").expect("seal");
    assert_eq!(b.open(address(1), &mut datagram, Instant::now()), Opened::Refused(Refusal::UnknownKey));
}

/// Promise: a flood of recordings gets few greetings back; senders without number forget nothing that can be replayed.
#[test]
fn floods_are_bounded() {
    let (mut a, mut b) = (seal("a", &[secret(1)]), seal("b", &[secret(1)]));
    let recording = a.seal(address(2), b"x").expect("seal");
    let now = Instant::now();
    let greeted = (0..2000).filter(|_| matches!(b.open(address(1), &mut recording.clone(), now), Opened::Greet(_))).count();
    assert_eq!(greeted, GREETINGS_PER_S as usize);
    let later = now + Duration::from_secs(1);
    assert!(matches!(b.open(address(1), &mut recording.clone(), later), Opened::Greet(_)));

    deliver(&mut a, &mut b, b"met").expect("met");
    let taken = a.seal(address(2), b"once").expect("seal");
    assert!(b.open(address(1), &mut taken.clone(), later).is_payload(b"once"));
    let session = b.session;
    for n in 0..SESSIONS_MAX as u64 {
        b.windows.insert([n.to_le_bytes(), [1; 8]].concat().try_into().expect("session"), Window::default());
    }
    let mut newcomer = seal("c", &[secret(1)]);
    newcomer.peers.insert(address(2), session);
    let mut datagram = newcomer.seal(address(2), b"x").expect("seal");
    let much_later = later + Duration::from_secs(2);
    assert!(matches!(b.open(address(3), &mut datagram, much_later), Opened::Greet(_)));
    assert_ne!(b.session, session);
    assert!(matches!(b.open(address(1), &mut taken.clone(), much_later), Opened::Greet(_)), "not a second time");
    assert_eq!(deliver(&mut a, &mut b, b"on").expect("met anew"), b"on");
}

/// Promise: every payload of the largest size fits its datagram, for the longest name.
#[test]
fn datagrams_keep_their_size() {
    let mut a = seal(&"n".repeat(ID_BYTES_MAX), &[secret(1)]);
    assert_eq!(a.seal(address(2), &[0; PAYLOAD_MAX]).expect("seal").len(), DATAGRAM_MAX);
    assert_eq!(a.seal(address(2), &[0; PAYLOAD_MAX + 1]), Err(CannotSeal));
    assert!(Seal::new(keychain(&[secret(1)]), &"n".repeat(ID_BYTES_MAX + 1), 1).is_err());
}
