//! One worker process, as its node holds it: started, talked to, and judged when it dies.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use framecache::ByteRange;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::errand::{Course, Errand, memory_lost};
use super::memory::SharedMemory;
use super::protocol::{FROM_WORKER_BYTES, FromWorker, Sandboxed, ToWorker};
use super::settings::{PoolSettings, SHARED_KEPT};
use super::{GPU, OUT_OF_MEMORY, SHORT, SUBCOMMAND, TEST_CODECS};
use crate::decode::gpu::Offer;
use crate::decode::{DecodeError, Engine};

/// Why no worker runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The program could not be run, or its descriptors not be made. Check `program` and the process limits.
    #[error("start decode worker")]
    Spawn(#[source] io::Error),
    /// It ran, but did not say in time that it is ready. Check that `program worker` runs this version.
    #[error("decode worker is not ready: {0}")]
    NotReady(String),
    /// It could not lock itself in, and so takes no work. Needs seccomp, which Linux containers have by default.
    #[error("decode worker sandbox: {0}")]
    Sandbox(String),
    /// A GPU's worker found none, or none that decodes as it should. Says what is missing.
    #[error("{0}")]
    NoDevice(String),
}

/// A worker at rest, or at its one job.
pub(super) struct Worker {
    child: Reaped,
    socket: AsyncFd<OwnedFd>,
    memory: SharedMemory,
    /// Whether Landlock is among its sandbox's layers.
    pub(super) landlock: bool,
    /// What a GPU's worker offers.
    pub(super) offer: Option<Offer>,
    jobs: u64,
    own_bytes_at_start: u64,
}

/// The worker is of no more use: judge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// The socket is closed: it died.
    Died,
    /// It said what no sound worker says.
    Babbled,
    /// Wall-clock time is up.
    TimedOut,
    /// It took more memory than its own.
    Outgrown,
}

/// How a worker died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// By its picture: counts towards quarantine.
    Judged(String),
    /// By something else: try again.
    Lost(String),
}

impl Worker {
    /// Starts one and waits until it is locked in.
    pub(super) async fn start(spawner: &Spawner, settings: &PoolSettings) -> Result<Self, StartError> {
        let Spawned { child, socket, memory } = spawner.spawn().await.map_err(StartError::Spawn)?;
        // SAFETY: an owned descriptor stays the same and open until it is dropped, and nothing here takes it out.
        let socket = unsafe { AsyncFd::register(socket) }.map_err(|error| StartError::Spawn(error.into()))?;
        let mut worker = Self { child, socket, memory, landlock: false, offer: None, jobs: 0, own_bytes_at_start: 0 };
        let begin = ToWorker::Begin { worker_memory: settings.worker_memory };
        let mut offer = None;
        let ready = async {
            worker.send(&begin).await?;
            for _ in 0..SAID_FIRST_MAX {
                match worker.receive().await? {
                    FromWorker::Device { name, codecs, jpeg } => offer = Some(Offer::new(name, codecs, jpeg)),
                    FromWorker::Note { text } => offer.get_or_insert_default().lacks.push(text),
                    said => return Ok(said),
                }
            }
            Err(Gone::Babbled)
        };
        let within = if settings.engine == Engine::Gpu { DEVICE_READY_WITHIN } else { READY_WITHIN };
        let said = timeout(within, ready).await;
        worker.offer = offer;
        match said {
            Ok(Ok(FromWorker::Ready(Sandboxed::Yes { landlock }))) => {
                worker.landlock = landlock;
                worker.own_bytes_at_start = worker.own_bytes();
                Ok(worker)
            }
            Ok(Ok(FromWorker::Ready(Sandboxed::No { reason }))) => Err(StartError::Sandbox(reason)),
            Ok(Ok(FromWorker::Ready(Sandboxed::NoDevice { reason }))) => Err(StartError::NoDevice(reason)),
            Err(_) => Err(StartError::NotReady(format!("silent for {within:?}"))),
            Ok(other) => {
                let why = other.err().unwrap_or(Gone::Babbled);
                Err(StartError::NotReady(format!("{:?}", worker.judge(why).await)))
            }
        }
    }

