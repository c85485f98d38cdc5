//! Whole clusters in one process, on loopback, with links that can be cut; and one real process that is frozen.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use framecache::view::NodeState;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use super::*;

#[path = "forgery_tests.rs"]
mod forgery;

/// The network between the nodes of a test.
#[derive(Default)]
struct Net {
    nodes: Mutex<HashMap<SocketAddr, usize>>,
    cut: Mutex<HashSet<(usize, usize)>>,
    liars: Mutex<HashSet<String>>,
}

impl Net {
    /// Nothing gets from `from` to `to`.
    fn cut(&self, from: usize, to: usize) {
        self.cut.lock().insert((from, to));
    }

    fn heal(&self) {
        self.cut.lock().clear();
    }
}

impl Links for Net {
    fn pass(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let nodes = self.nodes.lock();
        match (nodes.get(&from), nodes.get(&to)) {
            (Some(from), Some(to)) => !self.cut.lock().contains(&(*from, *to)),
            _ => true,
        }
    }
}

#[async_trait]
impl Prove for Net {
    async fn prove(&self, row: &NodeRow) -> bool {
        !self.liars.lock().contains(&row.id)
    }
}

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn settings(id: &str, seeds: &[String], keys: &Keys, net: &Arc<Net>) -> ClusterSettings {
    ClusterSettings {
        row: NodeRow { quic: format!("{id}.test:4433"), incarnation: 0, ..NodeRow::member(id, 100) },
        gossip: ANY,
        liveness: ANY,
        seeds: seeds.to_vec(),
        keys: keys.clone(),
        settle: Duration::from_secs(3600),
        cluster_id: CLUSTER_ID.into(),
        prove: net.clone(),
        links: net.clone(),
    }
}

/// The nodes of a test, named `n0`, `n1`, …; all know the first.
struct Nodes {
    net: Arc<Net>,
    keys: Keys,
    nodes: Vec<Arc<Cluster>>,
}

impl Nodes {
    async fn start(count: usize) -> Self {
        let mut nodes = Self { net: Arc::default(), keys: Keys::random().expect("key"), nodes: Vec::new() };
        for index in 0..count {
            let settings = settings(&format!("n{index}"), &nodes.seeds(), &nodes.keys, &nodes.net);
            nodes.add(settings).await;
        }
        nodes
    }

    async fn start_settling(count: usize, settle: Duration) -> Self {
        let mut nodes = Self::start(0).await;
        for index in 0..count {
            let settings = settings(&format!("n{index}"), &nodes.seeds(), &nodes.keys, &nodes.net);
            nodes.add(ClusterSettings { settle, ..settings }).await;
        }
        nodes
    }

    fn seeds(&self) -> Vec<String> {
        self.nodes.first().map(|first| first.gossip_address().to_string()).into_iter().collect()
    }

    async fn add(&mut self, settings: ClusterSettings) -> Arc<Cluster> {
        let node = Cluster::start(settings).await.expect("start");
        let index = self.nodes.len();
        self.net.nodes.lock().extend([(node.gossip_address(), index), (node.liveness_address(), index)]);
        self.nodes.push(node.clone());
        node
    }

    /// Whether these nodes have one view, and in it just these members.
    fn agree(&self, nodes: &[usize], members: &[usize]) -> bool {
        let names: Vec<String> = members.iter().map(|index| format!("n{index}")).collect();
        let views: Vec<_> = nodes.iter().map(|index| view(&self.nodes[*index])).collect();
        views.iter().all(|view| {
            let mut found: Vec<_> = view.members().map(|row| row.id.clone()).collect();
            found.sort_by_key(|id| id[1..].parse::<usize>().unwrap_or(0));
            found == names && view.digest() == views[0].digest()
        })
    }

    async fn together(&self) {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        until(3, "all agree on all", || self.agree(&all, &all)).await;
    }

    fn losses(&self) -> u64 {
        self.nodes.iter().map(|node| node.stats().losses).sum()
    }
}

fn view(node: &Cluster) -> Arc<View> {
    node.views().borrow().clone()
}

fn state_of(node: &Cluster, id: &str) -> Option<NodeState> {
    view(node).node(id).map(framecache::view::state)
}

/// Waits until it holds, at most so many seconds; how long it took.
async fn until(seconds: u64, what: &str, holds: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(seconds), "not within {seconds} s: {what}");
        sleep(Duration::from_millis(10)).await;
    }
    let took = begun.elapsed();
    println!("{what}: {} ms", took.as_millis());
    took
}

