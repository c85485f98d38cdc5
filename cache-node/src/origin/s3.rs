//! Any S3-compatible origin: a call waits at its bucket's gate, is tried, judged, and tried again as the policies say.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_trait::async_trait;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{RequestChecksumCalculation, ResponseChecksumValidation, StalledStreamProtectionConfig};
use bytes::Bytes;
use framecache::{ByteRange, ObjectId, Version};
use futures::future::{Either, select};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, instrument};

use super::gate::{Gate, Permit};
use super::hedge::Hedge;
use super::random::Random;
use super::reply::{Asked, Promise, Verdict, judge};
use super::request::{self, Reply};
use super::retry::{Budget, Decision, Failure, decide, first_byte_limit, verdict};
use super::settings::check_endpoint;
use super::stats::InFlight;
use super::{
    Credentials, Fetched, Listing, ObjectFacts, Origin, OriginError, OriginLimits, OriginSettings, OriginStats, SettingsError,
};

/// The configured buckets, each with its own client, gate and budgets.
pub struct S3Origin {
    buckets: HashMap<String, Bucket>,
    stats: Arc<OriginStats>,
}

struct Bucket {
    client: Client,
    limits: OriginLimits,
    gate: Arc<Gate>,
    policy: Mutex<Policy>,
    stats: Arc<OriginStats>,
}

struct Policy {
    budget: Budget,
    hedge: Hedge,
    random: Random,
}

impl S3Origin {
    /// Checks the settings and prepares a client for each bucket. Asks no origin; the SDK's chain may read files and, for a region that
    /// is given nowhere, the instance's metadata.
    pub async fn new(buckets: Vec<OriginSettings>, limits: OriginLimits) -> Result<Self, SettingsError> {
        for (name, value) in [("concurrency", limits.concurrency), ("attempts", limits.attempts as usize)] {
            if value == 0 {
                return Err(SettingsError::Limit(name));
            }
        }
        let stats = Arc::new(OriginStats::default());
        let mut seeds = Random::seeded(limits.seed.unwrap_or_else(Random::fresh_seed));
        let mut origin = Self { buckets: HashMap::new(), stats: stats.clone() };
        for settings in buckets {
            check_endpoint(&settings)?;
            let bucket = Bucket {
                client: client(&settings, &limits).await,
                gate: Gate::new(limits.concurrency, limits.queue, Random::seeded(seeds.next())),
                policy: Mutex::new(Policy {
                    budget: Budget::full(limits.retry_budget, limits.retry_earn),
                    hedge: Hedge::new(limits.hedge_share),
                    random: Random::seeded(seeds.next()),
                }),
                limits: limits.clone(),
                stats: stats.clone(),
            };
            if origin.buckets.insert(settings.name.clone(), bucket).is_some() {
                return Err(SettingsError::Twice(settings.name));
            }
        }
        Ok(origin)
    }

    /// The counters, all buckets together.
    pub fn stats(&self) -> &Arc<OriginStats> {
        &self.stats
    }

    fn bucket(&self, name: &str) -> Result<&Bucket, OriginError> {
        self.buckets.get(name).ok_or_else(|| OriginError::NotConfigured(name.to_owned()))
    }

    fn counted<T>(&self, result: Result<T, OriginError>) -> Result<T, OriginError> {
        result.inspect_err(|error| self.stats.count(error))
    }
}

#[async_trait]
impl Origin for S3Origin {
    #[instrument(name = "origin.read", level = "info", skip_all, fields(bucket = id.bucket(), key = id.key(), start = range.start(), len = range.len()))]
    async fn read(
        &self,
        id: &ObjectId,
        range: ByteRange,
        pin: Option<&Version>,
        deadline: Instant,
    ) -> Result<Fetched, OriginError> {
        let read = async {
            let bucket = self.bucket(id.bucket())?;
            bucket.persist(pin, deadline, || bucket.read(id, range, pin, deadline)).await
        };
        let fetched = self.counted(read.await)?;
        self.stats.bytes.fetch_add(fetched.range.len(), Relaxed);
        Ok(fetched)
    }

    #[instrument(name = "origin.head", level = "info", skip_all, fields(bucket = id.bucket(), key = id.key()))]
    async fn head(&self, id: &ObjectId, deadline: Instant) -> Result<ObjectFacts, OriginError> {
        let head = async {
            let bucket = self.bucket(id.bucket())?;
            bucket.persist(None, deadline, || bucket.head(id, None, deadline)).await
        };
        self.counted(head.await)
    }