    /// Does one job. Gives CPU time of the worker in microseconds with the answer.
    ///
    /// Not cancel safe: a worker whose `run` was dropped must be judged, or dropped.
    pub(super) async fn run<E: Errand>(&mut self, errand: &E) -> Result<(Result<E::Made, DecodeError>, u64), Gone> {
        self.jobs += 1;
        let job = match errand.hand_over(&mut self.memory).await {
            Ok(job) => job,
            Err(error) => return Ok((Err(error), 0)),
        };
        let mut course = Course::of(&job);
        self.send(&ToWorker::Job(job)).await?;
        let mut failed = None;
        loop {
            match self.receive().await? {
                FromWorker::NeedRange { start, length } if failed.is_none() => {
                    let range = errand.range(start, length, &course).ok_or(Gone::Babbled)?;
                    course.bring(range);
                    failed = self.bring(errand, range).await?;
                }
                FromWorker::Done { outcome, cpu_us } => {
                    let answer = errand.answer(&course, outcome, failed, &self.memory).ok_or(Gone::Babbled)?;
                    let _ = self.memory.trim(SHARED_KEPT);
                    return Ok((answer, cpu_us));
                }
                said => errand.hear(&mut course, said).ok_or(Gone::Babbled)?,
            }
        }
    }

    /// Reads a range into the window and says so; gives the source's error, if any.
    async fn bring<E: Errand>(&mut self, errand: &E, range: ByteRange) -> Result<Option<DecodeError>, Gone> {
        let placed = match errand.read(range).await {
            Ok(bytes) => self.memory.write(0, &bytes).map_err(memory_lost),
            Err(error) => Err(error),
        };
        self.send(&ToWorker::Range { there: placed.is_ok() }).await?;
        Ok(placed.err())
    }

    /// Ends it, if it has not ended, and says what that means.
    pub(super) async fn judge(self, gone: Gone) -> Death {
        let status = tokio::task::spawn_blocking(move || self.child.end()).await;
        match (gone, status) {
            (Gone::Babbled, _) => Death::Judged("protocol violation".into()),
            (Gone::TimedOut, _) => Death::Lost("wall-clock limit".into()),
            (Gone::Outgrown, _) => Death::Judged("resident memory limit".into()),
            (Gone::Died, Ok(Ok(status))) => judged(status),
            (Gone::Died, Ok(Err(error))) => Death::Lost(error.to_string()),
            (Gone::Died, Err(error)) => Death::Lost(error.to_string()),
        }
    }

    /// Asks it to end, and sees that it does.
    pub(super) async fn close(self) {
        if self.send(&ToWorker::Close).await.is_ok() {
            // Its end of the socket closes as it exits.
            let _ = timeout(CLOSE_WITHIN, self.receive()).await;
        }
        let _ = tokio::task::spawn_blocking(move || self.child.end()).await;
    }

    /// Whether it has not ended since it was last looked at.
    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.0.try_wait(), Ok(None))
    }

    /// Whether it has worked, or grown, enough to be replaced.
    pub(super) fn is_worn(&self, settings: &PoolSettings) -> bool {
        let grown = || self.own_bytes().saturating_sub(self.own_bytes_at_start) > settings.recycle_growth;
        self.jobs >= settings.recycle_jobs || (self.jobs.is_multiple_of(GROWTH_EVERY) && grown())
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Resident memory of its own (shared memory apart), in bytes. 0 if it is gone.
    pub(super) fn own_bytes(&self) -> u64 {
        own_bytes(self.pid())
    }

    /// Ends when it holds more than `most` bytes of its own beyond what it began with.
    pub(super) fn outgrows(&self, most: u64) -> impl Future<Output = ()> + use<> {
        let (pid, most) = (self.pid(), most.saturating_add(self.own_bytes_at_start));
        async move {
            let mut looks = tokio::time::interval(LOOK_EVERY);
            while own_bytes(pid) <= most {
                looks.tick().await;
            }
        }
    }

    async fn send(&self, message: &ToWorker) -> Result<(), Gone> {
        let bytes = message.encode();
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let call = |socket: &OwnedFd| Ok(send(socket.as_raw_fd(), &bytes, flags)?);
        self.socket.async_io(Interest::WRITABLE, call).await.map(drop).map_err(|_| Gone::Died)
    }

    async fn receive(&self) -> Result<FromWorker, Gone> {
        let mut buffer = [0; FROM_WORKER_BYTES];
        let call = |socket: &OwnedFd| Ok(recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?);
        let length = self.socket.async_io(Interest::READABLE, call).await.map_err(|_| Gone::Died)?;
        match length {
            0 => Err(Gone::Died),
            _ => FromWorker::decode(&buffer[..length]).ok_or(Gone::Babbled),
        }
    }
}

fn own_bytes(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = statm.split(' ').skip(1).map(|field| field.parse().unwrap_or(0u64));
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * 4096
}

