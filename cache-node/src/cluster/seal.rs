//! Datagrams that only a node of this cluster can have written, to this very process, and each counts once.
//!
//! ```text
//! version 1 | key id 8 | nonce 12 | AES-256-GCM-SIV ( to 16 | from 16 | sequence 8 | incarnation 8 | id 1 + n | kind 1 | payload ) | tag 16
//! ```
//!
//! *Nonces* are random. With one key for all nodes they repeat some day; the SIV mode (RFC 8452) then tells an observer whether two
//! datagrams were the same, and nothing else, where GCM alone would give its key away.
//!
//! *Replay.* A process draws a random session at its start, and counts what it sends. A receiver keeps a window of numbers for each
//! session that it heard, and every datagram names the session that it is meant for. So nothing that was recorded before the
//! receiver's start is taken after it, and nothing is taken twice; no clock is needed. Whoever does not know the receiver's session
//! yet (first contact, or it restarted) is answered with a *greeting*, an empty datagram in which it stands, and sends again. A
//! greeting names the asker's session, so old ones are worthless too; greetings are few per second and no longer than what they
//! answer. Sessions that are forgotten would be open to replay: when there are too many, the receiver takes a new session for itself
//! instead, which makes all that was recorded worthless at once.
//!
//! No datagram is longer than the 1,200 bytes that QUIC needs to pass as well (RFC 9000, 14): no fragments of IP, which many
//! networks drop.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{Aad, NONCE_LEN, Nonce};
use aws_lc_rs::rand;

use super::keys::{KEY_ID_BYTES, KeyId, Keychain};

/// Longest datagram that is sent or looked at.
pub(super) const DATAGRAM_MAX: usize = 1200;

const VERSION: u8 = 1;
const TAG_BYTES: usize = 16;
/// In the clear, and authenticated but for the nonce, which the key binds by itself.
const HEAD_BYTES: usize = 1 + KEY_ID_BYTES + NONCE_LEN;
const AAD_BYTES: usize = 1 + KEY_ID_BYTES;
/// Sealed, before the payload, with the longest id.
const INNER_BYTES: usize = 2 * size_of::<Session>() + 8 + 8 + 1 + ID_BYTES_MAX + 1;

/// Longest payload of one datagram, whatever the sender's name.
pub(super) const PAYLOAD_MAX: usize = DATAGRAM_MAX - HEAD_BYTES - INNER_BYTES - TAG_BYTES;

/// Longest node id, as `node.id` is checked.
pub(super) const ID_BYTES_MAX: usize = 63;

/// Sessions that are remembered, of peers and of addresses: twice the nodes that a view may hold. A window is 136 bytes.
const SESSIONS_MAX: usize = 2 * framecache::view::NODES_MAX;

/// Greetings each second: a whole large cluster that starts meets within seconds, and a flood of recordings gets little back.
const GREETINGS_PER_S: u32 = 500;

/// One life of a sender's or receiver's socket.
pub(super) type Session = [u8; 16];

/// Nobody's: the receiver's session is not known yet.
const UNKNOWN: Session = [0; 16];

/// What is not taken, and why. Counted, never logged one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Longer than any datagram of ours.
    Oversized,
    /// Too short, of another format, or not what its kind holds.
    Malformed,
    /// Sealed with a key that we do not have: another cluster, or a rotation that went too fast.
    UnknownKey,
    /// The seal is broken.
    Forged,
    /// Seen before, or too old to tell.
    Replayed,
    /// Meant for another session: first contact, a restart, or a recording. Answered with a greeting.
    Stranger,
    /// Could not be sent or received.
    Io,
}

impl Refusal {
    pub const ALL: [Refusal; 7] = [
        Refusal::Oversized,
        Refusal::Malformed,
        Refusal::UnknownKey,
        Refusal::Forged,
        Refusal::Replayed,
        Refusal::Stranger,
        Refusal::Io,
    ];

    /// As a metric label.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Oversized => "oversized",
            Refusal::Malformed => "malformed",
            Refusal::UnknownKey => "unknown_key",
            Refusal::Forged => "forged",
            Refusal::Replayed => "replayed",
            Refusal::Stranger => "stranger",
            Refusal::Io => "io",
        }
    }
}

/// Who sealed a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sender {
    pub(super) id: String,
    pub(super) incarnation: u64,
    pub(super) session: Session,
}

