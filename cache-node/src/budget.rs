//! Memory is a budget, reserved before use: what is not reserved is not allocated, and what cannot be reserved in time is refused
//! at once.
//!
//! Verbs call each other downwards only (`Frames` may ask `Decode`, `Decode` may `Read`, `Read` may `Peek`), and each
//! [`Level`] has a floor that no other level can take: at least one maximal item. A request reserves its level's whole need in
//! one step and holds nothing of that level while it queues. So whoever holds bytes waits at most for a deeper level, the
//! deepest waits for nobody, and there is no circle to wait in. That holds across nodes too: what one node asks of another is of a
//! deeper level there than what it holds here.
//!
//! Above its floor a level may use what all levels share. The decision is [`policy`]'s; this file is the queue and the lock.

mod policy;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::{Size, is_key};
use policy::{Answer, Ask, Pace};

/// Who asks, deepest first: what holds bytes of a level waits for deeper ones alone, on this node and on others.
///
/// Of a frame that this node does not serve: `Frames` waits for `Forward`, which waits for `Relay` of the node that serves it. There
/// that waits for `Decode`, or for `Delegate`, which waits for `Decode` of a third. Its bytes come by `Fetch`, which waits for `Lend`
/// of the node that serves them; that waits for `Fill`, and `Fill` for `Peek` of whoever may hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// What is held, for another node.
    Peek,
    /// Raw bytes from the origin, or from a node that holds them.
    Fill,
    /// Raw bytes for another node.
    Lend,
    /// Raw bytes from the node that serves them.
    Fetch,
    /// Raw bytes for a client.
    Read,
    /// What decoders take, and make.
    Decode,
    /// Frames that another node decodes for this one.
    Delegate,
    /// Frames for another node.
    Relay,
    /// Frames from the node that serves them.
    Forward,
    /// Frames for a client.
    Frames,
}

impl Level {
    pub const ALL: [Level; 10] = [
        Level::Peek,
        Level::Fill,
        Level::Lend,
        Level::Fetch,
        Level::Read,
        Level::Decode,
        Level::Delegate,
        Level::Relay,
        Level::Forward,
        Level::Frames,
    ];

    /// The level as a metric label.
    pub fn name(self) -> &'static str {
        match self {
            Level::Peek => "peek",
            Level::Fill => "fill",
            Level::Lend => "lend",
            Level::Fetch => "fetch",
            Level::Read => "read",
            Level::Decode => "decode",
            Level::Delegate => "delegate",
            Level::Relay => "relay",
            Level::Forward => "forward",
            Level::Frames => "frames",
        }
    }
}

/// How the limit is cut.
#[derive(Clone, Debug)]
pub struct BudgetLines {
    /// `node.memory_limit`.
    pub total: u64,
    /// What is spent for as long as the node runs, each under the key that changes it (`cache.raw_ram`, `decode.workers`), or a
    /// word where no key does.
    pub fixed: Vec<(&'static str, u64)>,
    /// Bytes that belong to each level alone, in the order of [`Level::ALL`]; at least one maximal item each.
    pub floors: [u64; Level::ALL.len()],
}

/// The lines do not fit: nothing can be started. Change the key that the message names.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// Fixed parts and floors exceed the limit.
    #[error(
        "`node.memory_limit` of {} is too small by {} ({lines}); raise it or lower `{largest}`",
        Size(*total), Size(*short)
    )]
    DoesNotFit { total: u64, short: u64, lines: String, largest: &'static str },
    /// A level without a floor could wait for ever.
    #[error("the floor of level {} is zero; give it one maximal item", level.name())]
    NoFloor { level: Level },
}

/// No bytes, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It was let into the queue, and the deadline came before the bytes. The caller's time is up: tell it so.
    #[error("no memory before the deadline")]
    Deadline,
    /// Too much is under way: ask again after that time, or ask another node.
    #[error("busy, retry after {} ms", retry_after.as_millis())]
    Busy { retry_after: Duration },
    /// This many bytes are never given at this level: final.
    #[error("{} exceed the {} that one request may take", Size(*bytes), Size(*most))]
    TooLarge { bytes: u64, most: u64 },
}

/// One level at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelUsage {
    pub in_use: u64,
    /// Requests in the queue.
    pub waiting: u64,
    /// Requests refused so far, for whatever reason.
    pub refused: u64,
    pub floor: u64,
    /// The floor and everything shared: the largest single reservation.
    pub most: u64,
}

/// The node's memory, shared by all requests. See the module.
#[derive(Debug)]
pub struct Budget {
    floors: [u64; Level::ALL.len()],
    shared: u64,
    fixed: Vec<(&'static str, u64)>,
    total: u64,
    levels: Mutex<[Queue; Level::ALL.len()]>,
}

/// Bytes that are yours until this is dropped; the drop gives them back and wakes whoever fits.
#[derive(Debug)]
#[must_use = "the bytes are given back when this is dropped"]
pub struct Reservation {
    budget: Arc<Budget>,
    level: Level,
    bytes: u64,
    since: Instant,
}

/// One level's books.
#[derive(Debug, Default)]
struct Queue {
    in_use: u64,
    refused: u64,
    pace: Pace,
    next_ticket: u64,
    /// In the order of tickets.
    waiters: VecDeque<Waiter>,
    waiting_bytes: u64,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    bytes: u64,
    since: Instant,
    granted: Arc<Notify>,
}

/// A place in the queue; the drop leaves it, or gives back what was granted meanwhile.
struct Place<'a> {
    budget: &'a Arc<Budget>,
    level: Level,
    bytes: u64,
    ticket: u64,
}

