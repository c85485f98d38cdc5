//! Real nodes as processes, for tests and for the bench: started, told to end, killed, frozen, thawed and started again, each on ports
//! and in a folder that stay its own. Whatever becomes of the caller, no process outlives the [`Fleet`].

mod look;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use framecache::quic::{self, Windows};
use framecache::tls::{self, TlsFiles};
use framecache::{ClientConfig, View};
use futures::future::join_all;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

pub use look::{http_get, view_over};

use crate::authority::Authority;

/// Longest start of a node, and longest end beyond its drain: a cold machine under load takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest wait for one node's view: a frozen one does not answer.
const VIEW_MAX: Duration = Duration::from_secs(2);

/// How often views are looked at while they are waited for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Most nodes that one is told of: gossip brings the others.
const SEEDS_MAX: usize = 8;

/// What all nodes of a fleet are told. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's binary.
    pub program: PathBuf,
    /// Where certificates, configurations, logs and caches are kept.
    pub folder: PathBuf,
    /// The only bucket.
    pub bucket: String,
    /// The S3 face that it is read from.
    pub origin: SocketAddr,
    /// `bucket.freshness`.
    pub freshness: &'static str,
    /// `node.memory_limit`.
    pub memory: u64,
    /// `cache.raw_ram`.
    pub raw_ram: u64,
    /// `cache.decoded_ram`.
    pub decoded_ram: u64,
    /// `cache.disk`; 0 for none.
    pub disk: u64,
    /// `decode.workers`.
    pub workers: usize,
    /// `cluster.settle_s`.
    pub settle: Duration,
    /// `cluster.drain_s`.
    pub drain: Duration,
}

/// Where a node lives.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where it listens.
    pub ip: IpAddr,
    /// What stands in front of its command, to run it in a network of its own; nothing: beside everybody else on loopback.
    pub inside: Vec<String>,
}

impl Place {
    /// On loopback.
    pub fn loopback() -> Self {
        Self { ip: Ipv4Addr::LOCALHOST.into(), inside: Vec::new() }
    }
}

/// One node's place, and its process while it has one.
#[derive(Debug)]
pub struct Member {
    /// Its name.
    pub id: String,
    /// Where it speaks QUIC.
    pub quic: SocketAddr,
    /// Where operators look.
    pub admin: SocketAddr,
    /// `node.weight` from its next start on.
    pub weight: f64,
    gossip: SocketAddr,
    liveness: SocketAddr,
    inside: Vec<String>,
    folder: PathBuf,
    process: Option<Child>,
    frozen: bool,
}

