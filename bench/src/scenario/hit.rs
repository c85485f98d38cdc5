//! `hit`: what a RAM hit costs beyond moving its bytes.
//!
//! A real node and a client process, against bare quinn and against TLS over TCP, each with a server and a client process that
//! move the same messages in the same order into the same kind of buffer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Result, ensure};
use framecache::wire::codec;
use framecache::wire::{FrameAsk, FramesBody, Header, ItemHead, ReadBody, TensorItem, Verb};

use crate::agent::{Agent, Look, PathFacts, PathTask, Role, Round, Subject, Tally, Traffic};
use crate::comparator::{Items, Pool, Shape};
use crate::meter::{Tree, Watch};
use crate::netns::{self, Network};
use crate::node::{BUCKET, NodeProcess};
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload;

/// A decoded 224-pixel picture.
const TENSOR_BYTES: usize = 224 * 224 * 3;
const SPEC: &str = "image?short=256&crop=224";
const PAGE_BYTES: usize = 1 << 20;
/// Pages of one object: a span.
const PAGES: u32 = 64;
const GIB: f64 = (1u64 << 30) as f64;
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Names of the subjects, in the order of `Rounds`.
const SUBJECTS: [&str; 3] = ["framecache", "bare quinn", "TLS over TCP"];

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("hit");
    let bucket = run.scratch.folder("bucket")?;
    let names = run.small_photographs(run.size(2000, 200))?;
    names.iter().try_for_each(|name| link(&run.photographs.join(name), &bucket.join(name)))?;
    let blocks = run.size(8, 2);
    for block in 0..blocks {
        let bytes = PAGES as usize * PAGE_BYTES;
        std::fs::write(bucket.join(format!("block-{block}")), workload::object(run.seed, block, bytes))?;
    }
    let origin = Origin::serve(&bucket).await?;
    let tensors = Subject::Pictures { uris: names.iter().map(|name| uri(name)).collect(), spec: SPEC.into() };
    let pages = Subject::Pages { uris: (0..blocks).map(|block| uri(&format!("block-{block}"))).collect(), pages: PAGES };

    let node = NodeProcess::start(&run.node_settings("node", origin.address)?).await?;
    let shape = tensor_shape(names.len());
    let tensors = transfer(run, &node, &tensors, shape, &SUBJECTS, LOOPBACK, &[], run.size(10, 4)).await?;
    tensors.figures(&mut report, "150 KB tensors", Some(1.5));
    let shape = page_shape(blocks as usize * PAGES as usize);
    let pages = transfer(run, &node, &pages, shape, &SUBJECTS, LOOPBACK, &[], run.size(6, 4)).await?;
    pages.figures(&mut report, "1 MiB pages", Some(1.2));
    node.stop().await?;

    match netns::missing() {
        Some(reason) => report.note(format!("no figures at an MTU of 1,500 and 9,000: {reason}")),
        None => {
            capped(run, &origin, 1, 1500, &mut report).await?;
            capped(run, &origin, 2, 9000, &mut report).await?;
        }
    }
    report.note(
        "comparators: framecache's transport, split socket, windows and AES-128-GCM of aws-lc-rs for bare quinn; TLS 1.3 with \
                 the same suite, one TCP connection a request in flight, no delay",
    );
    Ok(report)
}

/// Pages over a network of that MTU, where only CPU counts, and two paths of different size at once.
async fn capped(run: &Run, origin: &Origin, number: u8, mtu: u32, report: &mut Report) -> Result<()> {
    let network = Network::make(number, mtu)?;
    let ip: IpAddr = network.address.parse()?;
    let mut settings = run.node_settings(&format!("node-{mtu}"), origin.address)?;
    settings.ip = ip;
    let node = NodeProcess::start(&settings).await?;
    let subject = Subject::Pages { uris: vec![uri("block-0")], pages: PAGES };
    let shape = page_shape(PAGES as usize);
    let moved = transfer(run, &node, &subject, shape, &SUBJECTS[..2], ip, &network.inside(), run.size(16, 4)).await?;
    moved.figures(report, &format!("1 MiB pages, MTU {mtu}"), None);
    if mtu == 1500 {
        two_paths(run, &node, &network, report).await?;
    }
    node.stop().await
}

