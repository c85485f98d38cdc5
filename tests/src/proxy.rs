//! A UDP proxy that is a bad network: it loses, delays, reorders, doubles, corrupts and cuts, by seed and as it is told at the time.
//!
//! Each client address has a socket of its own towards the target, so that the target tells clients apart. What is held back stands in
//! one queue of bounded length; what finds it full is lost, as in a router.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::UdpSocket;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::dice::Dice;

/// Most clients; those beyond are not heard.
const CLIENTS_MAX: usize = 256;
/// Most datagrams held back at once: 64 MiB at the largest size in use.
const QUEUE_MAX: usize = 4096;
/// Largest datagram there is.
const DATAGRAM_MAX: usize = 65_535;

/// What goes wrong, one way. The default is a good network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Of a hundred datagrams, so many are lost.
    pub loss: u64,
    /// So many come twice.
    pub double: u64,
    /// So many have one bit turned.
    pub corrupt: u64,
    /// So many are overtaken: they are held back twice as long, 10 ms at least.
    pub reorder: u64,
    /// Each is held back so long.
    pub delay: Duration,
    /// All are lost.
    pub cut: bool,
}

/// Which way a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From a client to the target.
    Out = 0,
    /// From the target to a client.
    Back = 1,
}

/// What became of datagrams, both ways together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passed on, the doubled ones twice.
    pub passed: u64,
    /// Lost on purpose.
    pub lost: u64,
    /// Doubled.
    pub doubled: u64,
    /// Corrupted.
    pub corrupted: u64,
    /// Overtaken.
    pub reordered: u64,
    /// Lost because too many were held back.
    pub overflowed: u64,
}

/// The proxy; dropping it ends it.
pub struct Proxy {
    /// Where clients send to.
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: AbortHandle,
}

struct State {
    faults: [Faults; 2],
    dice: Dice,
    counts: Counts,
}

impl Proxy {
    /// Listens at `address` for what is meant for `target`; prints the seed.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn start(address: SocketAddr, target: SocketAddr, seed: u64) -> io::Result<Self> {
        println!("proxy: seed {seed}");
        let door = Arc::new(UdpSocket::bind(address).await?);
        let address = door.local_addr()?;
        let state = Arc::new(Mutex::new(State { faults: Default::default(), dice: Dice::new(seed), counts: Counts::default() }));
        let task = tokio::spawn(run(door, target, state.clone())).abort_handle();
        Ok(Self { address, state, task })
    }

    /// What goes wrong from now on, that way.
    pub fn set(&self, way: Way, faults: Faults) {
        self.state.lock().faults[way as usize] = faults;
    }

    /// What became of the datagrams so far.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    /// What becomes of a datagram: after which times its copies go on. Policy: no clock, no socket.
    fn fate(&mut self, way: Way, datagram: &mut [u8]) -> Vec<Duration> {
        let Faults { loss, double, corrupt, reorder, delay, cut } = self.faults[way as usize];
        if cut || self.dice.chance(loss) {
            self.counts.lost += 1;
            return Vec::new();
        }
        if self.dice.chance(corrupt) && !datagram.is_empty() {
            let bit = self.dice.within(0..datagram.len() as u64 * 8);
            datagram[(bit / 8) as usize] ^= 1 << (bit % 8);
            self.counts.corrupted += 1;
        }
        let mut after = delay;
        if self.dice.chance(reorder) {
            after += delay.max(Duration::from_millis(10));
            self.counts.reordered += 1;
        }
        let twice = self.dice.chance(double);
        self.counts.doubled += u64::from(twice);
        vec![after; 1 + usize::from(twice)]
    }
}

/// A datagram on its way: when it goes on, its number, over which socket, to whom.
struct Held {
    due: Instant,
    number: u64,
    socket: Arc<UdpSocket>,
    to: SocketAddr,
    bytes: Arc<[u8]>,
}

