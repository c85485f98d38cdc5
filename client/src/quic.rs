//! How QUIC is tuned: windows, datagram size, and the socket under it. Node and client share it.
//!
//! The datagram size decides what a byte costs: measured on loopback, both ends together, 1.6 CPU-seconds per GB at 1,452 bytes,
//! 0.5 at 8,900, 0.4 at 16,000. So each connection looks for the largest size that its own path carries; nothing is set for all. Only of a
//! path that never leaves the machine it is known.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{
    AckFrequencyConfig, AsyncUdpSocket, EndpointConfig, MtuDiscoveryConfig, Runtime, TransportConfig, UdpPoller, VarInt,
};

/// Largest datagram that is looked for, in bytes. Past 16 KiB nothing was gained on loopback, and quinn's `initial_mtu` has a known fault
/// there.
const DATAGRAM_MAX: u16 = 16_300;

/// Largest datagram that a path beyond this machine carries: a jumbo frame of 9,000 bytes less the IPv6 and UDP headers.
const DATAGRAM_JUMBO: u16 = 8_952;

/// Datagram that every path carries, in bytes (RFC 9000 section 14).
const DATAGRAM_SURE: u16 = 1_200;

/// The search for the largest datagram ends where it would gain less than this, in bytes. Each probe is padding that the other end reads
/// byte by byte: of a handshake's processor time three fifths, where the search goes up to [`DATAGRAM_MAX`]. On a path of 1,500 bytes
/// 1,435 are found.
const DATAGRAM_STEP: u16 = 200;

/// Most bytes that one UDP send may carry, whatever its segments: 65,535 less the IPv4 and UDP headers. Past it the kernel
/// answers EMSGSIZE and quinn takes the datagrams for lost.
const SEND_BYTES_MAX: usize = 65_507;

/// Most bytes that one receive gives, whatever its segments: the kernel joins datagrams up to the longest IP packet.
const RECEIVE_BYTES_MAX: usize = 65_535;

/// First congestion window, in bytes. At least ACK threshold x datagram x 4, or a large datagram stalls the first round trip;
/// a training network is trusted, so it is not smaller.
const INITIAL_WINDOW: u64 = 4 << 20;

/// Datagrams that are acknowledged together.
const ACK_EVERY: u32 = 10;

/// Socket buffers that are asked for, in bytes; the kernel grants what `rmem_max` allows.
const SOCKET_BYTES: usize = 4 << 20;

/// A connection without any packet for this long is dead. A client sends one every [`KEEP_ALIVE`], so four in a row were lost. A client
/// that waits for a node finds out sooner: see [`crate::health`].
pub const IDLE_MAX: Duration = Duration::from_secs(8);

/// How often a client shows that it lives. Under the 30 seconds after which connection trackers forget UDP.
pub const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// What one connection may hold.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Bytes that one stream may receive before they are read.
    pub stream: u32,
    /// Bytes that all streams together may receive before they are read.
    pub receive: u32,
    /// Bytes that may be sent and not acknowledged.
    pub send: u64,
    /// Streams that the peer may have open.
    pub streams: u32,
    /// Bytes of the largest datagram that is looked for; a connection keeps a buffer of its own for one.
    pub datagram: u16,
    /// Bytes of the datagrams that it begins with; see [`Windows::towards`].
    pub sure: u16,
}

impl Windows {
    /// A node's side: requests are small and many. What is sent and not acknowledged is on no budget, so it is kept as small as a
    /// network of 1 ms and 2 GB/s permits; it shares its memory with the cache that it came from.
    pub const NODE: Windows = Windows {
        stream: 256 << 10,
        receive: 512 << 10,
        send: 2 << 20,
        streams: 256,
        datagram: DATAGRAM_MAX,
        sure: DATAGRAM_SURE,
    };

    /// The same among very many: most are idle, and ten thousand of them are not to keep a large datagram each.
    pub const CROWD: Windows = Windows { datagram: DATAGRAM_JUMBO, ..Self::NODE };

    /// A client's side, out of `memory` bytes that it may use: half of it, since a reply is copied out as it arrives.
    pub fn client(memory: u64) -> Windows {
        let receive = (memory / 2).clamp(1 << 20, 64 << 20) as u32;
        let stream = receive.min(16 << 20);
        Windows { stream, receive, send: 4 << 20, streams: 0, datagram: DATAGRAM_MAX, sure: DATAGRAM_SURE }
    }

