//! A cluster over QUIC on a network that is simulated: the real client with its pool, health, hedges, retries and news, the real doors of
//! the nodes and their real links to each other, on hosts whose datagrams are late, lost, doubled, damaged, overtaken or cut off.
//!
//! Everything runs on one thread under tokio's paused clock, as in [`crate::memory`], one floor lower: there links are calls, here they are
//! connections. Origin, store and decoder are that module's. Who is a member is scripted, and nodes hear of it at times of their own;
//! clients learn it over the wire.
//!
//! The network is our own ([`network`]). `turmoil` simulates hosts too, with a runtime and a clock for each, in steps of a millisecond,
//! and lets UDP only be delayed and lost. One runtime and one queue of datagrams are shorter, skip the time in which nothing happens, and
//! can double, damage, reorder and limit datagrams.
//!
//! A seed tells one story: what is drawn by chance (the network's weather, the ends' own draws inside QUIC, pauses of the client) is drawn
//! from it. What cannot be: keys, connection ids and the lengths of signatures and of TLS's greasing differ each time, so that datagrams of
//! a handshake may differ by some bytes. No time, order or fate depends on them.

mod door;
mod host;
mod life;
pub mod network;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use framecache::client::Outcome;
use framecache::wire::{NodeRow, RAMP_FULL};
use framecache::{Batch, Call, Client, ClientConfig, Error, ErrorKind, ImageSpec, ObjectId, Raw, Stats, View};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::dice::Dice;
use crate::memory::{Climate, World, id};
use host::Host;
use life::{Life, TRUST, client_ip, node_ip};
use network::{Counts, Network, Weather};

/// Most nodes of a story.
pub const NODES_MAX: usize = 6;

/// Where nodes listen.
const PORT: u16 = 4433;

/// Memory of a client.
const CLIENT_BYTES: u64 = 64 << 20;

/// How long a node that leaves waits for what it has begun.
const DRAIN: Duration = Duration::from_secs(2);

/// What is wrong on purpose, so that one sees that a story finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// None: what stands between passes everything on as it is. It shows that the others are found for what they are.
    Nothing,
    /// A bit is flipped above QUIC, which therefore does not see it.
    BitFlipped,
    /// A slot gets the reply to another one.
    AnotherItem,
    /// The version that a read is pinned to is lost on the way, and the reply says that it is of that one.
    PinForgotten,
    /// No news of the cluster reach anybody.
    NewsWithheld,
    /// Some replies do not end.
    StreamLeftOpen,
    /// A client does not keep its caller's deadline.
    DeadlineForgotten,
    /// A client forgets items that were lost with their connection.
    LossForgotten,
}

impl Bug {
    /// All that are some, and what a story says that finds it.
    pub const ALL: [(Bug, &[&str]); 7] = [
        (Bug::BitFlipped, &["is not that of", "are not those of", "are of no version"]),
        (Bug::AnotherItem, &["was not current", "are of no version"]),
        (Bug::PinForgotten, &["is not that of", "are not those of", "length of"]),
        (Bug::NewsWithheld, &["do not know the cluster"]),
        (Bug::StreamLeftOpen, &["left over"]),
        (Bug::DeadlineForgotten, &["a call took"]),
        (Bug::LossForgotten, &["is lost"]),
    ];

    fn is_of_a_node(self) -> bool {
        !matches!(self, Bug::DeadlineForgotten | Bug::LossForgotten)
    }
}

/// Nodes, clients, and the network between them.
pub struct Cluster {
    /// The truth, and the origin before which all stand.
    pub first: World,
    /// What lies between.
    pub network: Arc<Network>,
    climate: Climate,
    bug: Option<Bug>,
    rows: Mutex<BTreeMap<usize, NodeRow>>,
    lives: Mutex<BTreeMap<usize, Arc<Life>>>,
    endings: Mutex<Vec<JoinHandle<()>>>,
    callers: Vec<Arc<Caller>>,
    dice: Mutex<Dice>,
}

/// One that asks.
pub struct Caller {
    client: Client,
    bug: Option<Bug>,
}

impl Cluster {
    /// Nodes `0..members` serve and are settled, and know each other; clients know their addresses.
    pub fn begin(members: usize, clients: usize, climate: Climate, weather: Weather, bug: Option<Bug>, seed: u64) -> Arc<Self> {
        let mut dice = Dice::new(seed ^ 0x0051_ca1e);
        let network = Network::new(weather, dice.fork());
        let first = World::new(climate.clone(), seed);
        let row = |index: usize| NodeRow { quic: address(index), ..NodeRow::member(&name(index), 100) };
        let seeds: Vec<String> = (0..NODES_MAX).map(address).collect();
        let caller = |client: usize, dice: Dice| {
            let tls = TRUST.client();
            let config = ClientConfig { tls, memory: CLIENT_BYTES, ..ClientConfig::new(&seeds.join(",")) };
            let host = Host::new(network.clone(), client_ip(client), dice);
            Arc::new(Caller { client: Client::on(host, config).expect("client"), bug })
        };
        let callers = (0..clients).map(|client| caller(client, dice.fork())).collect();
        let cluster = Arc::new(Self {
            first,
            network: network.clone(),
            climate,
            bug,
            rows: Mutex::new((0..members).map(|index| (index, row(index))).collect()),
            lives: Mutex::default(),
            endings: Mutex::default(),
            callers,
            dice: Mutex::new(dice),
        });
        (0..members).for_each(|index| cluster.live(index));
        cluster
    }

