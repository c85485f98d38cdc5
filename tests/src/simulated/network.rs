//! What lies between hosts: each datagram is late, and some are lost, doubled, damaged or overtaken.
//!
//! One task carries all datagrams in the order in which they are due. What becomes of a datagram is drawn from dice of its own way, one
//! host to another, so that it does not depend on what happens elsewhere in the same instant.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::dice::Dice;

/// Bytes that wait in a socket, at most: what a kernel grants. What finds it full is lost.
const SOCKET_BYTES: usize = 4 << 20;

/// Datagrams on their way, at most: some twenty first windows. What finds it full is lost, as in a router.
const QUEUE_MAX: usize = 1 << 16;

/// Shortest way: the clock's step. With none at all QUIC's pacing would wait for a time that does not come, since nothing moves the clock.
const WAY_MIN: Duration = Duration::from_millis(1);

/// Ports of sockets that asked for none begin here.
const FIRST_PORT: u16 = 40_000;

/// How a network is. Chances are in percent of datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Longest way between two hosts, in milliseconds; each way has a length of its own, [`WAY_MIN`] at least.
    pub ms_max: u64,
    /// Most that comes to it, for each datagram anew.
    pub jitter_ms: u64,
    /// Largest datagram that a way carries, in bytes.
    pub datagram_max: usize,
    /// Datagrams that are lost.
    pub loss: u64,
    /// That come twice.
    pub double: u64,
    /// That have one bit turned.
    pub damage: u64,
    /// That are held back, so that later ones overtake them.
    pub overtaken: u64,
}

/// What became of datagrams so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent, by whichever socket.
    pub sent: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost on ways that are cut, or to hosts that are not there.
    pub cut: u64,
    /// Too large for their way.
    pub too_large: u64,
    /// Doubled, damaged, and overtaken.
    pub doubled: u64,
    pub damaged: u64,
    pub overtaken: u64,
    /// Hash of all that, datagram by datagram, with its time.
    pub story: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Network {
    weather: Weather,
    began: Instant,
    state: Mutex<State>,
    /// Something is due sooner than the carrier thinks.
    sooner: Arc<Notify>,
    carrier: Mutex<Option<AbortHandle>>,
}

#[derive(Debug)]
struct State {
    dice: Dice,
    sockets: BTreeMap<SocketAddr, Arc<Inbox>>,
    ways: BTreeMap<(IpAddr, IpAddr), Way>,
    cuts: Vec<(IpAddr, IpAddr)>,
    calm: bool,
    /// By when they are due, and number.
    flying: BTreeMap<(Instant, u64), Datagram>,
    ports: BTreeMap<IpAddr, u16>,
    counts: Counts,
}

#[derive(Debug)]
struct Way {
    dice: Dice,
    length: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) bytes: Bytes,
}

/// What has come to a socket.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    unplugged: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    datagrams: VecDeque<Datagram>,
    bytes: usize,
    reader: Option<Waker>,
}

/// What a datagram meets with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lost,
    Cut,
    TooLarge,
    Passed { after: Duration, again: bool, damaged: bool, overtaken: bool },
}

impl Network {
    /// A network of that weather. Must be made inside the runtime whose clock it goes by.
    pub fn new(weather: Weather, mut dice: Dice) -> Arc<Self> {
        let state = State {
            dice: dice.fork(),
            sockets: BTreeMap::new(),
            ways: BTreeMap::new(),
            cuts: Vec::new(),
            calm: false,
            flying: BTreeMap::new(),
            ports: BTreeMap::new(),
            counts: Counts::default(),
        };
        let network = Arc::new(Self {
            weather,
            began: Instant::now(),
            state: Mutex::new(state),
            sooner: Arc::default(),
            carrier: Mutex::default(),
        });
        let carrier = tokio::spawn(carry(network.clone())).abort_handle();
        *network.carrier.lock() = Some(carrier);
        network
    }

    /// From now on nothing arrives on these ways, and everything on the others, but for the weather.
    pub fn cut(&self, ways: Vec<(IpAddr, IpAddr)>) {
        self.state.lock().cuts = ways;
    }

    /// From now on ways are of even length, and nothing is lost.
    pub fn calm_down(&self) {
        let mut state = self.state.lock();
        (state.calm, state.cuts) = (true, Vec::new());
    }

    /// The host is gone in this instant: its sockets hear nothing any more, and nothing that they say is heard.
    pub fn unplug(&self, host: IpAddr) {
        self.state.lock().sockets.retain(|at, inbox| {
            if at.ip() == host {
                inbox.unplugged.store(true, Ordering::Relaxed);
            }
            at.ip() != host
        });
    }

    /// What became of datagrams so far.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Nothing is carried any more.
    pub fn close(&self) {
        if let Some(carrier) = self.carrier.lock().take() {
            carrier.abort();
        }
    }

    /// A socket at `at`, or at any port for 0: where it is, and what comes to it.
    pub(super) fn open(&self, mut at: SocketAddr) -> io::Result<(SocketAddr, Arc<Inbox>)> {
        let mut state = self.state.lock();
        if at.port() == 0 {
            let port = state.ports.entry(at.ip()).or_insert(FIRST_PORT);
            at.set_port(*port);
            *port += 1;
        }
        if state.sockets.contains_key(&at) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let inbox: Arc<Inbox> = Arc::default();
        state.sockets.insert(at, inbox.clone());
        Ok((at, inbox))
    }

