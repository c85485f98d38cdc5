//! Every key there is: the one table behind the loader, the environment names and `docs/CONFIGURATION.md`.

use std::fmt;

/// One key: where it stands, what it takes, and its row in the docs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub table: &'static str,
    pub name: &'static str,
    pub kind: Kind,
    /// As the docs say it.
    pub default: &'static str,
    /// A legal value, as written in the file.
    pub example: &'static str,
    pub meaning: &'static str,
}

/// The form of a value, checked before its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Path,
    Address,
    /// Bytes: `"8GiB"`, `"512MiB"`, `"8GB"` (10^9), or an integer.
    Bytes,
    /// Bytes, or `"off"`.
    BytesOrOff,
    /// A whole number, both ends included.
    Count(i64, i64),
    /// A number above zero, up to this.
    Number(u32),
    Flag,
    Choice(&'static [&'static str]),
    /// A list of texts; in the environment separated by commas.
    Texts,
    /// A list out of these.
    Choices(&'static [&'static str]),
}

/// The table of `[[bucket]]`, the only one that may stand several times.
pub(super) const BUCKET: &str = "bucket";

const fn key(
    table: &'static str,
    name: &'static str,
    kind: Kind,
    default: &'static str,
    example: &'static str,
    meaning: &'static str,
) -> Key {
    Key { table, name, kind, default, example, meaning }
}