/// One endpoint, a client on its own machine (a path of 64 KiB) and one behind a small MTU: each keeps its datagram size.
async fn two_paths(run: &Run, node: &NodeProcess, network: &Network, report: &mut Report) -> Result<()> {
    let task = PathTask { address: node.quic, trust: run.scratch.folder("trust")?, uri: uri("block-0"), pages: u64::from(PAGES) };
    let mut large = Agent::start(&Role::Path(task.clone()), &[])?;
    let mut small = Agent::start(&Role::Path(task), &network.inside())?;
    let (mut sending, mut receiving) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..=run.rounds {
        let (large, small) = futures::future::try_join(large.ask::<PathFacts>(&1.0), small.ask::<PathFacts>(&1.0)).await?;
        // The first second finds the sizes.
        for (side, facts) in [large, small].into_iter().enumerate().filter(|_| round > 0) {
            sending[side].push(f64::from(facts.sending));
            receiving[side].push(facts.receiving);
        }
    }
    let [large_sending, small_sending] = sending;
    let [large_receiving, small_receiving] = receiving;
    let figure = |name: &str, rounds| Figure::new(format!("two paths at once, {name}"), "bytes", Better::Higher, rounds);
    report.push(figure("loopback: datagram found by client", large_sending).at_least(16_000.0));
    report.push(figure("loopback: mean datagram from node", large_receiving).at_least(12_000.0));
    report.push(figure("MTU 1500: datagram found by client", small_sending).at_most(1472.0));
    report.push(figure("MTU 1500: mean datagram from node", small_receiving).at_least(1200.0));
    Ok(())
}

/// A client process, what serves it, and what is measured of them.
struct Pair {
    client: Agent,
    trees: Vec<Tree>,
    _server: Option<Agent>,
}

impl Pair {
    async fn start(
        run: &Run,
        subject: &Subject,
        node: &NodeProcess,
        shape: Shape,
        ip: IpAddr,
        inside: &[String],
    ) -> Result<Self> {
        let trust = run.scratch.folder("trust")?;
        let pool = Pool { shape, items: Items::Made { seed: run.seed }, trust: trust.clone(), ip };
        let server = match subject {
            Subject::Quinn => Some(Agent::start(&Role::QuinnServer(pool), &[])?),
            Subject::Tls => Some(Agent::start(&Role::TlsServer(pool), &[])?),
            _ => None,
        };
        let (server, address, tree) = match server {
            Some(mut server) => {
                let port: u16 = server.listen().await?;
                let tree = server.tree;
                (Some(server), SocketAddr::new(ip, port), tree)
            }
            None => (None, node.quic, node.tree),
        };
        let traffic = Traffic { subject: subject.clone(), address: address.to_string(), trust, shape };
        let client = Agent::start(&Role::Traffic(traffic), inside)?;
        Ok(Self { trees: vec![tree, client.tree], client, _server: server })
    }

    async fn round(&mut self, seed: u64, times: usize, look: Look) -> Result<Tally> {
        let tally: Tally = self.client.ask(&Round { seed, times, look }).await?;
        ensure!(tally.wrong == 0, "{} items were wrong", tally.wrong);
        Ok(tally)
    }
}

/// Rounds of one transfer.
struct Transfer {
    rounds: Rounds,
    subjects: usize,
    bytes: f64,
}

/// Moves the same items by framecache and by the comparators, in rounds.
#[allow(clippy::too_many_arguments)] // the stage of one transfer; a struct would only rename them
async fn transfer(
    run: &Run,
    node: &NodeProcess,
    subject: &Subject,
    shape: Shape,
    subjects: &[&str],
    ip: IpAddr,
    inside: &[String],
    times: usize,
) -> Result<Transfer> {
    let mut pairs = Vec::new();
    for subject in [subject.clone(), Subject::Quinn, Subject::Tls].iter().take(subjects.len()) {
        pairs.push(Pair::start(run, subject, node, shape, ip, inside).await?);
    }
    for pair in &mut pairs {
        // Fills the cache, learns each item; then every byte is what it was.
        pair.round(run.seed, 1, Look::Learn).await?;
        pair.round(run.seed + 1, 1, Look::Verify).await?;
    }
    let before = node.metrics().await?;
    let mut rounds = Rounds::of(pairs.len());
    for round in 0..run.rounds {
        for index in rounds.order(round) {
            let watch = Watch::begin(&pairs[index].trees);
            pairs[index].round(run.seed + 2 + round as u64, times, Look::Edges).await?;
            rounds.push(index, watch.end());
        }
    }
    let after = node.metrics().await?;
    for counter in ["framecache_units_total", "framecache_fills_total", "framecache_origin_requests_total"] {
        ensure!(before.sum(counter) == after.sum(counter), "{counter} moved: not all were hits");
    }
    for pair in &mut pairs {
        pair.round(run.seed, 1, Look::Verify).await?;
    }
    let bytes = (shape.items * shape.item_bytes * times) as f64;
    Ok(Transfer { rounds, subjects: pairs.len(), bytes })
}

