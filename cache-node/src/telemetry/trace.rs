//! The thread of one request through all nodes: W3C Trace Context, level 1, as bytes for the wire and as a span's parent.

use std::fmt;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Which span of which trace asks. Neither id is all zero (W3C Trace Context, sections 3.2.2.3 and 3.2.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

impl TraceContext {
    /// Of these ids; `None` if one is all zero, which means "no trace".
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], flags: u8) -> Option<Self> {
        (trace_id != [0; 16] && span_id != [0; 8]).then_some(Self { trace_id, span_id, flags })
    }

    /// Of this span, for a request that it is about to send; `None` while nobody traces. From then on the span's parent is fixed.
    pub fn of(span: &Span) -> Option<Self> {
        let context = span.context();
        let context = context.span().span_context().clone();
        Self::new(context.trace_id().to_bytes(), context.span_id().to_bytes(), context.trace_flags().to_u8())
    }

    /// Of the span that we are in.
    pub fn current() -> Option<Self> {
        Self::of(&Span::current())
    }

    /// Makes `span` a child of the one that asked. To be called before the span is entered; afterwards, and while nobody traces,
    /// it changes nothing and says false.
    pub fn adopt(self, span: &Span) -> bool {
        let flags = TraceFlags::new(self.flags);
        let (trace_id, span_id) = (TraceId::from_bytes(self.trace_id), SpanId::from_bytes(self.span_id));
        let parent = SpanContext::new(trace_id, span_id, flags, true, TraceState::default());
        span.set_parent(Context::new().with_remote_span_context(parent)).is_ok()
    }

    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Whether the one that asked is recorded, so that we are too.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }
}

/// `traceparent` as HTTP has it: `00-<trace id>-<span id>-<flags>`.
impl fmt::Display for TraceContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace_id, span_id) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(out, "00-{trace_id:032x}-{span_id:016x}-{:02x}", self.flags)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter};
    use parking_lot::Mutex;
    use tracing::subscriber::with_default;

    use super::*;
    use crate::telemetry::{LogSetting, subscriber};

    #[derive(Clone, Debug, Default)]
    struct Kept(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Kept {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().extend(batch);
            Ok(())
        }
    }

    fn provider() -> (SdkTracerProvider, Kept) {
        let kept = Kept::default();
        let sampler = Sampler::ParentBased(Box::new(Sampler::AlwaysOff));
        (SdkTracerProvider::builder().with_sampler(sampler).with_simple_exporter(kept.clone()).build(), kept)
    }

    /// A request that names its trace is recorded as a child of the span that asked, and hands the trace on; the sender's
    /// decision to record is kept.
    #[test]
    fn a_trace_goes_through_the_node() {
        let (provider, kept) = provider();
        let asked = TraceContext::new([7; 16], [9; 8], 1).expect("legal");
        let passed = with_default(subscriber(LogSetting::parse("off").expect("log"), Some(&provider)), || {
            let span = tracing::info_span!("request");
            assert!(asked.adopt(&span));
            let passed = span.in_scope(|| {
                let inner = tracing::info_span!("origin");
                inner.in_scope(TraceContext::current)
            });
            assert!(!asked.adopt(&span), "too late");
            passed
        })
        .expect("traced");
        assert_eq!((passed.trace_id(), passed.is_sampled()), (asked.trace_id(), true));
        let spans = kept.0.lock();
        let find = |name: &str| spans.iter().find(|span| span.name == name).expect("recorded");
        let (request, origin) = (find("request"), find("origin"));
        assert_eq!(request.parent_span_id.to_bytes(), asked.span_id());
        assert!(request.parent_span_is_remote);
        assert_eq!(origin.parent_span_id, request.span_context.span_id());
        assert_eq!(origin.span_context.span_id().to_bytes(), passed.span_id());
        assert_eq!(origin.span_context.trace_id().to_bytes(), [7; 16]);
    }

    /// What the sender does not record, we do not; without a tracer nothing is passed on.
    #[test]
    fn silence_is_passed_on_too() {
        let (provider, kept) = provider();
        let asked = TraceContext::new([7; 16], [9; 8], 0).expect("legal");
        with_default(subscriber(LogSetting::parse("off").expect("log"), Some(&provider)), || {
            let span = tracing::info_span!("request");
            assert!(asked.adopt(&span));
            let passed = span.in_scope(TraceContext::current).expect("still has ids");
            assert_eq!((passed.trace_id(), passed.is_sampled()), ([7; 16], false));
        });
        assert!(kept.0.lock().is_empty());
        with_default(subscriber(LogSetting::parse("info").expect("log"), None), || {
            let span = tracing::info_span!("request");
            assert!(!asked.adopt(&span));
            assert_eq!(span.in_scope(TraceContext::current), None);
        });
    }

    /// Ids are refused where the standard refuses them, and print as the standard prints them.
    #[test]
    fn ids_are_those_of_the_standard() {
        assert_eq!(TraceContext::new([0; 16], [1; 8], 1), None);
        assert_eq!(TraceContext::new([1; 16], [0; 8], 1), None);
        let context = TraceContext::new([0xab; 16], [1; 8], 1).expect("legal");
        assert_eq!(context.to_string(), "00-abababababababababababababababab-0101010101010101-01");
    }
}
