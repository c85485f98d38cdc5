//! One way to look at a node: [`METRICS`] is every number there is, [`Registry`] is where they come together, [`start`] sends the
//! log to stderr and spans to a collector, [`TraceContext`] carries a request's trace from node to node.
//!
//! Hot counters are plain atomics: an OpenTelemetry counter costs 40 ns an addition, an atomic 5 (measured on one core);
//! so metrics are pulled, and only spans go through OpenTelemetry.

mod export;
mod histogram;
mod log;
mod metrics;
mod registry;
mod trace;

use std::io::IsTerminal;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

pub use histogram::{Counter, Gauge, Histogram, Snapshot};
pub use log::LogSetting;
pub use metrics::{Kind, METRICS, Row, Unit};
pub use registry::{Emit, Family, Labels, Registry, SERIES_MAX, Value};
pub use trace::TraceContext;

/// Traces that begin here and are recorded, unless `OTEL_TRACES_SAMPLER` says otherwise: at 100,000 requests a second one in a
/// hundred is what a collector takes. A trace that began elsewhere is recorded if its beginning was.
const SAMPLED_SHARE: f64 = 0.01;

/// How long one delivery to the collector may take.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// Spans that are sent: all at `info` but those of the libraries that send them, which would never end.
const SPANS: &str =
    "info,h2=off,tonic=off,hyper=off,hyper_util=off,tower=off,opentelemetry=off,opentelemetry_sdk=off,opentelemetry-otlp=off";

/// What [`start`] needs to know.
#[derive(Clone, Debug)]
pub struct TelemetrySettings {
    /// `telemetry.log`.
    pub log: String,
    /// `telemetry.otlp_endpoint`.
    pub otlp_endpoint: Option<String>,
    /// `node.id`.
    pub node_id: String,
}

/// Nothing is logged or sent, and why.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Correct the key.
    #[error("`telemetry.log` is not understood; {0}")]
    Log(String),
    /// Correct the key.
    #[error("`telemetry.otlp_endpoint` cannot be used: {0}")]
    Otlp(String),
    /// One process has one log: start it once, in `main`.
    #[error("logging was already started in this process")]
    Started,
}

/// Keeps spans flowing; [`TelemetryGuard::shutdown`] sends the last ones.
#[derive(Debug)]
#[must_use = "spans that are not sent yet are lost unless this is shut down"]
pub struct TelemetryGuard {
    provider: Option<SdkTracerProvider>,
}

/// Starts the log, and spans if an endpoint is given, for the whole process. With an endpoint this must run inside the runtime.
/// A collector that is not there is logged once, and costs nothing else.
pub fn start(settings: TelemetrySettings) -> Result<TelemetryGuard, TelemetryError> {
    let TelemetrySettings { log, otlp_endpoint, node_id } = settings;
    let log = LogSetting::parse(&log).map_err(TelemetryError::Log)?;
    let provider = match otlp_endpoint {
        None => None,
        Some(endpoint) => Some(provider(&endpoint, node_id).map_err(|error| TelemetryError::Otlp(error.to_string()))?),
    };
    subscriber(log, provider.as_ref()).try_init().map_err(|_| TelemetryError::Started)?;
    Ok(TelemetryGuard { provider })
}

impl TelemetryGuard {
    /// Sends what is left, for at most `limit`.
    pub async fn shutdown(self, limit: Duration) {
        let Some(provider) = self.provider else { return };
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(limit));
        match tokio::time::timeout(limit, ended).await {
            Ok(Ok(Ok(()))) => {}
            _ => tracing::warn!(limit_ms = limit.as_millis() as u64, "the last spans were not delivered"),
        }
    }
}

fn provider(endpoint: &str, node_id: String) -> Result<SdkTracerProvider, opentelemetry_otlp::ExporterBuildError> {
    let exporter =
        opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(EXPORT_TIMEOUT).build()?;
    let resource = Resource::builder()
        .with_service_name("framecache-node")
        .with_attribute(KeyValue::new("service.instance.id", node_id))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    let builder = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(export::Told::new(exporter));
    let sampled_by_env = std::env::var_os("OTEL_TRACES_SAMPLER").is_some();
    let builder = match sampled_by_env {
        true => builder,
        false => builder.with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(SAMPLED_SHARE)))),
    };
    Ok(builder.build())
}

/// The log to stderr, and spans to the provider.
fn subscriber(log: LogSetting, provider: Option<&SdkTracerProvider>) -> impl tracing::Subscriber + Send + Sync + 'static {
    let LogSetting { json, filter } = log;
    let spans = provider.map(|provider| {
        tracing_opentelemetry::layer().with_tracer(provider.tracer("framecache-node")).with_filter(EnvFilter::new(SPANS))
    });
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match json {
        true => lines.json().boxed(),
        false => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
    };
    tracing_subscriber::registry().with(spans).with(lines.with_filter(filter))
}
