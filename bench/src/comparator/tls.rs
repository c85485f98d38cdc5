//! TLS 1.3 over TCP (tokio-rustls, AES-128-GCM of aws-lc-rs, no Nagle delay): one connection a request in flight, kept open.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{Pool, Shape, receive_items, receive_request, request};
use crate::agent::{Eye, Traffic, say, until_orphaned};
use crate::trust::Trust;

/// Serves until its parent goes.
pub async fn serve(pool: Pool) -> Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(Trust::at(&pool.trust).server()?));
    let listener = TcpListener::bind(SocketAddr::new(pool.ip, 0)).await?;
    let (items, shape) = (Arc::new(pool.items()?), pool.shape);
    say(&listener.local_addr()?.port())?;
    let accept = async {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(acceptor.clone(), stream, items.clone(), shape));
        }
    };
    tokio::select! {
        () = accept => {}
        () = until_orphaned() => {}
    }
    Ok(())
}

async fn answer(acceptor: TlsAcceptor, stream: TcpStream, items: Arc<Vec<Bytes>>, shape: Shape) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    let head = vec![0; shape.head_bytes];
    loop {
        for item in receive_request(&mut stream, &shape).await? {
            stream.write_all(&head).await?;
            stream.write_all(&items[item as usize]).await?;
        }
        stream.flush().await?;
    }
}

/// One request after another on one connection.
pub struct TlsLane {
    stream: TlsStream<TcpStream>,
    shape: Shape,
}

impl TlsLane {
    /// Connects.
    pub async fn connect(traffic: &Traffic) -> Result<Self> {
        let stream = TcpStream::connect(&traffic.address).await?;
        stream.set_nodelay(true)?;
        let (host, _) = traffic.address.rsplit_once(':').context("no port")?;
        let connector = TlsConnector::from(Arc::new(Trust::at(&traffic.trust).client()?));
        let stream = connector.connect(ServerName::try_from(host.to_owned())?, stream).await?;
        Ok(Self { stream, shape: traffic.shape })
    }

    /// Receives a batch.
    pub async fn fetch(&mut self, batch: &[u32], eye: &Eye) -> Result<()> {
        self.stream.write_all(&request(batch, &self.shape)).await?;
        self.stream.flush().await?;
        receive_items(&mut self.stream, batch, &self.shape, eye).await
    }
}
