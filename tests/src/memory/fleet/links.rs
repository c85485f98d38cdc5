//! What one node asks of the others, over links that are late, cut or lead to the dead. Each call does at the other end what `serve` does
//! there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use framecache::wire::NodeRow;
use framecache::{ByteRange, DecodeSpec, Error, ErrorKind, Lent, ObjectId, Page, RouteKey, Version};
use framecache_node::budget::{Level, Reservation};
use framecache_node::cache::{Body, Entry};
use framecache_node::cluster::{Members, Peers, Piece};
use framecache_node::read::{ReadError, Terms, Way};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Bug, Life, Net, told};

/// How long a node that could not be reached is left out.
const DOUBT: Duration = Duration::from_secs(1);

/// How soon a caller knows that a peer is silent.
const SILENCE: Duration = Duration::from_millis(300);

/// The links of one node.
pub(super) struct Links {
    members: Arc<Members>,
    net: Arc<Net>,
    alive: watch::Receiver<bool>,
    doubted: Mutex<HashMap<String, Instant>>,
    heads: Mutex<HashMap<String, Lent>>,
    /// What nobody gives back.
    kept: Mutex<Vec<Reservation>>,
}

impl Links {
    pub(super) fn new(members: Arc<Members>, net: Arc<Net>, alive: watch::Receiver<bool>) -> Self {
        Self { members, net, alive, doubted: Mutex::default(), heads: Mutex::default(), kept: Mutex::default() }
    }

    fn has(&self, bug: Bug) -> bool {
        self.net.bug == Some(bug)
    }

    fn is_doubtful(&self, row: &NodeRow) -> bool {
        self.doubted.lock().get(&row.id).is_some_and(|since| since.elapsed() < DOUBT)
    }

    /// One call: the way there, the work at the other end, the way back.
    async fn call<T>(
        &self,
        node: &NodeRow,
        deadline: Instant,
        work: impl AsyncFnOnce(&Life) -> Result<T, ReadError>,
    ) -> Result<T, Error> {
        let own = self.members.id();
        let away = |why: &str| Error::new(ErrorKind::Unavailable, why);
        let cut = |from: &str, to: &str| self.net.cuts.lock().iter().any(|(a, b)| a == from && b == to);
        let way = || Duration::from_millis(self.net.dice.lock().within(0..self.net.ms_max));
        let exchange = async {
            sleep(way()).await;
            let seat = self.net.seats.lock().iter().find(|seat| seat.name == node.id).cloned();
            let life = seat.map(|seat| seat.life.lock().clone());
            let (Some(life), true, false) = (life, *self.alive.borrow(), cut(own, &node.id)) else {
                sleep(SILENCE).await;
                return Err(away("silent"));
            };
            let answer = life.lasting(work(&life)).await;
            sleep(way()).await;
            match answer {
                Some(answer) if !cut(&node.id, own) => answer.map_err(|error| told(&error)),
                _ => {
                    sleep(SILENCE).await;
                    Err(away("silent"))
                }
            }
        };
        let answer = timeout_at(deadline, exchange).await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Timeout, "late")));
        if answer.as_ref().is_err_and(|error| error.kind == ErrorKind::Unavailable) {
            self.doubted.lock().insert(node.id.clone(), Instant::now());
        }
        answer
    }

    fn terms(&self, deadline: Instant) -> Terms {
        let way = if self.has(Bug::Circle) { Way::Server } else { Way::ForPeer };
        Terms { deadline, way, doubts: false, caller: "".into() }
    }
}

#[async_trait]
impl Peers for Links {
    fn server(&self, key: RouteKey) -> Option<NodeRow> {
        let topology = self.members.topology();
        topology.server(key).filter(|row| row.id != self.members.id() && !self.is_doubtful(row)).cloned()
    }

    /// A sign of life comes, or does not, at once here.
    fn doubt(&self, key: RouteKey) {
        let topology = self.members.topology();
        let Some(row) = topology.server(key) else { return };
        let own = self.members.id();
        if self.net.cuts.lock().iter().any(|(from, to)| (from == own && *to == row.id) || (*from == row.id && to == own)) {
            self.doubted.lock().insert(row.id.clone(), Instant::now());
        }
    }

