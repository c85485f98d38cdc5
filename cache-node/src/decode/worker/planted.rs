//! Planted faults: what a codec's defects look like from outside, on demand. Only `worker --test-codecs` obeys them.

use std::fs::{File, OpenOptions, read_dir};
use std::io;
use std::net::{TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;
use std::thread;

use libc::{c_long, syscall};

use crate::decode::{Format, Probe};

/// What a planted picture begins with; the fault's name follows.
const MARK: &[u8] = b"FCTEST:";

/// A JPEG whose first segment is a comment: two bytes of length follow, and then it may be a planted one too.
const COMMENTED: &[u8] = &[0xff, 0xd8, 0xff, 0xfe];

/// What the sandbox forbids, tried.
type Attempt = fn() -> io::Result<()>;

/// The faults.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Ends by SIGSEGV.
    Crash,
    /// Takes CPU time without end.
    Hang,
    /// Takes no CPU time and never answers.
    Stall,
    /// Takes memory without end.
    Leak,
    /// Sends a message that means nothing.
    Babble,
    /// Says that it drew what was not asked for.
    Lie,
    /// Tries what the sandbox forbids; the answer, if there is one, says how that went.
    Escape(&'static str, Attempt),
}

impl Fault {
    /// The fault that these bytes name.
    pub(super) fn of(first: &[u8]) -> Option<Self> {
        let first = first.strip_prefix(COMMENTED).and_then(|rest| rest.get(2..)).unwrap_or(first);
        let name = first.strip_prefix(MARK)?;
        let fault = FAULTS.iter().find_map(|(text, fault)| name.starts_with(text.as_bytes()).then_some(*fault));
        let escape =
            |(text, attempt): &(&'static str, _)| name.starts_with(text.as_bytes()).then_some(Self::Escape(text, *attempt));
        fault.or_else(|| ESCAPES.iter().find_map(escape))
    }

    /// What a probe says of such a picture: one pixel.
    pub(super) fn probe(input_bytes: u64) -> Probe {
        Probe {
            format: Format::Unknown,
            width: 1,
            height: 1,
            channels: 3,
            has_alpha: false,
            depth: 8,
            mode: "RGB",
            orientation: 1,
            frames: None,
            decoded_bytes: 3,
            working_bytes: 0,
            input_bytes,
        }
    }

    /// Tries what the sandbox forbids; says what came of it.
    pub(super) fn try_it(self) -> String {
        match self {
            Self::Escape(name, attempt) => match attempt() {
                Ok(()) => format!("{name} allowed"),
                Err(error) => format!("{name} refused: {}", error.kind()),
            },
            _ => String::new(),
        }
    }
}

const FAULTS: [(&str, Fault); 6] = [
    ("crash", Fault::Crash),
    ("hang", Fault::Hang),
    ("stall", Fault::Stall),
    ("leak", Fault::Leak),
    ("babble", Fault::Babble),
    ("lie", Fault::Lie),
];

/// No name begins another.
const ESCAPES: [(&str, Attempt); 27] = [
    ("open", || File::open("/etc/hostname").map(drop)),
    ("create", || OpenOptions::new().write(true).create(true).truncate(false).open("/tmp/framecache-escape").map(drop)),
    ("list", || read_dir("/proc").map(drop)),
    ("memory", || OpenOptions::new().write(true).open("/proc/self/mem").map(drop)),
    ("shm", || OpenOptions::new().write(true).create(true).truncate(false).open("/dev/shm/framecache-escape").map(drop)),
    ("udp", || UdpSocket::bind("127.0.0.1:0").map(drop)),
    ("tcp", || TcpStream::connect("127.0.0.1:9").map(drop)),
    ("unix", || UnixStream::connect("/run/framecache-escape").map(drop)),
    ("abstract", || UnixListener::bind_addr(&SocketAddr::from_abstract_name("framecache-escape")?).map(drop)),
    ("pair", || UnixStream::pair().map(drop)),
    ("fork", || Command::new("/bin/true").spawn().map(drop)),
    ("thread", || thread::Builder::new().spawn(|| ()).map(drop)),
    ("execve", || call(libc::SYS_execve, [c"/bin/true".as_ptr() as c_long, 0, 0, 0])),
    ("signal", || call(libc::SYS_kill, [1, 0, 0, 0])),
    ("limit", || call(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as c_long, (&raw const MORE) as c_long, 0])),
    ("parent", || call(libc::SYS_getppid, [0; 4])),
    ("others", || call(libc::SYS_tgkill, [1, 1, 0, 0])),
    ("ptrace", || call(libc::SYS_ptrace, [libc::PTRACE_ATTACH as c_long, 1, 0, 0])),
    ("peek", || call(libc::SYS_process_vm_readv, [1, 0, 0, 0])),
    ("memfd", || call(libc::SYS_memfd_create, [c"escape".as_ptr() as c_long, 0, 0, 0])),
    ("segment", || call(libc::SYS_shmget, [libc::IPC_PRIVATE as c_long, 4096, 0o600, 0])),
    ("uring", || call(libc::SYS_io_uring_setup, [1, 0, 0, 0])),
    ("bpf", || call(libc::SYS_bpf, [0; 4])),
    ("unshare", || call(libc::SYS_unshare, [libc::CLONE_NEWUSER as c_long, 0, 0, 0])),
    ("grow", || call(libc::SYS_ftruncate, [1, 1 << 40, 0, 0])),
    ("dup", || call(libc::SYS_dup, [1, 0, 0, 0])),
    ("exec-page", || call(libc::SYS_mprotect, [0, 4096, libc::PROT_EXEC as c_long, 0])),
];

static MORE: libc::rlimit = libc::rlimit { rlim_cur: 100, rlim_max: 100 };

fn call(number: c_long, [a, b, c, d]: [c_long; 4]) -> io::Result<()> {
    // SAFETY: what these calls point to is constant; none of them is meant to succeed.
    match unsafe { syscall(number, a, b, c, d) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
