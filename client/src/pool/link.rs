//! One node: the connection to it, whether it answers, and how long it makes its clients wait.
//!
//! A link has one task, which sleeps while nobody has asked the node anything. From then on it listens until a packet comes (`health` says
//! what silence is), sees the connection end, and probes until the node is back. Handshakes are tasks of their own, so that whoever gives
//! up on one does not end it for the others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use quinn::VarInt;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::dialer::Dialer;
use super::{Target, unavailable};
use crate::error::Error;
use crate::health::{self, Ear, Heard, Moment, Standing, TICK};
use crate::hedge::Waits;
use crate::stats::{Counters, count};
use crate::wire::NodeRow;

/// A node that nobody has asked for this long is not probed any more; the next request finds out.
const PROBES_END: Duration = Duration::from_secs(60);

type Dial = Shared<BoxFuture<'static, Result<quinn::Connection, Error>>>;

/// What kind of reply is waited for: each has its own percentile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read = 0,
    Frames = 1,
}

#[derive(Debug)]
pub(crate) struct Link {
    number: u64,
    target: Target,
    dialer: Arc<Dialer>,
    me: Weak<Link>,
    /// Wakes the task.
    wake: Arc<Notify>,
    /// Requests that wait for the node.
    waiting: AtomicUsize,
    /// Items of those.
    load: AtomicUsize,
    state: Mutex<State>,
    waits: [Mutex<Waits>; 2],
}

#[derive(Debug, Default)]
struct State {
    connection: Option<quinn::Connection>,
    dial: Option<Dial>,
    /// Whether the task runs.
    watched: bool,
    silence: Option<Silence>,
    ear: Ear,
    /// When the node was last lost.
    lost: Option<Instant>,
    /// The row under which it said that it leaves, by incarnation and version.
    left: Option<(u64, u64)>,
    used: Option<Instant>,
    /// No more connections.
    shut: bool,
}

/// The node does not answer.
#[derive(Clone, Copy, Debug)]
struct Silence {
    since: Instant,
    /// Handshakes that failed since.
    failures: u32,
    /// When it is probed.
    next: Instant,
}

/// What the task has to do.
enum Phase {
    /// There is nothing to see until somebody asks.
    Idle,
    /// Connected; nothing is expected.
    Up(quinn::Connection),
    /// Connected; asked, and nothing has come since.
    Listening(quinn::Connection),
    /// Lost.
    Down { probe: Instant },
    /// It is over.
    Shut,
}

/// A request that waits for the node, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pending {
    link: Arc<Link>,
    load: usize,
}