/// What a datagram turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opened<'a> {
    /// From a node, for us, and new.
    Payload(Sender, &'a [u8]),
    /// A greeting: what is sent to that address from now on will be taken.
    Met,
    /// Not taken; the greeting goes back to where it came from.
    Greet(Vec<u8>),
    Refused(Refusal),
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Greeting = 0,
    Payload = 1,
}

/// One socket's seal: what it sends, and whom it knows.
pub(super) struct Seal {
    keychain: Arc<ArcSwap<Keychain>>,
    id: String,
    incarnation: u64,
    session: Session,
    sequence: u64,
    /// Sessions by address: whom a datagram to there is meant for.
    peers: HashMap<SocketAddr, Session>,
    windows: HashMap<Session, Window>,
    greetings: (Instant, u32),
}

/// Why nothing can be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing can be sealed: no key, no random bytes, or more than {PAYLOAD_MAX} bytes")]
pub(super) struct CannotSeal;

impl Seal {
    /// The seal of a new socket of node `id`, at most [`ID_BYTES_MAX`] bytes.
    pub(super) fn new(keychain: Arc<ArcSwap<Keychain>>, id: &str, incarnation: u64) -> Result<Self, CannotSeal> {
        if id.is_empty() || id.len() > ID_BYTES_MAX {
            return Err(CannotSeal);
        }
        Ok(Self {
            keychain,
            id: id.into(),
            incarnation,
            session: draw()?,
            sequence: 0,
            peers: HashMap::new(),
            windows: HashMap::new(),
            greetings: (Instant::now(), 0),
        })
    }

    /// `payload` as a datagram for `to`.
    pub(super) fn seal(&mut self, to: SocketAddr, payload: &[u8]) -> Result<Vec<u8>, CannotSeal> {
        let session = self.peers.get(&to).copied().unwrap_or(UNKNOWN);
        self.datagram(session, Kind::Payload, payload)
    }

    /// The node states another incarnation of itself from now on.
    pub(super) fn live_as(&mut self, incarnation: u64) {
        self.incarnation = incarnation;
    }

    /// Whether that address was met.
    pub(super) fn knows(&self, address: SocketAddr) -> bool {
        self.peers.contains_key(&address)
    }

    fn datagram(&mut self, to: Session, kind: Kind, payload: &[u8]) -> Result<Vec<u8>, CannotSeal> {
        if payload.len() > PAYLOAD_MAX {
            return Err(CannotSeal);
        }
        self.sequence += 1;
        let keychain = self.keychain.load();
        let (key_id, key) = keychain.first().ok_or(CannotSeal)?;
        let nonce: [u8; NONCE_LEN] = draw()?;
        let mut bytes = Vec::with_capacity(DATAGRAM_MAX);
        bytes.push(VERSION);
        bytes.extend_from_slice(key_id);
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(&to);
        bytes.extend_from_slice(&self.session);
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.incarnation.to_le_bytes());
        bytes.push(u8::try_from(self.id.len()).map_err(|_| CannotSeal)?);
        bytes.extend_from_slice(self.id.as_bytes());
        bytes.push(kind as u8);
        bytes.extend_from_slice(payload);
        let (head, sealed) = bytes.split_at_mut(HEAD_BYTES);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(&head[..AAD_BYTES]), sealed).map_err(|_| CannotSeal)?;
        bytes.extend_from_slice(tag.as_ref());
        Ok(bytes)
    }

    /// Opens what came from `from`, in place.
    pub(super) fn open<'a>(&mut self, from: SocketAddr, datagram: &'a mut [u8], now: Instant) -> Opened<'a> {
        if datagram.len() > DATAGRAM_MAX {
            return Opened::Refused(Refusal::Oversized);
        }
        let inner = match self.unseal(datagram) {
            Ok(inner) => inner,
            Err(refusal) => return Opened::Refused(refusal),
        };
        let Some(inner) = Inner::parse(inner) else { return Opened::Refused(Refusal::Malformed) };
        if inner.to != self.session {
            return match inner.kind {
                // Never answered, or two greetings would answer each other for ever.
                Kind::Greeting => Opened::Refused(Refusal::Stranger),
                Kind::Payload => self.greet(inner.sender.session, now),
            };
        }
        if self.windows.len() >= SESSIONS_MAX && !self.windows.contains_key(&inner.sender.session) {
            // See the module: to forget is to begin anew.
            let Ok(session) = draw() else { return Opened::Refused(Refusal::Stranger) };
            self.session = session;
            self.windows.clear();
            return self.greet(inner.sender.session, now);
        }
        if !self.windows.entry(inner.sender.session).or_default().take(inner.sequence) {
            return Opened::Refused(Refusal::Replayed);
        }
        if self.peers.len() >= SESSIONS_MAX && !self.peers.contains_key(&from) {
            self.peers.clear();
        }
        self.peers.insert(from, inner.sender.session);
        match inner.kind {
            Kind::Greeting => Opened::Met,
            Kind::Payload => Opened::Payload(inner.sender, inner.payload),
        }
    }

    fn unseal<'a>(&self, datagram: &'a mut [u8]) -> Result<&'a [u8], Refusal> {
        let (head, sealed) = datagram.split_at_mut_checked(HEAD_BYTES).ok_or(Refusal::Malformed)?;
        let (aad, nonce) = head.split_at(AAD_BYTES);
        let (version, key_id) = aad.split_first().ok_or(Refusal::Malformed)?;
        if *version != VERSION {
            return Err(Refusal::Malformed);
        }
        let key_id: KeyId = key_id.try_into().map_err(|_| Refusal::Malformed)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Refusal::Malformed)?;
        let keychain = self.keychain.load();
        let key = keychain.find(key_id).ok_or(Refusal::UnknownKey)?;
        let inner = key.open_in_place(nonce, Aad::from(aad), sealed).map_err(|_| Refusal::Forged)?;
        Ok(inner)
    }

    fn greet(&mut self, to: Session, now: Instant) -> Opened<'static> {
        let (since, count) = &mut self.greetings;
        if now.saturating_duration_since(*since) >= Duration::from_secs(1) {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        if *count > GREETINGS_PER_S {
            return Opened::Refused(Refusal::Stranger);
        }
        match self.datagram(to, Kind::Greeting, &[]) {
            Ok(greeting) => Opened::Greet(greeting),
            Err(CannotSeal) => Opened::Refused(Refusal::Stranger),
        }
    }
}

