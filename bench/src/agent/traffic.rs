//! The client side of a transfer: framecache's own client, or a comparator's, moving the same items in the same order into the
//! same kind of buffer.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use framecache::{Batch, Call, Client, ClientConfig, ImageSpec, ObjectId, Version};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{Questions, say};
use crate::comparator::{Shape, quinn::QuinnLane, tls::TlsLane};
use crate::levels::Levels;
use crate::workload::Random;

/// Who moves the items.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Subject {
    /// Framecache: decoded pictures of these addresses.
    Pictures { uris: Vec<String>, spec: String },
    /// Framecache: frames of a video, each by its index.
    Frames { uri: String, frames: Vec<u64>, spec: String },
    /// Framecache: whole 1 MiB pages; item `i` is page `i % pages` of address `i / pages`.
    Pages { uris: Vec<String>, pages: u32 },
    /// Bare quinn.
    Quinn,
    /// TLS over TCP.
    Tls,
}

/// What a traffic agent is told at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Traffic {
    pub subject: Subject,
    /// `host:port` of the server.
    pub address: String,
    /// Folder of the run's certificates.
    pub trust: PathBuf,
    pub shape: Shape,
}

/// What is done with the bytes besides receiving them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Look {
    /// First and last eight bytes are compared with what was learnt: a check that costs nothing.
    Edges,
    /// They are hashed and remembered.
    Learn,
    /// They are hashed and compared with what was learnt, every byte.
    Verify,
    /// They are compared with a file of all items in order of their numbers, every byte.
    File(PathBuf),
}

/// One round: every item once, in an order of `seed`, `times` times over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    pub seed: u64,
    pub times: usize,
    pub look: Look,
}

/// What a round gave.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    pub seconds: f64,
    pub bytes: u64,
    /// Items whose bytes were not what they should be.
    pub wrong: u64,
    /// How far from it, where a file said what they should be.
    pub levels: Levels,
}

pub(super) async fn play(traffic: Traffic) -> Result<()> {
    let hub = Hub::connect(&traffic).await?;
    let mut learnt: Arc<Vec<Learnt>> = Arc::default();
    let mut questions = Questions::listen();
    while let Some(round) = questions.next::<Round>().await? {
        let eye = Eye::new(&round.look, traffic.shape, learnt.clone())?;
        let (tally, eye) = run(&hub, traffic.shape, &round, eye).await?;
        if round.look == Look::Learn {
            learnt = Arc::new(eye.learnt());
        }
        say(&tally)?;
    }
    hub.close().await;
    Ok(())
}

