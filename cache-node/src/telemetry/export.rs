//! Spans on their way out: a collector that is gone is said once, and so is its return. The SDK itself says nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

/// An exporter whose failures reach the log.
#[derive(Debug)]
pub(super) struct Told<E> {
    inner: E,
    failing: AtomicBool,
    lost: AtomicU64,
}

/// What one delivery changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Lost,
    /// After that many spans.
    Back(u64),
}

impl<E> Told<E> {
    pub(super) fn new(inner: E) -> Self {
        Self { inner, failing: AtomicBool::new(false), lost: AtomicU64::new(0) }
    }

    fn note(&self, failed: bool, spans: u64) -> Option<Change> {
        if failed {
            self.lost.fetch_add(spans, Relaxed);
        }
        match (self.failing.swap(failed, Relaxed), failed) {
            (false, true) => Some(Change::Lost),
            (true, false) => Some(Change::Back(self.lost.swap(0, Relaxed))),
            _ => None,
        }
    }
}

impl<E: SpanExporter> SpanExporter for Told<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let result = self.inner.export(batch).await;
        match (self.note(result.is_err(), spans), &result) {
            (Some(Change::Lost), Err(error)) => tracing::warn!(%error, "spans are lost until the collector answers"),
            (Some(Change::Back(lost)), _) => tracing::info!(lost, "the collector answers again"),
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A collector that is away for an hour is two lines of the log.
    #[test]
    fn only_changes_are_told() {
        let told = Told::new(());
        let deliveries = [(false, 5), (true, 2), (true, 3), (false, 1), (false, 1), (true, 1)];
        let changes: Vec<_> = deliveries.iter().map(|(failed, spans)| told.note(*failed, *spans)).collect();
        assert_eq!(changes, [None, Some(Change::Lost), None, Some(Change::Back(5)), None, Some(Change::Lost)]);
    }
}
