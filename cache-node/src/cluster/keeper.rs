//! The one task in which the room's parts meet: gossip brings statements, the liveness thread says who is heard, certificates are
//! proved, [`super::membership`] judges, [`super::own`] says what we say, and out come the view and our own texts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use framecache::View;
use framecache::wire::NodeRow;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::clocks::Heard;
use super::complaint::Complaint;
use super::gossip::Gossip;
use super::keys::{Keychain, Keys, Purpose, Secret};
use super::liveness::{Aim, Liveness};
use super::membership::Membership;
use super::own::Own;
use super::proofs::Proofs;
use super::rumour::row_to_text;
use super::seeds::Seeds;
use super::stats::{ClusterStats, Counters, add};

/// Time between two looks at everything; also the least time between two views, but for those that lost somebody.
const LOOK: Duration = Duration::from_millis(50);

/// A task on the runtime has run: twice in each ping's interval and more.
const PROGRESS: Duration = Duration::from_millis(100);

/// Least time between two looks, whatever happens: gossip of a large cluster comes in bursts.
const LOOK_GAP: Duration = Duration::from_millis(20);

/// Time between two contacts with seeds: of a node that is alone with up to [`SEEDS_ALONE`] of them, else with one in turn, so that
/// sides of a partition that forgot each other meet again.
const SEED_ALONE: Duration = Duration::from_millis(500);
const SEEDS_ALONE: usize = 16;
const SEED: Duration = Duration::from_secs(2);

/// Nodes to which news of our own is brought at once: with their rounds it is everywhere within one more.
const PUSH: usize = 8;
/// The same for a node that leaves, which has no more rounds.
const PUSH_LEAVING: usize = 64;

/// Up to this many nodes news is also fetched from whoever says that it has some; in larger clusters all would come to one at once.
const FETCH_NODES_MAX: usize = 64;
const FETCH_GAP: Duration = Duration::from_millis(200);

/// Judged anew after this, even if nothing was learned: who is gone is forgotten, and proofs are asked for again.
const JUDGE_AGAIN: Duration = Duration::from_millis(500);

/// Time between two looks at the key file.
const KEYS_LOOK: Duration = Duration::from_secs(2);

/// How soon a node is heard once more that began too far from now.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Time between two starts of gossip that failed.
const GOSSIP_PAUSE: Duration = Duration::from_secs(1);

/// Gossip of that age has told of everybody.
const GOSSIP_YOUNG: Duration = Duration::from_secs(60);

/// What the face asks for. Answered when the others know, or the keeper gave up waiting for it.
pub(super) enum Command {
    Weight(u32),
    Leave(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

/// The longest that a leave, and the last word, wait until the others know.
pub(super) const HEARD_TIME: Duration = Duration::from_secs(1);

/// What the face shows.
pub(super) struct Shown {
    pub(super) views: watch::Sender<Arc<View>>,
    pub(super) row: watch::Sender<NodeRow>,
    pub(super) stats: Arc<Mutex<ClusterStats>>,
}

/// The keys of both purposes, and what they were derived from.
pub(super) struct Chains {
    pub(super) keys: Keys,
    pub(super) cluster: String,
    pub(super) read: Vec<Secret>,
    pub(super) gossip: Arc<ArcSwap<Keychain>>,
    pub(super) liveness: Arc<ArcSwap<Keychain>>,
}

/// Everything that the task owns.
pub(super) struct Keeper {
    pub(super) own: Own,
    pub(super) membership: Membership,
    pub(super) gossip: Gossip,
    pub(super) liveness: Liveness,
    pub(super) seeds: Seeds,
    pub(super) chains: Chains,
    pub(super) counters: Arc<Counters>,
    pub(super) shown: Shown,
    pub(super) changed: Arc<Notify>,
    pub(super) met: mpsc::Receiver<SocketAddr>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) proofs: Proofs,
    pub(super) times: Times,
    /// Whether something was learned since it was judged last.
    pub(super) dirty: bool,
    pub(super) judged: LastJudged,
    pub(super) aimed: Aim,
    /// What was said last: the row and the rumour.
    pub(super) said: (NodeRow, String),
    /// Whose row was fetched when.
    pub(super) fetched: BTreeMap<String, Instant>,
    /// Who waits until the others know, since when, and whether for the last word.
    pub(super) waiting: Option<(oneshot::Sender<()>, Instant, bool)>,
}

/// By what it was judged last, and what came of it.
pub(super) struct LastJudged {
    heard: Arc<Heard>,
    own: (u64, u64),
    at: Instant,
    /// Not published yet.
    view: Option<View>,
    /// Whether somebody was lost since a view was published.
    lost: bool,
}

/// When what was done last.
pub(super) struct Times {
    begun: Instant,
    published: Option<Instant>,
    progress: Instant,
    seeds: Option<Instant>,
    keys: Instant,
    keys_fail: bool,
    rival: Complaint,
    early: Complaint,
    /// When a node was last not heard that began too far from now.
    refused: Option<Instant>,
    unsaid: Complaint,
    refuted: Complaint,
    gossip_started: Instant,
    turn: usize,
}

impl LastJudged {
    pub(super) fn nothing() -> Self {
        Self { heard: Arc::default(), own: (0, 0), at: Instant::now(), view: None, lost: false }
    }
}

impl Times {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            published: None,
            progress: now,
            seeds: None,
            keys: now,
            keys_fail: false,
            rival: Complaint::default(),
            early: Complaint::default(),
            refused: None,
            unsaid: Complaint::default(),
            refuted: Complaint::default(),
            gossip_started: now,
            turn: 0,
        }
    }
}

