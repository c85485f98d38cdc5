//! A flood of handshakes: first datagrams of real ones, recorded at a door where nobody answers, sent again and again from many ports.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use framecache::quic;
use framecache::tls::TlsFiles;

/// Ports that the flood comes from.
const PORTS: usize = 64;
/// Handshakes begun at once while they are recorded.
const RECORD_TOGETHER: usize = 128;
/// Longest recording.
const RECORD_MAX: Duration = Duration::from_secs(60);

/// A flood under way; it ends with this value.
pub struct Flood {
    sent: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    begun: Instant,
}

/// `count` first datagrams, each of a handshake of its own.
pub async fn record(ca: &Path, count: usize) -> Result<Vec<Vec<u8>>> {
    let door = tokio::net::UdpSocket::from_std({
        let door = quic::bind(([127, 0, 0, 1], 0).into())?;
        door.set_nonblocking(true)?;
        door
    })?;
    let target = door.local_addr()?;
    let files = TlsFiles { ca: Some(ca.to_owned()), ..TlsFiles::default() };
    let config = framecache::tls::client(&files, "127.0.0.1")?;
    let mut found: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    let (mut buffer, begun) = (vec![0; 65_535], Instant::now());
    while found.len() < count {
        ensure!(begun.elapsed() < RECORD_MAX, "only {} handshakes recorded in {RECORD_MAX:?}", found.len());
        // An endpoint of its own each time: what it leaves unfinished goes with it.
        let endpoint = quic::endpoint(quic::bind(([127, 0, 0, 1], 0).into())?, None)?;
        let together: Vec<quinn::Connecting> =
            (0..RECORD_TOGETHER).map(|_| endpoint.connect_with(config.clone(), target, "127.0.0.1")).collect::<Result<_, _>>()?;
        let wanted = (found.len() + RECORD_TOGETHER).min(count);
        while found.len() < wanted {
            let received = tokio::time::timeout(Duration::from_millis(500), door.recv_from(&mut buffer)).await;
            let Ok(received) = received else { break };
            let datagram = &buffer[..received?.0];
            if let Some(id) = destination(datagram) {
                found.entry(id.to_owned()).or_insert_with(|| datagram.to_owned());
            }
        }
        drop(together);
        endpoint.close(0u32.into(), b"recorded");
    }
    Ok(found.into_values().collect())
}

/// The destination id of an Initial packet (RFC 9000, sections 17.2 and 17.2.2: long header, type 0, version, length, id).
fn destination(datagram: &[u8]) -> Option<&[u8]> {
    let initial = datagram.first()? & 0xf0 == 0xc0;
    let length = usize::from(*datagram.get(5)?);
    datagram.get(6..6 + length).filter(|id| initial && !id.is_empty())
}

impl Flood {
    /// Sends to `target`, so many a second, or as many as this machine can.
    pub fn start(target: SocketAddr, datagrams: Vec<Vec<u8>>, per_second: u64) -> Result<Self> {
        let sockets = (0..PORTS).map(|_| UdpSocket::bind(("127.0.0.1", 0))).collect::<std::io::Result<Vec<_>>>()?;
        let (sent, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, ended) = (sent.clone(), stop.clone());
        let begun = Instant::now();
        let send = move || {
            let mut next = 0usize;
            while !ended.load(Relaxed) {
                let due = (begun.elapsed().as_secs_f64() * per_second as f64) as u64;
                let mut behind = due.saturating_sub(counter.load(Relaxed));
                while behind > 0 && !ended.load(Relaxed) {
                    // A full buffer of the node's loses it, as in any flood.
                    if sockets[next % PORTS].send_to(&datagrams[next % datagrams.len()], target).is_ok() {
                        counter.fetch_add(1, Relaxed);
                    }
                    next += 1;
                    behind -= 1;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let thread = std::thread::Builder::new().name("flood".into()).spawn(send).context("start a thread")?;
        Ok(Self { sent, stop, thread: Some(thread), begun })
    }

    /// Datagrams a second so far.
    pub fn rate(&self) -> f64 {
        self.sent.load(Relaxed) as f64 / self.begun.elapsed().as_secs_f64()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // It sends no more; whether it panicked matters to nobody.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: only first packets of handshakes are recorded, and by their own id.
    #[test]
    fn initials_are_told_apart() {
        let initial = [0xc3, 0, 0, 0, 1, 3, 7, 8, 9, 0];
        assert_eq!(destination(&initial), Some(&[7, 8, 9][..]));
        assert_eq!(destination(&[0xe3, 0, 0, 0, 1, 3, 7, 8, 9, 0]), None);
        assert_eq!(destination(&initial[..8]), None);
        assert_eq!(destination(&[0x43; 30]), None);
    }
}
