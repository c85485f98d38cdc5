//! The program as operators meet it: exit codes, sentences, signals, its log.

use std::net::{TcpListener, UdpSocket};
use std::process::{Output, Stdio};
use std::time::Duration;

use framecache::ErrorKind;
use framecache_tests::faulty::{Fault, Rule};
use framecache_tests::harness::id;
use framecache_tests::media::PLAIN;
use framecache_tests::served::{Served, command};
use tokio::time::{Instant, timeout};

fn run(text: &str, more: &[&str]) -> Output {
    let state = tempfile::tempdir().expect("folder");
    let file = state.path().join("node.toml");
    std::fs::write(&file, text).expect("write");
    let path = file.display().to_string();
    let arguments = [&["serve", "--config", &path], more].concat();
    command(state.path(), &arguments).output().expect("run")
}

const LOOPBACK: &str = "[node]\nid = \"n\"\n[listen]\nquic = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[decode]\nworkers = 1\n";

/// Promise: a configuration that cannot be meant, or cannot run here, ends the program with code 2 and one sentence that
/// names the key and what to write instead.
#[test]
fn wrong_configuration_is_code_2_and_one_sentence() {
    let taken_udp = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let taken_tcp = TcpListener::bind("127.0.0.1:0").expect("socket");
    let (udp, tcp) = (taken_udp.local_addr().expect("address"), taken_tcp.local_addr().expect("address"));
    let foreign = tempfile::tempdir().expect("folder");
    std::fs::create_dir(foreign.path().join("cache")).expect("folder");
    std::fs::write(foreign.path().join("cache/thesis.tex"), "x").expect("file");
    let foreign = foreign.path().display();
    for (text, parts) in [
        ("[node]\nmemory_limt = \"1GiB\"\n".into(), &["memory_limt", "did you mean `node.memory_limit`"][..]),
        ("[nodes]\nid = \"n\"\n".into(), &["nodes", "did you mean `node`"]),
        ("[decode]\nworkers = \"many\"\n".into(), &["decode.workers", "many"]),
        ("[node]\nmemory_limit = \"lots\"\n".into(), &["node.memory_limit", "lots"]),
        ("[cache]\ndisk = \"1GiB\"\n".into(), &["cache.disk", "node.data_dir"]),
        ("[node\n".into(), &["not TOML"]),
        ("[listen]\nquic = \"0.0.0.0:4433\"\n".into(), &["listen.quic", "tls"]),
        ("[node]\ndata_dir = \"/proc/nowhere\"\nmemory_limit = \"1GiB\"\n[cache]\ndisk = \"64MiB\"\n".into(), &["node.data_dir"]),
        (
            LOOPBACK.replace("[listen]", "memory_limit = \"64MiB\"\n[listen]"),
            &["node.memory_limit", "raise it or lower `cache.raw_ram`"],
        ),
        (LOOPBACK.replace("quic = \"127.0.0.1:0\"", &format!("quic = \"{udp}\"")), &["listen.quic", "set another"]),
        (LOOPBACK.replace("admin = \"127.0.0.1:0\"", &format!("admin = \"{tcp}\"")), &["listen.admin", "set another"]),
        (
            LOOPBACK.replace(
                "[listen]",
                &format!("data_dir = \"{foreign}\"\nmemory_limit = \"2GiB\"\n[cache]\ndisk = \"64MiB\"\n[listen]"),
            ),
            &["thesis.tex", "node.data_dir"],
        ),
    ] as [(String, &[&str]); 12]
    {
        let output = run(&text, &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}\n{said}");
        let sentence =
            said.lines().rfind(|line| line.starts_with("framecache-node: ")).unwrap_or_else(|| panic!("{text}\n{said}"));
        for part in parts {
            assert!(sentence.contains(part), "{text}\n{said}\nwant: {part}");
        }
    }
    let said = |output: Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let state = tempfile::tempdir().expect("folder");
    let missing = command(state.path(), &["serve", "--config", "/nowhere.toml"]).output().expect("run");
    assert_eq!(missing.status.code(), Some(2));
    assert!(said(missing).contains("/nowhere.toml"));
    assert_eq!(command(state.path(), &["serve", "--nope"]).output().expect("run").status.code(), Some(2));
}

/// Promise: `--check-config` says whether a file would run, and starts nothing.
#[test]
fn check_config_checks() {
    let output = run(&LOOPBACK.replace("[listen]", "memory_limit = \"1GiB\"\n[listen]"), &["--check-config"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("configuration is valid: node n"));
    assert_eq!(run("[node]\nnope = 1\n", &["--check-config"]).status.code(), Some(2));
}

/// Promise: a variable of somebody else's may hold anything; an own one that is no text is a sentence; a full disk under standard
/// output is an exit code.
#[test]
fn surroundings_end_nothing() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let state = tempfile::tempdir().expect("folder");
    std::fs::write(state.path().join("node.toml"), LOOPBACK.replace("[listen]", "memory_limit = \"1GiB\"\n[listen]"))
        .expect("write");
    let check = || {
        let mut check = Served::serve(state.path());
        check.arg("--check-config");
        check
    };
    let odd = OsStr::from_bytes(b"\xff");
    assert_eq!(check().env("LESSCHARSET", odd).env(odd, "x").output().expect("run").status.code(), Some(0));
    let refused = check().env("FRAMECACHE_NODE__ID", odd).output().expect("run");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("`FRAMECACHE_NODE__ID` is not UTF-8"), "{said}");
    let full = std::fs::File::options().write(true).open("/dev/full").expect("open");
    let full = check().stdout(full).stderr(Stdio::piped()).spawn().expect("start").wait_with_output().expect("run");
    let said = String::from_utf8_lossy(&full.stderr);
    assert!(full.status.code() == Some(1) && said.contains("standard output"), "{said}");
}

