//! How requests are counted.

use std::sync::Arc;
use std::time::Duration;

use framecache::wire::{Status, Verb};

use crate::telemetry::{Counter, Histogram, Registry};

/// Outcomes that are told apart; several statuses share one, so that the label stays small.
const OUTCOMES: [&str; 7] = ["ok", "busy", "not_found", "denied", "changed", "timeout", "error"];

/// Counters of every verb, made once, so that a request looks nothing up.
pub struct RequestMetrics {
    verbs: Vec<PerVerb>,
    busy: Arc<Histogram>,
}

struct PerVerb {
    outcomes: [Arc<Counter>; OUTCOMES.len()],
    seconds: Arc<Histogram>,
    sent: Arc<Counter>,
}

impl RequestMetrics {
    /// Registers the counters.
    pub fn new(registry: &Registry) -> Arc<Self> {
        let per_verb = |verb: &str| PerVerb {
            outcomes: OUTCOMES
                .map(|outcome| registry.counter("framecache_requests_total", &[("verb", verb), ("outcome", outcome)])),
            seconds: registry.histogram("framecache_request_seconds", &[("verb", verb)]),
            sent: registry.counter("framecache_sent_bytes_total", &[("verb", verb)]),
        };
        let mut verbs: Vec<PerVerb> = Verb::ALL.iter().map(|verb| per_verb(verb.name())).collect();
        verbs.push(per_verb("unknown"));
        Arc::new(Self { verbs, busy: registry.histogram("framecache_busy_refusal_seconds", &[]) })
    }

    /// Counts a request that ended, `took` after its header was parsed.
    pub(super) fn request(&self, verb: Option<Verb>, status: Status, took: Duration, sent_bytes: u64) {
        let row = verb.map_or(self.verbs.len() - 1, |verb| verb as usize - 1);
        let Some(counters) = self.verbs.get(row) else { return };
        counters.outcomes[outcome(status)].inc();
        counters.seconds.record(took);
        counters.sent.add(sent_bytes);
    }

    /// Counts one `Busy`, written `took` after its request's header was parsed.
    pub(super) fn busy(&self, took: Duration) {
        self.busy.record(took);
    }
}

fn outcome(status: Status) -> usize {
    match status {
        Status::Ok => 0,
        Status::Busy => 1,
        Status::NotFound => 2,
        Status::Denied | Status::NotConfigured => 3,
        Status::Changed => 4,
        Status::Timeout => 5,
        _ => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: every verb has its counters, and an unknown one has too.
    #[test]
    fn every_verb_is_counted() {
        let registry = Registry::new();
        let metrics = RequestMetrics::new(&registry);
        for verb in Verb::ALL.into_iter().map(Some).chain([None]) {
            metrics.request(verb, Status::Busy, Duration::from_millis(1), 3);
        }
        let page = registry.render();
        for verb in Verb::ALL.iter().map(|verb| verb.name()).chain(["unknown"]) {
            assert!(page.contains(&format!("framecache_requests_total{{verb=\"{verb}\",outcome=\"busy\"}} 1\n")), "{verb}");
        }
    }
}