impl Keeper {
    /// Keeps membership until the last word is said, or the face is dropped.
    pub(super) async fn keep(mut self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut heard, changed) = (self.liveness.heard.clone(), self.changed.clone());
        let mut news = true;
        loop {
            tokio::select! {
                _ = look.tick() => {}
                _ = heard.changed() => {}
                () = changed.notified() => news = true,
                Some(address) = self.met.recv() => self.gossip.contact(address),
                row = self.proofs.next() => {
                    self.membership.prove(&row);
                    self.dirty = true;
                }
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => break,
                },
            }
            if news || self.times.refused.is_some_and(|then| then.elapsed() >= READ_AGAIN) {
                news = false;
                self.read_news().await;
            }
            let now_heard = heard.borrow_and_update().clone();
            if self.look(&now_heard).await {
                break;
            }
            tokio::time::sleep(LOOK_GAP).await;
        }
        let Self { gossip, liveness, waiting, .. } = self;
        gossip.close().await;
        // A twentieth of a second, on a thread where that harms nobody.
        let _ = tokio::task::spawn_blocking(move || liveness.close()).await;
        drop(waiting);
    }

    fn now(&self) -> Duration {
        self.times.begun.elapsed()
    }

    fn obey(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Weight(weight) => self.own.set_weight(weight, now),
            Command::Leave(told) => {
                self.own.leave();
                self.waiting = Some((told, Instant::now(), false));
            }
            Command::Close(told) => {
                self.own.end();
                self.waiting = Some((told, Instant::now(), true));
            }
        }
    }

    async fn read_news(&mut self) {
        let Some(news) = self.gossip.news().await else {
            tracing::error!("gossip tells of more nodes than a cluster may have; it begins again");
            return self.restart_gossip().await;
        };
        let unix_ms = unix_ms();
        self.times.refused = None;
        for (row, rumour, gossip) in news.said {
            if !self.membership.is_due(&row, unix_ms) {
                if self.times.early.is_due(Instant::now()) {
                    tracing::warn!(
                        node = row.id,
                        "node began more than a day from now, by our clock: set both clocks; it is not heard"
                    );
                }
                // It may be by and by: clocks are set.
                self.gossip.read_again(&row.id);
                self.times.refused = Some(Instant::now());
                continue;
            }
            // Our own statement, or of a former life of ours, comes back to us.
            let former = row.id == self.own.row().id && row.incarnation <= self.own.row().incarnation;
            if former {
                let now = self.now();
                self.own.remember(&row, now);
            }
            if !former && !self.membership.hear(row, rumour, gossip) {
                tracing::debug!("more nodes than a view may hold");
            }
        }
        // Gossip that has just begun anew does not tell of everybody yet.
        if self.times.gossip_started.elapsed() >= GOSSIP_YOUNG {
            self.membership.keep(&news.told_of);
        }
        self.dirty = true;
    }

    /// Looks at everything once. Whether it was for the last time.
    async fn look(&mut self, heard: &Arc<Heard>) -> bool {
        let (now, instant) = (self.now(), Instant::now());
        if instant - self.times.progress >= PROGRESS {
            self.times.progress = instant;
            self.liveness.advance();
            self.look_at_keys(instant);
            if self.gossip.has_ended() && instant - self.times.gossip_started >= GOSSIP_PAUSE {
                tracing::error!("gossip failed on what was said; it begins again");
                self.restart_gossip().await;
            }
        }
        self.own.tick(now);
        self.answer_rival(heard, instant);
        // Who knows more of us than we said was told so by somebody else.
        let known = heard.known_at.values().copied().max().filter(|version| *version > self.own.row().version);
        let told = heard.told_gone.max(self.membership.told_gone(self.own.row())).max(known);
        if told.is_some_and(|version| self.own.refute(version, now)) {
            add(&self.counters.refutations);
            if self.times.refuted.is_due(instant) {
                tracing::warn!(version = self.own.row().version, "others held this node for gone; it says that it is not");
            }
        }
        let judged = &self.judged;
        let same = Arc::ptr_eq(&judged.heard, heard) && judged.own == (self.own.row().incarnation, self.own.row().version);
        if !same || self.dirty || instant - judged.at >= JUDGE_AGAIN {
            self.judge(heard, instant);
            self.proofs.ask(self.membership.unproved().cloned().collect(), instant);
            self.say(heard).await;
            self.aim();
        }
        self.publish(instant);
        self.contact_seeds(heard, instant);
        self.fetch(heard, instant);
        self.answer_waiting(heard)
    }

    /// Makes the view of what is known now.
    fn judge(&mut self, heard: &Arc<Heard>, now: Instant) {
        let judged = self.membership.judge(self.own.row(), heard, unix_ms() / 1000);
        for id in &judged.lost {
            add(&self.counters.losses);
            tracing::warn!(node = id, "node is gone: more than half of the others cannot hear it");
        }
        {
            let mut stats = self.shown.stats.lock();
            (stats.unproved, stats.silent) = (self.membership.unproved().count() as u64, heard.silent.len() as u64);
        }
        self.dirty = false;
        let own = (self.own.row().incarnation, self.own.row().version);
        self.judged = LastJudged {
            heard: heard.clone(),
            own,
            at: now,
            view: Some(judged.view),
            lost: self.judged.lost || !judged.lost.is_empty(),
        };
    }

    /// Tells the thread whom to listen to.
    fn aim(&mut self) {
        let (incarnation, version) = self.judged.own;
        let aim = Aim { incarnation, version, targets: self.membership.targets(self.own.row()) };
        if self.aimed != aim {
            self.liveness.aim(aim.clone());
            self.aimed = aim;
        }
    }

    /// A later life of our own name: takes the name back from one that is over, complains of one that is not.
    fn answer_rival(&mut self, heard: &Heard, now: Instant) {
        let Some((rival, lives)) = self.membership.rival(self.own.row(), heard, unix_ms()) else { return };
        let (address, incarnation) = (rival.quic.clone(), rival.incarnation);
        if !lives {
            return self.own.succeed(incarnation);
        }
        if self.times.rival.is_due(now) {
            let id = &self.own.row().id;
            tracing::error!(
                node = id,
                rival = address,
                "another node has this node's name and started later: it has the name, this one serves nobody; give each its own `node.id`"
            );
        }
    }

    /// Publishes what changed of our row and rumour, and brings it to some others at once.
    async fn say(&mut self, heard: &Heard) {
        let rumour = self.membership.rumour(heard).to_text().unwrap_or_default();
        if self.said.0 == *self.own.row() && self.said.1 == rumour {
            return;
        }
        let Some(row) = row_to_text(self.own.row()) else {
            if self.times.unsaid.is_due(Instant::now()) {
                tracing::error!(row = ?self.own.row(), "own row passes a bound and cannot be said");
            }
            return;
        };
        self.gossip.say(&row, &rumour).await;
        if self.said.0 != *self.own.row() {
            self.shown.row.send_replace(self.own.row().clone());
        }
        self.said = (self.own.row().clone(), rumour);
        let gossips = self.membership.gossips();
        let count = gossips.len().min(if self.waiting.is_some() { PUSH_LEAVING } else { PUSH });
        for at in 0..count {
            self.gossip.contact(gossips[(self.times.turn + at) % gossips.len()]);
        }
        self.times.turn = self.times.turn.wrapping_add(count);
    }

    /// Publishes the view, if it is another one and its time has come.
    fn publish(&mut self, now: Instant) {
        let recent = self.times.published.is_some_and(|then| now - then < LOOK);
        if recent && !self.judged.lost {
            return;
        }
        self.judged.lost = false;
        let Some(view) = self.judged.view.take().filter(|view| **self.shown.views.borrow() != *view) else { return };
        self.times.published = Some(now);
        add(&self.counters.views);
        let nodes = view.rows().fold([0; 4], |mut nodes, row| {
            nodes[usize::from(row.state.min(3))] += 1;
            nodes
        });
        self.shown.stats.lock().nodes = nodes;
        self.shown.views.send_replace(Arc::new(view));
    }

    fn contact_seeds(&mut self, heard: &Heard, now: Instant) {
        let alone = self.membership.live(heard).next().is_none();
        self.seeds.set_alone(alone);
        let (pause, count) = if alone { (SEED_ALONE, SEEDS_ALONE) } else { (SEED, 1) };
        if self.times.seeds.is_none_or(|then| now - then >= pause) {
            let seeds = self.seeds.next(count);
            if !seeds.is_empty() {
                self.times.seeds = Some(now);
            }
            seeds.into_iter().for_each(|address| self.gossip.contact(address));
        }
    }

    /// Fetches the rows of those that say they have a newer one.
    fn fetch(&mut self, heard: &Heard, now: Instant) {
        self.fetched.retain(|_, then| now - *then < FETCH_GAP);
        if heard.known_at.len() > FETCH_NODES_MAX {
            return;
        }
        for id in &heard.ahead {
            if let Some(address) = self.membership.gossip_of(id).filter(|_| !self.fetched.contains_key(id)) {
                self.fetched.insert(id.clone(), now);
                self.gossip.contact(address);
            }
        }
    }

    /// Answers whoever waits until the others know; true if that was about the last word.
    fn answer_waiting(&mut self, heard: &Heard) -> bool {
        let Some((_, since, last)) = &self.waiting else { return false };
        let version = self.own.row().version;
        let known = self.membership.live(heard).all(|id| heard.known_at.get(id).is_some_and(|at| *at >= version));
        if !known && since.elapsed() < HEARD_TIME {
            return false;
        }
        if *last {
            return true;
        }
        if let Some((told, ..)) = self.waiting.take() {
            let _ = told.send(());
        }
        false
    }

    async fn restart_gossip(&mut self) {
        self.times.gossip_started = Instant::now();
        add(&self.counters.gossip_restarts);
        match self.gossip.restart().await {
            // Everything is to be said again.
            Ok(()) => (self.said.1, self.dirty) = (String::new(), true),
            Err(error) => tracing::error!(%error, "gossip cannot be started; it is tried again"),
        }
    }

    fn look_at_keys(&mut self, now: Instant) {
        if now - self.times.keys < KEYS_LOOK {
            return;
        }
        self.times.keys = now;
        match self.chains.keys.read() {
            Ok(read) if read != self.chains.read => {
                tracing::info!(keys = read.len(), "cluster keys changed");
                self.chains.take(read);
                self.times.keys_fail = false;
            }
            Ok(_) => self.times.keys_fail = false,
            Err(error) if !self.times.keys_fail => {
                tracing::warn!(%error, "the new key file is not usable; the keys stay as they were");
                self.times.keys_fail = true;
            }
            Err(_) => {}
        }
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Chains {
    /// Derives the keys of both purposes.
    pub(super) fn new(keys: Keys, cluster: &str, read: Vec<Secret>) -> Self {
        let chain = |purpose| Arc::new(ArcSwap::from_pointee(Keychain::derive(&read, purpose, cluster)));
        let (gossip, liveness) = (chain(Purpose::Gossip), chain(Purpose::Liveness));
        Self { keys, cluster: cluster.into(), read, gossip, liveness }
    }

    fn take(&mut self, read: Vec<Secret>) {
        for (chain, purpose) in [(&self.gossip, Purpose::Gossip), (&self.liveness, Purpose::Liveness)] {
            chain.store(Arc::new(Keychain::derive(&read, purpose, &self.cluster)));
        }
        self.read = read;
    }
}
