//! Several nodes in memory that ask each other, and clients that walk: the real `read` and the real rings, on links that are late, cut or
//! end at nodes that die. News of the cluster reach each node and client at a time of its own.

mod links;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use framecache::topology::PEEKS_MAX;
use framecache::wire::{NodeRow, RAMP_FULL};
use framecache::{ByteRange, DecodeSpec, ErrorKind, RouteKey, Span, Tensor, Topology, Version, View};
use framecache_node::cache::Head;
use framecache_node::cluster::Members;
use framecache_node::read::{ReadError, Terms, Way};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{Climate, Replied, World, id};
use crate::dice::Dice;
use links::Links;

/// What is wrong with a fleet on purpose, so that one sees that a story finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A node gives what it holds, whatever version was asked for, under the version that was asked for.
    PinIgnored,
    /// Only the first of those that may hold it is asked.
    PeekStopsEarly,
    /// The origin is asked without If-Match.
    IfMatchForgotten,
    /// A flipped bit of the disk is served.
    ChecksumSkipped,
    /// A request of another node is sent on like a client's.
    Circle,
    /// A reply to another node keeps its memory.
    MemoryKept,
    /// A node that leaves does not say what it holds.
    LeavingSilent,
    /// Another page comes than was asked for.
    WrongPage,
    /// The server of an object names the first version that it ever saw.
    HeadKept,
    /// Another rendition comes than was asked for.
    WrongSpec,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 10] = [
        Bug::PinIgnored,
        Bug::PeekStopsEarly,
        Bug::IfMatchForgotten,
        Bug::ChecksumSkipped,
        Bug::Circle,
        Bug::MemoryKept,
        Bug::LeavingSilent,
        Bug::WrongPage,
        Bug::HeadKept,
        Bug::WrongSpec,
    ];
}

/// Nodes, their links, and what each client knows of them.
pub struct Fleet {
    seats: Vec<Arc<Seat>>,
    /// The truth, and the origin before which all stand.
    pub first: Arc<World>,
    net: Arc<Net>,
    rows: Mutex<BTreeMap<usize, NodeRow>>,
    clients: Vec<Mutex<Arc<Topology>>>,
    climate: Climate,
    dice: Mutex<Dice>,
}

/// One node: its place in the cluster, and its lives.
struct Seat {
    name: String,
    life: Mutex<Life>,
    ended: Mutex<Vec<Arc<World>>>,
}

#[derive(Clone)]
struct Life {
    world: Arc<World>,
    members: Arc<Members>,
    alive: watch::Receiver<bool>,
    kill: Arc<watch::Sender<bool>>,
}

/// What lies between nodes.
struct Net {
    seats: Mutex<Vec<Arc<Seat>>>,
    /// Ways that lead nowhere, by sender and receiver.
    cuts: Mutex<Vec<(String, String)>>,
    ms_max: u64,
    bug: Option<Bug>,
    dice: Mutex<Dice>,
}

impl Fleet {
    /// `n` nodes, of which the first `members` are in the ring and settled, and everybody knows them.
    pub fn new(n: usize, members: usize, clients: usize, climate: Climate, bug: Option<Bug>, seed: u64) -> Arc<Self> {
        let mut dice = Dice::new(seed ^ 0xf1ee7);
        let net = Arc::new(Net {
            seats: Mutex::default(),
            cuts: Mutex::default(),
            ms_max: dice.within(1..8),
            bug,
            dice: Mutex::new(dice.fork()),
        });
        let first = Arc::new(World::new(climate.clone(), seed));
        if bug == Some(Bug::IfMatchForgotten) {
            first.origin.forget_pins();
        }
        let name = |index: usize| format!("node-{index}");
        let rows: BTreeMap<usize, NodeRow> = (0..members).map(|index| (index, NodeRow::member(&name(index), 100))).collect();
        let view = view_of(&rows);
        let seats: Vec<Arc<Seat>> = (0..n)
            .map(|index| {
                let life = Life::begin(&name(index), &first, &net, &view, &mut dice);
                Arc::new(Seat { name: name(index), life: Mutex::new(life), ended: Mutex::default() })
            })
            .collect();
        net.seats.lock().clone_from(&seats);
        let clients = (0..clients).map(|_| Mutex::new(Arc::new(Topology::new(view.clone())))).collect();
        Arc::new(Self { seats, first, net, rows: Mutex::new(rows), clients, climate, dice: Mutex::new(dice) })
    }