impl Transfer {
    /// `tls_most`: the target against TLS over TCP, and with it the ones against bare quinn.
    fn figures(&self, report: &mut Report, label: &str, tls_most: Option<f64>) {
        let rounds = &self.rounds;
        for (index, subject) in SUBJECTS.iter().enumerate().take(self.subjects) {
            let rate = rounds.values(index, |cost| self.bytes / GIB / cost.wall.as_secs_f64());
            report.push(Figure::new(format!("{label}: {subject} throughput"), "GiB/s", Better::Higher, rate));
            let cpu = rounds.values(index, |cost| cost.cpu / (self.bytes / GIB));
            report.push(Figure::new(format!("{label}: {subject} CPU, both sides"), "CPU-s/GiB", Better::Lower, cpu));
        }
        let rate = rounds.ratios(0, 1, |cost| 1.0 / cost.wall.as_secs_f64());
        let rate = Figure::new(format!("{label}: throughput"), "ratio", Better::Higher, rate).against("bare quinn");
        let cpu = rounds.ratios(0, 1, |cost| cost.cpu);
        let cpu = Figure::new(format!("{label}: CPU per byte"), "ratio", Better::Lower, cpu).against("bare quinn");
        match tls_most {
            None => {
                report.push(rate);
                report.push(cpu);
            }
            Some(most) => {
                report.push(rate.at_least(0.85));
                report.push(cpu.at_most(1.15));
                let cpu = rounds.ratios(0, 2, |cost| cost.cpu);
                let cpu = Figure::new(format!("{label}: CPU per byte"), "ratio", Better::Lower, cpu);
                report.push(cpu.against("TLS over TCP").at_most(most));
            }
        }
        rounds.tell(report);
    }
}

pub(super) fn uri(key: &str) -> String {
    format!("s3://{BUCKET}/{key}")
}

/// A file under another name; a copy where the disk is another.
pub(super) fn link(from: &Path, to: &Path) -> Result<()> {
    if std::fs::hard_link(from, to).is_err() {
        std::fs::copy(from, to)?;
    }
    Ok(())
}

/// An etag as the folder's origin makes them.
pub(super) fn version() -> String {
    "\"7d2c1f-16f5b-18b4c2f7a9d1e3c5\"".into()
}

/// A loader's four batches of 32.
fn tensor_shape(items: usize) -> Shape {
    let ask = |index| FrameAsk { index, attempt: 1, spec: 0, uri: uri("00000.jpg"), version: String::new() };
    let body = FramesBody { specs: vec![SPEC.into()], items: (0..32).map(ask).collect() };
    let tensor = TensorItem { shape: [224, 224, 3], dtype: 0, layout: 0, orientation: 1, source: [500, 375], pts_seconds: 0.0 };
    let head = ItemHead { version: version(), tensor: Some(tensor), last: true, ..ItemHead::default() };
    let request_bytes = message_bytes(Verb::Frames) + codec::encode(&body).map_or(0, |message| message.len());
    let head_bytes = codec::encode(&head).map_or(0, |message| message.len());
    Shape { items, item_bytes: TENSOR_BYTES, batch: 32, in_flight: 4, request_bytes, head_bytes }
}

/// Four pages at once.
fn page_shape(items: usize) -> Shape {
    let body = ReadBody { uri: uri("block-0"), start: 0, length: 1 << 20 };
    let head = ItemHead { version: version(), last: true, ..ItemHead::default() };
    let request_bytes = message_bytes(Verb::Read) + codec::encode(&body).map_or(0, |message| message.len());
    let head_bytes = codec::encode(&head).map_or(0, |message| message.len());
    Shape { items, item_bytes: PAGE_BYTES, batch: 1, in_flight: 4, request_bytes, head_bytes }
}

/// Bytes of a request's header.
pub(super) fn message_bytes(verb: Verb) -> usize {
    let header = Header { verb: verb as u16, deadline_ms_left: 30_000, ..Header::default() };
    codec::encode(&header).map_or(0, |message| message.len())
}