impl Member {
    /// Its process, if it has one.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().and_then(Child::id)
    }

    /// The end of its log, for messages.
    pub fn last_words(&self) -> String {
        let log = fs::read_to_string(self.folder.join("node.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        format!("{} said last: {}", self.id, lines.into_iter().rev().collect::<Vec<_>>().join(" | "))
    }

    fn signal(&self, number: i32) -> Result<()> {
        let pid = self.pid().with_context(|| format!("{} does not run", self.id))?;
        ensure!(signal(pid, number), "{} had ended before signal {number}: {}", self.id, self.last_words());
        Ok(())
    }
}

/// Nodes of one cluster.
pub struct Fleet {
    /// They, in the order in which they were added.
    pub members: Vec<Member>,
    settings: Settings,
    authority: Authority,
}

impl Fleet {
    /// A fleet without nodes.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn new(settings: Settings) -> Result<Self> {
        fs::create_dir_all(&settings.folder)?;
        let authority = Authority::make(&settings.folder)?;
        // Not a secret: it lives as long as the folder.
        fs::write(settings.folder.join("cluster.keys"), format!("{}\n", "5a".repeat(32)))?;
        Ok(Self { members: Vec::new(), settings, authority })
    }

    /// `count` nodes on loopback that know each other and are ready.
    ///
    /// # Errors
    /// A node ended, or is not ready or does not know the others after a minute; its last words are in the message.
    pub async fn start(settings: Settings, count: usize) -> Result<Self> {
        let mut fleet = Self::new(settings)?;
        for _ in 0..count {
            fleet.add(&Place::loopback())?;
        }
        fleet.start_all().await?;
        Ok(fleet)
    }

    /// Starts all that do not run, and waits until all know each other.
    ///
    /// # Errors
    /// As [`Fleet::start`].
    pub async fn start_all(&mut self) -> Result<()> {
        let down: Vec<usize> = (0..self.members.len()).filter(|&index| self.members[index].process.is_none()).collect();
        down.iter().try_for_each(|&index| self.launch(index))?;
        for &index in &down {
            self.ready(index).await?;
        }
        self.agreed(PATIENCE).await?;
        Ok(())
    }

    /// A place for one more node, which is not started; its number.
    ///
    /// # Errors
    /// No free ports; the folder cannot be written.
    pub fn add(&mut self, place: &Place) -> Result<usize> {
        let id = format!("node-{}", self.members.len());
        let folder = self.settings.folder.join(&id);
        fs::create_dir_all(folder.join("data"))?;
        let names = [id.clone(), place.ip.to_string(), "localhost".into(), "127.0.0.1".into(), "::1".into()];
        self.authority.issue(&folder, &names)?;
        // In a network of its own every port is free.
        let ports = if place.inside.is_empty() { free_ports(place.ip)? } else { [4433, 4434, 4435, 9433] };
        let [quic, gossip, liveness, admin] = ports.map(|port| SocketAddr::new(place.ip, port));
        let inside = place.inside.clone();
        let member = Member { id, quic, admin, weight: 1.0, gossip, liveness, inside, folder, process: None, frozen: false };
        self.members.push(member);
        Ok(self.members.len() - 1)
    }

    /// Starts the process of a node, on the ports and with the cache that it had before, and does not wait.
    ///
    /// # Errors
    /// It runs already, or cannot be started.
    pub fn launch(&mut self, index: usize) -> Result<()> {
        let text = self.toml(index);
        let member = &mut self.members[index];
        ensure!(member.process.is_none(), "{} runs already", member.id);
        let config = member.folder.join("node.toml");
        fs::write(&config, text)?;
        let log = fs::OpenOptions::new().create(true).append(true).open(member.folder.join("node.log"))?;
        let program = self.settings.program.to_str().context("the program's path is not text")?;
        let words: Vec<&str> = member.inside.iter().map(String::as_str).chain([program, "serve", "--config"]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(&config).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        member.process = Some(command.spawn().with_context(|| format!("start {}", words[0]))?);
        member.frozen = false;
        Ok(())
    }

    /// Waits until a node says that it is ready; how long that took.
    ///
    /// # Errors
    /// It ended, or is not ready after a minute.
    pub async fn ready(&mut self, index: usize) -> Result<Duration> {
        let begun = Instant::now();
        let member = &mut self.members[index];
        while !http_get(member.admin, "/ready").await.is_ok_and(|(status, _)| status == 200) {
            let process = member.process.as_mut().with_context(|| format!("{} was not started", member.id))?;
            if let Some(status) = process.try_wait()? {
                bail!("{} ended with {status}: {}", member.id, member.last_words());
            }
            ensure!(begun.elapsed() < PATIENCE, "{} is not ready after {PATIENCE:?}: {}", member.id, member.last_words());
            sleep(Duration::from_millis(5)).await;
        }
        Ok(begun.elapsed())
    }

    /// Tells a node to leave, and does not wait until it has.
    ///
    /// # Errors
    /// It had ended before.
    pub fn terminate(&self, index: usize) -> Result<()> {
        self.members[index].signal(libc::SIGTERM)
    }

    /// Waits until a node that was told to leave has ended; how long that took.
    ///
    /// # Errors
    /// It does not end, or not in order.
    pub async fn ended(&mut self, index: usize) -> Result<Duration> {
        let begun = Instant::now();
        let most = PATIENCE + self.settings.drain;
        let member = &mut self.members[index];
        let process = member.process.as_mut().with_context(|| format!("{} was not started", member.id))?;
        let status = timeout(most, process.wait()).await;
        let status = status.with_context(|| format!("{} does not end within {most:?}: {}", member.id, member.last_words()))??;
        member.process = None;
        ensure!(status.success(), "{} ended with {status}: {}", member.id, member.last_words());
        Ok(begun.elapsed())
    }

    /// Ends a node as a power cut would.
    ///
    /// # Errors
    /// It had ended before: then its last words say why.
    pub async fn kill(&mut self, index: usize) -> Result<()> {
        let member = &mut self.members[index];
        member.signal(libc::SIGKILL)?;
        if let Some(mut process) = member.process.take() {
            process.wait().await?;
        }
        member.frozen = false;
        Ok(())
    }

    /// Stops a node in the middle of whatever it does.
    ///
    /// # Errors
    /// It had ended before.
    pub fn freeze(&mut self, index: usize) -> Result<()> {
        self.members[index].signal(libc::SIGSTOP)?;
        self.members[index].frozen = true;
        Ok(())
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It had ended before.
    pub fn thaw(&mut self, index: usize) -> Result<()> {
        self.members[index].signal(libc::SIGCONT)?;
        self.members[index].frozen = false;
        Ok(())
    }

    /// The nodes that run and are not frozen.
    pub fn running(&self) -> Vec<usize> {
        let runs = |index: &usize| self.members[*index].process.is_some() && !self.members[*index].frozen;
        (0..self.members.len()).filter(runs).collect()
    }

    /// The configuration of a client that asks any of them.
    pub fn client_config(&self) -> ClientConfig {
        let addresses: Vec<String> = self.members.iter().map(|member| member.quic.to_string()).collect();
        let mut config = ClientConfig::new(&addresses.join(","));
        config.tls.ca = Some(self.authority.ca.clone());
        config
    }

    /// The cluster as one node sees it now.
    ///
    /// # Errors
    /// It does not answer within two seconds.
    pub async fn view(&self, index: usize) -> Result<View> {
        let member = &self.members[index];
        let asked = async {
            let files = TlsFiles { ca: Some(self.authority.ca.clone()), ..TlsFiles::default() };
            let host = member.quic.ip().to_string();
            let mut config = tls::client(&files, &host)?;
            config.transport_config(std::sync::Arc::new(quic::transport(Windows::client(4 << 20), None)));
            let endpoint = quic::endpoint(quic::bind(([0, 0, 0, 0], 0).into())?, None)?;
            let connection = endpoint.connect_with(config, member.quic, &host)?.await?;
            let view = view_over(&connection).await;
            connection.close(0u32.into(), b"seen");
            view
        };
        timeout(VIEW_MAX, asked).await.with_context(|| format!("{} does not say its view", member.id))?
    }

    /// Waits until every node that runs knows all that run, and no others, as members; how long that took.
    ///
    /// # Errors
    /// They do not within that time; the message says who sees what.
    pub async fn agreed(&self, within: Duration) -> Result<Duration> {
        let running = self.running();
        self.agreed_on(&running, &running, within).await
    }

    /// Waits until `askers` all see exactly `members` as the cluster's members, each in its present life.
    ///
    /// # Errors
    /// As [`Fleet::agreed`].
    pub async fn agreed_on(&self, askers: &[usize], members: &[usize], within: Duration) -> Result<Duration> {
        let begun = Instant::now();
        let mut wanted: Vec<&str> = members.iter().map(|&index| self.members[index].id.as_str()).collect();
        wanted.sort_unstable();
        loop {
            let views = join_all(askers.iter().map(|&index| self.view(index))).await;
            let sees = |view: &View| -> Vec<(String, u32, u64)> {
                view.members().map(|row| (row.id.clone(), row.weight, row.incarnation)).collect()
            };
            let seen: Vec<Option<Vec<_>>> = views.iter().map(|view| view.as_ref().ok().map(sees)).collect();
            let right = |seen: &Option<Vec<(String, u32, u64)>>| {
                seen.as_ref().is_some_and(|rows| rows.iter().map(|row| row.0.as_str()).eq(wanted.iter().copied()))
            };
            if seen.iter().all(right) && seen.windows(2).all(|pair| pair[0] == pair[1]) {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() >= within {
                let told = |(&index, view): (&usize, &Result<View>)| {
                    let saw = view.as_ref().map_or_else(|error| format!("{error:#}"), |view| format!("{:?}", sees(view)));
                    format!("{} sees {saw}; {}", self.members[index].id, self.members[index].last_words())
                };
                let all: Vec<String> = askers.iter().zip(&views).map(told).collect();
                bail!("views do not agree on {wanted:?} within {within:?}: {}", all.join("\n"));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// The page of metrics of a node.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn metrics(&self, index: usize) -> Result<String> {
        let (status, text) = http_get(self.members[index].admin, "/metrics").await?;
        ensure!(status == 200, "/metrics of {} answers {status}", self.members[index].id);
        Ok(text)
    }

    /// Tells all to end, and waits until they have.
    ///
    /// # Errors
    /// One had ended before, does not end, or not in order.
    pub async fn stop(mut self) -> Result<()> {
        let running: Vec<usize> = (0..self.members.len()).filter(|&index| self.members[index].process.is_some()).collect();
        for &index in &running {
            if self.members[index].frozen {
                self.thaw(index)?;
            }
            self.terminate(index)?;
        }
        for index in running {
            self.ended(index).await?;
        }
        Ok(())
    }

    fn toml(&self, index: usize) -> String {
        let (settings, member) = (&self.settings, &self.members[index]);
        let others = self.members.iter().filter(|other| other.id != member.id).take(SEEDS_MAX);
        let seeds: Vec<String> = others.map(|other| other.gossip.to_string()).collect();
        let disk = if settings.disk > 0 { settings.disk.to_string() } else { "\"off\"".into() };
        let Member { id, quic, admin, gossip, liveness, weight, folder, .. } = member;
        let Settings { memory, raw_ram, decoded_ram, workers, bucket, origin, freshness, .. } = settings;
        let (data, keys) = (folder.join("data"), settings.folder.join("cluster.keys"));
        let (ca, cert, key) = (&self.authority.ca, folder.join("cert.pem"), folder.join("key.pem"));
        let (settle_s, drain_s) = (settings.settle.as_secs(), settings.drain.as_secs());
        // A node at every address that knows no other has no cluster: its row says that it is where it was reached.
        let alone = seeds.is_empty() && quic.ip().is_unspecified();
        let keys = if alone { String::new() } else { format!("keys = {keys:?}\n") };
        let within = |address: &SocketAddr| if alone { SocketAddr::from(([127, 0, 0, 1], address.port())) } else { *address };
        let (gossip, liveness) = (within(gossip), within(liveness));
        format!(
            "[node]\nid = \"{id}\"\nweight = {weight:?}\ndata_dir = {data:?}\nmemory_limit = {memory}\n\
             [listen]\nquic = \"{quic}\"\nadmin = \"{admin}\"\ngossip = \"{gossip}\"\nliveness = \"{liveness}\"\n\
             [cache]\nraw_ram = {raw_ram}\ndecoded_ram = {decoded_ram}\ndisk = {disk}\n[decode]\nworkers = {workers}\n\
             [cluster]\nseeds = {seeds:?}\nsettle_s = {settle_s}\ndrain_s = {drain_s}\n{keys}\
             [[bucket]]\nname = \"{bucket}\"\nendpoint = \"http://{origin}\"\ncredentials = \"anonymous\"\n\
             freshness = \"{freshness}\"\n[tls]\nca = {ca:?}\ncert = {cert:?}\nkey = {key:?}\n\
             [auth]\npolicy = \"allow-all\"\n[telemetry]\nlog = \"warn\"\n"
        )
    }
}

/// Sends a signal to a process of ours that has not been waited for; `false` if it has ended.
pub fn signal(pid: u32, number: i32) -> bool {
    // SAFETY: takes numbers only.
    i32::try_from(pid).is_ok_and(|pid| unsafe { libc::kill(pid, number) } == 0)
}

/// Where ports are looked for: under the range from which the kernel gives sockets that name none. A node that is down must not find
/// its port taken by a client's socket when it comes back.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Four ports that are free now, for UDP and TCP alike. Another process may take one before the node does; then the node says so.
fn free_ports(ip: IpAddr) -> Result<[u16; 4]> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let width = PORTS.end - PORTS.start;
    // Test programs that run side by side begin at different places.
    let first = u16::try_from(std::process::id().wrapping_mul(97) % u32::from(width))?;
    let mut found = Vec::new();
    for _ in 0..width {
        let step = NEXT.fetch_add(1, Relaxed) % width;
        let port = PORTS.start + (first + step) % width;
        if UdpSocket::bind((ip, port)).is_ok() && TcpListener::bind((ip, port)).is_ok() {
            found.push(port);
        }
        if let Ok(ports) = <[u16; 4]>::try_from(&found[..]) {
            return Ok(ports);
        }
    }
    bail!("no free ports at {ip} in {PORTS:?}")
}
