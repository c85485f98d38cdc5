//! The operator's door: `/live`, `/ready`, `/metrics` and `/status`, over plain HTTP, read only.
//!
//! Nothing here shows a key, a byte or a secret, and nothing changes the node. What a stranger may cost is bounded: connections,
//! the time to send a header, the time a connection lives, the bytes of a header; a body is never read.

mod page;
mod readiness;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use readiness::{Hold, Readiness, Ready};

use crate::telemetry::Registry;

/// Open connections: probes, a few scrapers and a few people; each costs 30 KiB at most.
const CONNECTIONS_MAX: usize = 128;

/// A header that takes longer is an attack or a broken network.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// No connection outlives this, so that readers that stand still leave; longer than the usual scrape interval.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(120);

/// Replies under way at shutdown get this long.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of a request's header: eight times a browser's.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// What the door shows.
#[derive(Clone, Debug)]
pub struct AdminState {
    pub registry: Arc<Registry>,
    pub readiness: Readiness,
    pub info: Arc<AdminInfo>,
}

/// Who answers.
#[derive(Clone, Debug)]
pub struct AdminInfo {
    pub node_id: String,
    pub version: &'static str,
}

/// Answers on `listener` until `shutdown`, then lets replies under way end for two seconds. Holds its own tasks: none outlives
/// this call.
pub async fn serve(listener: TcpListener, state: AdminState, shutdown: CancellationToken) {
    let router = router(state);
    let mut connections = JoinSet::new();
    while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
        while connections.try_join_next().is_some() {}
        match accepted {
            // Closed at once: waiting in the kernel's queue would tell a probe nothing.
            Ok(_) if connections.len() >= CONNECTIONS_MAX => tracing::debug!("admin connection refused: too many"),
            Ok((stream, _)) => drop(connections.spawn(answer(stream, router.clone(), shutdown.clone()))),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "accept admin connection");
                // Out of descriptors: they come back when others close.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    let drained = tokio::time::timeout(DRAIN_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        connections.shutdown().await;
    }
}

/// One connection, to its end or ours.
async fn answer(stream: TcpStream, router: axum::Router, shutdown: CancellationToken) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = tokio::time::sleep(CONNECTION_TIMEOUT) => return,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "admin connection ended");
    }
}

fn router(state: AdminState) -> axum::Router {
    axum::Router::new()
        .route("/", get(|| async { Redirect::temporary("/status") }))
        .route("/live", get(|| async { "live\n" }))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .with_state(state)
}

async fn ready(State(state): State<AdminState>) -> (StatusCode, String) {
    match state.readiness.now() {
        Ready::Yes => (StatusCode::OK, "ready\n".into()),
        not_yet => (StatusCode::SERVICE_UNAVAILABLE, format!("{not_yet}\n")),
    }
}

async fn metrics(State(state): State<AdminState>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, state.registry.render()).into_response()
}

async fn status(State(state): State<AdminState>, RawQuery(query): RawQuery) -> Response {
    let families = state.registry.families();
    let ready = state.readiness.now();
    let wants_json = query.is_some_and(|query| query.split('&').any(|pair| pair == "format=json"));
    let mut response = match wants_json {
        true => axum::Json(page::json(&state.info, &ready, &families)).into_response(),
        false => axum::response::Html(page::html(&state.info, &ready, &families)).into_response(),
    };
    // The page loads nothing and is shown nowhere else; a number from a minute ago is a wrong number.
    let headers = [
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    response.headers_mut().extend(headers.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}