fn draw<const N: usize>() -> Result<[u8; N], CannotSeal> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).map_err(|_| CannotSeal)?;
    Ok(bytes)
}

/// What was sealed, taken apart.
struct Inner<'a> {
    to: Session,
    sender: Sender,
    sequence: u64,
    kind: Kind,
    payload: &'a [u8],
}

impl<'a> Inner<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (to, rest) = bytes.split_first_chunk()?;
        let (session, rest) = rest.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (incarnation, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first()?;
        let (id, rest) = rest.split_at_checked(usize::from(*length))?;
        let (kind, payload) = rest.split_first()?;
        let kind = match kind {
            0 => Kind::Greeting,
            1 => Kind::Payload,
            _ => return None,
        };
        let id = std::str::from_utf8(id).ok().filter(|id| is_node_id(id))?.to_owned();
        let sender = Sender { id, incarnation: u64::from_le_bytes(*incarnation), session: *session };
        Some(Self { to: *to, sender, sequence: u64::from_le_bytes(*sequence), kind, payload })
    }
}

/// Whether a node may be called that: as `node.id` is checked.
pub(super) fn is_node_id(id: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(legal)
}

/// Numbers that were seen of one session (the bitmap of RFC 6479): the last [`Window::BITS`] of them, so that datagrams may overtake
/// each other by as many, which is more than a sender has on the way.
#[derive(Debug, Default)]
struct Window {
    highest: u64,
    seen: [u64; Self::WORDS],
}

impl Window {
    const WORDS: usize = 16;
    const BITS: u64 = 64 * Self::WORDS as u64;

    /// Whether `number` is new; it is not from now on.
    fn take(&mut self, number: u64) -> bool {
        if number > self.highest {
            if number - self.highest >= Self::BITS {
                self.seen = [0; Self::WORDS];
            } else {
                (self.highest + 1..=number).for_each(|between| *self.word(between) &= !Self::bit(between));
            }
            self.highest = number;
        } else if self.highest - number >= Self::BITS || *self.word(number) & Self::bit(number) != 0 {
            return false;
        }
        *self.word(number) |= Self::bit(number);
        true
    }

    fn word(&mut self, number: u64) -> &mut u64 {
        // Below 16: it fits.
        &mut self.seen[(number / 64 % Self::WORDS as u64) as usize]
    }

    fn bit(number: u64) -> u64 {
        1 << (number % 64)
    }
}

#[cfg(test)]
#[path = "seal_tests.rs"]
mod tests;
