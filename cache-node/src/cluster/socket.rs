//! Sockets of the room, and the lane that carries chitchat's messages over one of them.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};
use parking_lot::Mutex;
use socket2::{Domain, Protocol, Type};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use super::parts::{self, Assembly};
use super::seal::{DATAGRAM_MAX, Opened, Seal, Sender};
use super::stats::{Counters, add};
use super::{Refusal, digest};

/// Bytes that the kernel may hold for us, if its own limit allows: a thousand full datagrams, which come at once when a large
/// cluster meets.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Pause after an error of the socket, so that one that stays does not take a core.
const ERROR_PAUSE: Duration = Duration::from_millis(20);

/// The longest that one message may wait for room in the socket.
const SEND_TIME: Duration = Duration::from_millis(500);

/// Which links let datagrams pass. Always all of them, but in tests.
pub trait Links: Send + Sync {
    /// Whether a datagram from the socket at `from` reaches `to`.
    fn pass(&self, from: SocketAddr, to: SocketAddr) -> bool;
}

/// A network without faults of our own.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllLinks;

impl Links for AllLinks {
    fn pass(&self, _from: SocketAddr, _to: SocketAddr) -> bool {
        true
    }
}

/// A UDP socket at `address`; at `[::]` one for both families.
pub(super) fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    // Not more than the kernel's limit; less is no reason not to start.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// `to` as a socket of that family takes it.
pub(super) fn reachable(to: SocketAddr, from_v6: bool) -> SocketAddr {
    match to.ip() {
        IpAddr::V4(ip) if from_v6 => SocketAddr::new(IpAddr::V6(ip.to_ipv6_mapped()), to.port()),
        _ => to,
    }
}

/// An address as it is compared: an IPv4 one that came over an IPv6 socket is what it is.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The address of this host by which `bound` is reached from `towards`: the route's own if `bound` is unspecified. Nothing is sent.
pub(super) fn advertised(bound: SocketAddr, towards: &[SocketAddr]) -> SocketAddr {
    /// Documentation's own (RFC 5737): on no network, so that it asks for the default route.
    const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 9);
    if !bound.ip().is_unspecified() {
        return bound;
    }
    let source = |to: &SocketAddr| {
        let any = if to.is_ipv4() { IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
        let socket = std::net::UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
        socket.connect(to).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
    };
    let fits = |to: &&SocketAddr| to.is_ipv4() || bound.is_ipv6();
    let found = towards.iter().filter(fits).chain([&ANYWHERE]).find_map(source);
    SocketAddr::new(found.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)), bound.port())
}

/// What one socket shares with whoever sends on it.
pub(super) struct Lane {
    socket: UdpSocket,
    /// As others know it.
    pub(super) address: SocketAddr,
    is_v6: bool,
    seal: Mutex<Seal>,
    links: Arc<dyn Links>,
    counters: Arc<Counters>,
    /// Addresses that greeted: what was said to them so far was not taken.
    met: mpsc::Sender<SocketAddr>,
    messages: AtomicU64,
}

impl Lane {
    pub(super) fn new(
        socket: std::net::UdpSocket,
        address: SocketAddr,
        seal: Seal,
        links: Arc<dyn Links>,
        counters: Arc<Counters>,
        met: mpsc::Sender<SocketAddr>,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let is_v6 = socket.local_addr()?.is_ipv6();
        let socket = UdpSocket::from_std(socket)?;
        Ok(Self { socket, address, is_v6, seal: Mutex::new(seal), links, counters, met, messages: AtomicU64::new(0) })
    }

    /// Cuts, seals and sends; what cannot be sent is counted, and said again by gossip.
    async fn send(&self, to: SocketAddr, message: &[u8]) {
        if !self.links.pass(self.address, to) {
            return;
        }
        let number = self.messages.fetch_add(1, Ordering::Relaxed);
        let Some(parts) = parts::cut(number, message) else { return self.counters.refuse(Refusal::Oversized) };
        // To a stranger one part is enough: it is answered by a greeting, and none of it is taken.
        let wanted = if self.seal.lock().knows(to) { usize::MAX } else { 1 };
        for part in parts.take(wanted) {
            let sealed = self.seal.lock().seal(to, &part);
            let sent = match sealed {
                Ok(datagram) => self.socket.send_to(&datagram, reachable(to, self.is_v6)).await.is_ok(),
                Err(_) => false,
            };
            if !sent {
                return self.counters.refuse(Refusal::Io);
            }
        }
    }

