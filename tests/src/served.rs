//! The program as it is deployed, before a folder that is served through an origin that fails on demand; and what `/proc` says of it.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use framecache::{Client, ClientConfig};
use framecache_node::dev::origin::FolderOrigin;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

use crate::faulty::{FaultyOrigin, Script};
use crate::harness::{self, BUCKET, program};

/// The program with a state folder of its own and nothing of this environment.
pub fn command(state: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("framecache-node"));
    command.env_clear().env("HOME", state).env("XDG_STATE_HOME", state).args(arguments);
    command
}

/// `framecache-node serve`, its origin, and its folders, which end with it.
pub struct Served {
    /// Where its configuration and its data are.
    pub state: TempDir,
    /// The bucket.
    pub data: TempDir,
    /// What stands between the bucket and the program.
    pub origin: FaultyOrigin,
    /// What it has said so far.
    pub log: Arc<Mutex<String>>,
    child: Child,
    quic: SocketAddr,
    admin: SocketAddr,
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    /// Starts the program and waits until it says where it answers. `tables` are those of its configuration but for `[listen]`; the keys of
    /// its one bucket come last.
    pub async fn start(tables: &str, bucket: &str, env: &[(&str, &str)]) -> Self {
        let (state, data) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let upstream = listener.local_addr().expect("address");
        tokio::spawn(FolderOrigin::open(data.path(), BUCKET).expect("open").serve(listener, std::future::pending()));
        let origin = FaultyOrigin::start(upstream, Script::default()).await.expect("origin");
        let text = format!(
            "{}\n[listen]\nquic = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
             [[bucket]]\nname = \"{BUCKET}\"\nendpoint = \"http://{}\"\n{bucket}",
            tables.replace("STATE", &state.path().display().to_string()),
            origin.addr()
        );
        fs::write(state.path().join("node.toml"), text).expect("write");
        let mut child = Self::serve(state.path()).envs(env.iter().copied()).stderr(Stdio::piped()).spawn().expect("start");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr"));
        let log = Arc::new(Mutex::new(String::new()));
        let kept = log.clone();
        let (found, addresses) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let mut found = Some(found);
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                let address = |name: &str| line.split(name).nth(1)?.split_whitespace().next()?.parse::<SocketAddr>().ok();
                let addresses = line.contains("node answers").then(|| address("quic=").zip(address("admin="))).flatten();
                if let Some((addresses, found)) = addresses.and_then(|addresses| Some((addresses, found.take()?))) {
                    let _ = found.send(addresses);
                }
                kept.lock().push_str(&line);
                line.clear();
            }
        });
        let addresses = timeout(Duration::from_secs(20), addresses).await.expect("it answers in time");
        let (quic, admin) = addresses.unwrap_or_else(|_| panic!("it ended: {}", log.lock()));
        Self { state, data, origin, log, child, quic, admin }
    }

    /// The same program on the same folder, not started yet.
    pub fn serve(state: &Path) -> Command {
        let mut command = command(state, &["serve"]);
        command.arg("--config").arg(state.join("node.toml"));
        command
    }

    /// A client of its own.
    pub fn client(&self) -> Client {
        let mut config = ClientConfig::new(&self.quic.to_string());
        config.tls.ca = Some(self.ca());
        Client::new(config).expect("client")
    }

    /// The file of the authority that signed it.
    pub fn ca(&self) -> PathBuf {
        self.state.path().join("framecache/ca.pem")
    }

    /// Writes an object.
    pub fn put(&self, key: &str, bytes: &[u8]) {
        fs::write(self.data.path().join(key), bytes).expect("write");
    }

    /// Everything on its `/metrics`, by series.
    pub async fn metrics(&self) -> HashMap<String, f64> {
        harness::series(&harness::http(self.admin, "/metrics").await)
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        assert!(kill(self.child.id(), libc::SIGTERM), "it had ended before");
    }

    /// Its exit code, once it has ended: 15 seconds at most.
    pub async fn ended(&mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end: {}", self.log.lock());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Its decoders, as the kernel has them: processes that it started and that have not ended.
    pub fn workers(&self) -> Vec<u32> {
        let processes =
            fs::read_dir("/proc").expect("proc").flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        processes.filter(|&pid| parent(pid) == Some(self.child.id())).collect()
    }

    /// What it holds now, its decoders included.
    pub fn held(&self) -> Held {
        let mut held = Held::default();
        let mut files = HashMap::new();
        for entry in fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs").flatten() {
            // A descriptor may be closed between the two looks.
            let target = fs::read_link(entry.path()).unwrap_or_default().to_string_lossy().into_owned();
            *if target.starts_with("socket:") { &mut held.sockets } else { &mut held.descriptors } += 1;
            if let Some(file) = fs::metadata(entry.path()).ok().filter(|_| target.starts_with("/memfd:")) {
                files.insert(file.ino(), file.blocks() * 512);
            }
        }
        (held.shared_files, held.shared_bytes) = (files.len(), files.values().sum());
        held.decoders_bytes = self.workers().into_iter().filter_map(pss_bytes).sum();
        held.pss_bytes = held.decoders_bytes + pss_bytes(self.child.id()).unwrap_or(0);
        held
    }
}

/// What a node holds at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Descriptors of the node itself that are no sockets.
    pub descriptors: usize,
    /// Sockets of the node itself: to clients, decoders, origins.
    pub sockets: usize,
    /// Files that live in memory, which it shares with its decoders.
    pub shared_files: usize,
    /// Bytes in those.
    pub shared_bytes: u64,
    /// Proportional memory of node and decoders together. A page of a shared file counts here only while a decoder has it mapped.
    pub pss_bytes: u64,
    /// What of that is the decoders'.
    pub decoders_bytes: u64,
}

/// Sends a signal to one process; `false` if it has ended in this instant.
pub fn kill(pid: u32, signal: i32) -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::kill(pid as i32, signal) == 0 }
}

/// The parent of a process that has not ended: field 4 of `/proc/PID/stat`, behind the name in brackets.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    fields.next().filter(|state| *state != "Z")?;
    fields.next()?.parse().ok()
}

fn pss_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