impl Budget {
    /// Cuts the limit into its lines, or says which key must change.
    pub fn new(lines: BudgetLines) -> Result<Arc<Self>, BudgetError> {
        let BudgetLines { total, mut fixed, floors } = lines;
        if let Some(level) = Level::ALL.into_iter().find(|level| floors[*level as usize] == 0) {
            return Err(BudgetError::NoFloor { level });
        }
        fixed.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let floor_sum = floors.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let need = fixed.iter().fold(floor_sum, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let Some(shared) = total.checked_sub(need) else {
            let fixed_parts = fixed.iter().map(|(name, bytes)| format!("{name} {}, ", Size(*bytes))).collect::<String>();
            return Err(BudgetError::DoesNotFit {
                total,
                short: need - total,
                lines: format!("{fixed_parts}one item per verb {}", Size(floor_sum)),
                largest: fixed
                    .iter()
                    .find(|(name, bytes)| is_key(name) && *bytes > 0)
                    .map_or("decode.pixels_max", |(name, _)| name),
            });
        };
        Ok(Arc::new(Self { floors, shared, fixed, total, levels: Mutex::default() }))
    }

    /// Reserves `bytes` at `level`, waiting until `deadline` if it is likely to come to that, else refusing at once.
    ///
    /// First come, first served within a level. May be cancelled: a dropped call leaves the queue and holds nothing.
    pub async fn reserve(self: &Arc<Self>, level: Level, bytes: u64, deadline: Instant) -> Result<Reservation, Refused> {
        let granted = Arc::new(Notify::new());
        let place = match self.enter(level, bytes, deadline, &granted) {
            Entered::Granted(reservation) => return Ok(reservation),
            Entered::Refused(refused) => return Err(refused),
            Entered::Queued(place) => place,
        };
        let _ = tokio::time::timeout_at(deadline, granted.notified()).await;
        // The grant is what the books say: it may have come in the instant of the deadline.
        place.take()
    }

    /// As [`Budget::reserve`] without waiting.
    pub fn try_reserve(self: &Arc<Self>, level: Level, bytes: u64) -> Result<Reservation, Refused> {
        match self.enter(level, bytes, Instant::now(), &Arc::new(Notify::new())) {
            Entered::Granted(reservation) => Ok(reservation),
            Entered::Refused(refused) => Err(refused),
            Entered::Queued(place) => place.take(),
        }
    }

    /// Each level at this moment, in the order of [`Level::ALL`].
    pub fn usage(&self) -> [LevelUsage; Level::ALL.len()] {
        let levels = self.levels.lock();
        Level::ALL.map(|level| {
            let (queue, floor) = (&levels[level as usize], self.floors[level as usize]);
            let waiting = queue.waiters.len() as u64;
            LevelUsage { in_use: queue.in_use, waiting, refused: queue.refused, floor, most: floor + self.shared }
        })
    }

    /// Bytes that every level may still take above its floor.
    pub fn shared_free(&self) -> u64 {
        self.shared_left(&self.levels.lock())
    }

    /// Bytes that belong to `level` alone: what is no larger never waits for what others share.
    pub fn floor(&self, level: Level) -> u64 {
        self.floors[level as usize]
    }

    /// The limit, as given.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The fixed lines, largest first.
    pub fn fixed(&self) -> &[(&'static str, u64)] {
        &self.fixed
    }

    /// Whether `bytes` would be refused at once by now, if `ahead` bytes were asked for at `level` just before. Asks for nothing.
    pub fn foresees_busy(&self, level: Level, bytes: u64, ahead: u64, deadline: Instant) -> Option<Refused> {
        let levels = self.levels.lock();
        let ask = self.ask(level, &levels, bytes, deadline);
        let ask =
            Ask { waiting_bytes: ask.waiting_bytes.saturating_add(ahead), waiters: ask.waiters + usize::from(ahead > 0), ..ask };
        match policy::decide(&ask, &levels[level as usize].pace) {
            Answer::Busy { retry_after } => Some(Refused::Busy { retry_after }),
            Answer::Grant | Answer::Wait | Answer::TooLarge { .. } => None,
        }
    }

    fn ask(&self, level: Level, levels: &[Queue; Level::ALL.len()], bytes: u64, deadline: Instant) -> Ask {
        let now = Instant::now();
        let queue = &levels[level as usize];
        Ask {
            bytes,
            most: self.floors[level as usize] + self.shared,
            free: self.free(level, levels),
            in_use: queue.in_use,
            waiters: queue.waiters.len(),
            waiting_bytes: queue.waiting_bytes,
            oldest_wait: queue.waiters.front().map_or(Duration::ZERO, |front| now - front.since),
            time_left: deadline.saturating_duration_since(now),
        }
    }

    fn enter<'a>(self: &'a Arc<Self>, level: Level, bytes: u64, deadline: Instant, granted: &Arc<Notify>) -> Entered<'a> {
        let now = Instant::now();
        let mut levels = self.levels.lock();
        let ask = self.ask(level, &levels, bytes, deadline);
        let queue = &mut levels[level as usize];
        match policy::decide(&ask, &queue.pace) {
            Answer::Grant => {
                queue.in_use += bytes;
                Entered::Granted(Reservation { budget: self.clone(), level, bytes, since: now })
            }
            Answer::Wait => {
                let ticket = queue.next_ticket;
                queue.next_ticket += 1;
                queue.waiting_bytes += bytes;
                queue.waiters.push_back(Waiter { ticket, bytes, since: now, granted: granted.clone() });
                Entered::Queued(Place { budget: self, level, bytes, ticket })
            }
            Answer::Busy { retry_after } => {
                queue.refused += 1;
                Entered::Refused(Refused::Busy { retry_after })
            }
            Answer::TooLarge { most } => {
                queue.refused += 1;
                Entered::Refused(Refused::TooLarge { bytes, most })
            }
        }
    }