    #[instrument(name = "origin.list", level = "info", skip_all, fields(bucket, prefix))]
    async fn list(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Listing, OriginError> {
        let list = async {
            let bucket_ = self.bucket(bucket)?;
            let limit = limit.clamp(1, LIST_MAX) as i32;
            bucket_.persist(None, deadline, || bucket_.list(bucket, prefix, after, limit, deadline)).await
        };
        self.counted(list.await)
    }

    fn knows(&self, bucket: &str) -> bool {
        self.buckets.contains_key(bucket)
    }
}

impl Bucket {
    /// Tries until an answer, a final failure, or the end of attempts, budget or time. A slot is held while trying, not while waiting.
    async fn persist<T, F>(&self, pin: Option<&Version>, deadline: Instant, try_once: impl Fn() -> F) -> Result<T, OriginError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut attempt = 1;
        loop {
            let permit = self.gate.enter(deadline).await?;
            let began = Instant::now();
            // Boxed: the SDK's futures are tens of kilobytes.
            let outcome = timeout_at(deadline, Box::pin(try_once())).await;
            drop(permit);
            let failure = match outcome {
                Err(_) => return Err(OriginError::Deadline),
                Ok(Ok(answer)) => {
                    self.gate.success(began.elapsed());
                    self.policy.lock().budget.earn();
                    return Ok(answer);
                }
                Ok(Err(failure)) => failure,
            };
            match failure {
                Failure::Throttled { retry_after } => {
                    self.stats.throttled.fetch_add(1, Relaxed);
                    self.gate.throttled(retry_after);
                }
                // "No" is an answer, too: the origin is well.
                Failure::Final(_) | Failure::Replaced(_) | Failure::PastEnd => self.gate.success(began.elapsed()),
                Failure::Broken(_) | Failure::Silent(_) | Failure::Mangled(_) => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let decision = {
                let Policy { budget, random, .. } = &mut *self.policy.lock();
                decide(&failure, attempt, self.limits.attempts, left, budget, random)
            };
            debug!(attempt, ?failure, ?decision, "origin attempt failed");
            match decision {
                Decision::Again { after } => sleep(after).await,
                Decision::Stop => return Err(verdict(failure, pin)),
                Decision::Refused => {
                    self.stats.retries_refused.fetch_add(1, Relaxed);
                    return Err(verdict(failure, pin));
                }
            }
            self.stats.retries.fetch_add(1, Relaxed);
            attempt += 1;
        }
    }

    /// One attempt at a range.
    async fn read(&self, id: &ObjectId, range: ByteRange, pin: Option<&Version>, deadline: Instant) -> Result<Fetched, Failure> {
        if range.is_empty() {
            // HTTP cannot ask for nothing.
            return self.nothing(id, range, pin, deadline).await;
        }
        let asked = Asked { range, pin };
        let (reply, _held) = match self.first_byte(id, asked, deadline).await {
            Ok(reply) => reply,
            Err(Failure::PastEnd) => return self.nothing(id, range, pin, deadline).await,
            Err(Failure::Replaced(None)) => return Err(self.replaced(id, deadline).await),
            Err(failure) => return Err(failure),
        };
        let promise = match judge(asked, &reply.reply.headers) {
            Verdict::Promised(promise) => promise,
            Verdict::Whole(promise) => self.confirmed(id, promise, deadline).await?,
            Verdict::Changed(new) => return Err(Failure::Replaced(Some(new))),
            Verdict::Corrupt(why) => return Err(Failure::Mangled(why.into())),
        };
        if promise.range.len() > self.limits.read_bytes_max {
            let why = format!("range of {} bytes is over {}", promise.range.len(), self.limits.read_bytes_max);
            return Err(Failure::Final(OriginError::InvalidRequest(why)));
        }
        let body = reply.reply.body(&promise, self.limits.idle).await?;
        let Promise { version, size, range } = promise;
        Ok(Fetched { version, size, range, body })
    }

    /// An empty body with the right size: the object is empty, or the range begins at or past its end.
    async fn nothing(
        &self,
        id: &ObjectId,
        range: ByteRange,
        pin: Option<&Version>,
        deadline: Instant,
    ) -> Result<Fetched, Failure> {
        let ObjectFacts { version, size } = self.head(id, pin, deadline).await?;
        match pin {
            Some(pin) if *pin != version => Err(Failure::Replaced(Some(version))),
            _ if !range.clamp(size).is_empty() => Err(Failure::Mangled("range inside the object was not satisfied".into())),
            _ => Ok(Fetched { version, size, range: range.clamp(size), body: Bytes::new() }),
        }
    }

    /// A whole object where a range was asked is taken only if its metadata agrees: a body that was cut short says "whole", too.
    async fn confirmed(&self, id: &ObjectId, promise: Promise, deadline: Instant) -> Result<Promise, Failure> {
        let facts = self.head(id, Some(&promise.version), deadline).await?;
        if facts.version == promise.version && facts.size == promise.size {
            Ok(promise)
        } else {
            Err(Failure::Mangled("whole object is not the size that its head says".into()))
        }
    }

    /// A pinned version is gone and the reply did not say what there is now: ask.
    async fn replaced(&self, id: &ObjectId, deadline: Instant) -> Failure {
        Failure::Replaced(self.head(id, None, deadline).await.ok().map(|facts| facts.version))
    }

