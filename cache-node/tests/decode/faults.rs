//! Workers die; nobody else notices.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use framecache::ByteRange;
use framecache_node::decode::{DecodeError, Decoder, PoolSettings, Source, SourceError, WorkerPool};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::{PICTURE, ask_one, deadline, job, object, settings, start};

/// Promise: a picture that ends its worker does so twice, however many ask for it at once, and is then refused; others are served.
#[tokio::test(flavor = "multi_thread")]
async fn poison_pill_costs_two_workers() {
    for (fault, cause) in [
        ("crash", "SIGSEGV"),
        ("hang", "CPU time limit"),
        ("leak", "memory limit"),
        ("parent", "SIGSYS"),
        ("babble", "protocol violation"),
        ("lie", "protocol violation"),
    ] {
        let deadline = Duration::from_secs(100);
        let pool = start(PoolSettings { worker_memory: 256 << 20, cpu_seconds: 1, deadline, ..settings() }).await;
        let askers = (0..64).map(|_| tokio::spawn(poisoned(pool.clone(), fault)));
        let bystanders = (0..8).map(|n| {
            let pool = pool.clone();
            tokio::spawn(async move { ask_one(&pool, &format!("good-{n}"), PICTURE).await })
        });
        let (askers, bystanders): (Vec<_>, Vec<_>) = (askers.collect(), bystanders.collect());
        for bystander in bystanders {
            bystander.await.expect("task").expect("a bystander is served");
        }
        for asker in askers {
            match asker.await.expect("task") {
                Err(DecodeError::Quarantined { deaths: 2, cause: said, .. }) => assert_eq!(said, cause),
                other => panic!("{fault}: {other:?}"),
            }
        }
        let stats = pool.stats();
        assert_eq!((stats.deaths_judged, stats.deaths_lost, stats.quarantined, stats.inside), (2, 0, 1, 0), "{fault}");
        ask_one(&pool, "after", PICTURE).await.expect("served afterwards");
        pool.close().await;
    }
}

async fn poisoned(pool: WorkerPool, fault: &'static str) -> Result<framecache::Tensor, DecodeError> {
    ask_one(&pool, "poison", format!("FCTEST:{fault}")).await
}

/// Promise: a worker can open, make or list no file, be it of `/proc` or in shared memory, reach no socket of any kind, start no process
/// and no thread, signal nobody and lift no limit of its own; a library that tries goes on without.
#[tokio::test]
async fn sandbox_refuses() {
    let pool = start(settings()).await;
    for attempt in [
        "open", "create", "list", "memory", "shm", "udp", "tcp", "unix", "abstract", "pair", "fork", "thread", "execve",
        "signal", "limit",
    ] {
        let error = ask_one(&pool, attempt, format!("FCTEST:{attempt}")).await.expect_err("an answer in words");
        assert_eq!(error.to_string(), format!("undecodable (unknown): {attempt} refused: permission denied"));
    }
    assert_eq!(pool.stats().started, 1, "refused, not killed");
    pool.close().await;
}

/// Promise: a worker that asks for what no library looks around for (its parent, other processes and their memory, memory files, rings,
/// programs in the kernel, namespaces, more of a descriptor, pages to execute) is ended, and its picture judged.
#[tokio::test]
async fn sandbox_ends() {
    let pool = start(settings()).await;
    for attempt in
        ["parent", "others", "ptrace", "peek", "memfd", "segment", "uring", "bpf", "unshare", "grow", "dup", "exec-page"]
    {
        match ask_one(&pool, attempt, format!("FCTEST:{attempt}")).await {
            Err(DecodeError::Quarantined { deaths: 2, cause, .. }) => assert_eq!(cause, "SIGSYS", "{attempt}"),
            other => panic!("{attempt}: {other:?}"),
        }
    }
    pool.close().await;
}

/// Promise: a production pool obeys no planted fault: such bytes are just no picture.
#[tokio::test]
async fn planted_faults_need_the_setting() {
    let pool = start(PoolSettings { test_codecs: false, ..settings() }).await;
    let error = ask_one(&pool, "a", "FCTEST:crash").await.expect_err("refused");
    assert!(matches!(error, DecodeError::Undecodable { .. }), "{error}");
    assert_eq!(pool.stats().jobs, 0);
    pool.close().await;
}

