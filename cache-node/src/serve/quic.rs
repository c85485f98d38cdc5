//! The QUIC door: connections, streams, one request each.

use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use framecache::quic::{self, Windows};
use framecache::view::{NodeState, state};
use framecache::wire::stream::{self, StreamError};
use framecache::wire::{ALPN, Header, ItemHead, Status, Verb, Via, code, ext};
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::answer::{Answer, busy, failure};
use super::{Entered, Request, Service, verbs};
use crate::auth::Caller;
use crate::identity::carries;
use crate::read::{Terms, Way};

/// Most connections at once: 10,000 loaders fit, with room for peers.
const CONNECTIONS_MAX: usize = 12_000;

/// Streams that a connection may open before its first request; from then on [`Windows::NODE`]'s. Each that may be opened takes memory at
/// once, and most of ten thousand connections are idle.
const STREAMS_IDLE: u32 = 16;

/// Connections that wait for their turn, at most.
const INCOMING_MAX: usize = 2_048;

/// Connections from which on a new one is one of a crowd.
const CROWD: usize = 256;

/// Handshakes in progress above which a client must prove its address first (QUIC Retry, RFC 9000 section 8.1.2).
const HANDSHAKES_UNPROVEN_MAX: usize = 200;

/// Longest time for which a handshake keeps others waiting. Most of its work is done at once; who is far away, or says nothing more, is
/// waited for beside the others.
const TURN_MAX: Duration = Duration::from_millis(5);

/// Longest wait for a turn: behind those that say nothing more, a client's first try still gets through.
const TURN_WAIT_MAX: Duration = Duration::from_millis(500);

/// Longest handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Longest time from a stream's start to the end of its request.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// Longest deadline that a caller may ask for.
const DEADLINE_MAX: Duration = Duration::from_secs(600);

/// The QUIC side of a TLS configuration, tuned and bounded.
pub fn server_config(mut tls: rustls::ServerConfig) -> Result<quinn::ServerConfig, quinn::crypto::rustls::NoInitialCipherSuite> {
    tls.alpn_protocols = ALPN.iter().map(|name| name.to_vec()).collect();
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls)?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config
        .transport_config(idle(Windows::NODE))
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(64 << 10)
        .incoming_buffer_size_total(8 << 20)
        .migration(false);
    Ok(config)
}

/// The transport of a connection that has not asked for anything.
fn idle(windows: Windows) -> Arc<quinn::TransportConfig> {
    Arc::new(quic::transport(Windows { streams: STREAMS_IDLE, ..windows }, None))
}

/// Accepts until `stop`, by `config`; then no new connection comes in, and those that are here are told when the service's tasks are done.
pub async fn accept(endpoint: quinn::Endpoint, config: quinn::ServerConfig, service: Arc<Service>, stop: CancellationToken) {
    // A crowd that comes back is let in one after the other, one of proven address and one of any for each two processors: each soon,
    // rather than all together, each so late that it is sent again, and those that are in are served meanwhile. Beside them runs only what
    // passes TURN_MAX or TURN_WAIT_MAX. Whose address is proven does not stand behind those that may be nobody's.
    let places = std::thread::available_parallelism().map_or(1, Into::into).div_ceil(2);
    let [proven, unproven] = [(); 2].map(|()| Arc::new(Semaphore::new(places)));
    loop {
        let incoming = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            incoming = endpoint.accept() => incoming,
        };
        let Some(incoming) = incoming else { return };
        let handshakes = service.counts.handshakes.count();
        let connections = service.counts.connections.count() + handshakes;
        if connections >= CONNECTIONS_MAX {
            incoming.refuse();
        } else if handshakes >= HANDSHAKES_UNPROVEN_MAX && incoming.may_retry() {
            // The client comes back with a token; an error means that it left already.
            let _ = incoming.retry();
        } else {
            let service = service.clone();
            let handshake = service.counts.handshakes.enter();
            let mut config = config.clone();
            let windows = if connections < CROWD { Windows::NODE } else { Windows::CROWD };
            config.transport_config(idle(windows.towards(incoming.remote_address())));
            let turns = if incoming.remote_address_validated() { &proven } else { &unproven };
            service.tasks.clone().spawn(connection(incoming, config, turns.clone(), handshake, service));
        }
    }
}

async fn connection(
    incoming: quinn::Incoming,
    config: quinn::ServerConfig,
    turns: Arc<Semaphore>,
    handshake: Entered,
    service: Arc<Service>,
) {
    let remote = incoming.remote_address();
    let connecting = async {
        let turn = timeout(TURN_WAIT_MAX, turns.acquire()).await;
        let mut connecting = incoming.accept_with(Arc::new(config))?;
        match timeout(TURN_MAX, &mut connecting).await {
            Ok(connected) => connected,
            Err(_) => {
                drop(turn);
                connecting.await
            }
        }
    };
    let connection = match timeout(HANDSHAKE_MAX, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return tracing::debug!(%remote, %error, "handshake failed"),
        Err(_) => return tracing::debug!(%remote, "handshake timed out"),
    };
    drop(handshake);
    let _open = service.counts.connections.enter();
    let peer = Arc::new(Peer { certificates: certificates(&connection), proved: OnceLock::new() });
    let mut asked = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = service.closing.cancelled() => return connection.close(code::LEAVING.into(), b"node ends"),
            accepted = connection.accept_bi() => accepted,
        };
        // An error is the connection's end, whatever ended it.
        let Ok((send, recv)) = accepted else { return };
        if !std::mem::replace(&mut asked, true) {
            connection.set_max_concurrent_bi_streams(Windows::NODE.streams.into());
        }
        service.tasks.spawn(one(connection.clone(), send, recv, service.clone(), peer.clone()));
    }
}