    fn release(&self, level: Level, bytes: u64, held: Duration) {
        let mut levels = self.levels.lock();
        let queue = &mut levels[level as usize];
        assert!(queue.in_use >= bytes, "more bytes came back to level {} than were given", level.name());
        queue.in_use -= bytes;
        queue.pace.record(bytes, held);
        self.grant(&mut levels);
    }

    /// Grants from the front of each queue what fits now. Deepest level first: the others wait for it, never it for them.
    fn grant(&self, levels: &mut [Queue; Level::ALL.len()]) {
        for level in Level::ALL {
            loop {
                let free = self.free(level, levels);
                let queue = &mut levels[level as usize];
                let Some(waiter) = queue.waiters.pop_front_if(|front| front.bytes <= free) else { break };
                queue.waiting_bytes -= waiter.bytes;
                queue.in_use += waiter.bytes;
                // Only marks the task as ready: it runs after the lock is gone.
                waiter.granted.notify_one();
            }
        }
    }

    /// Bytes that `level` may take now: what is left of its floor, and of the shared part.
    fn free(&self, level: Level, levels: &[Queue; Level::ALL.len()]) -> u64 {
        self.floors[level as usize].saturating_sub(levels[level as usize].in_use) + self.shared_left(levels)
    }

    fn shared_left(&self, levels: &[Queue; Level::ALL.len()]) -> u64 {
        let over = levels.iter().zip(&self.floors).map(|(queue, floor)| queue.in_use.saturating_sub(*floor));
        self.shared - over.sum::<u64>()
    }
}

enum Entered<'a> {
    Granted(Reservation),
    Queued(Place<'a>),
    Refused(Refused),
}

impl Place<'_> {
    /// Ends the wait: the bytes if they were granted, else `Deadline`.
    fn take(self) -> Result<Reservation, Refused> {
        let place = std::mem::ManuallyDrop::new(self);
        match place.leave() {
            true => {
                let (level, bytes) = (place.level, place.bytes);
                Ok(Reservation { budget: place.budget.clone(), level, bytes, since: Instant::now() })
            }
            false => {
                let mut levels = place.budget.levels.lock();
                let queue = &mut levels[place.level as usize];
                queue.refused += 1;
                Err(Refused::Deadline)
            }
        }
    }

    /// Out of the queue; true if the bytes were granted before, and are now the caller's to keep or return.
    fn leave(&self) -> bool {
        let mut levels = self.budget.levels.lock();
        let queue = &mut levels[self.level as usize];
        match queue.waiters.binary_search_by_key(&self.ticket, |waiter| waiter.ticket) {
            Err(_) => true,
            Ok(at) => {
                queue.waiters.remove(at);
                queue.waiting_bytes -= self.bytes;
                // Whoever stood behind may be small enough.
                self.budget.grant(&mut levels);
                false
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.leave() {
            self.budget.release(self.level, self.bytes, Duration::ZERO);
        }
    }
}

impl Reservation {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn level(&self) -> Level {
        self.level
    }

    /// Gives back what is above `bytes`; a larger number changes nothing.
    pub fn shrink_to(&mut self, bytes: u64) {
        if let Some(rest) = self.bytes.checked_sub(bytes).filter(|rest| *rest > 0) {
            self.bytes = bytes;
            self.budget.release(self.level, rest, self.since.elapsed());
        }
    }

    /// Cuts off `bytes` as a reservation of their own.
    ///
    /// # Panics
    ///
    /// If this holds fewer: bytes that nobody reserved would be spent.
    pub fn split(&mut self, bytes: u64) -> Reservation {
        assert!(bytes <= self.bytes, "split {bytes} bytes off a reservation of {}", self.bytes);
        self.bytes -= bytes;
        Reservation { budget: self.budget.clone(), bytes, ..*self }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.release(self.level, self.bytes, self.since.elapsed());
    }
}