/// All keys, in the order of the docs.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    key("node", "id", Kind::Text, "the host's name", "\"cache-0\"", "Name of this node, unique in the cluster: 1 to 63 of `a-z`, `A-Z`, `0-9`, `.`, `-`, `_`."),
    key("node", "data_dir", Kind::Path, "none", "\"/var/lib/framecache\"", "Folder for what survives a restart. Without it nothing does, and there is no disk tier."),
    key("node", "roles", Kind::Choices(&["cache", "decode"]), "`[\"cache\", \"decode\"]`", "[\"cache\"]", "What this node does for the others: `cache` owns keys, `decode` decodes for other nodes."),
    key("node", "weight", Kind::Number(1000), "`1`", "2.5", "Absolute share of the ring: twice the weight owns twice the keys."),
    key("node", "memory_limit", Kind::Bytes, "half of the host's RAM or cgroup limit, whichever is smaller", "\"64GiB\"", "Bytes that the node and its workers may use, all together."),
    key("listen", "quic", Kind::Address, "`\"127.0.0.1:4433\"`", "\"127.0.0.1:4433\"", "Where clients and nodes connect (UDP). Beyond loopback it needs `[tls]` and `auth.policy`."),
    key("listen", "admin", Kind::Address, "`\"127.0.0.1:9433\"`", "\"127.0.0.1:9433\"", "Health, metrics and status page (plain HTTP, read only). Beyond loopback it needs `[tls]` too, so that no node is half open."),
    key("listen", "gateway", Kind::Address, "`\"127.0.0.1:9000\"`", "\"127.0.0.1:9000\"", "The S3 gateway (TCP)."),
    key("listen", "gossip", Kind::Address, "`\"127.0.0.1:4434\"`", "\"127.0.0.1:4434\"", "Membership gossip (UDP)."),
    key("listen", "liveness", Kind::Address, "`\"127.0.0.1:4435\"`", "\"127.0.0.1:4435\"", "Liveness probes (UDP)."),
    key("cache", "raw_ram", Kind::Bytes, "a quarter of `node.memory_limit`, an eighth under 4 GiB", "\"16GiB\"", "RAM for raw bytes. A part of `node.memory_limit`."),
    key("cache", "decoded_ram", Kind::Bytes, "a quarter of `node.memory_limit`, an eighth under 4 GiB", "\"16GiB\"", "RAM for decoded pictures and frames. A part of `node.memory_limit`."),
    key("cache", "disk", Kind::BytesOrOff, "`\"off\"`", "\"100GiB\"", "Disk tier under `node.data_dir`, which it needs. The space is reserved at start."),
    key("cache", "admission", Kind::Choice(&["keep", "all"]), "`\"keep\"`", "\"all\"", "What a full cache does with new entries: `keep` admits few, which is the optimum when each sample is read once an epoch; `all` admits all and evicts the oldest."),
    key("bucket", "name", Kind::Text, "required", "\"photos\"", "Name of the bucket, in `s3://name/key` and at the endpoint."),
    key("bucket", "endpoint", Kind::Text, "the provider's, by region", "\"http://minio:9000\"", "Origin, as `http://` or `https://` with host and port, no path."),
    key("bucket", "region", Kind::Text, "`\"us-east-1\"`", "\"eu-central-1\"", "Region that requests are signed for."),
    key("bucket", "path_style", Kind::Flag, "true with `endpoint`, else false", "true", "Bucket in the path rather than in the host name."),
    key("bucket", "credentials", Kind::Text, "`\"chain\"`", "\"profile:training\"", "Where the origin's credentials come from: `chain` (environment, profile, web identity, container, instance), `anonymous`, or `profile:NAME` of the shared AWS files."),
    key("bucket", "freshness", Kind::Choice(&["immutable", "max-age", "always"]), "`\"immutable\"`", "\"max-age\"", "How long a known version counts as current: for ever, for `max_age_s`, or not at all (asked on each read)."),
    key("bucket", "max_age_s", Kind::Count(1, 31_536_000), "`60`", "300", "Seconds that a known version counts as current, under `freshness = \"max-age\"`."),
    key("decode", "workers", Kind::Count(1, 1024), "one per core", "8", "Decoder processes. All but one of them may make indexes of videos at the same time."),
    key("decode", "worker_memory", Kind::Bytes, "`\"3GiB\"`", "\"4GiB\"", "Bytes that one decoder may use before it is stopped; what a picture needs is reserved from `node.memory_limit`. At least 64 MiB."),
    key("decode", "deadline_ms", Kind::Count(100, 3_600_000), "`30000`", "10000", "Milliseconds that one decode job may take."),
    key("decode", "pixels_max", Kind::Count(1, (1 << 30) / 3), "`178956970`", "40000000", "Pixels of the largest picture that is decoded; the default is where Pillow refuses."),
    key("decode", "engines", Kind::Choices(&["cpu", "gpu"]), "`[\"cpu\"]`", "[\"gpu\", \"cpu\"]", "What decodes. The CPU always does; with `gpu` an NVIDIA GPU does beside it, where that is sooner. `[\"gpu\"]` alone: a node that finds none does not start; with `cpu`: it warns, and goes on without."),
    key("cluster", "seeds", Kind::Texts, "`[]`", "[\"framecache-headless:4434\"]", "Where other nodes are found: `host:port` of their gossip, at most 64; a DNS name may stand for many, and is looked up again and again."),
    key("cluster", "settle_s", Kind::Count(0, 86_400), "`300`", "600", "Seconds after which a member counts as settled: what moved to it has been filled."),
    key("cluster", "drain_s", Kind::Count(0, 3600), "`30`", "60", "Seconds that a stopping node still answers."),
    key("cluster", "keys", Kind::Path, "none", "\"/etc/framecache/cluster.keys\"", "File of the cluster's keys, one a line, at least 32 bytes in hex or base64 (`openssl rand -hex 32`): the first signs, all are accepted, changes count within seconds. Needed as soon as a seed, `listen.gossip` or `listen.liveness` goes beyond loopback."),
    key("gateway", "keys", Kind::Path, "none", "\"/etc/framecache/gateway.keys\"", "File of the gateway's `access-key secret-key` pairs, one a line."),
    key("tls", "ca", Kind::Path, "none", "\"/etc/framecache/tls/ca.crt\"", "PEM of the authority that signs nodes, for those who must trust it. `[tls]` takes all three keys or none."),
    key("tls", "cert", Kind::Path, "none", "\"/etc/framecache/tls/tls.crt\"", "PEM of this node's certificate chain."),
    key("tls", "key", Kind::Path, "none", "\"/etc/framecache/tls/tls.key\"", "PEM of its private key."),
    key("auth", "policy", Kind::Text, "`\"allow-all\"` on loopback, else required", "\"allow-all\"", "Who may do what: a policy file, or `allow-all` spelt out."),
    key("auth", "issuers", Kind::Texts, "`[]`", "[\"https://kubernetes.default.svc\"]", "OpenID Connect issuers whose tokens name callers."),
    key("telemetry", "otlp_endpoint", Kind::Text, "none", "\"http://collector:4317\"", "Where spans go, over OTLP/gRPC."),
    key("telemetry", "log", Kind::Text, "`\"info\"`", "\"json,info,framecache_node=debug\"", "Levels, by target where wanted; `json,` in front for JSON lines."),
];

