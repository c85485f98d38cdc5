//! Where other nodes may be found: addresses as they stand, and names that are looked up again and again, since what a name stands
//! for (the pods behind a headless service) is often not there yet when a node starts, and changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::net::lookup_host;
use tokio::task::AbortHandle;

use super::socket::canonical;

/// Seeds that are used; a name may stand for many, so that few are needed.
const SEEDS_MAX: usize = 64;

/// Addresses of one name that are used.
const ADDRESSES_MAX: usize = 256;

/// Time between look-ups of a node that is alone, and of one that has company.
const LOOKUP_ALONE: Duration = Duration::from_millis(500);
const LOOKUP: Duration = Duration::from_secs(10);

/// The seeds, and what they stand for now. Dropped, it looks nothing up any more.
pub(super) struct Seeds {
    found: Arc<Mutex<BTreeMap<String, Vec<SocketAddr>>>>,
    alone: Arc<AtomicBool>,
    lookups: Option<AbortHandle>,
    /// Which address is next, where not all are asked.
    turn: usize,
}

impl Seeds {
    /// Starts to look them up.
    pub(super) fn start(seeds: &[String]) -> Self {
        let found = Arc::<Mutex<BTreeMap<String, Vec<SocketAddr>>>>::default();
        let alone = Arc::new(AtomicBool::new(true));
        let mut names = Vec::new();
        for seed in seeds.iter().take(SEEDS_MAX) {
            match seed.parse() {
                Ok(address) => drop(found.lock().insert(seed.clone(), vec![canonical(address)])),
                Err(_) => names.push(seed.clone()),
            }
        }
        let lookups = names.into_iter().map(|name| look_up(name, found.clone(), alone.clone())).collect::<Vec<_>>();
        let lookups = (!lookups.is_empty()).then(|| tokio::spawn(join_all(lookups)).abort_handle());
        Self { found, alone, lookups, turn: 0 }
    }

    /// Every address that is known now.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let mut addresses: Vec<_> = self.found.lock().values().flatten().copied().collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Whether there are names among them, which may stand for more than is known.
    pub(super) fn are_looked_up(&self) -> bool {
        self.lookups.is_some()
    }

    /// The next `count` addresses in turn.
    pub(super) fn next(&mut self, count: usize) -> Vec<SocketAddr> {
        let addresses = self.addresses();
        let count = count.min(addresses.len());
        let picked = (0..count).map(|at| addresses[(self.turn + at) % addresses.len()]).collect();
        self.turn = self.turn.wrapping_add(count);
        picked
    }

    /// Whether nobody else is known: names are looked up more often then.
    pub(super) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Relaxed);
    }
}

impl Drop for Seeds {
    fn drop(&mut self) {
        if let Some(lookups) = &self.lookups {
            lookups.abort();
        }
    }
}

/// Looks `name` up for ever. One that fails keeps what it stood for, and is warned about once each time that it begins to fail.
async fn look_up(name: String, found: Arc<Mutex<BTreeMap<String, Vec<SocketAddr>>>>, alone: Arc<AtomicBool>) {
    let mut fails = false;
    loop {
        // The resolver has a deadline of its own; a second look-up beside a slow one would not be faster.
        match lookup_host(&name).await {
            Ok(addresses) => {
                let addresses: Vec<_> = addresses.map(canonical).take(ADDRESSES_MAX).collect();
                found.lock().insert(name.clone(), addresses);
                fails = false;
            }
            Err(error) if !fails => {
                tracing::warn!(seed = name, %error, "seed cannot be resolved; it is tried again");
                fails = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(if alone.load(Ordering::Relaxed) { LOOKUP_ALONE } else { LOOKUP }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: addresses are there at once, names as soon as they resolve; all get their turn.
    #[tokio::test]
    async fn seeds_are_found_and_take_turns() {
        let text = ["127.0.0.1:1", "127.0.0.1:2", "localhost:3", "127.0.0.1:2", "no-such-host.invalid:4"];
        let mut seeds = Seeds::start(&text.map(String::from));
        assert_eq!(seeds.addresses().len(), 2);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while !seeds.addresses().contains(&SocketAddr::from(([127, 0, 0, 1], 3))) {
            assert!(tokio::time::Instant::now() < deadline, "localhost does not resolve");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let count = seeds.addresses().len();
        let mut all: Vec<_> = (0..count).flat_map(|_| seeds.next(1)).collect();
        all.sort_unstable();
        assert_eq!(all, seeds.addresses());
        assert_eq!(seeds.next(100).len(), count);
        assert!(Seeds::start(&[]).next(1).is_empty());
    }
}
