//! One `[[bucket]]`: an origin that may be asked, and how its versions age.

use std::time::Duration;

use super::ConfigError;
use super::lift::Lift;
use super::raw::RawBucket;

/// Seconds that a version counts as current under `max-age` when nothing is said: a minute of staleness is what object store
/// users already live with in listings and caches.
const MAX_AGE_S: u64 = 60;

/// A bucket of an S3 origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    pub name: String,
    /// `http(s)://host[:port]`; `None` is the provider's, by region.
    pub endpoint: Option<String>,
    pub region: String,
    pub path_style: bool,
    pub credentials: Credentials,
    pub freshness: Freshness,
}

/// Where the origin's credentials come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// The SDK's chain: environment, web identity, container, instance.
    Chain,
    Anonymous,
    /// This profile of the shared AWS files.
    Profile(String),
}

/// How long a known version counts as current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    Immutable,
    MaxAge(Duration),
    Always,
}

/// The buckets as usable values, names unique.
pub(super) fn lift(raw: Vec<RawBucket>, lift: &mut Lift<'_>) -> Result<Vec<Bucket>, ConfigError> {
    let mut buckets: Vec<Bucket> = Vec::with_capacity(raw.len());
    for (index, raw) in raw.into_iter().enumerate() {
        let bucket = lift_one(raw, index, lift)?;
        if buckets.iter().any(|other| other.name == bucket.name) {
            let path = format!("bucket[{index}].name");
            return Err(lift.wrong(&path, &bucket.name, "give each bucket once"));
        }
        buckets.push(bucket);
    }
    Ok(buckets)
}

fn lift_one(raw: RawBucket, index: usize, lift: &mut Lift<'_>) -> Result<Bucket, ConfigError> {
    let RawBucket { name, endpoint, region, path_style, credentials, freshness, max_age_s } = raw;
    let path = |key: &str| format!("bucket[{index}].{key}");
    let Some(name) = name else {
        let problem = format!("of bucket {index} (from 0) is missing");
        return Err(ConfigError::Conflict { key: "bucket.name", problem, fix: "add `name = \"...\"` below `[[bucket]]`".into() });
    };
    if framecache::ObjectId::new(&name, "k").is_err() {
        return Err(lift.wrong(&path("name"), &name, "write 3 to 63 of a-z, 0-9, '.', '-', '_'"));
    }
    if let Some(url) = &endpoint {
        lift.origin_url(&path("endpoint"), url)?;
    }
    let region = region.unwrap_or_else(|| "us-east-1".into());
    if !is_region(&region) {
        return Err(lift.wrong(&path("region"), &region, "write a region such as \"eu-central-1\""));
    }
    let credentials = match credentials.as_deref() {
        None | Some("chain") => Credentials::Chain,
        Some("anonymous") => Credentials::Anonymous,
        Some(text) => match text.strip_prefix("profile:") {
            Some(profile) if !profile.is_empty() => Credentials::Profile(profile.into()),
            // Somebody may have pasted a key here: it is not repeated.
            _ => return Err(lift.wrong_unseen(&path("credentials"), "write \"chain\", \"anonymous\" or \"profile:NAME\"")),
        },
    };
    let freshness = match freshness.as_deref() {
        Some("max-age") => Freshness::MaxAge(Duration::from_secs(max_age_s.unwrap_or(MAX_AGE_S))),
        Some("always") => Freshness::Always,
        _ => Freshness::Immutable,
    };
    if max_age_s.is_some() && !matches!(freshness, Freshness::MaxAge(_)) {
        lift.warn(format!("`{}` has no effect unless `freshness = \"max-age\"`", path("max_age_s")));
    }
    let path_style = path_style.unwrap_or(endpoint.is_some());
    Ok(Bucket { name, endpoint, region, path_style, credentials, freshness })
}

fn is_region(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}
