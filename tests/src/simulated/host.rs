//! Machines on the network and their sockets, as QUIC meets them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use framecache::quic::{self, Ground};
use parking_lot::Mutex;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use super::network::{Datagram, Inbox, Network};
use crate::dice::Dice;

/// Datagrams of one send.
const SEGMENTS: usize = 10;

/// A socket of a host.
#[derive(Debug)]
struct Socket {
    network: Arc<Network>,
    at: SocketAddr,
    inbox: Arc<Inbox>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.network.shut(self.at, &self.inbox);
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.inbox.is_unplugged() {
            return Ok(());
        }
        let contents = Bytes::copy_from_slice(transmit.contents);
        let step = transmit.segment_size.unwrap_or(contents.len()).max(1);
        for start in (0..contents.len()).step_by(step) {
            let bytes = contents.slice(start..contents.len().min(start + step));
            self.network.send(Datagram { from: self.at, to: transmit.destination, bytes });
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [io::IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let Some(Datagram { from, bytes, .. }) = self.inbox.take(cx.waker()) else { break };
            // As the kernel does with what a buffer is too small for.
            let len = bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            (meta.addr, meta.len, meta.stride, meta.ecn, meta.dst_ip) = (from, len, len, None, None);
            count += 1;
        }
        if count == 0 { Poll::Pending } else { Poll::Ready(Ok(count)) }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.at)
    }

    fn max_transmit_segments(&self) -> usize {
        SEGMENTS
    }

    /// Too large ones are lost, so that quinn looks for the size that passes.
    fn may_fragment(&self) -> bool {
        false
    }
}

/// A simulated socket always takes what is sent.
#[derive(Debug)]
struct Writable;

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A machine on the network: what a client, or a node in one of its lives, stands on.
#[derive(Debug)]
pub(super) struct Host {
    network: Arc<Network>,
    ip: IpAddr,
    seeds: Mutex<Dice>,
    chance: Mutex<Dice>,
}

impl Host {
    /// A host at `ip`.
    pub(super) fn new(network: Arc<Network>, ip: IpAddr, mut dice: Dice) -> Arc<Self> {
        Arc::new(Self { network, ip, seeds: Mutex::new(dice.fork()), chance: Mutex::new(dice.fork()) })
    }

    /// An endpoint at `port`, or any for 0; with `server`, one that accepts.
    ///
    /// # Errors
    /// The port is taken.
    pub(super) fn listen(&self, port: u16, server: Option<quinn::ServerConfig>) -> io::Result<quinn::Endpoint> {
        let (at, inbox) = self.network.open(SocketAddr::new(self.ip, port))?;
        let socket = Arc::new(Socket { network: self.network.clone(), at, inbox });
        let mut seed = [0; 32];
        let mut dice = self.seeds.lock();
        seed.chunks_mut(8).for_each(|part| part.copy_from_slice(&dice.bits().to_le_bytes()));
        quic::endpoint_over(socket, Some(seed), server)
    }

    /// Where it is.
    pub(super) fn ip(&self) -> IpAddr {
        self.ip
    }
}

impl Ground for Host {
    fn endpoint(&self, _: SocketAddr) -> io::Result<quinn::Endpoint> {
        self.listen(0, None)
    }

    fn random(&self) -> u64 {
        self.chance.lock().bits()
    }
}
