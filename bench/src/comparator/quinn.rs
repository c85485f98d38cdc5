//! Bare quinn: the transport, socket and certificates of framecache, and nothing else: no framing work, no look-up, no budget.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use framecache::quic::{self, Windows};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};

use super::{Pool, Shape, receive_items, receive_request, request};
use crate::agent::{Eye, Traffic, say, until_orphaned};
use crate::trust::Trust;

/// What both ends offer; not framecache's, so that none is taken for the other.
const ALPN: &[u8] = b"framecache-bench";

/// Serves until its parent goes.
pub async fn serve(pool: Pool) -> Result<()> {
    let mut tls = Trust::at(&pool.trust).server()?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(Arc::new(quic::transport(Windows::NODE.towards(SocketAddr::new(pool.ip, 0)), None))).migration(false);
    let endpoint = quic::endpoint(quic::bind(SocketAddr::new(pool.ip, 0))?, Some(config))?;
    let (items, shape) = (Arc::new(pool.items()?), pool.shape);
    say(&endpoint.local_addr()?.port())?;
    let accept = async {
        while let Some(incoming) = endpoint.accept().await {
            let items = items.clone();
            tokio::spawn(async move {
                let connection = incoming.await?;
                while let Ok((send, receive)) = connection.accept_bi().await {
                    tokio::spawn(answer(send, receive, items.clone(), shape));
                }
                anyhow::Ok(())
            });
        }
    };
    tokio::select! {
        () = accept => {}
        () = until_orphaned() => {}
    }
    Ok(())
}

async fn answer(mut send: quinn::SendStream, mut receive: quinn::RecvStream, items: Arc<Vec<Bytes>>, shape: Shape) -> Result<()> {
    let batch = receive_request(&mut receive, &shape).await?;
    let head = Bytes::from(vec![0; shape.head_bytes]);
    for item in batch {
        send.write_all_chunks(&mut [head.clone(), items[item as usize].clone()]).await?;
    }
    send.finish()?;
    Ok(())
}

/// A connection to the server.
pub async fn connect(traffic: &Traffic) -> Result<quinn::Connection> {
    let mut tls = Trust::at(&traffic.trust).client()?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    let address: SocketAddr = traffic.address.parse()?;
    config.transport_config(Arc::new(quic::transport(Windows::client(1 << 30).towards(address), Some(quic::KEEP_ALIVE))));
    let (host, _) = traffic.address.rsplit_once(':').context("no port")?;
    let endpoint = quic::endpoint(quic::bind(([0, 0, 0, 0], 0).into())?, None)?;
    Ok(endpoint.connect_with(config, address, host)?.await?)
}

/// One request after another, each on a stream of its own.
pub struct QuinnLane {
    connection: quinn::Connection,
    shape: Shape,
}

impl QuinnLane {
    /// A lane over `connection`.
    pub fn new(connection: quinn::Connection, shape: Shape) -> Self {
        Self { connection, shape }
    }

    /// Receives a batch.
    pub async fn fetch(&mut self, batch: &[u32], eye: &Eye) -> Result<()> {
        let (mut send, mut receive) = self.connection.open_bi().await?;
        send.write_all_chunks(&mut [request(batch, &self.shape).into()]).await?;
        send.finish()?;
        receive_items(&mut receive, batch, &self.shape, eye).await
    }
}