/// What an exit says about the picture. SIGKILL comes from outside: from an operator, or the kernel short of memory.
fn judged(status: ExitStatus) -> Death {
    let by_picture =
        [Signal::SIGSEGV, Signal::SIGABRT, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGSYS, Signal::SIGXCPU];
    let signal = status.signal().and_then(|number| Signal::try_from(number).ok());
    match signal {
        Some(Signal::SIGXCPU) => Death::Judged("CPU time limit".into()),
        Some(signal) if by_picture.contains(&signal) => Death::Judged(signal.as_str().into()),
        _ if status.code() == Some(OUT_OF_MEMORY.into()) => Death::Judged("memory limit".into()),
        _ if status.code() == Some(SHORT.into()) => Death::Lost("no memory to be had".into()),
        _ => Death::Lost(status.to_string()),
    }
}

/// A child that never outlives its holder, and never stays a zombie.
struct Reaped(Child);

impl Reaped {
    /// Kills and reaps. One that was dying keeps the status it was dying with: its socket closes after that is fixed.
    fn end(mut self) -> io::Result<ExitStatus> {
        self.0.kill()?;
        self.0.wait()
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts processes, on a thread of its own that lives as long as the pool.
///
/// A worker dies with the *thread* that started it (`PR_SET_PDEATHSIG`), and tokio's blocking threads end after ten idle seconds.
pub(super) struct Spawner(mpsc::Sender<oneshot::Sender<io::Result<Spawned>>>);

struct Spawned {
    child: Reaped,
    socket: OwnedFd,
    memory: SharedMemory,
}

impl Spawner {
    pub(super) fn start(program: PathBuf, engine: Engine, test_codecs: bool) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel::<oneshot::Sender<io::Result<Spawned>>>();
        let serve = move || {
            for reply in inbox {
                // A caller that left drops, and so ends, what was started for it.
                let _ = reply.send(spawn(&program, engine, test_codecs));
            }
        };
        std::thread::Builder::new().name("decode-spawner".into()).spawn(serve)?;
        Ok(Self(orders))
    }

    async fn spawn(&self) -> io::Result<Spawned> {
        let (reply, spawned) = oneshot::channel();
        self.0.send(reply).map_err(|_| io::ErrorKind::BrokenPipe)?;
        spawned.await.map_err(|_| io::ErrorKind::BrokenPipe)?
    }
}

/// The socket becomes standard input and the shared memory standard output: descriptors that need no code between fork and exec, so
/// that the standard library can use `posix_spawn`, which does not copy the page tables of a node that holds much memory.
fn spawn(program: &PathBuf, engine: Engine, test_codecs: bool) -> io::Result<Spawned> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    let memory = SharedMemory::create()?;
    let mut command = Command::new(program);
    command.arg(SUBCOMMAND).env_clear().current_dir("/");
    // The node's allocator would reserve a gibibyte ahead, out of the address space that a job is limited to.
    command.env("MIMALLOC_ARENA_RESERVE", "0");
    // Where this program's own libraries came from, the worker's will.
    pass(&mut command, &["LD_LIBRARY_PATH"]);
    if engine == Engine::Gpu {
        command.arg(GPU);
        pass(&mut command, DEVICE_VARIABLES);
        // Kernels that the driver compiles would be kept in the user's home, which is closed.
        command.env("CUDA_CACHE_DISABLE", "1");
    }
    command.stdin(theirs).stdout(memory.file().try_clone_to_owned()?).stderr(Stdio::null());
    if test_codecs {
        command.arg(TEST_CODECS);
    }
    Ok(Spawned { child: Reaped(command.spawn()?), socket, memory })
}

/// Variables of this process that the command shall have, too.
fn pass(command: &mut Command, names: &[&str]) {
    for name in names {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
}

/// Which device, and how its driver behaves: the operator's word.
const DEVICE_VARIABLES: &[&str] =
    &["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"];

/// A driver takes up to some seconds to start, and each codec is tried twice.
const DEVICE_READY_WITHIN: Duration = Duration::from_secs(60);

/// Messages before a worker is ready: its device, and notes.
const SAID_FIRST_MAX: usize = 40;

/// How often the memory of a worker without a limit of addresses is looked at: a gibibyte takes a core this long to fill.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A worker starts and ends in 1.5 ms (measured); a loaded machine may take a thousand times that.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// A worker at rest ends at once.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// Jobs between two looks at a worker's memory: a look opens a file of `/proc`, and a leak worth finding shows over many jobs.
const GROWTH_EVERY: u64 = 32;