/// A source that gives the header, and the rest only once its gate is open (closed as a semaphore, that is).
struct Held {
    reached: Notify,
    gate: Semaphore,
}

#[async_trait]
impl Source for Held {
    async fn read(&self, range: ByteRange) -> Result<Bytes, SourceError> {
        if range.start() > 0 {
            self.reached.notify_one();
            let _ = self.gate.acquire().await;
        }
        Ok(Bytes::from_static(PICTURE).slice(range.start() as usize..range.end() as usize))
    }
}

/// Small windows, so that a worker asks for ranges.
fn in_windows() -> PoolSettings {
    PoolSettings { whole_bytes_max: 0, window_bytes: 50, ..settings() }
}

/// Promise: a worker killed from outside in mid-decode is made up for, and not held against the picture.
#[tokio::test]
async fn outside_kill_is_retried() {
    let pool = start(in_windows()).await;
    let held = Arc::new(Held { reached: Notify::new(), gate: Semaphore::new(0) });
    let ask = tokio::spawn({
        let (pool, source) = (pool.clone(), held.clone());
        async move { pool.decode(job("a", source, PICTURE.len() as u64, &["image"]), deadline()).await }
    });
    held.reached.notified().await;
    let pid = pool.stats().pids[0];
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("kill");
    held.gate.close();
    ask.await.expect("task").expect("unit").remove(0).expect("picture");
    let stats = pool.stats();
    assert_eq!((stats.deaths_judged, stats.deaths_lost, stats.quarantined), (0, 1, 0));
    assert!(!stats.pids.contains(&pid));
    pool.close().await;
}

/// Promise: a worker that stops without using CPU time is killed by the clock, retried, and the picture not judged.
#[tokio::test]
async fn stall_ends_by_the_clock() {
    let pool = start(PoolSettings { deadline: Duration::from_millis(300), ..settings() }).await;
    let error = ask_one(&pool, "a", "FCTEST:stall").await.expect_err("no answer");
    assert!(matches!(&error, DecodeError::WorkerLost(cause) if cause == "wall-clock limit"), "{error}");
    let stats = pool.stats();
    assert_eq!((stats.deaths_judged, stats.deaths_lost, stats.quarantined), (0, 3, 0));
    pool.close().await;
}

/// Promise: the caller's deadline is kept though its worker does not answer, and the others are served.
#[tokio::test]
async fn deadline_is_kept() {
    let pool = start(PoolSettings { deadline: Duration::from_secs(2), ..settings() }).await;
    let bytes = object("FCTEST:stall");
    let soon = Instant::now() + Duration::from_millis(50);
    let answer = pool.decode(job("a", bytes, 12, &["image"]), soon).await;
    assert!(matches!(answer, Err(DecodeError::Deadline)), "{answer:?}");
    ask_one(&pool, "b", PICTURE).await.expect("served");
    pool.close().await;
    assert_eq!(pool.stats().deaths_lost, 1, "nobody waits: not retried");
}

/// Promise: when all workers die, the next jobs are served as if nothing had been.
#[tokio::test]
async fn all_workers_dead_recovers() {
    let pool = start(settings()).await;
    let all = |round: usize| {
        let pool = pool.clone();
        (0..8).map(move |n| {
            let pool = pool.clone();
            async move { ask_one(&pool, &format!("{round}-{n}"), PICTURE).await }
        })
    };
    for round in 0..5 {
        // One worker may do them all, where it is at rest again before the next job looks for one: asked until both are there.
        let mut pids = Vec::new();
        for _ in 0..100 {
            for answer in futures::future::join_all(all(round)).await {
                answer.expect("served");
            }
            pids = pool.stats().pids;
            if pids.len() == 2 {
                break;
            }
        }
        assert_eq!(pids.len(), 2);
        for pid in pids {
            kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("kill");
        }
    }
    ask_one(&pool, "last", PICTURE).await.expect("served");
    assert_eq!(pool.stats().quarantined, 0);
    pool.close().await;
}