    /// How many nodes there are, in the ring or not.
    pub fn nodes(&self) -> usize {
        self.seats.len()
    }

    /// Nodes that serve.
    pub fn members(&self) -> Vec<usize> {
        self.rows.lock().iter().filter(|(_, row)| row.state == 1).map(|(index, _)| *index).collect()
    }

    /// A node's row changes; everybody hears of it within `ms`.
    pub fn state(self: &Arc<Self>, index: usize, ms: u64, change: impl FnOnce(&mut NodeRow)) {
        let row = {
            let mut rows = self.rows.lock();
            let row =
                rows.entry(index).or_insert_with(|| NodeRow { version: 0, ..NodeRow::member(&self.seats[index].name, 100) });
            change(row);
            // Two at a time: in between is what a node believes of itself alone.
            row.version += 2;
            row.clone()
        };
        self.tell(&row, ms);
    }

    /// A node enters the ring, and is settled after `settle_ms`.
    pub fn join(self: &Arc<Self>, index: usize, ms: u64, settle_ms: u64) {
        self.state(index, ms, |row| (row.state, row.ramp, row.settled) = (1, 0, false));
        let fleet = self.clone();
        tokio::spawn(async move {
            for step in 1..=4u16 {
                sleep(Duration::from_millis(settle_ms / 8)).await;
                fleet.state_if_serving(index, ms, |row| row.ramp = RAMP_FULL / 4 * step);
            }
            sleep(Duration::from_millis(settle_ms / 2)).await;
            fleet.state_if_serving(index, ms, |row| row.settled = true);
        });
    }

    fn state_if_serving(self: &Arc<Self>, index: usize, ms: u64, change: impl FnOnce(&mut NodeRow)) {
        if self.rows.lock().get(&index).is_some_and(|row| row.state == 1) {
            self.state(index, ms, change);
        }
    }

    /// The node is gone in this instant, with all that it held; the others hear of it within `ms`.
    pub fn crash(self: &Arc<Self>, index: usize, ms: u64) {
        let seat = &self.seats[index];
        let dead = {
            let mut life = seat.life.lock();
            let _ = life.kill.send(false);
            let view = view_of(&self.rows.lock());
            std::mem::replace(&mut *life, Life::begin(&seat.name, &self.first, &self.net, &view, &mut self.dice.lock()))
        };
        seat.ended.lock().push(dead.world);
        self.state(index, ms, |row| row.state = 3);
    }

    /// From now on nothing arrives on the way from one node to another; `None` for both: every way is open.
    pub fn cut(&self, ways: &[(usize, usize)]) {
        let name = |index: usize| self.seats[index].name.clone();
        *self.net.cuts.lock() = ways.iter().map(|(from, to)| (name(*from), name(*to))).collect();
    }

    /// Whether after one more change whoever held a key is still among the few that are asked for it: each change may put another node
    /// before it.
    pub fn bears_another_change(&self) -> bool {
        let rows = self.rows.lock();
        let newcomers = rows.values().filter(|row| row.state == 1 && !row.settled).count();
        let others = rows.values().filter(|row| row.state == 2 || row.weight != 100 || row.held_weight != 100).count();
        newcomers + others < PEEKS_MAX - usize::from(others > 0)
    }

    /// Everybody knows the same in this instant.
    pub fn agree(self: &Arc<Self>) {
        let known: Vec<usize> = self.rows.lock().keys().copied().collect();
        known.into_iter().for_each(|index| self.state(index, 0, |_| ()));
    }

    /// Two nodes believe of themselves that they leave, so that each takes the other for the server of what is its own.
    pub fn disagree(self: &Arc<Self>) {
        self.agree();
        for index in self.members().into_iter().take(2) {
            let row = self.rows.lock()[&index].clone();
            let members = self.seats[index].life.lock().members.clone();
            members.join(with(members.topology().view(), NodeRow { state: 2, version: row.version + 1, ..row }));
        }
    }

