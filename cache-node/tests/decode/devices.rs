//! Workers of a GPU, without one: what their sandbox leaves open and what it does not, and what ends them.

use std::path::Path;
use std::time::Duration;

use framecache_node::decode::{DecodeError, Engine, PoolSettings, StartError, WorkerPool};

use super::{ask_one, settings, start};

fn of_gpu() -> PoolSettings {
    PoolSettings { engine: Engine::Gpu, ..settings() }
}

/// Promise: a machine without a GPU says so, by the file that is missed, and no worker is left.
#[tokio::test]
async fn no_gpu_is_refused_in_words() {
    if Path::new("/dev/nvidiactl").exists() {
        return println!("there is a device: nothing to refuse");
    }
    let refused = WorkerPool::start(PoolSettings { test_codecs: false, ..of_gpu() }).await.err().expect("no device");
    assert!(matches!(refused, StartError::NoDevice(_)));
    assert_eq!(refused.to_string(), "no NVIDIA driver: libcuda.so.1 not found");
}

/// Promise: a GPU's worker starts threads, as a driver does, and still can open no file of the node's, write none, reach no socket of any
/// kind, start no process, touch no other, and run no memory that it wrote; what it tries is refused, and nothing ends.
#[tokio::test]
async fn the_sandbox_of_a_gpu_refuses() {
    let pool = start(of_gpu()).await;
    for attempt in [
        "open",
        "create",
        "list",
        "memory",
        "shm",
        "udp",
        "tcp",
        "unix",
        "abstract",
        "pair",
        "fork",
        "execve",
        "signal",
        "others",
        "ptrace",
        "peek",
        "memfd",
        "segment",
        "uring",
        "bpf",
        "unshare",
        "grow",
        "exec-page",
    ] {
        let error = ask_one(&pool, attempt, format!("FCTEST:{attempt}")).await.expect_err("an answer in words");
        assert_eq!(error.to_string(), format!("undecodable (unknown): {attempt} refused: permission denied"));
    }
    let error = ask_one(&pool, "thread", "FCTEST:thread").await.expect_err("an answer in words");
    assert_eq!(error.to_string(), "undecodable (unknown): thread allowed");
    assert_eq!(pool.stats().started, 1, "refused, not killed");
    pool.close().await;
}

/// Promise: where addresses are not limited, a worker that grows beyond its memory is ended all the same, and its input judged; so is one
/// that takes processor time without end.
#[tokio::test(flavor = "multi_thread")]
async fn growth_and_time_are_judged() {
    let pool =
        start(PoolSettings { worker_memory: 256 << 20, cpu_seconds: 1, deadline: Duration::from_secs(100), ..of_gpu() }).await;
    for (fault, cause) in [("leak", "resident memory limit"), ("hang", "CPU time limit"), ("crash", "SIGSEGV")] {
        match ask_one(&pool, fault, format!("FCTEST:{fault}")).await {
            Err(DecodeError::Quarantined { deaths: 2, cause: said, .. }) => assert_eq!(said, cause),
            other => panic!("{fault}: {other:?}"),
        }
    }
    assert_eq!((pool.stats().deaths_judged, pool.stats().deaths_lost), (6, 0));
    pool.close().await;
}