impl Link {
    pub(super) fn new(number: u64, target: Target, dialer: Arc<Dialer>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            number,
            target,
            dialer,
            me: me.clone(),
            wake: Arc::default(),
            waiting: AtomicUsize::new(0),
            load: AtomicUsize::new(0),
            state: Mutex::default(),
            waits: Default::default(),
        })
    }

    /// Tells links apart for as long as the process runs.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// The node's name, or where it is.
    pub(crate) fn name(&self) -> &str {
        self.target.name()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.dialer.counters
    }

    /// Items that are asked for and not answered.
    pub(crate) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// Counts a request of `load` items.
    pub(crate) fn enter(self: &Arc<Self>, load: usize) -> Pending {
        self.load.fetch_add(load, Ordering::Relaxed);
        if self.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            self.wake.notify_one();
        }
        Pending { link: self.clone(), load }
    }

    /// Takes in how long a request waited.
    pub(crate) fn waited(&self, kind: Kind, wait: Duration) {
        self.waits[kind as usize].lock().record(wait);
        self.dialer.waits[kind as usize].lock().record(wait);
    }

    /// The wait after which another node is asked as well: this one's own, or, while it is new, what all of them take.
    pub(crate) fn hedge_after(&self, kind: Kind) -> Option<Duration> {
        let own = self.waits[kind as usize].lock().hedge_after();
        own.or_else(|| self.dialer.waits[kind as usize].lock().hedge_after())
    }

    /// Whether it may be asked, as the row of `row` has it.
    pub(crate) fn standing(&self, row: &NodeRow) -> Standing {
        let state = self.state.lock();
        match (state.left, state.silence) {
            (Some(left), _) if left == (row.incarnation, row.version) => Standing::Leaving,
            (_, Some(_)) => Standing::Silent,
            _ => Standing::Good,
        }
    }

    /// The node said that it leaves, and `row` does not say so yet.
    pub(crate) fn leaves(&self, row: &NodeRow) {
        self.state.lock().left = Some((row.incarnation, row.version));
    }

    /// Whether it is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.state.lock().live().is_some()
    }

    #[cfg(test)]
    pub(crate) fn is_dialing(&self) -> bool {
        self.state.lock().dial.is_some()
    }

    /// Whether it is silent, or seems to be, or was lost within `past`.
    pub(crate) fn is_doubtful(&self, past: Duration) -> bool {
        let state = self.state.lock();
        state.silence.is_some()
            || (state.connection.is_some() && state.ear.is_doubtful())
            || state.lost.is_some_and(|lost| lost.elapsed() < past)
    }

    /// Somebody waits for it in vain: asks it for a sign of life, and listens closely until there is one.
    pub(crate) fn doubt(&self) {
        let mut state = self.state.lock();
        state.used = Some(Instant::now());
        match state.live().cloned() {
            Some(connection) => {
                if state.ear.doubt(connection.stats().udp_rx.datagrams) {
                    self.nudge(&connection);
                }
            }
            None => self.reach(&mut state),
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Begins a handshake, unless it is connected or being waited out: whoever asks it first need not wait for one.
    pub(crate) fn greet(&self) {
        self.reach(&mut self.state.lock());
    }

    /// Who is silent is doubtful already, and probed at its own pace: no caller hastens that.
    fn reach(&self, state: &mut State) {
        if state.live().is_none() && state.silence.is_none() {
            drop(self.dial(state));
        }
    }

    /// A connection, made now if there is none.
    pub(crate) async fn connection(&self, deadline: Instant) -> Result<quinn::Connection, Error> {
        let dial = {
            let mut state = self.state.lock();
            state.used = Some(Instant::now());
            if let Some(connection) = state.live() {
                return Ok(connection.clone());
            }
            self.dial(&mut state)
        };
        let late = || Err(unavailable(format!("no answer yet from {}", self.target.address)));
        timeout_at(deadline, dial).await.unwrap_or_else(|_| late())
    }

    /// The handshake that is under way, begun if there is none.
    fn dial(&self, state: &mut State) -> Dial {
        if let Some(dial) = &state.dial {
            return dial.clone();
        }
        let (tell, told) = oneshot::channel();
        let dial = async move { told.await.unwrap_or_else(|_| Err(unavailable("the client ends".into()))) }.boxed().shared();
        state.dial = Some(dial.clone());
        let failures = state.silence.map_or(0, |silence| silence.failures);
        let limit = health::dial_limit(failures, self.dialer.elsewhere());
        let (me, dialer, target) = (self.me.clone(), self.dialer.clone(), self.target.clone());
        tokio::spawn(async move {
            let answer = dialer.dial(&target, limit, failures).await;
            if let Some(link) = me.upgrade() {
                link.dialed(&answer);
            }
            // Nobody may be left who waits.
            let _ = tell.send(answer);
        });
        if !state.watched {
            state.watched = true;
            tokio::spawn(watch(self.me.clone(), self.wake.clone()));
        }
        dial
    }

    fn dialed(&self, answer: &Result<quinn::Connection, Error>) {
        let mut state = self.state.lock();
        state.dial = None;
        match answer {
            Ok(connection) if state.shut => connection.close(0u32.into(), b"client closed"),
            Ok(connection) => state.connect(connection.clone()),
            // A seed's connection may have been taken over meanwhile.
            Err(_) if state.live().is_some() => {}
            Err(_) => self.silent(&mut state),
        }
        drop(state);
        self.wake.notify_one();
    }

    /// The node does not answer: it is left, and probed after a pause.
    fn silent(&self, state: &mut State) {
        let now = Instant::now();
        let failures = match state.silence {
            Some(silence) => silence.failures.saturating_add(1),
            None => {
                count(&self.dialer.counters.silences, 1);
                tracing::debug!(node = self.name(), "node is silent");
                0
            }
        };
        let since = state.silence.map_or(now, |silence| silence.since);
        state.silence = Some(Silence { since, failures, next: now + health::probe_pause(failures, self.dialer.random()) });
        state.lost = Some(now);
    }

    /// Its connection ended, or is ended now.
    fn leave(&self, connection: &quinn::Connection, why: &[u8]) {
        let mut state = self.state.lock();
        // It may have been replaced meanwhile.
        if state.connection.take_if(|held| held.stable_id() == connection.stable_id()).is_some() && !state.shut {
            self.silent(&mut state);
        }
        drop(state);
        connection.close(0u32.into(), why);
    }

    /// Listens for a tick.
    fn listen(&self, connection: &quinn::Connection, slept: Duration) {
        let stats = connection.stats();
        let moment = Moment { slept, datagrams: stats.udp_rx.datagrams, elsewhere: self.dialer.elsewhere(), rtt: stats.path.rtt };
        let heard = self.state.lock().ear.tick(moment);
        match heard {
            Heard::Alive => self.dialer.heard(),
            Heard::Fine => {}
            Heard::Nudge => self.nudge(connection),
            Heard::Silent => self.leave(connection, b"silent"),
        }
    }

    /// Sends a packet that has to be acknowledged: a changed window is told to the node. It is the same again afterwards.
    fn nudge(&self, connection: &quinn::Connection) {
        let window = self.dialer.receive_window();
        connection.set_receive_window(VarInt::from_u32(window.saturating_add(1)));
        connection.set_receive_window(VarInt::from_u32(window));
    }

    fn phase(&self) -> Phase {
        let mut state = self.state.lock();
        let listening = self.waiting.load(Ordering::Relaxed) > 0 || state.ear.is_listening();
        let unused = state.used.is_none_or(|used| used.elapsed() > PROBES_END);
        match (&state.connection, state.silence) {
            _ if state.shut => Phase::Shut,
            (Some(connection), _) if listening => Phase::Listening(connection.clone()),
            (Some(connection), _) => Phase::Up(connection.clone()),
            (None, Some(silence)) if self.target.node.is_some() && unused && silence.since.elapsed() > PROBES_END => {
                state.silence = None;
                Phase::Idle
            }
            (None, Some(silence)) if self.target.node.is_some() => Phase::Down { probe: silence.next },
            (None, _) => Phase::Idle,
        }
    }

    /// Takes over the connection of a seed that is this node.
    pub(super) fn adopt(&self, seed: &Link) {
        let Some(connection) = seed.state.lock().connection.take() else { return };
        let mut state = self.state.lock();
        if state.live().is_some() || connection.close_reason().is_some() {
            return;
        }
        state.connect(connection);
        if !state.watched {
            state.watched = true;
            tokio::spawn(watch(self.me.clone(), self.wake.clone()));
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Closes the connection; there will be no other. What runs on it ends.
    pub(super) fn shut(&self) {
        let mut state = self.state.lock();
        state.shut = true;
        let connection = state.connection.take();
        drop(state);
        if let Some(connection) = connection {
            connection.close(0u32.into(), b"client closed");
        }
        self.wake.notify_one();
    }
}

impl State {
    fn live(&self) -> Option<&quinn::Connection> {
        self.connection.as_ref().filter(|connection| connection.close_reason().is_none())
    }

    fn connect(&mut self, connection: quinn::Connection) {
        match self.silence.take() {
            Some(silence) => self.ear.back_after(silence.since.elapsed()),
            None => self.ear = Ear::default(),
        }
        self.connection = Some(connection);
    }
}

impl Drop for Link {
    /// The task sees that there is no link any more.
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.link.load.fetch_sub(self.load, Ordering::Relaxed);
        self.link.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The task of a link. It ends with it.
async fn watch(link: Weak<Link>, wake: Arc<Notify>) {
    loop {
        let Some(phase) = link.upgrade().map(|link| link.phase()) else { return };
        match phase {
            Phase::Shut => return,
            Phase::Idle => wake.notified().await,
            Phase::Up(connection) => tokio::select! {
                biased;
                _ = connection.closed() => ended(&link, &connection),
                () = wake.notified() => {}
            },
            Phase::Listening(connection) => {
                let began = Instant::now();
                tokio::select! {
                    biased;
                    _ = connection.closed() => ended(&link, &connection),
                    () = sleep(TICK) => {
                        if let Some(link) = link.upgrade() {
                            link.listen(&connection, began.elapsed());
                        }
                    }
                }
            }
            Phase::Down { probe } => {
                tokio::select! {
                    biased;
                    () = sleep_until(probe) => {}
                    () = wake.notified() => continue,
                }
                let dial = link.upgrade().map(|link| link.dial(&mut link.state.lock()));
                let Some(dial) = dial else { return };
                let _ = dial.await;
            }
        }
    }
}

fn ended(link: &Weak<Link>, connection: &quinn::Connection) {
    if let Some(link) = link.upgrade() {
        link.leave(connection, b"ended");
    }
}
