//! Nodes that tests play: they answer what a script says, show certificates of any names, and can be cut off or frozen.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

use crate::quic::{self, Windows};
use crate::tls::{self, Own, TlsFiles};
use crate::view::View;
use crate::wire::codec::{self, PREFIX_BYTES};
use crate::wire::{ALPN, Header, ItemHead, NodeRow, Status, Verb, ViewPayload, stream};

/// One item of a reply. Where its head announces more bytes than there are, they never come.
pub(crate) type Item = (ItemHead, Vec<u8>);

/// An addition to an item's head that a node does not send, but goes by: after so many bytes of the item, head and length included, it says
/// nothing for so many milliseconds; `u32::MAX`: for ever.
pub(crate) const PAUSE: u16 = u16::MAX;

/// The item, with a pause after its first `bytes` bytes.
pub(crate) fn paused((mut head, payload): Item, bytes: u32, ms: u32) -> Item {
    head.ext.push((PAUSE, (u64::from(bytes) << 32 | u64::from(ms)).to_le_bytes().to_vec()));
    (head, payload)
}

/// What a node does with a request: its header and its body's archive.
pub(crate) type Script = Arc<dyn Fn(Header, Vec<u8>) -> BoxFuture<'static, Vec<Item>> + Send + Sync>;

/// Signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("certificate").der().clone();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    pub(crate) fn own(&self, names: &[&str]) -> Own {
        let key = KeyPair::generate().expect("key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names).expect("names").signed_by(&key, &self.issuer).expect("signed");
        Own { chain: vec![certificate.der().clone()], key: PrivatePkcs8KeyDer::from(key.serialize_der()).into() }
    }

    /// Whoever trusts it.
    pub(crate) fn trust(&self) -> TlsFiles {
        TlsFiles { roots: Some(vec![self.certificate.clone()].into()), ..TlsFiles::default() }
    }
}

/// A node, behind a wire that can be cut.
pub(crate) struct FakeNode {
    pub(crate) row: NodeRow,
    /// Headers of what it was asked, but for views.
    pub(crate) asked: Arc<Mutex<Vec<Header>>>,
    pub(crate) wire: Wire,
    endpoint: quinn::Endpoint,
    tasks: Vec<AbortHandle>,
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.endpoint.close(0u32.into(), b"");
    }
}

impl FakeNode {
    /// A node that shows `names`, knows what `view` holds, and does what `script` says.
    pub(crate) async fn start(authority: &Authority, id: &str, names: &[&str], view: Arc<Mutex<View>>, script: Script) -> Self {
        Self::start_with(authority, id, names, view, script, Windows::NODE).await
    }

    /// The same with other windows.
    pub(crate) async fn start_with(
        authority: &Authority,
        id: &str,
        names: &[&str],
        view: Arc<Mutex<View>>,
        script: Script,
        windows: Windows,
    ) -> Self {
        let own = authority.own(names);
        let mut tls = rustls::ServerConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(own.chain, own.key)
            .expect("certificate");
        tls.alpn_protocols = ALPN.iter().map(|name| name.to_vec()).collect();
        let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls).expect("suites");
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        config.transport_config(Arc::new(quic::transport(windows, None))).migration(false);
        let socket = quic::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("socket");
        let endpoint = quic::endpoint(socket, Some(config)).expect("endpoint");
        let wire = Wire::start(endpoint.local_addr().expect("address")).await;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let accepting = endpoint.clone();
        let kept = asked.clone();
        let task = tokio::spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                let (view, script, asked) = (view.clone(), script.clone(), kept.clone());
                tokio::spawn(async move {
                    let Ok(connection) = incoming.await else { return };
                    while let Ok((send, recv)) = connection.accept_bi().await {
                        tokio::spawn(answer(send, recv, view.clone(), script.clone(), asked.clone()));
                    }
                });
            }
        });
        let row = NodeRow { quic: wire.address.to_string(), ..NodeRow::member(id, 100) };
        Self { row, asked, wire, endpoint, tasks: vec![task.abort_handle()] }
    }
}

async fn answer(
    mut send: quinn::SendStream,
    mut recv: quinn::RecvStream,
    view: Arc<Mutex<View>>,
    script: Script,
    asked: Arc<Mutex<Vec<Header>>>,
) {
    let Ok(header) = stream::receive::<Header, _>(&mut recv).await else { return };
    let Ok(mut body) = recv.read_to_end(1 << 20).await else { return };
    let items = match Verb::from_number(header.verb) {
        Some(Verb::View) => {
            let payload: ViewPayload = view.lock().payload();
            let archive = codec::encode(&payload).expect("view").split_off(PREFIX_BYTES);
            vec![(ItemHead { last: true, ..ItemHead::default() }, archive)]
        }
        _ => {
            asked.lock().push(header.clone());
            script(header, body.split_off(PREFIX_BYTES)).await
        }
    };
    for (head, payload) in items {
        let bytes = payload.len() as u32;
        let mut head = ItemHead { payload_bytes: head.payload_bytes.max(bytes), ..head };
        let pause =
            head.ext.pop_if(|(number, _)| *number == PAUSE).map(|(_, said)| said.try_into().map_or(0, u64::from_le_bytes));
        if let Some(pause) = pause {
            let whole = [codec::encode(&head).expect("head").to_vec(), payload].concat();
            let (before, after) = whole.split_at(((pause >> 32) as usize).min(whole.len()));
            if send.write_all(before).await.is_err() {
                return;
            }
            if pause as u32 == u32::MAX {
                let _ = send.stopped().await;
                return;
            }
            tokio::time::sleep(Duration::from_millis(pause & 0xffff_ffff)).await;
            if send.write_all(after).await.is_err() {
                return;
            }
            continue;
        }
        if stream::send(&mut send, &head).await.is_err() || send.write_all(&payload).await.is_err() {
            return;
        }
        if head.payload_bytes > bytes {
            let _ = send.stopped().await;
            return;
        }
    }
    let _ = send.finish();
    let _ = send.stopped().await;
}

