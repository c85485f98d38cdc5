//! The tries of one item: which node is next, by the rules of `route`.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Call, Client, Target};
use crate::error::{Error, ErrorKind};
use crate::object::RouteKey;
use crate::route::{self, Step};

/// The state of one item's tries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tries {
    pub(super) key: RouteKey,
    pub(super) attempt: u32,
    position: usize,
}

impl Tries {
    pub(super) fn new(key: RouteKey) -> Self {
        Self { key, attempt: 1, position: 0 }
    }

    /// The node to ask now.
    pub(super) async fn target(&self, client: &Client, call: &Call, deadline: Instant) -> Result<Target, Error> {
        let mut walk = client.walk(self.key, call, deadline).await?;
        Ok(walk.swap_remove(self.position % walk.len()))
    }

    /// Takes in a failure; how long to wait before the next try, or nothing if there is none.
    pub(super) fn step(&mut self, client: &Client, error: &Error, deadline: Instant) -> Option<Duration> {
        let left = deadline.saturating_duration_since(Instant::now());
        let after = match route::after_failure(&error.kind, self.attempt, left, random()) {
            Step::GiveUp => return None,
            Step::Again { after } => after,
            Step::Next { after } => {
                self.position += 1;
                after
            }
        };
        if error.kind == ErrorKind::Unavailable && error.node.is_none() {
            client.doubt_topology();
        }
        self.attempt += 1;
        Some(after)
    }

    /// Takes in a failure and waits as the rule says; gives the error back when there is nothing more to try.
    pub(super) async fn failed(&mut self, client: &Client, error: Error, deadline: Instant) -> Result<(), Error> {
        match self.step(client, &error, deadline) {
            None => Err(Error { attempt: self.attempt, ..error }),
            Some(after) => {
                sleep(after).await;
                Ok(())
            }
        }
    }
}

/// Asks until there is an answer, or the rule or the deadline says that it is enough. `ask` begins with finding its node: that none
/// is reached yet is a failure like others.
pub(super) async fn until_answered<T, W>(
    client: &Client,
    key: RouteKey,
    deadline: Instant,
    ask: impl Fn(Tries) -> W,
) -> Result<T, Error>
where
    W: Future<Output = Result<T, Error>>,
{
    let mut tries = Tries::new(key);
    loop {
        match ask(tries).await {
            Ok(answer) => return Ok(answer),
            Err(error) => tries.failed(client, error, deadline).await?,
        }
    }
}

/// Uniform bits, different in every process and call.
fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