    /// The first reply to a GET; a slow one is raced by a second where the hedge budget and the gate allow. The loser is dropped.
    async fn first_byte(
        &self,
        id: &ObjectId,
        asked: Asked<'_>,
        deadline: Instant,
    ) -> Result<(Counted<'_>, Option<Permit>), Failure> {
        let began = Instant::now();
        let limit = self.first_byte_limit(began, deadline);
        let hedge_after = {
            let mut policy = self.policy.lock();
            policy.hedge.sent();
            policy.hedge.delay().filter(|delay| *delay < limit)
        };
        let race = async {
            let mut first = Box::pin(self.get(id, asked));
            let Some(delay) = hedge_after else { return (first.await, None) };
            if let Ok(reply) = timeout(delay, &mut first).await {
                return (reply, None);
            }
            let Some(permit) = self.hedge() else { return (first.await, None) };
            match select(first, pin!(self.get(id, asked))).await {
                // A failure that another request may cure waits for the one that is under way.
                Either::Left((Err(failure), second)) if is_passing(&failure) => (second.await, Some(permit)),
                Either::Right((Err(failure), first)) if is_passing(&failure) => (first.await, None),
                Either::Left((reply, _)) => (reply, None),
                Either::Right((reply, _)) => {
                    self.stats.hedges_won.fetch_add(1, Relaxed);
                    (reply, Some(permit))
                }
            }
        };
        let (reply, permit) = timeout(limit, race).await.map_err(|_| Failure::Silent("first byte"))?;
        let reply = reply?;
        self.policy.lock().hedge.first_byte(began.elapsed());
        Ok((reply, permit))
    }

    /// A slot for a second request, if it is affordable.
    fn hedge(&self) -> Option<Permit> {
        let permit = self.gate.try_enter()?;
        self.policy.lock().hedge.take().then(|| {
            self.stats.hedges.fetch_add(1, Relaxed);
            permit
        })
    }

    async fn get(&self, id: &ObjectId, asked: Asked<'_>) -> Result<Counted<'_>, Failure> {
        let counted = InFlight::enter(&self.stats);
        let reply = Box::pin(request::get(&self.client, id, asked)).await?;
        Ok(Counted { reply, _counted: counted })
    }

    async fn head(&self, id: &ObjectId, pin: Option<&Version>, deadline: Instant) -> Result<ObjectFacts, Failure> {
        let _counted = InFlight::enter(&self.stats);
        self.in_time(deadline, request::head(&self.client, id, pin)).await
    }

    async fn list(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<&str>,
        limit: i32,
        deadline: Instant,
    ) -> Result<Listing, Failure> {
        let _counted = InFlight::enter(&self.stats);
        self.in_time(deadline, request::list(&self.client, bucket, prefix, after, limit)).await
    }

    async fn in_time<T>(&self, deadline: Instant, asked: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let limit = self.first_byte_limit(Instant::now(), deadline);
        timeout(limit, Box::pin(asked)).await.unwrap_or(Err(Failure::Silent("reply")))
    }

    fn first_byte_limit(&self, now: Instant, deadline: Instant) -> Duration {
        first_byte_limit(self.limits.first_byte, deadline.saturating_duration_since(now))
    }
}

/// A reply that counts as in flight until its body is read or dropped.
struct Counted<'a> {
    reply: Reply,
    _counted: InFlight<'a>,
}

fn is_passing(failure: &Failure) -> bool {
    matches!(failure, Failure::Broken(_) | Failure::Silent(_) | Failure::Mangled(_) | Failure::Throttled { .. })
}

/// A client that does what it is told, once: retries, stall detection and checksums of its own are off, redirects it never follows.
async fn client(settings: &OriginSettings, limits: &OriginLimits) -> Client {
    let timeouts = TimeoutConfig::builder().connect_timeout(limits.connect).build();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    let local = settings.endpoint.is_some().then(|| "us-east-1".to_owned());
    if let Some(region) = settings.region.clone().or(local) {
        loader = loader.region(Region::new(region));
    }
    loader = match &settings.credentials {
        Credentials::Chain => loader,
        Credentials::Anonymous => loader.no_credentials(),
        Credentials::Profile(name) => loader.profile_name(name),
        Credentials::Static(key) => loader.credentials_provider(aws_sdk_s3::config::Credentials::new(
            key.access_key_id.reveal(),
            key.secret_access_key.reveal(),
            None,
            None,
            "framecache settings",
        )),
    };
    let shared = loader.load().await;
    let mut config = aws_sdk_s3::config::Builder::from(&shared)
        .force_path_style(settings.path_style)
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .disable_s3_express_session_auth(true);
    if let Some(endpoint) = &settings.endpoint {
        config = config.endpoint_url(endpoint);
    }
    Client::from_conf(config.build())
}

/// S3 gives at most this many keys at once (ListObjectsV2, MaxKeys).
const LIST_MAX: usize = 1000;
