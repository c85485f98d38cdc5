//! The wire without the client: one connection, requests written by hand, replies read as the scenario likes, or not at all.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use framecache::quic::{self, Windows};
use framecache::tls::TlsFiles;
use framecache::wire::{FrameAsk, FramesBody, Header, ItemHead, ReadBody, Verb, stream};

/// A connection to a node.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its statistics are what some look at.
    pub connection: quinn::Connection,
    endpoint: quinn::Endpoint,
}

impl Line {
    /// Connects; `memory` decides the receive windows as it does for a client.
    pub async fn connect(address: SocketAddr, ca: &Path, memory: u64) -> Result<Self> {
        let files = TlsFiles { ca: Some(ca.to_owned()), ..TlsFiles::default() };
        let host = address.ip().to_string();
        let mut config = framecache::tls::client(&files, &host)?;
        config.transport_config(Arc::new(quic::transport(Windows::client(memory).towards(address), Some(quic::KEEP_ALIVE))));
        let endpoint = quic::endpoint(quic::bind(([0, 0, 0, 0], 0).into())?, None)?;
        let connection = endpoint.connect_with(config, address, &host)?.await?;
        Ok(Self { connection, endpoint })
    }

    /// Asks for a range.
    pub async fn read(&self, uri: &str, start: u64, length: u64, deadline: Duration) -> Result<quinn::RecvStream> {
        let (mut send, receive) = self.begin(Verb::Read, deadline).await?;
        stream::send(&mut send, &ReadBody { uri: uri.to_owned(), start, length }).await?;
        send.finish()?;
        Ok(receive)
    }

    /// Asks for pictures.
    pub async fn frames(&self, uris: &[&str], spec: &str, deadline: Duration) -> Result<quinn::RecvStream> {
        let (mut send, receive) = self.begin(Verb::Frames, deadline).await?;
        let item = |(index, uri): (usize, &&str)| FrameAsk {
            index: index as u32,
            attempt: 1,
            spec: 0,
            uri: (*uri).to_owned(),
            version: String::new(),
        };
        let items = uris.iter().enumerate().map(item).collect();
        stream::send(&mut send, &FramesBody { specs: vec![spec.to_owned()], items }).await?;
        send.finish()?;
        Ok(receive)
    }

    async fn begin(&self, verb: Verb, deadline: Duration) -> Result<(quinn::SendStream, quinn::RecvStream)> {
        let (mut send, receive) = self.connection.open_bi().await?;
        let deadline_ms_left = deadline.as_millis() as u32;
        stream::send(&mut send, &Header { verb: verb as u16, deadline_ms_left, ..Header::default() }).await?;
        Ok((send, receive))
    }

    /// Closes, and waits until the node knows.
    pub async fn close(self) {
        self.connection.close(0u32.into(), b"done");
        self.endpoint.wait_idle().await;
    }
}

/// The next item of a reply, its payload thrown away; `None` after the last.
pub async fn next_item(reply: &mut quinn::RecvStream) -> Result<Option<ItemHead>> {
    let Some(head) = stream::receive_or_end::<ItemHead, _>(reply).await? else { return Ok(None) };
    let mut left = head.payload_bytes as usize;
    while left > 0 {
        let Some(chunk) = reply.read_chunk(left, true).await? else { anyhow::bail!("the payload ended early") };
        left -= chunk.bytes.len();
    }
    Ok(Some(head))
}