    /// The same for a connection with `peer`: what never leaves this machine needs no search. Where something at a loopback address passes
    /// datagrams on to a narrower path, the first are lost, and QUIC falls back to what every path carries (RFC 8899 section 4.3).
    pub fn towards(self, peer: SocketAddr) -> Windows {
        let sure = if peer.ip().to_canonical().is_loopback() { loopback_carries().min(self.datagram) } else { self.sure };
        Windows { sure, ..self }
    }
}

/// The transport of both ends.
pub fn transport(windows: Windows, keep_alive: Option<Duration>) -> TransportConfig {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(windows.datagram).minimum_change(DATAGRAM_STEP);
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(ACK_EVERY)).max_ack_delay(Some(Duration::from_millis(5)));
    let mut cubic = quinn::congestion::CubicConfig::default();
    cubic.initial_window(INITIAL_WINDOW);

    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(windows.streams))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(windows.stream))
        .receive_window(VarInt::from_u32(windows.receive))
        .send_window(windows.send)
        .send_fairness(false)
        .datagram_receive_buffer_size(None)
        .allow_spin(false)
        .initial_mtu(windows.sure)
        .initial_rtt(Duration::from_millis(10))
        .max_idle_timeout(Some(VarInt::from_u32(IDLE_MAX.as_millis() as u32).into()))
        .keep_alive_interval(keep_alive)
        .mtu_discovery_config(Some(discovery))
        .ack_frequency_config(Some(acks))
        .congestion_controller_factory(Arc::new(cubic));
    transport
}

/// Bytes of the largest datagram that the loopback device carries, as far as one is sent at all; [`DATAGRAM_SURE`] where nothing says so.
fn loopback_carries() -> u16 {
    /// An IPv6 and a UDP header.
    const HEADERS: u32 = 48;
    static CARRIES: OnceLock<u16> = OnceLock::new();
    *CARRIES.get_or_init(|| {
        let told = std::fs::read_to_string("/sys/class/net/lo/mtu").ok().and_then(|told| told.trim().parse::<u32>().ok());
        let room = told.map_or(0, |mtu| mtu.saturating_sub(HEADERS));
        u16::try_from(room).unwrap_or(u16::MAX).clamp(DATAGRAM_SURE, DATAGRAM_MAX)
    })
}