    /// A node begins a life, and knows what is to be known now.
    fn live(&self, index: usize) {
        let mut dice = self.dice.lock();
        let host = Host::new(self.network.clone(), node_ip(index), dice.fork());
        let life = Life::begin(host, index, &self.first, &self.view(), self.bug, dice.fork());
        self.lives.lock().insert(index, life);
    }

    fn view(&self) -> View {
        let mut view = View::default();
        self.rows.lock().values().for_each(|row| {
            view.merge(row.clone()).expect("few nodes");
        });
        view
    }

    /// Nodes that live and serve.
    pub fn members(&self) -> Vec<usize> {
        let (rows, lives) = (self.rows.lock(), self.lives.lock());
        rows.iter().filter(|(index, row)| row.state == 1 && lives.contains_key(index)).map(|(index, _)| *index).collect()
    }

    /// Nodes that do not live, and of which the others know it.
    pub fn absent(&self) -> Vec<usize> {
        let (rows, lives) = (self.rows.lock(), self.lives.lock());
        let is_gone = |index: &usize| rows.get(index).is_none_or(|row| row.state == 3) && !lives.contains_key(index);
        (0..NODES_MAX).filter(is_gone).collect()
    }

    /// A node's row changes; the nodes hear of it within `ms`, and clients from them.
    fn state(self: &Arc<Self>, index: usize, ms: u64, change: impl FnOnce(&mut NodeRow)) {
        let row = {
            let mut rows = self.rows.lock();
            let Some(row) = rows.get_mut(&index) else { return };
            change(row);
            row.version += 2;
            row.clone()
        };
        let listeners: Vec<Arc<Life>> = self.lives.lock().values().cloned().collect();
        for life in listeners {
            let (wait, row) = (Duration::from_millis(self.dice.lock().within(0..ms + 1)), row.clone());
            let hear = move || {
                let mut view = life.members.topology().view().clone();
                view.merge(row).expect("few nodes");
                life.members.join(view);
            };
            match ms {
                0 => hear(),
                _ => drop(tokio::spawn(async move {
                    sleep(wait).await;
                    hear();
                })),
            }
        }
    }

    /// The same, if the node is in the same life still.
    fn state_in(self: &Arc<Self>, index: usize, incarnation: u64, ms: u64, change: impl FnOnce(&mut NodeRow)) {
        if self.rows.lock().get(&index).is_some_and(|row| row.incarnation == incarnation) {
            self.state(index, ms, change);
        }
    }

    /// A node that does not live begins anew, without anything that it held, and is settled after `settle_ms`; the others hear of each step
    /// within `ms`.
    pub fn join(self: &Arc<Self>, index: usize, ms: u64, settle_ms: u64) {
        let incarnation = {
            let mut rows = self.rows.lock();
            let incarnation = rows.get(&index).map_or(1, |row| row.incarnation + 1);
            let row = NodeRow { quic: address(index), incarnation, version: 0, ..NodeRow::member(&name(index), 100) };
            rows.insert(index, NodeRow { ramp: 0, settled: false, ..row });
            incarnation
        };
        self.live(index);
        self.state(index, ms, |_| ());
        let cluster = self.clone();
        tokio::spawn(async move {
            for step in 1..=4u16 {
                sleep(Duration::from_millis(settle_ms / 8)).await;
                cluster.state_in(index, incarnation, ms, |row| row.ramp = RAMP_FULL / 4 * step);
            }
            sleep(Duration::from_millis(settle_ms / 2)).await;
            cluster.state_in(index, incarnation, ms, |row| row.settled = true);
        });
    }

    /// A node leaves: it says so to whoever asks it, ends what it has begun, and is gone.
    pub fn leave(self: &Arc<Self>, index: usize, ms: u64) {
        let Some(life) = self.lives.lock().get(&index).cloned() else { return };
        self.state(index, ms, |row| row.state = 2);
        life.leave();
        let cluster = self.clone();
        self.ends(async move {
            sleep(DRAIN).await;
            life.end(DRAIN).await;
            cluster.network.unplug(node_ip(index));
            cluster.lives.lock().remove(&index);
            cluster.state(index, ms, |row| row.state = 3);
        });
    }

