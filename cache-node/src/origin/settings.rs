//! Where buckets live, with whose credentials, and how hard they may be asked.

use std::fmt;
use std::time::Duration;

/// One bucket that may be read. Endpoints come from here alone.
#[derive(Clone, Debug)]
pub struct OriginSettings {
    /// The bucket's name, here and at the origin.
    pub name: String,
    /// `http(s)://host[:port]` of an S3-compatible store; `None` for AWS.
    pub endpoint: Option<String>,
    /// `None`: `us-east-1` where an endpoint is given, else what the SDK's chain finds (environment, profile, instance).
    pub region: Option<String>,
    /// `endpoint/bucket/key` instead of `bucket.endpoint/key`; most stores that are not AWS want it.
    pub path_style: bool,
    /// Who we are there.
    pub credentials: Credentials,
}

/// Who we are at an origin.
#[derive(Clone, Debug, Default)]
pub enum Credentials {
    /// The SDK's chain: environment, profile, web identity, container, instance.
    #[default]
    Chain,
    /// Unsigned requests.
    Anonymous,
    /// The named profile of the SDK's configuration files.
    Profile(String),
    /// A key pair given by value; for stores on one's own desk.
    Static(StaticKey),
}

/// A key pair given by value.
#[derive(Clone, Debug)]
pub struct StaticKey {
    /// The public half; redacted all the same, since it names an account.
    pub access_key_id: Secret,
    /// The secret half.
    pub secret_access_key: Secret,
}

/// A text that is never printed.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Hides `text` from every print and log.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// How hard each bucket may be asked, and how long we wait for it.
#[derive(Clone, Debug)]
pub struct OriginLimits {
    /// Requests at once, per bucket. Halves under throttling.
    pub concurrency: usize,
    /// Calls that may wait for a place, per bucket; more are answered `Busy`.
    pub queue: usize,
    /// Requests for one call at most, the first included.
    pub attempts: u32,
    /// Tokens of the retry budget, per bucket; a retry costs one.
    pub retry_budget: f64,
    /// Tokens that a success earns.
    pub retry_earn: f64,
    /// Share of requests that may be sent a second time because the first is slow.
    pub hedge_share: f64,
    /// Time to connect.
    pub connect: Duration,
    /// Time to the first byte of a reply; a call with less time left waits half of that, so that a retry fits.
    pub first_byte: Duration,
    /// Longest silence inside a body.
    pub idle: Duration,
    /// Largest body that one read may ask for, in bytes.
    pub read_bytes_max: u64,
    /// Seed of all jitter; `None` for one of the process's own.
    pub seed: Option<u64>,
}

impl Default for OriginLimits {
    fn default() -> Self {
        Self {
            // 64 x 1 MiB pages saturate 25 Gbit/s at 20 ms; S3 itself allows 5,500 GET/s per prefix.
            concurrency: 64,
            // Sixteen pages behind each slot: about the work of one second.
            queue: 1024,
            attempts: 5,
            // With 0.1 earned per success, retries add at most a tenth to a long outage's load.
            retry_budget: 100.0,
            retry_earn: 0.1,
            hedge_share: 0.05,
            connect: Duration::from_secs(3),
            first_byte: Duration::from_secs(10),
            idle: Duration::from_secs(5),
            // Four spans: nothing in the node reads more at once.
            read_bytes_max: 256 << 20,
            seed: None,
        }
    }
}

/// Why settings are refused at start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Two entries of one name: remove one.
    #[error("bucket {0:?} is configured twice")]
    Twice(String),
    /// The endpoint is not `http://host[:port]` or `https://…`, or carries user, path or query: correct it.
    #[error("endpoint of bucket {0:?} is not an http or https address without user, path and query")]
    Endpoint(String),
    /// A limit that would stop everything: correct it.
    #[error("origin limit {0} must be at least one")]
    Limit(&'static str),
}

/// An endpoint is scheme, host and port. User information is refused above all, since it would show in logs.
pub(crate) fn check_endpoint(settings: &OriginSettings) -> Result<(), SettingsError> {
    let Some(endpoint) = &settings.endpoint else { return Ok(()) };
    let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let legal = |host: &str| !host.is_empty() && !host.contains(['@', '?', '#', '/', ' ']);
    match host {
        Some(host) if legal(host.strip_suffix('/').unwrap_or(host)) => Ok(()),
        _ => Err(SettingsError::Endpoint(settings.name.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(endpoint: &str) -> OriginSettings {
        OriginSettings {
            name: "photos".into(),
            endpoint: Some(endpoint.into()),
            region: None,
            path_style: true,
            credentials: Credentials::Static(StaticKey {
                access_key_id: Secret::new("AKIAMARKER"),
                secret_access_key: Secret::new("marker-secret"),
            }),
        }
    }

    /// Promise: settings can be printed without giving a key away.
    #[test]
    fn debug_redacts() {
        let text = format!("{:?}", settings("http://x"));
        assert!(!text.to_lowercase().contains("marker") && text.contains("[redacted]"), "{text}");
    }

    /// Promise: only a plain http(s) address is an endpoint, so that no user, path or query hides in it.
    #[test]
    fn endpoints_are_checked() {
        for good in ["http://127.0.0.1:9000", "https://s3.example.com/", "http://[::1]:9000"] {
            assert_eq!(check_endpoint(&settings(good)), Ok(()), "{good}");
        }
        for bad in ["", "ftp://x", "http://", "http://user:pw@x", "https://x/path", "https://x?q=1", "file:///etc"] {
            assert!(check_endpoint(&settings(bad)).is_err(), "{bad}");
        }
    }
}
