//! One decode unit at a time: those who ask for the same one take turns.
//!
//! Without it, sixty askers of one poisoned picture would kill as many workers before its first death is known.

use std::collections::HashMap;
use std::sync::Arc;

use framecache::{ObjectId, Version};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// What is decoded as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Unit {
    pub(super) id: ObjectId,
    pub(super) version: Version,
    pub(super) part: Part,
}

/// What of the object it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// A picture, with all its frames.
    Picture,
    /// The unit of a video that begins with this packet.
    Clip(u64),
    /// A video's index.
    Index,
}

impl Unit {
    /// The picture of that version.
    pub(super) fn picture(id: &ObjectId, version: &Version) -> Self {
        Self { id: id.clone(), version: version.clone(), part: Part::Picture }
    }
}

type Lock = Arc<tokio::sync::Mutex<()>>;

/// The units that somebody works on or waits for.
#[derive(Clone, Default)]
pub(super) struct Units(Arc<Mutex<HashMap<Unit, Lock>>>);

/// The right to work on a unit, until dropped.
pub(super) struct Turn {
    units: Units,
    unit: Unit,
    lock: Lock,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Units {
    /// Waits until nobody else works on `unit`. Cancel safe.
    pub(super) async fn turn(&self, unit: Unit) -> Turn {
        let lock = self.0.lock().entry(unit.clone()).or_default().clone();
        let mut turn = Turn { units: self.clone(), unit, lock, guard: None };
        turn.guard = Some(turn.lock.clone().lock_owned().await);
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.guard = None;
        let mut units = self.units.0.lock();
        // The map's and our own: nobody waits, and nobody can begin to while the map is locked.
        if Arc::strong_count(&self.lock) == 2 {
            units.remove(&self.unit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: turns exclude one another by unit, and nothing is left behind, cancelled waiters included.
    #[tokio::test]
    async fn turns_exclude_and_leave_nothing() {
        let units = Units::default();
        let version = Version::new("1").expect("version");
        let unit = |key: &str| Unit::picture(&ObjectId::new("abc", key).expect("id"), &version);
        let first = units.turn(unit("a")).await;
        let other = units.turn(unit("b")).await;
        let mut waiter = Box::pin(units.turn(unit("a")));
        assert!(futures::poll!(&mut waiter).is_pending());
        let mut quitter = Box::pin(units.turn(unit("a")));
        assert!(futures::poll!(&mut quitter).is_pending());
        drop(quitter);
        drop(first);
        let second = waiter.await;
        assert_eq!(units.0.lock().len(), 2);
        drop((second, other));
        assert!(units.0.lock().is_empty());
    }
}
