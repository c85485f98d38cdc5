//! Memory of requests: taken when a message says how long it is, given back when the request is answered.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What one permit stands for, in bytes.
const UNIT: usize = 1 << 10;

/// Bytes that a message takes, for each of its own: as it came, and as the texts it is read into.
const SWELL: usize = 3;

/// All that requests may take.
pub(super) struct Inbox(Arc<Semaphore>);

/// One message's share.
pub(super) struct Held {
    _permit: OwnedSemaphorePermit,
}

impl Inbox {
    pub(super) fn new(bytes: u64) -> Self {
        let units = usize::try_from(bytes).unwrap_or(usize::MAX) / UNIT;
        Self(Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))))
    }

    /// Room for a message of `length` bytes, at once or not at all: a queue here would be of strangers.
    pub(super) fn admit(&self, length: usize) -> Option<Held> {
        let units = u32::try_from(1 + length * SWELL / UNIT).ok()?;
        self.0.clone().try_acquire_many_owned(units).ok().map(|permit| Held { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: messages take no more than there is, and give it back.
    #[test]
    fn room_is_bounded_and_comes_back() {
        let inbox = Inbox::new(1 << 20);
        let held: Vec<Held> = std::iter::from_fn(|| inbox.admit(100 << 10)).collect();
        assert_eq!(held.len(), 3);
        assert!(inbox.admit(1 << 20).is_none());
        drop(held);
        assert!(inbox.admit(300 << 10).is_some());
    }
}