/// The only item of a reply that says no.
pub(crate) fn refusal(status: Status) -> Vec<Item> {
    vec![(ItemHead { status: status as u16, last: true, message: "as scripted".into(), ..ItemHead::default() }, Vec::new())]
}

/// A script out of a plain function.
pub(crate) fn script<F, W>(of: F) -> Script
where
    F: Fn(Header, Vec<u8>) -> W + Send + Sync + 'static,
    W: Future<Output = Vec<Item>> + Send + 'static,
{
    Arc::new(move |header, body| of(header, body).boxed())
}

/// Carries datagrams to a node and back, until it is cut. What a cut wire is given is lost, as with a node that was killed or frozen.
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    cut: Arc<AtomicBool>,
    /// Milliseconds by which what goes to the node is late.
    delay: Arc<AtomicU64>,
    /// Clients whose datagrams are lost.
    lost: Arc<Mutex<Vec<SocketAddr>>>,
    known: Arc<Mutex<Vec<SocketAddr>>>,
    node: Arc<Mutex<SocketAddr>>,
    task: AbortHandle,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Wire {
    async fn start(node: SocketAddr) -> Self {
        let outer = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("bind"));
        let (address, cut) = (outer.local_addr().expect("address"), Arc::new(AtomicBool::new(false)));
        let (lost, known, node, delay) =
            (Arc::default(), Arc::default(), Arc::new(Mutex::new(node)), Arc::new(AtomicU64::new(0)));
        let carrier = Carrier {
            outer,
            cut: cut.clone(),
            delay: Arc::clone(&delay),
            lost: Arc::clone(&lost),
            known: Arc::clone(&known),
            node: node.clone(),
        };
        let task = tokio::spawn(carrier.run()).abort_handle();
        Self { address, cut, delay, lost, known, node, task }
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }

    /// From now on what goes to the node is late by `ms` milliseconds.
    pub(crate) fn delay(&self, ms: u64) {
        self.delay.store(ms, Ordering::Relaxed);
    }

    /// From now on another node is at this end, which knows nothing of the connections of the one before.
    pub(crate) fn replace(&self, other: &FakeNode) {
        *self.node.lock() = other.endpoint.local_addr().expect("address");
    }

    /// Whoever has sent anything so far is not heard any more.
    pub(crate) fn forget(&self) {
        *self.lost.lock() = self.known.lock().clone();
    }
}

/// The task of a wire.
struct Carrier {
    outer: Arc<UdpSocket>,
    cut: Arc<AtomicBool>,
    delay: Arc<AtomicU64>,
    lost: Arc<Mutex<Vec<SocketAddr>>>,
    known: Arc<Mutex<Vec<SocketAddr>>>,
    node: Arc<Mutex<SocketAddr>>,
}

impl Carrier {
    async fn run(self) {
        let mut inner: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
        let mut buffer = vec![0; 65_536];
        loop {
            let Ok((bytes, client)) = self.outer.recv_from(&mut buffer).await else { continue };
            if self.cut.load(Ordering::Relaxed) || self.lost.lock().contains(&client) {
                continue;
            }
            let socket = match inner.get(&client) {
                Some(socket) => socket.clone(),
                None => {
                    let socket = self.back(client).await;
                    inner.insert(client, socket.clone());
                    socket
                }
            };
            let node = *self.node.lock();
            let late = self.delay.load(Ordering::Relaxed);
            if late > 0 {
                let datagram = buffer[..bytes].to_vec();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(late)).await;
                    let _ = socket.send_to(&datagram, node).await;
                });
                continue;
            }
            let _ = socket.send_to(&buffer[..bytes], node).await;
        }
    }

    /// A socket for what is sent to the node, of which what the node answers goes back to `client`.
    async fn back(&self, client: SocketAddr) -> Arc<UdpSocket> {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("bind"));
        self.known.lock().push(client);
        let (outer, cut, node, answers) = (self.outer.clone(), self.cut.clone(), self.node.clone(), socket.clone());
        tokio::spawn(async move {
            let mut buffer = vec![0; 65_536];
            while let Ok((bytes, from)) = answers.recv_from(&mut buffer).await {
                if !cut.load(Ordering::Relaxed) && *node.lock() == from {
                    let _ = outer.send_to(&buffer[..bytes], client).await;
                }
            }
        });
        socket
    }
}