    fn tell(self: &Arc<Self>, row: &NodeRow, ms: u64) {
        for listener in 0..self.seats.len() + self.clients.len() {
            let (fleet, row) = (self.clone(), row.clone());
            let wait = Duration::from_millis(self.dice.lock().within(0..ms + 1));
            let hear = move || match fleet.seats.get(listener) {
                Some(seat) => {
                    let members = seat.life.lock().members.clone();
                    members.join(with(members.topology().view(), row));
                }
                None => {
                    let mut topology = fleet.clients[listener - fleet.seats.len()].lock();
                    *topology = Arc::new(Topology::new(with(topology.view(), row)));
                }
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

    /// The nodes that the first client asks for a key, in its order.
    pub fn order(&self, key: RouteKey) -> Vec<String> {
        self.clients[0].lock().order(key).into_iter().map(|row| row.id.clone()).collect()
    }

    /// A raw read of that node, in that way.
    pub async fn read_from(
        &self,
        index: usize,
        way: Way,
        key: &str,
        range: ByteRange,
        deadline: Instant,
    ) -> Result<Replied, ReadError> {
        let world = self.seats[index].life.lock().world.clone();
        let terms = Terms { deadline, way, doubts: way == Way::Itself, caller: "".into() };
        world.read_by(key, range, None, &terms, Duration::ZERO).await
    }

    /// A raw read as a client makes it: of the first of its order that answers.
    pub async fn read(
        &self,
        client: usize,
        key: &str,
        range: ByteRange,
        pin: Option<&Version>,
        deadline: Instant,
        drain: Duration,
    ) -> Result<Replied, ReadError> {
        let route = RouteKey::raw(&id(key), Span::new(range.start() / framecache::object::SPAN_BYTES));
        let ask = |world: Arc<World>, terms: Terms| {
            let work = async move {
                let replied = world.read_by(key, range, pin, &terms, drain).await?;
                match &replied.error {
                    Some(error) if !is_final(error) => Err(error.clone()),
                    _ => Ok(replied),
                }
            };
            work.boxed()
        };
        self.walk(client, route, deadline, ask).await
    }

    /// A picture, likewise.
    pub async fn frame(
        &self,
        client: usize,
        key: &str,
        spec: &DecodeSpec,
        pin: Option<&Version>,
        deadline: Instant,
        drain: Duration,
    ) -> Result<(Head, Tensor), ReadError> {
        let ask = |world: Arc<World>, terms: Terms| async move { world.frame_by(key, spec, pin, &terms, drain).await }.boxed();
        self.walk(client, spec.route(&id(key)), deadline, ask).await
    }

    async fn walk<'a, T>(
        &self,
        client: usize,
        key: RouteKey,
        deadline: Instant,
        ask: impl Fn(Arc<World>, Terms) -> BoxFuture<'a, Result<T, ReadError>>,
    ) -> Result<T, ReadError> {
        let (mut position, mut unreached) = (0, false);
        let mut last = ReadError::Unavailable("no node".into());
        while Instant::now() < deadline {
            let topology = self.clients[client].lock().clone();
            let order: Vec<String> = topology.order(key).into_iter().map(|row| row.id.clone()).collect();
            let Some(name) = order.get(position % order.len().max(1)) else { return Err(last) };
            let seat = self.seats.iter().find(|seat| seat.name == *name).expect("a node of this fleet");
            let way = if position == 0 || unreached { Way::Server } else { Way::Itself };
            let terms = Terms { deadline, way, doubts: position > 0, caller: "".into() };
            let life = seat.life.lock().clone();
            let serves = self.rows.lock().values().any(|row| row.id == *name && row.state == 1);
            let answer = if serves { life.lasting(ask(life.world.clone(), terms)).await } else { None };
            match answer {
                None => {
                    unreached |= position == 0;
                    last = ReadError::Unavailable(format!("{name} is gone"));
                }
                Some(Err(ReadError::Busy { retry_after })) => {
                    sleep(retry_after).await;
                    last = ReadError::Busy { retry_after };
                    continue;
                }
                Some(Err(error @ ReadError::Unavailable(_))) => last = error,
                Some(answer) => return answer,
            }
            position += 1;
            sleep(Duration::from_millis(if position < 3 { 1 } else { 50 })).await;
        }
        Err(if matches!(last, ReadError::Busy { .. }) { last } else { ReadError::Deadline })
    }

    /// From now on nothing fails, and every way is open.
    pub fn calm_down(&self) {
        self.climate.over.store(true, Ordering::Relaxed);
        self.cut(&[]);
    }

    /// Decodes of all nodes that live.
    pub fn jobs(&self) -> u64 {
        self.seats.iter().map(|seat| seat.life.lock().world.decoder.jobs()).sum()
    }

    /// Waits for the tasks of every node; panics if they do not end, or if memory is missing.
    pub async fn end(&self) {
        self.first.end().await;
        for seat in &self.seats {
            let world = seat.life.lock().world.clone();
            world.end().await;
            // Of the dead only the tasks: what they held is gone with them.
            let ended = std::mem::take(&mut *seat.ended.lock());
            for world in ended {
                world.tasks.close();
                let waited = tokio::time::timeout(Duration::from_secs(90), world.tasks.wait()).await;
                assert!(waited.is_ok(), "a dead node's tasks do not end");
            }
        }
    }
}

impl Life {
    fn begin(name: &str, before: &World, net: &Arc<Net>, view: &View, dice: &mut Dice) -> Self {
        let members = Arc::new(Members::new(name, view.clone()));
        let (kill, alive) = watch::channel(true);
        let links = Links::new(members.clone(), net.clone(), alive.clone());
        let world = Arc::new(before.among(Arc::new(links), dice.fork()));
        if net.bug == Some(Bug::ChecksumSkipped) {
            world.store.flip_bits();
        }
        Self { world, members, alive, kill: Arc::new(kill) }
    }

    /// What comes of it, unless the node dies before.
    async fn lasting<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut alive = self.alive.clone();
        tokio::select! {
            biased;
            _ = alive.wait_for(|alive| !alive) => None,
            done = work => Some(done),
        }
    }
}

/// Whether every node would say so, as `ErrorKind::is_final` has it for what a client is told.
fn is_final(error: &ReadError) -> bool {
    !matches!(error, ReadError::Busy { .. } | ReadError::Deadline | ReadError::Unavailable(_))
}

/// What a client or another node is told, by the statuses of `serve`.
fn told(error: &ReadError) -> framecache::Error {
    let kind = match error {
        ReadError::NotFound => ErrorKind::NotFound,
        ReadError::Denied => ErrorKind::Denied,
        ReadError::NotConfigured(_) => ErrorKind::NotConfigured,
        ReadError::Changed { .. } => ErrorKind::Changed,
        ReadError::Undecodable(_) => ErrorKind::Undecodable,
        ReadError::Unsupported(_) => ErrorKind::Unsupported,
        ReadError::TooLarge(_) => ErrorKind::TooLarge,
        ReadError::OutOfRange { .. } | ReadError::NoFrame { .. } | ReadError::PastEnd(_) => ErrorKind::OutOfRange,
        ReadError::Busy { retry_after } => ErrorKind::Busy { retry_after: *retry_after },
        ReadError::Deadline => ErrorKind::Timeout,
        ReadError::Unavailable(_) => ErrorKind::Unavailable,
    };
    framecache::Error::new(kind, error.to_string())
}

fn view_of(rows: &BTreeMap<usize, NodeRow>) -> View {
    rows.values().fold(View::default(), |view, row| with(&view, row.clone()))
}

fn with(view: &View, row: NodeRow) -> View {
    let mut view = view.clone();
    view.merge(row).expect("few nodes");
    view
}

/// A switch that a test may turn.
#[derive(Debug, Default)]
pub(super) struct Switch(AtomicBool);

impl Switch {
    pub(super) fn turn(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
