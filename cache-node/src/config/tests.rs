//! What the loader promises, on a host of 64 GiB and 8 cores whose container may use 32 GiB.

use super::*;

fn host() -> Host {
    Host { name: "host-1".into(), cores: 8, ram: 64 << 30, cgroup_memory: Some(32 << 30) }
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    parse_with(text, &[])
}

fn parse_with(text: &str, env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    Config::parse("node.toml", text, env, &host())
}

fn refusal(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

/// An empty file is a working node on loopback.
#[test]
fn defaults_are_sane() {
    let config = parse("").expect("empty");
    assert_eq!(config.node.id, "host-1");
    assert_eq!(config.node.memory_limit, 16 << 30, "half of the container, not of the host");
    assert_eq!((config.cache.raw_ram, config.cache.decoded_ram), (4 << 30, 4 << 30));
    assert_eq!((config.cache.disk, config.cache.admission), (None, Admission::Keep));
    assert_eq!(config.decode.workers, 8);
    assert_eq!((config.decode.worker_memory, config.decode.pixels_max), (3 << 30, 178_956_970));
    assert_eq!(config.decode.deadline, Duration::from_secs(30));
    assert_eq!(config.listen.quic.to_string(), "127.0.0.1:4433");
    assert_eq!(config.listen.admin.to_string(), "127.0.0.1:9433");
    assert_eq!(config.auth.policy, AuthPolicy::AllowAll);
    assert_eq!(config.warnings().len(), 1, "only the missing bucket: {:?}", config.warnings());
}

/// Every key's example in the table loads, in the file and as a variable, and means the same.
#[test]
fn every_example_loads() {
    let mut file = String::new();
    for (at, key) in KEYS.iter().enumerate() {
        if at == 0 || KEYS[at - 1].table != key.table {
            file += &if key.table == "bucket" { "[[bucket]]\n".to_string() } else { format!("[{}]\n", key.table) };
        }
        file += &format!("{} = {}\n", key.name, key.example);
    }
    let from_file = parse(&file).expect(&file);
    let env: Vec<_> = KEYS
        .iter()
        .map(|key| {
            let plain = key.example.replace(['[', ']', '"'], "");
            (key.variable(), plain)
        })
        .collect();
    let from_env = Config::parse("", "", env.into_iter(), &host()).expect("environment");
    assert_eq!(from_file, from_env);
}

/// The docs' table is the loader's table, row by row.
#[test]
fn the_docs_list_every_key() {
    let docs = include_str!("../../../docs/CONFIGURATION.md");
    let rows: Vec<_> = docs.lines().filter(|line| line.starts_with("| `")).collect();
    let wanted: Vec<_> = KEYS.iter().map(Key::row).collect();
    assert!(rows == wanted, "the table of docs/CONFIGURATION.md should be:\n{}", wanted.join("\n"));
}

/// A refusal names the key, the line, and what to write.
#[test]
fn refusals_name_the_key_and_the_fix() {
    let cases: &[(&str, &[&str])] = &[
        ("[cache]\nraw_rm = 1", &["node.toml:2", "`cache.raw_rm`", "did you mean `cache.raw_ram`?"]),
        ("[cach]\nraw_ram = 1", &["node.toml:1", "table `cach`", "did you mean `cache`?"]),
        ("[node]\n\n\nworkers = 2", &["node.toml:4", "did you mean `decode.workers`?"]),
        ("[node]\nfrobnicate = 2", &["`node.frobnicate`", "`[node]` takes id, data_dir"]),
        ("[zebra]", &["table `zebra`", "the tables are node, listen"]),
        ("node = 3", &["`node`", "write `[node]` above its keys"]),
        ("[bucket]\nname = 'b'", &["`bucket`", "write `[[bucket]]`"]),
        ("[cache]\nraw_ram = 'lots'", &["node.toml:2", "`cache.raw_ram` is \"lots\"", "write bytes as \"8GiB\""]),
        ("[cache]\nraw_ram = -5", &["`cache.raw_ram` is -5", "write bytes"]),
        ("[cache]\ndisk = 'on'", &["`cache.disk`", "or \"off\""]),
        ("[cache]\ndisk = '1MiB'", &["`cache.disk`", "at least 64MiB"]),
        ("[cache]\ndisk = '100GiB'", &["`cache.disk` needs a folder", "set `node.data_dir`"]),
        ("[cache]\nraw_ram = '12GiB'\ndecoded_ram = '4GiB'", &["`node.memory_limit` of 16GiB", "raise it or lower one"]),
        ("[cache]\nadmission = 'lru'", &["`cache.admission` is \"lru\"", "\"keep\", \"all\""]),
        ("[decode]\nworkers = 0", &["`decode.workers` is 0", "from 1 to 1024"]),
        ("[decode]\nworkers = 'two'", &["`decode.workers` is \"two\"", "whole number"]),
        ("[decode]\nworker_memory = 5", &["`decode.worker_memory`", "at least 64MiB"]),
        ("[decode]\nengines = ['cpu', 'cpu']", &["`decode.engines`", "none twice"]),
        ("[decode]\nengines = ['tpu']", &["`decode.engines`", "\"cpu\", \"gpu\""]),
        ("[decode]\npixels_max = 99999999999999999999", &["`decode.pixels_max`", "whole number"]),
        ("[node]\nid = 'a b'", &["`node.id` is \"a b\"", "write 1 to 63"]),
        ("[node]\nid = ''", &["`node.id`", "not empty"]),
        ("[node]\nweight = 0", &["`node.weight` is 0", "above 0"]),
        ("[node]\nweight = nan", &["`node.weight`", "above 0"]),
        ("[listen]\nquic = 'localhost:4433'", &["`listen.quic`", "IP address and a port"]),
        ("[listen]\nquic = '0.0.0.0:4433'", &["`listen.quic`", "beyond loopback without `[tls]`", "set `tls.ca`"]),
        ("[listen]\nadmin = '[::]:1'", &["`listen.admin`", "beyond loopback"]),
        ("[listen]\ngossip = '127.0.0.1:4433'", &["`listen.gossip`", "taken by another", "its own port"]),
        ("[tls]\nca = 'a'\nkey = 'k'", &["`tls.cert` is missing", "`ca`, `cert` and `key` together"]),
        ("[[bucket]]\nregion = 'x'", &["`bucket.name` of bucket 0", "is missing"]),
        ("[[bucket]]\nname = 'B!'", &["node.toml:2", "`bucket[0].name` is \"B!\""]),
        ("[[bucket]]\nname = 'abc'\n[[bucket]]\nname = 'abc'", &["node.toml:4", "`bucket[1].name`", "each bucket once"]),
        ("[[bucket]]\nname = 'abc'\nendpoint = 'ftp://x'", &["`bucket[0].endpoint`", "http:// or https://"]),
        ("[[bucket]]\nname = 'abc'\nendpoint = 'http://h/path'", &["`bucket[0].endpoint`", "nothing else"]),
        ("[[bucket]]\nname = 'abc'\nfreshness = 'often'", &["`bucket[0].freshness`", "\"max-age\""]),
        ("[cluster]\nseeds = ['host']", &["`cluster.seeds` is \"host\"", "host:port"]),
        ("[auth]\nissuers = ['http://x']", &["`auth.issuers`", "https://"]),
        ("[telemetry]\nlog = 'loud'", &["`telemetry.log` is \"loud\"", "level"]),
        ("[node\n", &["node.toml:1", "not TOML"]),
        ("[node]\nid = 'a'\nid = 'b'", &["node.toml:3", "not TOML"]),
    ];
    for (text, parts) in cases {
        let message = refusal(text);
        for part in *parts {
            assert!(message.contains(part), "{text:?}\n  said: {message}\n  want: {part}");
        }
        assert!(!message.contains('\n'), "one sentence: {message}");
    }
}

/// A GPU is looked for where it is named, and its lack stops a start only where nothing else is.
#[test]
fn engines_say_whether_a_gpu_must_be_there() {
    for (engines, gpu) in [
        ("", GpuUse::No),
        ("engines = []", GpuUse::No),
        ("engines = ['cpu']", GpuUse::No),
        ("engines = ['gpu', 'cpu']", GpuUse::IfThere),
        ("engines = ['cpu', 'gpu']", GpuUse::IfThere),
        ("engines = ['gpu']", GpuUse::Required),
    ] {
        match parse(&format!("[decode]\n{engines}")) {
            Ok(config) => assert_eq!(config.decode.gpu, gpu, "{engines}"),
            Err(error) => assert!(engines.ends_with("[]"), "{engines}: {error}"),
        }
    }
}

/// What may be a secret in the wrong place is not repeated.
#[test]
fn secrets_are_not_repeated() {
    for text in ["endpoint = 'http://user:hunter2@host'", "credentials = 'AKIA:hunter2'", "endpoint = 'http://h/?k=hunter2'"] {
        let message = refusal(&format!("[[bucket]]\nname = 'abc'\n{text}"));
        assert!(!message.contains("hunter2"), "{message}");
    }
}

/// Beyond loopback a node has certificates and somebody decided who may do what.
#[test]
fn beyond_loopback_needs_tls_and_a_policy() {
    let open = "[listen]\nquic = '0.0.0.0:4433'\n[tls]\nca = 'a'\ncert = 'c'\nkey = 'k'\n";
    assert!(refusal(open).contains("`auth.policy` is missing"));
    let config = parse(&format!("{open}[auth]\npolicy = 'allow-all'")).expect("spelt out");
    assert_eq!(config.auth.policy, AuthPolicy::AllowAll);
    let config = parse(&format!("{open}[auth]\npolicy = '/etc/policy.toml'")).expect("a file");
    assert_eq!(config.auth.policy, AuthPolicy::File("/etc/policy.toml".into()));
    let admin = "[listen]\nadmin = '0.0.0.0:9433'\n[tls]\nca = 'a'\ncert = 'c'\nkey = 'k'\n";
    assert!(parse(admin).is_ok(), "probes alone need no policy");
    assert!(parse("[listen]\nquic = '[::ffff:127.0.0.1]:4433'").is_ok(), "loopback, written as IPv6");
    assert!(parse("[listen]\nquic = '[::ffff:10.0.0.1]:4433'").is_err());
}

/// Beyond loopback a node needs the cluster's key, and is told how to make one.
#[test]
fn beyond_loopback_needs_cluster_keys() {
    let tls = "[tls]\nca = 'a'\ncert = 'c'\nkey = 'k'\n";
    let cases = [
        ("[cluster]\nseeds = ['a:1']", "the seed \"a:1\""),
        ("[cluster]\nseeds = ['127.0.0.1:1', '10.0.0.1:1']", "the seed \"10.0.0.1:1\""),
        (&format!("{tls}[listen]\ngossip = '0.0.0.0:1'"), "`listen.gossip`"),
        (&format!("{tls}[listen]\nliveness = '[::]:1'"), "`listen.liveness`"),
    ];
    for (text, part) in cases {
        let said = refusal(text);
        assert!(said.starts_with("`cluster.keys`") && said.contains(part) && said.contains("openssl rand -hex 32"), "{said}");
    }
    for seeds in ["'127.0.0.1:1'", "'localhost:1', '[::1]:2'"] {
        assert!(parse(&format!("[cluster]\nseeds = [{seeds}]")).is_ok(), "{seeds}");
    }
    let config = parse("[cluster]\nseeds = ['a:1']\nkeys = '/k'").expect("with keys");
    assert!(config.warnings().iter().any(|warning| warning.contains("`listen.gossip`")), "{:?}", config.warnings());
    let many = (0..65).map(|n| format!("'127.0.0.1:{}'", n + 1)).collect::<Vec<_>>().join(", ");
    assert!(refusal(&format!("[cluster]\nseeds = [{many}]")).contains("at most 64"));
}

/// A variable wins over the file; buckets are numbered; what is not ours is left alone; what is misspelt is refused.
#[test]
fn the_environment_overlays_the_file() {
    let file = "[cache]\nraw_ram = '1GiB'\n[[bucket]]\nname = 'one'\n";
    let env = [
        ("FRAMECACHE_CACHE__RAW_RAM", "2GiB"),
        ("FRAMECACHE_NODE__ROLES", "cache, decode"),
        ("FRAMECACHE_BUCKET__REGION", "eu-central-1"),
        ("FRAMECACHE_BUCKET__1__NAME", "two"),
        ("FRAMECACHE_BUCKET__1__FRESHNESS", "max-age"),
        ("FRAMECACHE_PORT", "tcp://10.0.0.1:4433"),
        ("FRAMECACHE_TOKEN", "x"),
        ("HOME", "/root"),
    ];
    let config = parse_with(file, &env).expect("overlay");
    assert_eq!(config.cache.raw_ram, 2 << 30);
    let names: Vec<_> = config.buckets.iter().map(|bucket| (bucket.name.as_str(), bucket.region.as_str())).collect();
    assert_eq!(names, [("one", "eu-central-1"), ("two", "us-east-1")]);
    assert_eq!(config.buckets[1].freshness, Freshness::MaxAge(Duration::from_secs(60)));

    let refused: &[(&str, &str, &[&str])] = &[
        ("FRAMECACHE_CACHE__RAW_RM", "1", &["variable `FRAMECACHE_CACHE__RAW_RM`", "did you mean `cache.raw_ram`?"]),
        ("FRAMECACHE_CACHEX__RAW", "1", &["FRAMECACHE_CACHEX__RAW", "did you mean `cache`?"]),
        ("FRAMECACHE_CACHE__RAW_RAM", "many", &["FRAMECACHE_CACHE__RAW_RAM: `cache.raw_ram` is \"many\""]),
        ("FRAMECACHE_DECODE__WORKERS", "x", &["FRAMECACHE_DECODE__WORKERS: `decode.workers`", "from 1 to 1024"]),
        ("FRAMECACHE_BUCKET__2__NAME", "abc", &["without gaps"]),
        ("FRAMECACHE_BUCKET__X__NAME", "abc", &["unknown variable"]),
        ("FRAMECACHE_NODE__ID", "", &["`node.id`", "not empty"]),
    ];
    for (name, value, parts) in refused {
        let message = parse_with(file, &[(name, value)]).expect_err(name).to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{name}: {message}");
    }
    let twice = [("FRAMECACHE_BUCKET__REGION", "a"), ("FRAMECACHE_BUCKET__0__REGION", "b")];
    assert!(parse_with(file, &twice).expect_err("two variables").to_string().contains("two variables"));
}

/// A key of a room that does not exist is checked, and its writer is told.
#[test]
fn keys_without_effect_warn() {
    let text = "[gateway]\nkeys = '/k'\n[[bucket]]\nname = 'abc'\nmax_age_s = 5\n";
    let config = parse(text).expect("valid");
    let warnings = config.warnings().join("\n");
    for part in ["`gateway.keys` has no effect", "`bucket[0].max_age_s` has no effect"] {
        assert!(warnings.contains(part), "{warnings}");
    }
    assert!(!warnings.contains("listen.gateway"), "only what was set: {warnings}");
}

/// What needs the host is asked of the host, and only by `check_host`.
#[test]
fn the_host_is_checked_apart() {
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mut config = parse(&format!("[node]\nmemory_limit = '1GiB'\ndata_dir = '{}'", path("new/deep"))).expect("valid");
    host::check(&config, &host()).expect("the folder is made");
    assert!(folder.path().join("new/deep").is_dir());

    let said = |config: &Config| host::check(config, &host()).expect_err("refused").to_string();
    std::fs::write(folder.path().join("file"), b"x").expect("write");
    config.node.data_dir = Some(folder.path().join("file/below"));
    assert!(said(&config).contains("`node.data_dir`"));
    config.node.data_dir = None;
    config.tls = Some(Tls { ca: path("file").into(), cert: path("absent").into(), key: path("file").into() });
    assert!(said(&config).starts_with("`tls.cert`"), "{}", said(&config));
    config.tls = None;
    config.auth.policy = AuthPolicy::File(folder.path().into());
    assert!(said(&config).starts_with("`auth.policy`"));
    config.auth.policy = AuthPolicy::File(folder.path().join("file"));
    assert!(said(&config).contains("is refused: policy line 1"), "{}", said(&config));
    config.auth.policy = AuthPolicy::AllowAll;
    config.node.memory_limit = 33 << 30;
    assert!(said(&config).contains("more than the 32GiB of this host"), "{}", said(&config));

    let absent = Config::load(Some(&folder.path().join("absent.toml")), std::iter::empty()).expect_err("absent");
    assert!(absent.to_string().contains("absent.toml"), "{absent}");
}

/// Promise: what others put into the environment never matters; an own variable that is no text is named.
#[test]
fn the_environment_may_hold_anything() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let os = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let others = [(os(b"LESS\xff"), os(b"x")), (os(b"PS1"), os(b"\xff")), (os(b"FRAMECACHE_TOKEN"), os(b"\xff"))];
    let ours = (os(b"FRAMECACHE_NODE__ID"), os(b"n"));
    let read = source::variables(others.into_iter().chain([ours])).expect("ours is text");
    assert_eq!(read, [("FRAMECACHE_NODE__ID".to_owned(), "n".to_owned())]);
    for (name, text) in [(&b"FRAMECACHE_NODE__ID"[..], &b"\xff"[..]), (b"FRAMECACHE_NODE__\xff", b"x")] {
        let said = source::variables([(os(name), os(text))].into_iter()).expect_err("not text").to_string();
        assert!(said.contains("FRAMECACHE_NODE__") && said.contains("UTF-8"), "{said}");
    }
}