/// Promise: a source's error comes back as it was, and its worker goes on.
#[tokio::test]
async fn source_errors_come_back() {
    struct Failing;
    #[async_trait]
    impl Source for Failing {
        async fn read(&self, range: ByteRange) -> Result<Bytes, SourceError> {
            match range.start() {
                0 => Ok(Bytes::from_static(PICTURE).slice(..range.end() as usize)),
                _ => Err(SourceError::new(std::io::Error::from(std::io::ErrorKind::ConnectionReset))),
            }
        }
    }
    let pool = start(in_windows()).await;
    let answer = pool.decode(job("a", Arc::new(Failing), PICTURE.len() as u64, &["image"]), deadline()).await;
    let Err(DecodeError::Source(error)) = answer else { panic!("not the source's error: {}", answer.is_ok()) };
    let kind = error.0.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    assert_eq!(kind, Some(std::io::ErrorKind::ConnectionReset));
    ask_one(&pool, "b", PICTURE).await.expect("served");
    assert_eq!((pool.stats().started, pool.stats().deaths_lost), (1, 0));
    pool.close().await;
}

/// Promise: workers are replaced by count, and closing ends them all.
#[tokio::test]
async fn workers_are_recycled_and_closed() {
    let pool = start(PoolSettings { workers: 1, recycle_jobs: 3, ..settings() }).await;
    for n in 0..10 {
        ask_one(&pool, &n.to_string(), PICTURE).await.expect("served");
    }
    let stats = pool.stats();
    assert_eq!((stats.jobs, stats.started, stats.recycled), (10, 4, 3));
    pool.close().await;
    assert!(stats.pids.iter().all(|&pid| kill(Pid::from_raw(pid as i32), None).is_err()), "reaped");
    assert!(ask_one(&pool, "late", PICTURE).await.is_err());
}

/// Promise: beyond the queue a job is told so at once, with a time.
#[tokio::test]
async fn full_queue_is_busy() {
    let pool = start(PoolSettings { workers: 1, deadline: Duration::from_secs(1), ..settings() }).await;
    let soon = Instant::now() + Duration::from_millis(200);
    let one = |n: usize| pool.decode(job(&n.to_string(), object("FCTEST:stall"), 12, &["image"]), soon);
    let answers = futures::future::join_all((0..80).map(one)).await;
    let busy = answers.iter().filter(|answer| matches!(answer, Err(DecodeError::Busy { retry_after }) if !retry_after.is_zero()));
    assert!(busy.count() >= 80 - 65, "{}", pool.stats().busy);
    assert_eq!(pool.stats().inside, 0);
    pool.close().await;
}

/// Promise: no damaged picture hurts the node, outlives its limit, or goes unanswered.
#[tokio::test(flavor = "multi_thread")]
async fn mutants_are_survived() {
    let seed = std::env::var("FRAMECACHE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(17u64);
    println!("seed: {seed}");
    let vectors: Vec<Vec<u8>> = ["baseline420", "baseline444", "gray", "progressive", "cmyk", "restart"]
        .map(|name| std::fs::read(format!("{}/tests/golden/jpeg/{name}.jpg", env!("CARGO_MANIFEST_DIR"))).expect("vector"))
        .into();
    let pool = start(settings()).await;
    let mut random = Random(seed);
    let (mut decoded, mut refused) = (0, 0);
    for n in 0..1000 {
        let mut bytes = vectors[n % vectors.len()].clone();
        random.damage(&mut bytes);
        match ask_one(&pool, &n.to_string(), bytes).await {
            Ok(_) => decoded += 1,
            Err(DecodeError::Undecodable { .. } | DecodeError::Unsupported { .. } | DecodeError::TooLarge { .. }) => refused += 1,
            Err(other) => panic!("mutant {n} of seed {seed}: {other}"),
        }
    }
    println!("mutants: {decoded} decoded, {refused} refused, {} judged deaths", pool.stats().deaths_judged);
    assert!(decoded > 100 && refused > 100, "the damage is neither nothing nor all");
    pool.close().await;
}

/// A small generator (xorshift64*): the tests need no more.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }

    /// A cut, flipped bits, zeroed, inserted or repeated bytes.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len());
        match self.below(5) {
            0 => bytes.truncate(at),
            1 => (0..=self.below(8)).for_each(|_| {
                let at = self.below(bytes.len());
                bytes[at] ^= 1 << self.below(8);
            }),
            2 => {
                let end = (at + self.below(64)).min(bytes.len());
                bytes[at..end].fill(0);
            }
            3 => drop(bytes.splice(at..at, (0..self.below(16)).map(|n| (n * 37) as u8).collect::<Vec<_>>())),
            _ => {
                let marker = [0xff, 0xc0 + self.below(64) as u8];
                drop(bytes.splice(at..at, marker));
            }
        }
    }
}
