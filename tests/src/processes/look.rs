//! What a node says of itself to whoever looks from outside: its admin page, and its view.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use framecache::View;
use framecache::wire::{CONTROL_BYTES_MAX, Header, ItemHead, Verb, ViewBody, ViewPayload, codec, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Asks over `connection` for the view.
///
/// # Errors
/// The connection broke, or what came is no view.
pub async fn view_over(connection: &quinn::Connection) -> Result<View> {
    let (mut send, mut receive) = connection.open_bi().await?;
    let header = Header { verb: Verb::View as u16, deadline_ms_left: 2_000, ..Header::default() };
    stream::send(&mut send, &header).await?;
    stream::send(&mut send, &ViewBody { known: 0 }).await?;
    send.finish()?;
    let head: ItemHead = stream::receive(&mut receive).await?;
    ensure!(head.status == 0, "no view: {}", head.message);
    ensure!(head.payload_bytes <= CONTROL_BYTES_MAX, "a view of {} bytes", head.payload_bytes);
    let mut archive = vec![0; head.payload_bytes as usize];
    receive.read_exact(&mut archive).await?;
    let payload: ViewPayload = codec::decode(&archive)?;
    let mut view = View::default();
    payload.nodes.into_iter().try_for_each(|row| view.merge(row).map(drop))?;
    Ok(view)
}

/// Status and body of a plain GET; five seconds at most.
///
/// # Errors
/// No answer, or none that is HTTP.
pub async fn http_get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes()).await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await?;
        anyhow::Ok(reply)
    };
    let reply = timeout(Duration::from_secs(5), exchange).await.context("no answer")??;
    let status = reply.split_whitespace().nth(1).and_then(|code| code.parse().ok()).context("no status")?;
    Ok((status, reply.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned())))
}
