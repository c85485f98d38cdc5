//! Whether the node may be sent work: a latch that each room holds until it is up.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// Shared by all rooms; a clone is the same latch.
#[derive(Clone, Debug)]
pub struct Readiness {
    state: Arc<watch::Sender<State>>,
}

/// Keeps the node from being ready while it lives.
#[derive(Debug)]
#[must_use = "the room counts as ready once this is dropped"]
pub struct Hold {
    name: &'static str,
    readiness: Readiness,
}

/// The answer, and how it prints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    Yes,
    /// These rooms are not up, in the order in which they took hold.
    Waiting(Vec<&'static str>),
    /// The node leaves: finish what is under way, send nothing new.
    Draining,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<&'static str>,
    draining: bool,
}

impl State {
    fn ready(&self) -> Ready {
        match (self.draining, self.held.is_empty()) {
            (true, _) => Ready::Draining,
            (false, true) => Ready::Yes,
            (false, false) => Ready::Waiting(self.held.clone()),
        }
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self { state: Arc::new(watch::Sender::new(State::default())) }
    }
}

impl Readiness {
    /// Ready until somebody holds it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Not ready until the answer is dropped. Take every hold before the admin door opens, else a probe may come in between.
    pub fn hold(&self, name: &'static str) -> Hold {
        self.state.send_modify(|state| state.held.push(name));
        Hold { name, readiness: self.clone() }
    }

    /// Never ready again: the node leaves.
    pub fn drain(&self) {
        self.state.send_modify(|state| state.draining = true);
    }

    pub fn now(&self) -> Ready {
        self.state.borrow().ready()
    }

    /// Waits until the node is ready or draining, and says which. May be cancelled.
    pub async fn settled(&self) -> Ready {
        let mut changes = self.state.subscribe();
        // The sender lives as long as `self`.
        let _ = changes.wait_for(|state| !matches!(state.ready(), Ready::Waiting(_))).await;
        self.now()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.readiness.state.send_modify(|state| {
            if let Some(at) = state.held.iter().position(|name| *name == self.name) {
                state.held.remove(at);
            }
        });
    }
}

impl fmt::Display for Ready {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ready::Yes => out.write_str("ready"),
            Ready::Waiting(names) => write!(out, "waiting for {}", names.join(", ")),
            Ready::Draining => out.write_str("draining"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The node is ready when the last room is, and never again once it leaves.
    #[tokio::test]
    async fn the_last_room_opens_the_latch() {
        let readiness = Readiness::new();
        assert_eq!(readiness.now(), Ready::Yes);
        let (disk, workers, other) = (readiness.hold("disk"), readiness.hold("workers"), readiness.hold("disk"));
        assert_eq!(readiness.now(), Ready::Waiting(vec!["disk", "workers", "disk"]));
        drop(disk);
        assert_eq!(readiness.now().to_string(), "waiting for workers, disk");
        let settled = tokio::spawn({
            let readiness = readiness.clone();
            async move { readiness.settled().await }
        });
        drop((workers, other));
        assert_eq!(settled.await.expect("no panic"), Ready::Yes);
        let again = readiness.hold("disk");
        assert_ne!(readiness.now(), Ready::Yes);
        readiness.drain();
        drop(again);
        assert_eq!((readiness.now(), readiness.settled().await), (Ready::Draining, Ready::Draining));
    }
}