    fn holders(&self, key: RouteKey) -> Vec<NodeRow> {
        let topology = self.members.topology();
        let holders = topology.holders(key, self.members.id()).into_iter().filter(|row| !self.is_doubtful(row)).cloned();
        holders.take(if self.has(Bug::PeekStopsEarly) { 1 } else { usize::MAX }).collect()
    }

    fn decoders(&self) -> Vec<NodeRow> {
        let topology = self.members.topology();
        topology.view().decoders().filter(|row| row.id != self.members.id() && !self.is_doubtful(row)).cloned().collect()
    }

    async fn peek(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        piece: Piece<'_>,
        version: Option<&Version>,
        most: u64,
        deadline: Instant,
    ) -> Result<Option<Lent>, Error> {
        if self.has(Bug::LeavingSilent) && node.state == 2 {
            return Ok(None);
        }
        let piece = match piece {
            Piece::Page(page) if self.has(Bug::WrongPage) => Piece::Page(Page::new(page.index() ^ 1)),
            piece => piece,
        };
        let asked = version.filter(|_| !self.has(Bug::PinIgnored));
        self.call(node, deadline, async |life: &Life| {
            let Some(entry) = life.world.reader.held_piece(id, piece, asked, deadline).await else { return Ok(None) };
            let bytes = entry.body.bytes().len() as u64;
            let reservation = life.world.reader.try_reserve(Level::Peek, bytes)?;
            if self.has(Bug::MemoryKept) {
                self.kept.lock().push(reservation);
            }
            let lent = lent(entry, life);
            let version = version.cloned().unwrap_or_else(|| lent.version.clone());
            Ok((bytes <= most).then_some(Lent { version, ..lent }))
        })
        .await
    }

    async fn read(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        range: ByteRange,
        version: Option<&Version>,
        _: &str,
        deadline: Instant,
    ) -> Result<Lent, Error> {
        if let Some(kept) = self.heads.lock().get(id.key()).filter(|_| range.is_empty() && self.has(Bug::HeadKept)) {
            return Ok(kept.clone());
        }
        let terms = self.terms(deadline);
        let got =
            self.call(node, deadline, async |life: &Life| life.world.read_for_peer(id, range, version, &terms).await).await?;
        if range.is_empty() {
            self.heads.lock().insert(id.key().to_owned(), got.clone());
        }
        Ok(got)
    }

    async fn frame(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        spec: &DecodeSpec,
        version: Option<&Version>,
        most: u64,
        _: &str,
        deadline: Instant,
    ) -> Result<Lent, Error> {
        let (terms, spec) = (self.terms(deadline), self.spec(spec));
        let ask = async |life: &Life| {
            let served = life.world.reader.frame(id, &spec, version, &terms).await?;
            Ok(lent(Entry { head: served.head, body: Body::Frame(served.tensor) }, life))
        };
        let lent = self.call(node, deadline, ask).await?;
        let bytes = lent.bytes.len() as u64;
        if bytes > most {
            return Err(Error::new(ErrorKind::TooLarge, format!("{bytes} bytes, at most {most} were asked for")));
        }
        Ok(lent)
    }

    async fn decode(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        version: &Version,
        specs: &[DecodeSpec],
        _: u64,
        _: &str,
        deadline: Instant,
    ) -> Result<Vec<Result<Lent, Error>>, Error> {
        // As `serve` does: the bytes come from whoever serves them.
        let terms = Terms { way: Way::Server, ..self.terms(deadline) };
        let specs: Vec<DecodeSpec> = specs.iter().map(|spec| self.spec(spec)).collect();
        let ask = async |life: &Life| {
            let (each, _memory) = life.world.reader.decode_for_peer(id, version, &specs, &terms).await?;
            Ok(each.into_iter().map(|made| made.map(|made| lent(made, life)).map_err(|error| told(&error))).collect())
        };
        self.call(node, deadline, ask).await
    }
}

impl Links {
    fn spec(&self, spec: &DecodeSpec) -> DecodeSpec {
        match self.has(Bug::WrongSpec) {
            true => "image?size=12x16".parse().expect("a spec"),
            false => spec.clone(),
        }
    }
}

fn lent(entry: Entry, life: &Life) -> Lent {
    let Entry { head, body } = entry;
    let (tensor, bytes) = match body {
        Body::Raw(bytes) => (None, bytes),
        Body::Frame(tensor) => (Some(tensor.head), tensor.data),
    };
    let age = life.world.reader.age(&head);
    Lent { version: head.version, size: head.size, age, tensor, bytes }
}