    /// A node is gone in this instant, with all that it held, and says nothing to anybody; the others know after `noticed_ms`, and hear of
    /// it within `ms`.
    pub fn crash(self: &Arc<Self>, index: usize, ms: u64, noticed_ms: u64) {
        self.network.unplug(node_ip(index));
        let Some(life) = self.lives.lock().remove(&index) else { return };
        let incarnation = self.rows.lock().get(&index).map_or(0, |row| row.incarnation);
        let cluster = self.clone();
        self.ends(async move {
            sleep(Duration::from_millis(noticed_ms)).await;
            cluster.state_in(index, incarnation, ms, |row| row.state = 3);
        });
        // What a dead process leaves behind here, nobody hears of.
        self.ends(async move { life.end(Duration::ZERO).await });
    }

    fn ends(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.endings.lock().push(tokio::spawn(work));
    }

    /// From now on nothing arrives on the ways from one host to another, for `heals_ms`. Hosts are the nodes, then the clients.
    pub fn cut(self: &Arc<Self>, ways: &[(usize, usize)], heals_ms: u64) {
        let ip = |host: usize| host.checked_sub(NODES_MAX).map_or_else(|| node_ip(host), client_ip);
        self.network.cut(ways.iter().map(|(from, to)| (ip(*from), ip(*to))).collect());
        let cluster = self.clone();
        self.ends(async move {
            sleep(Duration::from_millis(heals_ms)).await;
            cluster.network.cut(Vec::new());
        });
    }

    /// Hosts of the nodes that there may be, and of the clients.
    pub fn hosts(&self) -> usize {
        NODES_MAX + self.callers.len()
    }

    /// One that asks.
    pub fn caller(&self, client: usize) -> Arc<Caller> {
        self.callers[client].clone()
    }

    /// What the clients have counted, all together.
    pub fn stats(&self) -> Vec<Stats> {
        self.callers.iter().map(|caller| caller.client.stats()).collect()
    }

    /// From now on nothing fails, every way is open, whoever is dead is known to be, nodes know the same, and nothing else happens.
    pub async fn calm_down(self: &Arc<Self>) {
        self.climate.over.store(true, std::sync::atomic::Ordering::Relaxed);
        self.network.calm_down();
        self.ended().await;
        let known: Vec<usize> = self.rows.lock().keys().copied().collect();
        known.into_iter().for_each(|index| self.state(index, 0, |_| ()));
    }

    /// Waits for what has to happen still.
    async fn ended(&self) {
        loop {
            let Some(ending) = self.endings.lock().pop() else { return };
            if let Err(error) = ending.await {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    /// Ends: clients, nodes, network. Panics if a task, a stream or a byte of memory is left over; what became of datagrams.
    pub async fn end(self: Arc<Self>) -> Counts {
        for caller in &self.callers {
            caller.client.close().await;
        }
        let lives: Vec<Arc<Life>> = std::mem::take(&mut *self.lives.lock()).into_values().collect();
        for life in &lives {
            life.end(DRAIN).await;
        }
        self.ended().await;
        self.network.close();
        let counts = self.network.counts();
        drop((lives, self));
        // What is over has an instant to end in.
        sleep(Duration::from_secs(60)).await;
        let left = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert_eq!(left, 0, "tasks are left over");
        counts
    }
}

impl Caller {
    /// A raw read.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub async fn read(&self, key: &str, start: u64, length: Option<u64>, timeout: Duration) -> Result<Raw, Error> {
        self.client.read(&id(key), start, length, &self.call(timeout)).await
    }

    /// A batch of pictures; `None` is a slot of which nothing was heard again.
    pub async fn images(&self, keys: &[&str], spec: &ImageSpec, batch: &Batch, timeout: Duration) -> Vec<Option<Outcome>> {
        let ids: Vec<ObjectId> = keys.iter().map(|key| id(key)).collect();
        let forgets = self.bug == Some(Bug::LossForgotten);
        // As long as one try takes.
        let timeout = if forgets { timeout.min(Duration::from_millis(400)) } else { timeout };
        let outcomes = self.client.images(&ids, spec, batch, &self.call(timeout)).await;
        let lost = |outcome: &Outcome| {
            outcome.as_ref().is_err_and(|error| matches!(error.kind, ErrorKind::Timeout | ErrorKind::Unavailable))
        };
        outcomes.into_iter().map(|outcome| Some(outcome).filter(|outcome| !(forgets && lost(outcome)))).collect()
    }

    fn call(&self, timeout: Duration) -> Call {
        let forgets = self.bug == Some(Bug::DeadlineForgotten);
        Call { timeout: Some(if forgets { 4 * timeout } else { timeout }), ..Call::default() }
    }
}

/// The name of node `index`.
fn name(index: usize) -> String {
    format!("node-{index}")
}

fn address(index: usize) -> String {
    format!("{}:{PORT}", node_ip(index))
}
