//! The thread that hears who is alive, on a socket of its own: no runtime, no lock that the runtime holds for long, so that a node
//! that is busy up to its last core still answers. What it hears is judged by [`super::clocks`].

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::Refusal;
use super::clocks::{Beat, Clocks, FROZEN_AFTER, Heard, Target};
use super::seal::{DATAGRAM_MAX, Opened, Seal};
use super::socket::{Links, canonical, reachable};
use super::stats::{Counters, add};

/// The longest wait for a datagram, and so the grain of pings and of stopping.
const WAIT: Duration = Duration::from_millis(50);

/// Time between two looks at all clocks: a flood of datagrams does not make it look more often.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Nice value of the thread, where we may set it: it needs little, but that at once.
const NICE: i32 = -10;

/// What the thread says of us, and whom it listens to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Aim {
    pub(super) incarnation: u64,
    pub(super) version: u64,
    pub(super) targets: Vec<Target>,
}

/// The running thread. Dropped, it ends within a twentieth of a second.
pub(super) struct Liveness {
    aim: Arc<ArcSwap<Aim>>,
    progress: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    pub(super) heard: watch::Receiver<Arc<Heard>>,
    thread: Option<JoinHandle<()>>,
}

impl Liveness {
    /// Starts the thread on `socket`, which others know as `address`.
    pub(super) fn start(
        socket: UdpSocket,
        address: SocketAddr,
        seal: Seal,
        aim: Aim,
        links: Arc<dyn Links>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        socket.set_read_timeout(Some(WAIT))?;
        let is_v6 = socket.local_addr()?.is_ipv6();
        let (publish, heard) = watch::channel(Arc::new(Heard::default()));
        let (progress, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let clocks = Clocks::new(aim.incarnation);
        let aim = Arc::new(ArcSwap::from_pointee(aim));
        let mut ear = Ear {
            socket,
            address,
            is_v6,
            seal,
            links,
            counters,
            aim: aim.clone(),
            progress: progress.clone(),
            stop: stop.clone(),
            clocks,
            publish,
            begun: Instant::now(),
        };
        let thread = std::thread::Builder::new().name("liveness".into()).spawn(move || ear.live())?;
        Ok(Self { aim, progress, stop, heard, thread: Some(thread) })
    }

    /// Listens to these from now on.
    pub(super) fn aim(&self, aim: Aim) {
        self.aim.store(Arc::new(aim));
    }

    /// The runtime runs: to be called a few times a second by a task on it.
    pub(super) fn advance(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the thread; blocks for up to two waits.
    pub(super) fn close(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Liveness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What the thread owns.
struct Ear {
    socket: UdpSocket,
    address: SocketAddr,
    is_v6: bool,
    seal: Seal,
    links: Arc<dyn Links>,
    counters: Arc<Counters>,
    aim: Arc<ArcSwap<Aim>>,
    progress: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    clocks: Clocks,
    publish: watch::Sender<Arc<Heard>>,
    begun: Instant,
}

impl Ear {
    /// Listens until it is stopped. A panic would silence the node for the others: it begins again.
    fn live(&mut self) {
        raise_priority();
        while catch_unwind(AssertUnwindSafe(|| self.listen())).is_err() {
            tracing::error!("the liveness thread failed; it begins again");
            std::thread::sleep(WAIT);
        }
    }

    fn listen(&mut self) {
        let mut aim = self.aim.load_full();
        self.clocks.aim(aim.incarnation, &aim.targets, self.begun.elapsed());
        let mut buffer = [0; DATAGRAM_MAX + 1];
        let (mut ran, mut looked) = (Instant::now(), None::<Instant>);
        while !self.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now - ran >= FROZEN_AFTER {
                self.clocks.woke(self.since(now));
            }
            ran = now;
            if looked.is_none_or(|looked| now - looked >= LOOK_EVERY) {
                looked = Some(now);
                let newest = self.aim.load_full();
                if !Arc::ptr_eq(&newest, &aim) {
                    aim = newest;
                    self.seal.live_as(aim.incarnation);
                    self.clocks.aim(aim.incarnation, &aim.targets, self.since(now));
                }
                for (to, yours) in self.clocks.due(self.since(now)) {
                    self.send(to, false, aim.version, yours);
                }
                self.tell(now);
            }
            match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) => self.receive(canonical(from), &mut buffer[..length], aim.version),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.counters.refuse(Refusal::Io);
                    std::thread::sleep(WAIT);
                }
            }
        }
    }

    fn since(&self, now: Instant) -> Duration {
        now - self.begun
    }

    /// Publishes what changed.
    fn tell(&self, now: Instant) {
        let heard = self.clocks.heard(self.since(now));
        if **self.publish.borrow() != heard {
            self.publish.send_replace(Arc::new(heard));
        }
    }

    fn receive(&mut self, from: SocketAddr, datagram: &mut [u8], version: u64) {
        // Not the time before the wait: a process that was stopped meanwhile must not take an old pong for an old time.
        let now = Instant::now();
        let (life, beat) = match self.seal.open(from, datagram, now) {
            Opened::Payload(sender, payload) => match Beat::from_bytes(payload) {
                Some(beat) => ((sender.id, sender.incarnation), beat),
                None => return self.counters.refuse(Refusal::Malformed),
            },
            Opened::Met => return self.clocks.met(from, self.since(now)),
            Opened::Greet(greeting) => {
                self.counters.refuse(Refusal::Stranger);
                return self.put(from, &greeting);
            }
            Opened::Refused(refusal) => return self.counters.refuse(refusal),
        };
        add(&self.counters.liveness);
        let beat = self.clocks.believed(&life, from, beat);
        if let Some(yours) = self.clocks.beat(&life, &beat, self.since(now)) {
            self.send(from, true, version, yours);
        }
    }

    fn send(&mut self, to: SocketAddr, pong: bool, version: u64, yours: (u64, u64, bool)) {
        let beat = Beat { pong, version, progress: self.progress.load(Ordering::Relaxed), yours };
        match self.seal.seal(to, &beat.to_bytes()) {
            Ok(datagram) => self.put(to, &datagram),
            Err(_) => self.counters.refuse(Refusal::Io),
        }
    }

    fn put(&self, to: SocketAddr, datagram: &[u8]) {
        if self.links.pass(self.address, to) && self.socket.send_to(datagram, reachable(to, self.is_v6)).is_err() {
            self.counters.refuse(Refusal::Io);
        }
    }
}

/// More important than the node's other threads, if the system permits; it works without.
fn raise_priority() {
    // SAFETY: two system calls on this thread's own id, without pointers. On Linux the nice value is each thread's own.
    unsafe {
        let thread = libc::syscall(libc::SYS_gettid);
        if let Ok(thread) = libc::id_t::try_from(thread) {
            libc::setpriority(libc::PRIO_PROCESS, thread, NICE);
        }
    }
}
