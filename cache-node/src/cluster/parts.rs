//! Gossip messages are longer than datagrams: they are cut into parts, and put together again where all of them arrive.
//!
//! A part is `message 8 | index 2 | count 2 | bytes`. A message of which a part is lost is lost whole; gossip says it again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::seal::{PAYLOAD_MAX, Session};

const HEAD_BYTES: usize = 8 + 2 + 2;
const PART_BYTES: usize = PAYLOAD_MAX - HEAD_BYTES;

/// Most parts of a message: 270 KiB. Chitchat's digest and delta are 64 KiB each, the digest until there are about a thousand nodes.
const PARTS_MAX: usize = 256;

/// Messages that are being put together at once: 16 MiB if each is the longest. The oldest gives way.
const PENDING_MAX: usize = 64;

/// A message that is not whole after this never will be: the network reorders by milliseconds.
const PENDING_TIME: Duration = Duration::from_secs(2);

/// The parts of `message`, ready to be sealed; `None` if it is too long.
pub(super) fn cut(number: u64, message: &[u8]) -> Option<impl Iterator<Item = Vec<u8>>> {
    let count = message.len().div_ceil(PART_BYTES).max(1);
    let wire_count = u16::try_from(count).ok().filter(|_| count <= PARTS_MAX)?;
    let part = move |index: u16| {
        let start = usize::from(index) * PART_BYTES;
        let bytes = &message[start..message.len().min(start + PART_BYTES)];
        [&number.to_le_bytes()[..], &index.to_le_bytes(), &wire_count.to_le_bytes(), bytes].concat()
    };
    Some((0..wire_count).map(part))
}

/// Messages of which some parts have arrived.
#[derive(Debug, Default)]
pub(super) struct Assembly(VecDeque<Pending>);

#[derive(Debug)]
struct Pending {
    session: Session,
    number: u64,
    since: Instant,
    parts: Vec<Option<Box<[u8]>>>,
    missing: usize,
}

impl Assembly {
    /// Takes a part in; the message, if it is whole now. `Err` if this is no part of a message.
    pub(super) fn take(&mut self, session: Session, part: &[u8], now: Instant) -> Result<Option<Vec<u8>>, NotAPart> {
        let (number, rest) = part.split_first_chunk().ok_or(NotAPart)?;
        let (index, rest) = rest.split_first_chunk().ok_or(NotAPart)?;
        let (count, bytes) = rest.split_first_chunk().ok_or(NotAPart)?;
        let number = u64::from_le_bytes(*number);
        let (index, count) = (usize::from(u16::from_le_bytes(*index)), usize::from(u16::from_le_bytes(*count)));
        if !(1..=PARTS_MAX).contains(&count) || index >= count {
            return Err(NotAPart);
        }
        if count == 1 {
            return Ok(Some(bytes.to_vec()));
        }
        while self.0.front().is_some_and(|oldest| now.saturating_duration_since(oldest.since) > PENDING_TIME) {
            self.0.pop_front();
        }
        let at = self.0.iter().position(|pending| (pending.session, pending.number) == (session, number));
        let at = at.unwrap_or_else(|| {
            if self.0.len() == PENDING_MAX {
                self.0.pop_front();
            }
            self.0.push_back(Pending { session, number, since: now, parts: vec![None; count], missing: count });
            self.0.len() - 1
        });
        let pending = &mut self.0[at];
        let slot = pending.parts.get_mut(index).ok_or(NotAPart)?;
        if slot.is_none() {
            *slot = Some(bytes.into());
            pending.missing -= 1;
        }
        if pending.missing > 0 {
            return Ok(None);
        }
        let whole = self.0.remove(at).ok_or(NotAPart)?;
        Ok(Some(whole.parts.into_iter().flatten().flat_map(<[u8]>::into_vec).collect()))
    }
}

/// A sealed payload that is no part: a node of another release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no part of a message")]
pub(super) struct NotAPart;

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE_MAX: usize = PARTS_MAX * PART_BYTES;

    fn message(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at % 251) as u8).collect()
    }

    /// Promise: messages of every length come out as they went in, in whatever order their parts arrive.
    #[test]
    fn messages_survive_cutting() {
        let now = Instant::now();
        for length in [0, 1, PART_BYTES, PART_BYTES + 1, 65_507, MESSAGE_MAX] {
            let mut assembly = Assembly::default();
            let mut parts: Vec<_> = cut(7, &message(length)).expect("fits").collect();
            assert!(parts.iter().all(|part| part.len() <= PAYLOAD_MAX));
            parts.reverse();
            let last = parts.pop().expect("a part");
            for part in &parts {
                assert_eq!(assembly.take([1; 16], part, now), Ok(None));
                assert_eq!(assembly.take([1; 16], part, now), Ok(None), "twice is once");
            }
            assert_eq!(assembly.take([1; 16], &last, now), Ok(Some(message(length))));
            assert!(assembly.0.is_empty());
        }
        assert!(cut(7, &message(MESSAGE_MAX + 1)).is_none());
    }

    /// Promise: what never becomes whole takes bounded memory for a bounded time; senders do not disturb each other.
    #[test]
    fn leftovers_are_bounded() {
        let (now, mut assembly) = (Instant::now(), Assembly::default());
        for number in 0..1000 {
            let first = cut(number, &message(3 * PART_BYTES)).expect("fits").next().expect("part");
            assert_eq!(assembly.take([1; 16], &first, now), Ok(None));
        }
        assert_eq!(assembly.0.len(), PENDING_MAX);
        let parts: Vec<_> = cut(1, &message(2 * PART_BYTES)).expect("fits").collect();
        let later = now + PENDING_TIME * 2;
        assert_eq!(assembly.take([2; 16], &parts[0], later), Ok(None));
        assert_eq!(assembly.0.len(), 1);
        assert_eq!(assembly.take([3; 16], &parts[1], later), Ok(None), "another sender's");
        for bad in [&[0; 5][..], &[0; 12], &[[0; 8], [9, 0, 2, 0, 0, 0, 0, 0]].concat(), &[255; 12]] {
            assert_eq!(assembly.take([1; 16], bad, later), Err(NotAPart));
        }
    }
}