impl Key {
    /// `table.name`.
    pub fn path(&self) -> String {
        format!("{}.{}", self.table, self.name)
    }

    /// The variable that sets this key; for a bucket, the first one.
    pub fn variable(&self) -> String {
        format!("FRAMECACHE_{}__{}", self.table, self.name).to_uppercase()
    }

    /// This key's row of the table in `docs/CONFIGURATION.md`.
    pub fn row(&self) -> String {
        format!("| `{}` | {} | {} | `{}` | {} |", self.path(), self.kind, self.default, self.example, self.meaning)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Text => out.write_str("text"),
            Kind::Path => out.write_str("path"),
            Kind::Address => out.write_str("ip:port"),
            Kind::Bytes => out.write_str("bytes"),
            Kind::BytesOrOff => out.write_str("bytes or `\"off\"`"),
            Kind::Count(least, most) => write!(out, "{least} to {most}"),
            Kind::Number(most) => write!(out, "number up to {most}"),
            Kind::Flag => out.write_str("true or false"),
            Kind::Choice(choices) => write!(out, "{}", quoted(choices)),
            Kind::Texts => out.write_str("list of texts"),
            Kind::Choices(choices) => write!(out, "list out of {}", quoted(choices)),
        }
    }
}

fn quoted(choices: &[&str]) -> String {
    choices.iter().map(|choice| format!("`\"{choice}\"`")).collect::<Vec<_>>().join(", ")
}

/// The key of that table and name.
pub(super) fn find(table: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.table == table && key.name == name)
}

/// Whether a table of that name exists.
pub(super) fn is_table(table: &str) -> bool {
    KEYS.iter().any(|key| key.table == table)
}

/// What the writer of `table.name` probably meant, as the end of a sentence.
pub(super) fn advice(table: &str, name: &str) -> String {
    let elsewhere = KEYS.iter().find(|key| key.name == name && key.table != table);
    if let Some(key) = elsewhere {
        return format!("did you mean `{}`?", key.path());
    }
    let wanted = format!("{table}.{name}");
    let near = KEYS.iter().map(|key| (distance(&key.path(), &wanted), key)).min_by_key(|(distance, _)| *distance);
    match near {
        // Half of the name may differ; beyond that a guess misleads.
        Some((distance, key)) if distance <= name.len().max(4) / 2 => format!("did you mean `{}`?", key.path()),
        _ => {
            let names: Vec<_> = KEYS.iter().filter(|key| key.table == table).map(|key| key.name).collect();
            format!("`[{table}]` takes {}", names.join(", "))
        }
    }
}

/// What the writer of `[table]` probably meant.
pub(super) fn advice_table(table: &str) -> String {
    let mut tables: Vec<_> = KEYS.iter().map(|key| key.table).collect();
    tables.dedup();
    match tables.iter().map(|known| (distance(known, table), *known)).min() {
        Some((distance, known)) if distance <= 2 => format!("did you mean `{known}`?"),
        _ => format!("the tables are {}", tables.join(", ")),
    }
}

/// Edits (insert, delete, replace) between two names; the second is cut at 64 characters, which no key reaches.
fn distance(known: &str, written: &str) -> usize {
    let written: Vec<char> = written.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=written.len()).collect();
    for (line, a) in known.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, b) in written.iter().enumerate() {
            let cost = diagonal + usize::from(a != *b);
            diagonal = row[column + 1];
            row[column + 1] = cost.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[written.len()]
}