/// A UDP socket at `address`, with the largest buffers that the kernel grants.
pub fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::DGRAM, Some(socket2::Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // Refused on some systems; smaller buffers only cost speed.
    let _ = socket.set_recv_buffer_size(SOCKET_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BYTES);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// An endpoint over `socket`; with `server`, one that accepts. Must be called inside a tokio runtime.
pub fn endpoint(socket: UdpSocket, server: Option<quinn::ServerConfig>) -> io::Result<quinn::Endpoint> {
    endpoint_over(quinn::TokioRuntime.wrap_udp_socket(socket)?, None, server)
}

/// The same over any socket; with `seed`, what the endpoint draws by chance is drawn again by the next one of that seed.
#[doc(hidden)] // for a network that is simulated
pub fn endpoint_over(
    socket: Arc<dyn AsyncUdpSocket>,
    seed: Option<[u8; 32]>,
    server: Option<quinn::ServerConfig>,
) -> io::Result<quinn::Endpoint> {
    let mut config = EndpointConfig::default();
    config.rng_seed(seed).max_udp_payload_size(DATAGRAM_MAX).map_err(io::Error::other)?;
    quinn::Endpoint::new_with_abstract_socket(config, server, Arc::new(Split(socket)), Arc::new(quinn::TokioRuntime))
}

/// What connections stand on: sockets, and chance. Simulations have their own, so that a seed tells one story.
#[doc(hidden)] // for a network that is simulated
pub trait Ground: fmt::Debug + Send + Sync {
    /// An endpoint that connects from any port of `any`, an unspecified address.
    fn endpoint(&self, any: SocketAddr) -> io::Result<quinn::Endpoint>;

    /// Uniform bits.
    fn random(&self) -> u64;
}

/// The machine that the process runs on.
#[derive(Debug)]
pub(crate) struct Machine;

impl Ground for Machine {
    fn endpoint(&self, any: SocketAddr) -> io::Result<quinn::Endpoint> {
        endpoint(bind(any)?, None)
    }

    /// Different in every process and call.
    fn random(&self) -> u64 {
        std::hash::RandomState::new().build_hasher().finish()
    }
}

/// A socket that sends a large transmit in parts that the kernel takes.
#[derive(Debug)]
struct Split(Arc<dyn AsyncUdpSocket>);

impl AsyncUdpSocket for Split {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.0.clone().create_io_poller()
    }

    /// On `WouldBlock` in the middle, quinn sends the whole transmit again: the first parts travel twice, which QUIC permits, and
    /// none is lost.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(segment) = transmit.segment_size.filter(|_| transmit.contents.len() > SEND_BYTES_MAX) else {
            return self.0.try_send(transmit);
        };
        for contents in transmit.contents.chunks(part_bytes(segment)) {
            let segment_size = (contents.len() > segment).then_some(segment);
            self.0.try_send(&Transmit { contents, segment_size, ..*transmit })?;
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [io::IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(cx, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.0.max_transmit_segments()
    }

    /// By these quinn sizes its 32 receive buffers, as if all segments were of [`DATAGRAM_MAX`]: 64 of them would be 33 MB for an endpoint,
    /// which an allocator may have to clear.
    fn max_receive_segments(&self) -> usize {
        self.0.max_receive_segments().min(RECEIVE_SEGMENTS_MAX)
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}

/// Segments of [`DATAGRAM_MAX`] that hold whatever one receive gives.
const RECEIVE_SEGMENTS_MAX: usize = RECEIVE_BYTES_MAX.div_ceil(DATAGRAM_MAX as usize);

/// The most whole segments that one send carries, in bytes.
fn part_bytes(segment: usize) -> usize {
    (SEND_BYTES_MAX / segment).max(1) * segment
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: no send passes what the kernel takes, at any datagram size, and no segment is cut.
    #[test]
    fn parts_fit_one_send() {
        for segment in 1..=65_507 {
            let part = part_bytes(segment);
            assert!(part <= SEND_BYTES_MAX && part.is_multiple_of(segment) && part > 0, "{segment}");
        }
    }

    /// Promise: whatever the kernel joins fits one receive buffer, and an endpoint's buffers are a few megabytes.
    #[test]
    fn receive_buffers_are_no_larger_than_what_comes() {
        let buffer = RECEIVE_SEGMENTS_MAX * usize::from(DATAGRAM_MAX);
        assert!(buffer >= RECEIVE_BYTES_MAX && 32 * buffer < 3 << 20, "{buffer}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let _inside = runtime.enter();
        let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
        let split = Split(quinn::TokioRuntime.wrap_udp_socket(socket).expect("wrapped"));
        assert!((1..=RECEIVE_SEGMENTS_MAX).contains(&split.max_receive_segments()));
    }

    /// Promise: the first window carries enough datagrams that acknowledgements come before it is used up.
    #[test]
    fn first_window_cannot_stall() {
        assert!(INITIAL_WINDOW >= u64::from(ACK_EVERY) * u64::from(DATAGRAM_MAX) * 4);
    }

    /// Promise: only of a path that never leaves the machine more is taken for granted than every path carries, and never more than is
    /// looked for.
    #[test]
    fn only_the_machine_itself_is_known() {
        let sure = |windows: Windows, peer: &str| windows.towards(peer.parse().expect("address")).sure;
        for near in ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(sure(Windows::NODE, near), loopback_carries(), "{near}");
            assert!(sure(Windows::CROWD, near) <= DATAGRAM_JUMBO, "{near}");
        }
        for far in ["10.0.0.1:1", "[fe80::1]:1", "[::ffff:10.0.0.1]:1"] {
            assert_eq!(sure(Windows::client(1 << 30), far), DATAGRAM_SURE, "{far}");
        }
        if std::fs::read_to_string("/sys/class/net/lo/mtu").is_ok_and(|told| told.trim() == "65536") {
            assert_eq!(loopback_carries(), DATAGRAM_MAX);
        }
    }
}
