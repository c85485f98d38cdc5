//! The keys as written: every one optional, none with a meaning yet. Serde refuses what is not named here, so that this and the
//! key table cannot drift apart unseen.

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Raw {
    pub(super) node: RawNode,
    pub(super) listen: RawListen,
    pub(super) cache: RawCache,
    pub(super) bucket: Vec<RawBucket>,
    pub(super) decode: RawDecode,
    pub(super) cluster: RawCluster,
    pub(super) gateway: RawGateway,
    pub(super) tls: RawTls,
    pub(super) auth: RawAuth,
    pub(super) telemetry: RawTelemetry,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawNode {
    pub(super) id: Option<String>,
    pub(super) data_dir: Option<String>,
    pub(super) roles: Option<Vec<String>>,
    pub(super) weight: Option<f64>,
    pub(super) memory_limit: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawListen {
    pub(super) quic: Option<String>,
    pub(super) admin: Option<String>,
    pub(super) gateway: Option<String>,
    pub(super) gossip: Option<String>,
    pub(super) liveness: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawCache {
    pub(super) raw_ram: Option<u64>,
    pub(super) decoded_ram: Option<u64>,
    pub(super) disk: Option<u64>,
    pub(super) admission: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawBucket {
    pub(super) name: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) region: Option<String>,
    pub(super) path_style: Option<bool>,
    pub(super) credentials: Option<String>,
    pub(super) freshness: Option<String>,
    pub(super) max_age_s: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawDecode {
    pub(super) workers: Option<usize>,
    pub(super) worker_memory: Option<u64>,
    pub(super) deadline_ms: Option<u64>,
    pub(super) pixels_max: Option<u64>,
    pub(super) engines: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawCluster {
    pub(super) seeds: Option<Vec<String>>,
    pub(super) settle_s: Option<u64>,
    pub(super) drain_s: Option<u64>,
    pub(super) keys: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawGateway {
    pub(super) keys: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawTls {
    pub(super) ca: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawAuth {
    pub(super) policy: Option<String>,
    pub(super) issuers: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawTelemetry {
    pub(super) otlp_endpoint: Option<String>,
    pub(super) log: Option<String>,
}