/// Promise: nodes that know one of them come together within 3 s, with one view; who leaves is known to leave when `leave` returns,
/// and gone with its last word; who ends without a word is gone everywhere within 5 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_come_together_and_part() {
    let nodes = Nodes::start_settling(4, Duration::from_secs(4)).await;
    nodes.together().await;
    nodes.nodes[3].leave().await;
    assert!((0..3).all(|index| state_of(&nodes.nodes[index], "n3") == Some(NodeState::Leaving)), "all know when it returns");
    nodes.nodes[3].close().await;
    assert!((0..3).all(|index| state_of(&nodes.nodes[index], "n3") == Some(NodeState::Gone)), "the last word is heard");
    until(1, "agree on three", || nodes.agree(&[0, 1, 2], &[0, 1, 2])).await;

    nodes.nodes[1].set_weight(250).await;
    until(1, "a new weight is everywhere", || {
        (0..3).all(|index| view(&nodes.nodes[index]).node("n1").is_some_and(|row| (row.weight, row.held_weight) == (250, 250)))
    })
    .await;
    let mut nodes = nodes;
    drop(nodes.nodes.remove(2));
    until(5, "who was killed is gone everywhere", || {
        (0..2).all(|index| state_of(&nodes.nodes[index], "n2") == Some(NodeState::Gone)) && nodes.agree(&[0, 1], &[0, 1])
    })
    .await;
    until(6, "members settle", || {
        view(&nodes.nodes[0]).members().all(|row| row.settled && row.ramp == framecache::wire::RAMP_FULL)
    })
    .await;
    let stats = nodes.nodes[0].stats();
    assert_eq!((stats.nodes, stats.losses, stats.refutations), ([0, 2, 0, 2], 1, 0), "{stats:?}");
}

/// Promise: a node whose seed is not there yet finds it within seconds of its coming.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeds_may_come_late() {
    let mut nodes = Nodes::start(0).await;
    let reserved = std::net::UdpSocket::bind(ANY).expect("port");
    let first = reserved.local_addr().expect("address");
    let early = settings("n0", &[format!("localhost:{}", first.port())], &nodes.keys, &nodes.net);
    nodes.add(early).await;
    sleep(Duration::from_millis(1200)).await;
    assert!(nodes.agree(&[0], &[0]), "alone, and serving");
    drop(reserved);
    let late = ClusterSettings { gossip: first, ..settings("n1", &[], &nodes.keys, &nodes.net) };
    nodes.add(late).await;
    nodes.together().await;
}

/// Promise: each side of a partition goes on by itself; when it heals all agree within 10 s, and nobody is lost for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_heal() {
    let nodes = Nodes::start(4).await;
    nodes.together().await;
    for (a, b) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        nodes.net.cut(a, b);
        nodes.net.cut(b, a);
    }
    until(5, "each side is by itself", || nodes.agree(&[0, 1], &[0, 1]) && nodes.agree(&[2, 3], &[2, 3])).await;
    sleep(Duration::from_secs(1)).await;
    nodes.net.heal();
    until(10, "all agree after the partition", || nodes.agree(&[0, 1, 2, 3], &[0, 1, 2, 3])).await;
    let refutations: Vec<_> = nodes.nodes.iter().map(|node| node.stats().refutations).collect();
    assert!(refutations.iter().all(|count| (1..=2).contains(count)), "{refutations:?}");
}

/// Promise: a link that is cut one way, or both, between two of three throws nobody out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_link_throws_nobody_out() {
    let nodes = Nodes::start(3).await;
    nodes.together().await;
    nodes.net.cut(1, 2);
    until(4, "they do not hear each other", || nodes.nodes[1].stats().silent + nodes.nodes[2].stats().silent == 2).await;
    nodes.net.cut(2, 1);
    sleep(Duration::from_secs(1)).await;
    assert!(nodes.agree(&[0, 1, 2], &[0, 1, 2]));
    assert_eq!(nodes.losses(), 0);
}

/// Promise: thirty nodes agree within seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_nodes_agree() {
    let nodes = Nodes::start(30).await;
    let all: Vec<usize> = (0..30).collect();
    until(15, "thirty agree", || nodes.agree(&all, &all)).await;
    assert_eq!(nodes.losses(), 0);
}