/// One stream: one request, and its reply.
async fn one(
    connection: quinn::Connection,
    send: quinn::SendStream,
    mut recv: quinn::RecvStream,
    service: Arc<Service>,
    other: Arc<Peer>,
) {
    let _open = service.counts.streams.enter();
    let mut answer = Answer::new(connection, send, service.metrics.clone());
    let received = stream::receive_within::<Header, _, _>(&mut recv, |length| service.inbox.admit(length));
    let (header, _room) = match timeout(REQUEST_MAX, received).await {
        Ok(Ok(header)) => header,
        Ok(Err(StreamError::NoRoom(_))) => {
            let _ = recv.stop(code::SLOW.into());
            let _ = answer.item(busy(), Default::default()).await;
            return answer.finish().await;
        }
        Ok(Err(StreamError::Io(error))) if error.kind() != ErrorKind::UnexpectedEof => return,
        Ok(Err(error)) => {
            tracing::debug!(%error, "request is malformed");
            let _ = recv.stop(code::MALFORMED.into());
            return answer.reset(code::MALFORMED);
        }
        Err(_) => {
            let _ = recv.stop(code::SLOW.into());
            return answer.reset(code::SLOW);
        }
    };
    let parsed = answer.begin();
    let verb = Verb::from_number(header.verb);
    let asked = Duration::from_millis(u64::from(header.deadline_ms_left));
    if let Some(known) = header.addition(ext::VIEW).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes) {
        answer.tell(service.members.lacks(known).filter(|_| service.is_open()));
    }
    let request = match Request::of(header, parsed + asked.min(DEADLINE_MAX), &other, &service) {
        Ok(request) => request,
        Err(head) => {
            let _ = answer.item(*head, Default::default()).await;
            service.metrics.request(verb, answer.status, parsed.elapsed(), 0);
            return answer.finish().await;
        }
    };
    let span = service.span(verb, &request);
    let outcome = async {
        match verb {
            _ if !service.is_open() => {
                let head = failure(Status::Unavailable, "this node has not met the others yet");
                answer.item(head, Default::default()).await.is_ok()
            }
            // What this node holds it still tells: the others need not fetch it again.
            Some(verb) if service.is_leaving() && verb != Verb::Peek => {
                answer.item(failure(Status::Leaving, "this node leaves"), Default::default()).await.is_ok()
            }
            None => answer.item(failure(Status::UnknownVerb, "unknown verb"), Default::default()).await.is_ok(),
            Some(verb) => {
                let work = verbs::answer(verb, &mut recv, &mut answer, &service, &request);
                // The verbs keep the deadline themselves; this is for the one that would not.
                let most = request.deadline + Duration::from_secs(30) + REQUEST_MAX;
                tokio::time::timeout_at(most, work).await.is_ok_and(|done| done)
            }
        }
    };
    let whole = outcome.instrument(span).await;
    service.metrics.request(verb, answer.status, parsed.elapsed(), answer.sent_bytes);
    match whole {
        true => answer.finish().await,
        false => drop(answer),
    }
}

/// Whoever is at the other end of a connection.
struct Peer {
    certificates: Vec<CertificateDer<'static>>,
    /// The node that it proved to be.
    proved: OnceLock<Arc<str>>,
}

impl Peer {
    /// The name, if the certificate carries it. One connection is one node's.
    fn prove(&self, name: &str) -> Option<Arc<str>> {
        if let Some(proved) = self.proved.get() {
            return (**proved == *name).then(|| proved.clone());
        }
        carries(&self.certificates, name)
            .then(|| self.proved.get_or_init(|| name.into()).clone())
            .filter(|proved| **proved == *name)
    }
}

fn certificates(connection: &quinn::Connection) -> Vec<CertificateDer<'static>> {
    let identity = connection.peer_identity().and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    identity.map_or(Vec::new(), |certificates| *certificates)
}

impl Request {
    /// What a header asks for, and on whose behalf: only another node may speak for somebody.
    fn of(header: Header, deadline: tokio::time::Instant, other: &Peer, service: &Service) -> Result<Self, Box<ItemHead>> {
        let denied = |why: &str| Box::new(failure(Status::Denied, why));
        let peer = match header.peer() {
            None => None,
            Some(name) => {
                let proved = other.prove(name).ok_or_else(|| denied("the certificate does not carry that node's name"))?;
                // Others have certificates too, with names of their own. That a node is not known here yet passes.
                let topology = service.members.topology();
                let is_here = topology.view().node(name).is_some_and(|row| state(row) != NodeState::Gone);
                if !is_here {
                    return Err(Box::new(failure(Status::Unavailable, format!("no node {name:?} is known here"))));
                }
                Some(proved)
            }
        };
        let caller = match (&peer, header.on_behalf_of.as_str()) {
            (_, "") => Caller::anonymous(),
            (Some(_), name) => Caller::new(name).ok_or_else(|| denied("on behalf of nobody that has a legal name"))?,
            (None, _) => return Err(denied("only nodes speak for others")),
        };
        let way = match (&peer, header.via()) {
            (Some(_), _) => Way::ForPeer,
            (None, Via::Owner | Via::Unreached) => Way::Server,
            (None, Via::Failover) => Way::Itself,
            (None, Via::Replica) => Way::Replica,
        };
        let doubts = peer.is_none() && matches!(header.via(), Via::Failover | Via::Unreached);
        let terms = Terms { deadline, way, doubts, caller: caller.name().into() };
        Ok(Self { caller: Arc::new(caller), peer, deadline, terms, header })
    }
}