    /// The socket is no more.
    pub(super) fn shut(&self, at: SocketAddr, inbox: &Arc<Inbox>) {
        let mut state = self.state.lock();
        // At the address of a host that died may be another's by now.
        if state.sockets.get(&at).is_some_and(|held| Arc::ptr_eq(held, inbox)) {
            state.sockets.remove(&at);
        }
    }

    /// A socket says something.
    pub(super) fn send(&self, datagram: Datagram) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let fate = state.fate(&datagram, &self.weather);
        state.note(now - self.began, &datagram, fate);
        let Fate::Passed { after, again, damaged, .. } = fate else { return };
        let mut datagram = datagram;
        if damaged {
            let mut bytes = datagram.bytes.to_vec();
            let at = state.counts.sent as usize % bytes.len().max(1);
            bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1);
            datagram.bytes = bytes.into();
        }
        let first = state.flying.keys().next().map(|(due, _)| *due);
        let (due, number) = (now + after, 2 * state.counts.sent);
        if state.flying.len() >= QUEUE_MAX {
            return;
        }
        if again {
            state.flying.insert((due + after, number + 1), datagram.clone());
        }
        state.flying.insert((due, number), datagram);
        drop(state);
        if first.is_none_or(|first| due < first) {
            self.sooner.notify_one();
        }
    }

    /// Hands out what is due; when the next is.
    fn deliver(&self) -> Option<Instant> {
        let now = Instant::now();
        loop {
            let mut state = self.state.lock();
            let first = state.flying.first_entry()?;
            if first.key().0 > now {
                return Some(first.key().0);
            }
            let datagram = first.remove();
            match state.sockets.get(&datagram.to).cloned() {
                Some(inbox) => {
                    // Whom it wakes may end with it, and its socket too.
                    drop(state);
                    inbox.put(datagram);
                }
                None => state.counts.cut += 1,
            }
        }
    }
}

async fn carry(network: Arc<Network>) {
    loop {
        let next = network.deliver();
        let sooner = network.sooner.notified();
        match next {
            None => sooner.await,
            Some(due) => tokio::select! {
                biased;
                () = sooner => {}
                () = sleep_until(due) => {}
            },
        }
    }
}

impl State {
    fn fate(&mut self, datagram: &Datagram, weather: &Weather) -> Fate {
        let (from, to) = (datagram.from.ip(), datagram.to.ip());
        if from == to {
            return Fate::Passed { after: WAY_MIN, again: false, damaged: false, overtaken: false };
        }
        let calm = self.calm;
        let way = self.ways.entry((from, to)).or_insert_with(|| {
            // Of the way itself, not of when it is first used.
            let mut dice = Dice::new(self.dice.clone().bits() ^ hash(&[number(from), number(to)]));
            let length = Duration::from_millis(dice.within(0..weather.ms_max + 1));
            Way { dice, length: length.max(WAY_MIN) }
        });
        let dice = &mut way.dice;
        let mut strikes = |percent: u64| dice.chance(percent) && !calm;
        let (lost, again, damaged) = (strikes(weather.loss), strikes(weather.double), strikes(weather.damage));
        let overtaken = strikes(weather.overtaken);
        let jitter = if calm { 0 } else { way.dice.within(0..weather.jitter_ms + 1) };
        let held_back = if overtaken { way.dice.within(5..60) } else { 0 };
        if self.cuts.contains(&(from, to)) {
            return Fate::Cut;
        }
        if datagram.bytes.len() > weather.datagram_max {
            return Fate::TooLarge;
        }
        match lost {
            true => Fate::Lost,
            false => Fate::Passed { after: way.length + Duration::from_millis(jitter + held_back), again, damaged, overtaken },
        }
    }

    fn note(&mut self, at: Duration, datagram: &Datagram, fate: Fate) {
        let counts = &mut self.counts;
        counts.sent += 1;
        let fate = match fate {
            Fate::Lost => {
                counts.lost += 1;
                1
            }
            Fate::Cut => {
                counts.cut += 1;
                2
            }
            Fate::TooLarge => {
                counts.too_large += 1;
                3
            }
            Fate::Passed { after, again, damaged, overtaken } => {
                counts.doubled += u64::from(again);
                counts.damaged += u64::from(damaged);
                counts.overtaken += u64::from(overtaken);
                4 + 2 * after.as_millis() as u64
            }
        };
        let way = [number(datagram.from.ip()), number(datagram.to.ip())];
        counts.story = hash(&[counts.story, at.as_micros() as u64, way[0], way[1], fate]);
    }
}

fn number(ip: IpAddr) -> u64 {
    match ip {
        IpAddr::V4(ip) => u64::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip) as u64,
    }
}

fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |hash, part| Dice::new(hash ^ part).bits())
}

impl Inbox {
    /// Whether its host is gone.
    pub(super) fn is_unplugged(&self) -> bool {
        self.unplugged.load(Ordering::Relaxed)
    }

    /// The next datagram; without one, `reader` is woken when one comes.
    pub(super) fn take(&self, reader: &Waker) -> Option<Datagram> {
        let mut held = self.held.lock();
        let datagram = held.datagrams.pop_front();
        match &datagram {
            Some(datagram) => held.bytes -= datagram.bytes.len(),
            None => held.reader = Some(reader.clone()),
        }
        datagram
    }

    fn put(&self, datagram: Datagram) {
        let mut held = self.held.lock();
        if held.bytes + datagram.bytes.len() > SOCKET_BYTES {
            return;
        }
        held.bytes += datagram.bytes.len();
        held.datagrams.push_back(datagram);
        let reader = held.reader.take();
        drop(held);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}