/// Promise: whoever has the key and no certificate is in no view, and can throw nobody out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_not_a_name() {
    let mut nodes = Nodes::start(2).await;
    nodes.together().await;
    nodes.net.liars.lock().insert("liar".into());
    let seeds = nodes.seeds();
    let liar = nodes.add(settings("liar", &seeds, &nodes.keys, &nodes.net)).await;
    until(3, "the liar knows them", || view(&liar).rows().count() == 3).await;
    // It hears nobody, and says so to everybody who listens.
    nodes.net.cut(0, 2);
    nodes.net.cut(1, 2);
    sleep(Duration::from_secs(4)).await;
    assert!((0..2).all(|index| state_of(&nodes.nodes[index], "liar").is_none()));
    assert!(nodes.agree(&[0, 1], &[0, 1]));
    assert!((0..2).all(|index| nodes.nodes[index].stats().unproved == 1));
    assert!((0..2).all(|index| nodes.nodes[index].stats().refutations == 0));
}

/// Promise: of two nodes with one name the later has it, and the earlier is back when that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_later_start_has_the_name() {
    let mut nodes = Nodes::start(2).await;
    nodes.together().await;
    let first = nodes.nodes[1].row().incarnation;
    let seeds = nodes.seeds();
    let rival = ClusterSettings {
        row: NodeRow { quic: "rival.test:4433".into(), ..NodeRow::member("n1", 100) },
        ..settings("n1", &seeds, &nodes.keys, &nodes.net)
    };
    let rival = nodes.add(rival).await;
    let named = |quic: &str| view(&nodes.nodes[0]).node("n1").is_some_and(|row| row.quic == quic && row.state == 1);
    until(3, "the later has the name", || named("rival.test:4433")).await;
    let second = rival.row().incarnation;
    assert!(second > first);
    drop(rival);
    let mut nodes = nodes;
    drop(nodes.nodes.pop());
    let named = |quic: &str| view(&nodes.nodes[0]).node("n1").is_some_and(|row| row.quic == quic && row.state == 1);
    until(6, "the earlier is back", || named("n1.test:4433")).await;
    assert!(nodes.nodes[1].row().incarnation > second);
}

/// Promise: a node that restarts is itself again at once, even if its clock went back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_are_seen_at_once() {
    let mut nodes = Nodes::start(1).await;
    let seeds = nodes.seeds();
    let before = settings("n1", &seeds, &nodes.keys, &nodes.net);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let later = u64::try_from(now).expect("a time") + 12 * 3600 * 1000;
    let before = ClusterSettings { row: NodeRow { incarnation: later, ..before.row }, ..before };
    nodes.add(before).await;
    nodes.together().await;
    drop(nodes.nodes.pop());
    let after = settings("n1", &seeds, &nodes.keys, &nodes.net);
    nodes.add(after).await;
    until(3, "the restarted node serves", || {
        view(&nodes.nodes[0]).node("n1").is_some_and(|row| row.incarnation == later + 1 && row.state == 1)
    })
    .await;
    until(2, "and agrees", || nodes.agree(&[0, 1], &[0, 1])).await;
}

/// Promise: forged, foreign, replayed, cut and oversized datagrams are dropped and counted, on both sockets, and change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_changes_nothing() {
    let mut nodes = Nodes::start(2).await;
    nodes.together().await;
    let foreign = Nodes::start(0).await;
    let seeds = nodes.seeds();
    let foreign = settings("n7", &seeds, &foreign.keys, &nodes.net);
    nodes.add(foreign).await;
    let noise = std::net::UdpSocket::bind(ANY).expect("socket");
    let to = [nodes.nodes[0].gossip_address(), nodes.nodes[0].liveness_address()];
    for round in 0..200usize {
        for to in to {
            let bytes = vec![if round % 2 == 0 { 1 } else { round as u8 }; 1 + (round * 37) % 3000];
            noise.send_to(&bytes, to).expect("send");
        }
    }
    until(3, "noise is counted", || nodes.nodes[0].stats().refused.iter().sum::<u64>() >= 300).await;
    let refused = nodes.nodes[0].stats().refused;
    let of = |refusal: Refusal| refused[refusal as usize];
    assert!(of(Refusal::UnknownKey) > 0 && of(Refusal::Malformed) > 0 && of(Refusal::Oversized) > 0, "{refused:?}");
    assert!(nodes.agree(&[0, 1], &[0, 1]));
    assert_eq!(view(&nodes.nodes[0]).rows().count(), 2);
}