    /// What a datagram from `from` holds; `None` if it was not for us to take.
    fn open(&self, from: SocketAddr, datagram: &mut [u8]) -> Option<(Sender, Vec<u8>)> {
        let opened = match self.seal.lock().open(from, datagram, Instant::now()) {
            Opened::Payload(sender, payload) => return Some((sender, payload.to_vec())),
            other => other,
        };
        match opened {
            Opened::Met => {
                // Full means that there is enough to say for now; gossip returns to everybody.
                let _ = self.met.try_send(from);
            }
            Opened::Greet(greeting) => {
                self.counters.refuse(Refusal::Stranger);
                if self.links.pass(self.address, from) {
                    let _ = self.socket.try_send_to(&greeting, reachable(from, self.is_v6));
                }
            }
            Opened::Refused(refusal) => self.counters.refuse(refusal),
            Opened::Payload(..) => {}
        }
        None
    }
}

/// The lane as chitchat sees it. It may be opened again, after chitchat failed.
pub(super) struct GossipTransport(pub(super) Arc<Lane>);

#[async_trait]
impl Transport for GossipTransport {
    async fn open(&self, _listen: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let buffer = Box::new([0; DATAGRAM_MAX + 1]);
        Ok(Box::new(GossipSocket { lane: self.0.clone(), assembly: Assembly::default(), buffer }))
    }
}

struct GossipSocket {
    lane: Arc<Lane>,
    assembly: Assembly,
    /// One byte longer than any datagram of ours, so that longer ones show.
    buffer: Box<[u8; DATAGRAM_MAX + 1]>,
}

#[async_trait]
impl Socket for GossipSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let bytes = message.serialize_to_vec();
        if tokio::time::timeout(SEND_TIME, self.lane.send(canonical(to), &bytes)).await.is_err() {
            self.lane.counters.refuse(Refusal::Io);
        }
        Ok(())
    }

    /// The next message. Never an error: that would end gossip.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let (length, from) = match self.lane.socket.recv_from(&mut self.buffer[..]).await {
                Ok((length, from)) => (length, canonical(from)),
                Err(_) => {
                    self.lane.counters.refuse(Refusal::Io);
                    tokio::time::sleep(ERROR_PAUSE).await;
                    continue;
                }
            };
            let Some((sender, part)) = self.lane.open(from, &mut self.buffer[..length]) else { continue };
            let message = match self.assembly.take(sender.session, &part, Instant::now()) {
                Ok(None) => continue,
                Ok(Some(message)) => parse(&message),
                Err(_) => None,
            };
            match message {
                Some(message) => {
                    add(&self.lane.counters.gossip);
                    return Ok((from, message));
                }
                None => self.lane.counters.refuse(Refusal::Malformed),
            }
        }
    }
}

/// Chitchat's message in these bytes. They were sealed by a node, which may be of another release, or out of its mind: what it would
/// unpack is bounded first, and a panic in the parser is a refusal.
fn parse(bytes: &[u8]) -> Option<ChitchatMessage> {
    if !digest::is_bounded(bytes) {
        return None;
    }
    catch_unwind(AssertUnwindSafe(|| ChitchatMessage::deserialize(&mut &bytes[..]).ok())).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: an unspecified address is advertised as the one that the route uses; a named one stays.
    #[test]
    fn own_address_is_found() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("address");
        assert_eq!(advertised(address("10.1.2.3:5"), &[]), address("10.1.2.3:5"));
        assert_eq!(advertised(address("0.0.0.0:5"), &[address("127.0.0.1:9")]), address("127.0.0.1:5"));
        let found = advertised(address("0.0.0.0:5"), &[]);
        assert!(!found.ip().is_unspecified() && found.port() == 5, "{found}");
        assert_eq!(reachable(address("1.2.3.4:5"), true), address("[::ffff:1.2.3.4]:5"));
        assert_eq!(canonical(address("[::ffff:1.2.3.4]:5")), address("1.2.3.4:5"));
    }
}