async fn run(hub: &Hub, shape: Shape, round: &Round, eye: Eye) -> Result<(Tally, Eye)> {
    let mut random = Random::new(round.seed, 1);
    let order: Vec<u32> = (0..round.times).flat_map(|_| random.order(shape.items)).collect();
    let (order, eye, next) = (Arc::new(order), Arc::new(eye), Arc::new(AtomicUsize::new(0)));
    let mut lanes = tokio::task::JoinSet::new();
    let mut ready = Vec::new();
    for _ in 0..shape.in_flight {
        ready.push(hub.lane().await?);
    }
    let begun = Instant::now();
    for mut lane in ready {
        let (order, eye, next) = (order.clone(), eye.clone(), next.clone());
        lanes.spawn(async move {
            loop {
                let at = next.fetch_add(shape.batch, Relaxed);
                let Some(batch) = order.get(at..(at + shape.batch).min(order.len())).filter(|batch| !batch.is_empty()) else {
                    return anyhow::Ok(());
                };
                lane.fetch(batch, &eye).await?;
            }
        });
    }
    while let Some(ended) = lanes.join_next().await {
        ended??;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let eye = Arc::into_inner(eye).context("a lane still looks")?;
    let tally = Tally { seconds, bytes: eye.bytes.load(Relaxed), wrong: eye.wrong.load(Relaxed), levels: *eye.levels.lock() };
    ensure!(eye.items.load(Relaxed) == order.len() as u64, "items are missing");
    Ok((tally, eye))
}

/// What all lanes of an agent share.
enum Hub {
    Framecache { client: Client, source: Arc<Source> },
    Quinn { connection: quinn::Connection, shape: Shape },
    Tls { traffic: Traffic },
}

/// The addresses of framecache's items.
enum Source {
    Pictures { ids: Vec<ObjectId>, spec: ImageSpec },
    Frames { id: ObjectId, version: Version, frames: Vec<u64>, spec: ImageSpec },
    Pages { ids: Vec<ObjectId>, pages: u32 },
}

impl Hub {
    async fn connect(traffic: &Traffic) -> Result<Self> {
        let parse = |uris: &[String]| uris.iter().map(|uri| Ok(uri.parse()?)).collect::<Result<Vec<ObjectId>>>();
        let mut config = ClientConfig::new(&traffic.address);
        config.tls.ca = Some(crate::trust::Trust::at(&traffic.trust).ca);
        config.timeout = std::time::Duration::from_secs(120);
        let client = Client::new(config)?;
        let source = match &traffic.subject {
            Subject::Quinn => {
                let connection = crate::comparator::quinn::connect(traffic).await?;
                return Ok(Hub::Quinn { connection, shape: traffic.shape });
            }
            Subject::Tls => return Ok(Hub::Tls { traffic: traffic.clone() }),
            Subject::Pictures { uris, spec } => Source::Pictures { ids: parse(uris)?, spec: spec.parse()? },
            Subject::Frames { uri, frames, spec } => {
                let id: ObjectId = uri.parse()?;
                let version = client.stat(&id, &Call::default()).await?.version;
                Source::Frames { id, version, frames: frames.clone(), spec: spec.parse()? }
            }
            Subject::Pages { uris, pages } => Source::Pages { ids: parse(uris)?, pages: *pages },
        };
        Ok(Hub::Framecache { client, source: Arc::new(source) })
    }

    async fn lane(&self) -> Result<Lane> {
        Ok(match self {
            Hub::Framecache { client, source } => Lane::Framecache { client: client.clone(), source: source.clone() },
            Hub::Quinn { connection, shape } => Lane::Quinn(QuinnLane::new(connection.clone(), *shape)),
            Hub::Tls { traffic } => Lane::Tls(Box::new(TlsLane::connect(traffic).await?)),
        })
    }

    async fn close(&self) {
        match self {
            Hub::Framecache { client, .. } => client.close().await,
            Hub::Quinn { connection, .. } => connection.close(0u32.into(), b"done"),
            Hub::Tls { .. } => {}
        }
    }
}

/// One request after another.
enum Lane {
    Framecache { client: Client, source: Arc<Source> },
    Quinn(QuinnLane),
    Tls(Box<TlsLane>),
}

impl Lane {
    /// Receives a batch of items, and shows each to `eye` once all are there.
    async fn fetch(&mut self, batch: &[u32], eye: &Eye) -> Result<()> {
        match self {
            Lane::Framecache { client, source } => source.fetch(client, batch, eye).await,
            Lane::Quinn(lane) => lane.fetch(batch, eye).await,
            Lane::Tls(lane) => lane.fetch(batch, eye).await,
        }
    }
}

impl Source {
    async fn fetch(&self, client: &Client, batch: &[u32], eye: &Eye) -> Result<()> {
        match self {
            Source::Pictures { ids, spec } => {
                let ids: Vec<ObjectId> = batch.iter().map(|&item| ids[item as usize].clone()).collect();
                let slots = Batch::new(ids.len(), 1 << 30);
                let outcomes = client.images(&ids, spec, &slots, &Call::default()).await;
                show(outcomes, slots, batch, eye)?;
            }
            Source::Frames { id, version, frames, spec } => {
                let frames: Vec<u64> = batch.iter().map(|&item| frames[item as usize]).collect();
                let slots = Batch::new(frames.len(), 1 << 30);
                let outcomes = client.frames((id, version), &frames, spec, &slots, &Call::default()).await;
                show(outcomes, slots, batch, eye)?;
            }
            Source::Pages { ids, pages } => {
                for &item in batch {
                    let start = u64::from(item % pages) << 20;
                    let raw = client.read(&ids[(item / pages) as usize], start, Some(1 << 20), &Call::default()).await?;
                    eye.see(item, &raw.bytes);
                }
            }
        }
        Ok(())
    }
}

/// Shows each picture of a batch, all of which must be there.
fn show(outcomes: Vec<Result<Version, framecache::Error>>, slots: Batch, batch: &[u32], eye: &Eye) -> Result<()> {
    for outcome in outcomes {
        outcome?;
    }
    let pictures = slots.finish();
    for (slot, &item) in batch.iter().enumerate() {
        eye.see(item, pictures.pixels(slot).context("a slot without picture")?);
    }
    Ok(())
}

/// What is known of an item: hash of all bytes, and its edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Learnt {
    hash: u64,
    edges: [[u8; 8]; 2],
}

/// Looks at what arrives.
pub struct Eye {
    look: Look,
    file: Vec<u8>,
    item_bytes: usize,
    known: Arc<Vec<Learnt>>,
    seen: parking_lot::Mutex<Vec<Learnt>>,
    items: AtomicU64,
    bytes: AtomicU64,
    wrong: AtomicU64,
    levels: parking_lot::Mutex<Levels>,
}

impl Eye {
    fn new(look: &Look, shape: Shape, known: Arc<Vec<Learnt>>) -> Result<Self> {
        let file = match look {
            Look::File(path) => std::fs::read(path)?,
            _ => Vec::new(),
        };
        if matches!(look, Look::Edges | Look::Verify) && known.len() != shape.items {
            bail!("nothing was learnt to compare with");
        }
        let seen = if *look == Look::Learn { vec![Learnt::default(); shape.items] } else { Vec::new() };
        Ok(Self {
            look: look.clone(),
            file,
            item_bytes: shape.item_bytes,
            known,
            seen: seen.into(),
            items: 0.into(),
            bytes: 0.into(),
            wrong: 0.into(),
            levels: Levels::default().into(),
        })
    }

    /// Item `item` arrived.
    pub fn see(&self, item: u32, bytes: &[u8]) {
        let index = item as usize;
        let right = bytes.len() == self.item_bytes
            && match &self.look {
                Look::Edges => self.known[index].edges == edges(bytes),
                Look::Verify => self.known[index].hash == xxh3_64(bytes),
                Look::File(_) => {
                    let right = self.file.get(index * self.item_bytes..(index + 1) * self.item_bytes).unwrap_or_default();
                    let levels = Levels::between(bytes, right);
                    let mut all = self.levels.lock();
                    *all = all.and(levels);
                    levels.is_none()
                }
                Look::Learn => {
                    self.seen.lock()[index] = Learnt { hash: xxh3_64(bytes), edges: edges(bytes) };
                    true
                }
            };
        self.items.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Relaxed);
        self.wrong.fetch_add(u64::from(!right), Relaxed);
    }

    fn learnt(self) -> Vec<Learnt> {
        self.seen.into_inner()
    }
}

fn edges(bytes: &[u8]) -> [[u8; 8]; 2] {
    [bytes.first_chunk().copied().unwrap_or_default(), bytes.last_chunk().copied().unwrap_or_default()]
}