/// A message on which chitchat is known to panic: a newest version below one of the versions that it brings for `node`.
fn poison(node: &Cluster) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat();
    let SocketAddr::V4(address) = node.gossip_address() else { panic!("IPv4") };
    let life = [
        &text(&node.row().id)[..],
        &node.row().incarnation.to_le_bytes(),
        &[4],
        &address.ip().octets(),
        &address.port().to_le_bytes(),
    ];
    let versions = [0u8; 16];
    let value = [&text("x")[..], &text("y"), &2000u64.to_le_bytes(), &[0]].concat();
    let block = [&[0][..], &life.concat(), &versions, &[1], &value, &[2], &1000u64.to_le_bytes()].concat();
    [&[0x53, 0xb0, 0, 2, 2][..], &(block.len() as u16).to_le_bytes(), &block, &[0]].concat()
}

/// Promise: whatever a holder of the key says, the node lives: gossip that panics begins again, and the view does not change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_ends_no_node() {
    let nodes = Nodes::start(3).await;
    nodes.together().await;
    let chains = Chains::new(nodes.keys.clone(), CLUSTER_ID, nodes.keys.read().expect("keys"));
    let (mut seal, to) = (Seal::new(chains.gossip, "poisoner", 1).expect("seal"), nodes.nodes[0].gossip_address());
    let socket = std::net::UdpSocket::bind(ANY).expect("socket");
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("deadline");
    let part = parts::cut(1, &poison(&nodes.nodes[1])).expect("short").next().expect("part");
    socket.send_to(&seal.seal(to, &part).expect("seal"), to).expect("send");
    let mut greeting = [0; seal::DATAGRAM_MAX];
    let (length, from) = socket.recv_from(&mut greeting).expect("greeting");
    assert_eq!(seal.open(from, &mut greeting[..length], std::time::Instant::now()), seal::Opened::Met);
    // For a while nobody tells it of the others: it knows them all the same.
    for (from, to) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
        nodes.net.cut(from, to);
    }
    socket.send_to(&seal.seal(to, &part).expect("seal"), to).expect("send");
    until(2, "gossip begins again", || nodes.nodes[0].stats().gossip_restarts == 1).await;
    for _ in 0..25 {
        sleep(Duration::from_millis(20)).await;
        assert!(nodes.agree(&[0, 1, 2], &[0, 1, 2]));
    }
    nodes.net.heal();
    nodes.nodes[0].set_weight(300).await;
    let weighs = |index: usize| view(&nodes.nodes[index]).node("n0").is_some_and(|row| row.weight == 300);
    until(3, "it is heard again", || (0..3).all(weighs)).await;
    nodes.nodes[1].set_weight(400).await;
    until(3, "and hears", || view(&nodes.nodes[0]).node("n1").is_some_and(|row| row.weight == 400)).await;
}

/// Promise: keys change while the cluster runs, without a gap; a broken file keeps the old ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_rotate_while_it_runs() {
    let file = tempfile::NamedTempFile::new().expect("file");
    let (old, new) = ("ab".repeat(32), "cd".repeat(32));
    std::fs::write(file.path(), &old).expect("write");
    let mut nodes = Nodes { net: Arc::default(), keys: Keys::file(file.path()), nodes: Vec::new() };
    for index in 0..2 {
        let settings = settings(&format!("n{index}"), &nodes.seeds(), &nodes.keys, &nodes.net);
        nodes.add(settings).await;
    }
    nodes.together().await;
    std::fs::write(file.path(), "nonsense").expect("write");
    sleep(Duration::from_millis(2300)).await;
    std::fs::write(file.path(), format!("{new}\n{old}\n")).expect("write");
    sleep(Duration::from_millis(2300)).await;
    assert!(nodes.agree(&[0, 1], &[0, 1]));
    assert_eq!(nodes.losses(), 0);
    let with_old = tempfile::NamedTempFile::new().expect("file");
    std::fs::write(with_old.path(), &new).expect("write");
    let (seeds, keys) = (nodes.seeds(), Keys::file(with_old.path()));
    let newcomer = settings("n2", &seeds, &keys, &nodes.net);
    nodes.add(newcomer).await;
    nodes.together().await;
}