const ANONYMOUS: &str = "credentials = \"anonymous\"\n";

const TABLES: &str = "[node]\nid = \"n\"\ndata_dir = \"STATE/data\"\nmemory_limit = \"1GiB\"\n\
                      [cache]\nraw_ram = \"64MiB\"\ndecoded_ram = \"64MiB\"\ndisk = \"256MiB\"\n[decode]\nworkers = 1\n";

/// Promise: at SIGTERM a request that is under way is answered whole, a new one is sent on, and the program ends with code 0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_drains() {
    let mut served = Served::start(TABLES, ANONYMOUS, &[]).await;
    std::fs::write(served.data.path().join("k"), b"whole").expect("write");
    served.origin.set(Rule::gets(Fault::DelayFirstByte(Duration::from_millis(1500))));
    let client = served.client();
    let under_way = tokio::spawn({
        let client = client.clone();
        async move { client.read(&id("k"), 0, None, &Default::default()).await }
    });
    timeout(Duration::from_secs(10), served.origin.asked(1)).await.expect("asked");
    served.terminate();
    let brief = framecache::Call { timeout: Some(Duration::from_millis(700)), ..Default::default() };
    let deadline = Instant::now() + Duration::from_secs(1);
    // Until the signal has arrived, others are still answered.
    while client.stat(&id("none"), &brief).await.is_err_and(|error| error.kind == ErrorKind::NotFound) {
        assert!(Instant::now() < deadline, "a leaving node takes new requests");
    }
    let raw = under_way.await.expect("task").expect("the request under way is answered");
    assert_eq!(raw.bytes, &b"whole"[..]);
    assert_eq!(served.ended().await, Some(0), "{}", served.log.lock());
}

/// Promise: two programs never share a cache folder: the second is refused with a sentence, the first serves on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_has_one_node() {
    let served = Served::start(TABLES, ANONYMOUS, &[]).await;
    std::fs::write(served.data.path().join("k"), b"on").expect("write");
    let second = Served::serve(served.state.path()).stderr(Stdio::piped()).spawn().expect("start");
    let second = tokio::task::spawn_blocking(|| second.wait_with_output().expect("run")).await.expect("task");
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(said.contains("in use by another process") && said.contains("node.data_dir"), "{said}");
    let raw = served.client().read(&id("k"), 0, None, &Default::default()).await.expect("the first serves on");
    assert_eq!(raw.bytes, &b"on"[..]);
}

/// Promise: no log line, at whatever level, holds a credential or a signed header.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_holds_no_secret() {
    let env = [
        ("AWS_ACCESS_KEY_ID", "AKIDm4rker"),
        ("AWS_SECRET_ACCESS_KEY", "s3cretm4rker"),
        ("AWS_SESSION_TOKEN", "t0kenm4rker"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    let mut served = Served::start(&format!("{TABLES}[telemetry]\nlog = \"trace\"\n"), "credentials = \"chain\"\n", &env).await;
    std::fs::write(served.data.path().join("k.jpg"), PLAIN.file).expect("write");
    let (client, call) = (served.client(), Default::default());
    client.read(&id("k.jpg"), 0, None, &call).await.expect("read");
    client.stat(&id("k.jpg"), &call).await.expect("stat");
    client.list("s3://photos/", None, 10, &call).await.expect("list");
    client.read(&id("missing"), 0, None, &call).await.expect_err("missing");
    served.origin.set(Rule::gets(Fault::Status(403)));
    client.read(&id("denied"), 0, None, &call).await.expect_err("denied");
    served.origin.set(Rule::first(1, Fault::CloseMidBody(3)));
    client.read(&id("k.jpg"), 0, None, &call).await.expect("held");
    assert!(served.origin.stats().signed > 3, "nothing was signed, so nothing was tried");
    client.close().await;
    served.terminate();
    served.ended().await;
    let log = served.log.lock().clone();
    assert!(log.lines().count() > 100 && log.contains("TRACE"), "that is no log at trace");
    for secret in ["s3cretm4rker", "t0kenm4rker", "AWS4-HMAC-SHA256 Credential"] {
        let found = log.lines().find(|line| line.to_lowercase().contains(&secret.to_lowercase()));
        assert!(found.is_none(), "the log holds {secret:?}: {found:?}");
    }
    let found = log.lines().find(|line| line.to_lowercase().contains("authorization"));
    assert!(found.is_none_or(|line| !line.contains("Signature=")), "{found:?}");
}

/// Promise: a node that shall decode on a GPU alone says why it does not start where there is none; one that may go on without warns.
#[test]
fn a_gpu_is_there_or_missed_in_words() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        return println!("there is a device: nothing to refuse");
    }
    let check = |engines: &str| {
        let limited = LOOPBACK.replace("[listen]", "memory_limit = \"1GiB\"\n[listen]");
        let output = run(&format!("{limited}engines = {engines}\n"), &["--check-config"]);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let why = "no NVIDIA driver: libcuda.so.1 not found";
    let (code, said) = check("[\"gpu\"]");
    assert!(code == Some(2) && said.contains("`decode.engines` names \"gpu\" alone") && said.contains(why), "{said}");
    let (code, said) = check("[\"gpu\", \"cpu\"]");
    assert!(code == Some(0) && said.contains(&format!("warning: no GPU decodes: {why}; the CPU decodes everything")), "{said}");
    let (code, said) = check("[\"cpu\"]");
    assert!(code == Some(0) && !said.contains("GPU"), "{said}");
}
