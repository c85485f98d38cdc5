//! Planted faults: what a codec's defects look like from outside, on demand. Only `worker --test-codecs` obeys them.

use std::io;
use std::process::Command;

use crate::decode::{Format, Probe};

/// What a planted picture begins with; the fault's name follows.
const MARK: &[u8] = b"FCTEST:";

/// The faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Ends by SIGSEGV.
    Crash,
    /// Takes CPU time without end.
    Hang,
    /// Takes no CPU time and never answers.
    Stall,
    /// Takes memory without end.
    Leak,
    /// Tries to open a file; the answer says how that went.
    Open,
    /// Tries to open a socket.
    Socket,
    /// Tries to start a process.
    Fork,
    /// Makes a call that is on no list.
    Exotic,
    /// Sends a message that means nothing.
    Babble,
    /// Says that it drew what was not asked for.
    Lie,
}

impl Fault {
    /// The fault that these bytes name.
    pub(super) fn of(first: &[u8]) -> Option<Self> {
        let name = first.strip_prefix(MARK)?;
        let named = |(text, fault): &(&[u8], Self)| name.starts_with(text).then_some(*fault);
        FAULTS.iter().find_map(named)
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
            Self::Open => said("open", std::fs::File::open("/etc/hostname")),
            Self::Socket => said("socket", std::net::UdpSocket::bind("127.0.0.1:0")),
            Self::Fork => said("fork", Command::new("/bin/true").spawn()),
            _ => String::new(),
        }
    }
}

fn said<T>(what: &str, outcome: io::Result<T>) -> String {
    match outcome {
        Ok(_) => format!("{what} allowed"),
        Err(error) => format!("{what} refused: {}", error.kind()),
    }
}

const FAULTS: [(&[u8], Fault); 10] = [
    (b"crash", Fault::Crash),
    (b"hang", Fault::Hang),
    (b"stall", Fault::Stall),
    (b"leak", Fault::Leak),
    (b"open", Fault::Open),
    (b"socket", Fault::Socket),
    (b"fork", Fault::Fork),
    (b"exotic", Fault::Exotic),
    (b"babble", Fault::Babble),
    (b"lie", Fault::Lie),
];