/// Promise: what is not permitted, or cannot be, is said at start, with what to do about it.
#[tokio::test]
async fn starts_are_refused_in_words() {
    let (net, keys) = (Arc::<Net>::default(), Keys::random().expect("key"));
    let start = |settings| async { Cluster::start(settings).await.err().expect("refused").to_string() };
    let open = ClusterSettings { gossip: "0.0.0.0:0".parse().expect("address"), ..settings("n0", &[], &keys, &net) };
    assert!(start(open).await.contains("openssl rand -hex 32"));
    let absent = settings("n0", &[], &Keys::file("/absent"), &net);
    assert!(start(absent).await.contains("/absent"));
    let unnamed = settings("no spaces", &[], &keys, &net);
    assert!(start(unnamed).await.contains("\"no spaces\""));
    let holder = std::net::UdpSocket::bind(ANY).expect("port");
    let taken = ClusterSettings { liveness: holder.local_addr().expect("address"), ..settings("n0", &[], &keys, &net) };
    assert!(start(taken).await.contains("listen.liveness"));
}

/// Promise: a node that is busy up to its last thread is not taken for dead.
#[test]
fn a_busy_node_is_alive() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
    let (calm, busy) = (runtime(), runtime());
    let mut nodes = calm.block_on(Nodes::start(1));
    let settings = settings("n1", &nodes.seeds(), &nodes.keys, &nodes.net);
    busy.block_on(nodes.add(settings));
    calm.block_on(nodes.together());
    // Its only worker does nothing else for 5 s.
    let (done, is_done) = oneshot::channel();
    busy.spawn(async move {
        std::thread::sleep(Duration::from_secs(5));
        let _ = done.send(());
    });
    let _ = calm.block_on(is_done);
    assert!(nodes.agree(&[0], &[0, 1]));
    assert_eq!(nodes.losses(), 0);
    let Nodes { nodes, .. } = nodes;
    busy.block_on(nodes[1].close());
}

/// What a process needs to know to be [`frozen_peer`].
const PEER: &str = "FRAMECACHE_TEST_PEER";

/// Promise: a frozen process is out within 5 s; when it wakes it accuses nobody, says that it is not gone, and serves again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_process_is_out() {
    let file = tempfile::NamedTempFile::new().expect("file");
    std::fs::write(file.path(), "ef".repeat(32)).expect("write");
    let mut nodes = Nodes { net: Arc::default(), keys: Keys::file(file.path()), nodes: Vec::new() };
    for index in 0..2 {
        let settings = settings(&format!("n{index}"), &nodes.seeds(), &nodes.keys, &nodes.net);
        nodes.add(settings).await;
    }
    let mut peer = Command::new(std::env::current_exe().expect("test binary"))
        .args(["--exact", "cluster::tests::frozen_peer", "--ignored", "--nocapture"])
        .env(PEER, format!("{} {}", nodes.seeds()[0], file.path().display()))
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .expect("peer");
    let pid = Pid::from_raw(i32::try_from(peer.id()).expect("pid"));
    let is = |state| (0..2).all(|index| state_of(&nodes.nodes[index], "n2") == Some(state));
    until(5, "the peer serves", || is(NodeState::Serving)).await;
    for round in 0..2 {
        kill(pid, Signal::SIGSTOP).expect("stop");
        until(5, "the frozen peer is out", || is(NodeState::Gone)).await;
        kill(pid, Signal::SIGCONT).expect("continue");
        // The second time it stays off the ring for 2 s.
        until(3 + 2 * round, "the peer is back", || is(NodeState::Serving) && nodes.agree(&[0, 1], &[0, 1, 2])).await;
    }
    assert!(nodes.nodes.iter().all(|node| node.stats().refutations == 0), "who wakes accuses nobody");
    drop(peer.stdin.take());
    let said: Vec<_> = BufReader::new(peer.stdout.take().expect("stdout")).lines().map_while(Result::ok).collect();
    assert!(peer.wait().expect("end").success());
    assert!(said.iter().any(|line| line.contains("losses 0 refutations 2")), "{said:?}");
}

/// The process of [`a_frozen_process_is_out`]: a node until its input ends.
#[test]
#[ignore = "run by a_frozen_process_is_out, in a process of its own"]
fn frozen_peer() {
    let Ok(peer) = std::env::var(PEER) else { return };
    let (seed, keys) = peer.split_once(' ').expect("seed and keys");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
    let node =
        runtime.block_on(Cluster::start(settings("n2", &[seed.into()], &Keys::file(keys), &Arc::default()))).expect("start");
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).is_ok_and(|read| read > 0) {}
    let stats = node.stats();
    println!("losses {} refutations {}", stats.losses, stats.refutations);
    runtime.block_on(node.close());
}