impl Held {
    fn order(&self) -> (Instant, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// What came back from the target, and for whom.
type Reply = (SocketAddr, Vec<u8>);

async fn run(door: Arc<UdpSocket>, target: SocketAddr, state: Arc<Mutex<State>>) {
    let mut queue: BinaryHeap<Reverse<Held>> = BinaryHeap::new();
    let mut number = 0;
    let mut sockets: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut listeners = JoinSet::new();
    let (back, mut replies) = tokio::sync::mpsc::channel::<Reply>(256);
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let due = queue.peek().map(|held| held.0.due);
        let (way, mut bytes, socket, to) = tokio::select! {
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let Some(Reverse(held)) = queue.pop() else { continue };
                // What the network refuses is lost, as on any other.
                if held.socket.send_to(&held.bytes, held.to).await.is_ok() {
                    state.lock().counts.passed += 1;
                }
                continue;
            }
            received = door.recv_from(&mut buffer) => {
                // An error is of an earlier send: nobody listened there.
                let Ok((length, client)) = received else { continue };
                if !sockets.contains_key(&client) {
                    if sockets.len() >= CLIENTS_MAX {
                        continue;
                    }
                    let Some(socket) = towards(target).await else { continue };
                    listeners.spawn(listen(socket.clone(), client, back.clone()));
                    sockets.insert(client, socket);
                }
                (Way::Out, buffer[..length].to_vec(), sockets[&client].clone(), target)
            }
            Some((client, bytes)) = replies.recv() => (Way::Back, bytes, door.clone(), client),
        };
        let mut state = state.lock();
        let fate = state.fate(way, &mut bytes);
        let bytes: Arc<[u8]> = bytes.into();
        for after in fate {
            if queue.len() >= QUEUE_MAX {
                state.counts.overflowed += 1;
                continue;
            }
            number += 1;
            let (socket, bytes) = (socket.clone(), bytes.clone());
            queue.push(Reverse(Held { due: Instant::now() + after, number, socket, to, bytes }));
        }
    }
}

/// A socket of the target's kind of address.
async fn towards(target: SocketAddr) -> Option<Arc<UdpSocket>> {
    let any: SocketAddr = if target.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    UdpSocket::bind(any).await.ok().map(Arc::new)
}

/// Hands on what the target says to `client`.
async fn listen(socket: Arc<UdpSocket>, client: SocketAddr, back: tokio::sync::mpsc::Sender<Reply>) {
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let Ok((length, _)) = socket.recv_from(&mut buffer).await else { continue };
        if back.send((client, buffer[..length].to_vec())).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a hundred thousand datagrams of a seed meet.
    fn fates(seed: u64, faults: Faults) -> (Counts, Vec<usize>) {
        let mut state = State { faults: [faults, Faults::default()], dice: Dice::new(seed), counts: Counts::default() };
        let copies = (0..100_000).map(|_| state.fate(Way::Out, &mut [0; 20]).len()).collect();
        (state.counts, copies)
    }

    /// Promise: a seed tells the same story again, and each fault comes as often as it was asked for.
    #[test]
    fn chance_is_by_seed() {
        let faults = Faults { loss: 5, double: 2, corrupt: 1, reorder: 10, ..Faults::default() };
        let (counts, copies) = fates(7, faults);
        assert_eq!(copies, fates(7, faults).1);
        assert_ne!(copies, fates(8, faults).1);
        let near = |count: u64, percent: u64| (900 * percent..1100 * percent).contains(&count);
        assert!(near(counts.lost, 5) && near(counts.doubled, 2) && near(counts.corrupted, 1) && near(counts.reordered, 10));
        assert_eq!(copies.iter().filter(|&&copies| copies == 0).count() as u64, counts.lost);
        assert_eq!(fates(7, Faults::default()).0, Counts::default());
    }

    /// Promise: what is sent arrives; one way can be cut alone, and comes back; two clients are told apart.
    #[tokio::test]
    async fn each_way_is_cut_alone() {
        let target = UdpSocket::bind("127.0.0.1:0").await.expect("socket");
        let proxy = Proxy::start(([127, 0, 0, 1], 0).into(), target.local_addr().expect("address"), 1).await.expect("proxy");
        let (one, two) = (UdpSocket::bind("127.0.0.1:0").await.expect("one"), UdpSocket::bind("127.0.0.1:0").await.expect("two"));
        let mut buffer = [0; 9];
        let mut seen = Vec::new();
        for (client, text) in [(&one, b"1"), (&two, b"2")] {
            client.send_to(text, proxy.address).await.expect("send");
            let (_, from) = target.recv_from(&mut buffer).await.expect("arrives");
            target.send_to(&buffer[..1], from).await.expect("answer");
            client.recv_from(&mut buffer).await.expect("comes back");
            assert_eq!(&buffer[..1], text);
            seen.push(from);
        }
        assert_ne!(seen[0], seen[1]);
        proxy.set(Way::Back, Faults { cut: true, ..Faults::default() });
        one.send_to(b"3", proxy.address).await.expect("send");
        let (_, from) = target.recv_from(&mut buffer).await.expect("still arrives");
        target.send_to(b"3", from).await.expect("answer");
        let deadline = Instant::now() + Duration::from_secs(5);
        while proxy.counts().lost < 1 {
            assert!(Instant::now() < deadline, "the cut loses nothing");
            tokio::task::yield_now().await;
        }
        proxy.set(Way::Back, Faults::default());
        target.send_to(b"4", from).await.expect("answer");
        one.recv_from(&mut buffer).await.expect("comes back");
        assert_eq!(&buffer[..1], b"4");
    }
}
