//! What a reply owes to others on its connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use framecache::quic;
use framecache::tls::{self, TlsFiles};
use framecache::wire::stream;
use tokio::net::UdpSocket;

use super::*;
use crate::telemetry::Registry;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Promise: a refusal is not held up by pages that fill the connection's window, with nothing of them acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_pass_pages() {
    let folder = tempfile::tempdir().expect("folder");
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["127.0.0.1".into()]).expect("certificate");
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, cert.pem()).expect("write");
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let config = rustls::ServerConfig::builder_with_provider(tls::provider()).with_safe_default_protocol_versions().expect("tls");
    let config = config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).expect("key");
    let config = crate::serve::quic::server_config(config).expect("config");
    let server = quic::endpoint(quic::bind(LOOPBACK).expect("bind"), Some(config)).expect("endpoint");
    let carries_back = Arc::new(AtomicBool::new(true));
    let path = between(server.local_addr().expect("address"), carries_back.clone()).await;

    let client = quic::endpoint(quic::bind(LOOPBACK).expect("bind"), None).expect("endpoint");
    let mut trust = tls::client(&TlsFiles { ca: Some(ca), ..TlsFiles::default() }, "127.0.0.1").expect("trust");
    trust.transport_config(Arc::new(quic::transport(Windows::client(1 << 30), None)));
    let connecting = client.connect_with(trust, path, "127.0.0.1").expect("connect");
    let (connection, accepted) = tokio::join!(connecting, async { server.accept().await.expect("incoming").await });
    let (connection, accepted) = (connection.expect("connection"), accepted.expect("accepted"));
    let mut streams = Vec::new();
    for _ in 0..3 {
        let (mut send, recv) = connection.open_bi().await.expect("stream");
        send.write_all(b"?").await.expect("ask");
        streams.push((send, recv));
    }
    let mut answers = Vec::new();
    let metrics = RequestMetrics::new(&Registry::new());
    for _ in 0..3 {
        let (send, _) = accepted.accept_bi().await.expect("asked");
        answers.push(Answer::new(accepted.clone(), send, metrics.clone()));
    }

    // Nothing of what the node sends from here on is acknowledged.
    carries_back.store(false, Relaxed);
    let mut refused = answers.pop().expect("three");
    let pages = answers
        .into_iter()
        .map(|mut answer| tokio::spawn(async move { answer.item(ItemHead::default(), Bytes::from(vec![1; 4 << 20])).await }));
    let pages: Vec<_> = pages.collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(pages.iter().all(|page| !page.is_finished()), "the window is full");
    let patience = Duration::from_secs(3);
    let written = timeout(patience, refused.item(failure(Status::Busy, "busy"), Bytes::new())).await;
    written.expect("written in time").expect("written");
    let (_, recv) = streams.last_mut().expect("three");
    let head: ItemHead = timeout(patience, stream::receive(recv)).await.expect("heard in time").expect("an item");
    assert_eq!(head.status, Status::Busy as u16);
    assert!(pages.iter().all(|page| !page.is_finished()), "pages still wait");
}

/// A path to `server` that always carries to the client, and back while `carries_back`.
async fn between(server: SocketAddr, carries_back: Arc<AtomicBool>) -> SocketAddr {
    let (near, far) = (UdpSocket::bind(LOOPBACK).await.expect("bind"), UdpSocket::bind(LOOPBACK).await.expect("bind"));
    let address = near.local_addr().expect("address");
    tokio::spawn(async move {
        let (mut up, mut down) = (vec![0; 65_535], vec![0; 65_535]);
        let mut client = None;
        loop {
            tokio::select! {
                got = near.recv_from(&mut up) => {
                    let Ok((length, from)) = got else { return };
                    client = Some(from);
                    if carries_back.load(Relaxed) {
                        let _ = far.send_to(&up[..length], server).await;
                    }
                }
                got = far.recv_from(&mut down) => {
                    let (Ok((length, _)), Some(client)) = (got, client) else { return };
                    let _ = near.send_to(&down[..length], client).await;
                }
            }
        }
    });
    address
}
