//! What framecache is measured against. Each moves the same messages, at the best settings known to us.

pub mod library;
pub mod quinn;
pub mod tls;
pub mod video;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::agent::Eye;
use crate::workload;

/// The messages of a transfer: how many items of which size, how many in one request, how many requests at once, and the bytes
/// that framecache puts around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Distinct items.
    pub items: usize,
    /// Bytes of each.
    pub item_bytes: usize,
    /// Items of one request.
    pub batch: usize,
    /// Requests at once.
    pub in_flight: usize,
    /// Bytes of one request: header and body.
    pub request_bytes: usize,
    /// Bytes of one item's head.
    pub head_bytes: usize,
}

/// What a comparator's server serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pool {
    pub shape: Shape,
    pub items: Items,
    /// Folder of the run's certificates.
    pub trust: PathBuf,
    /// Where it listens; it says its port.
    pub ip: std::net::IpAddr,
}

/// Where a server's items come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Items {
    /// Made from a seed, distinct, each in memory of its own as a cache's entries are.
    Made { seed: u64 },
    /// One behind the other in a file, which is mapped into memory.
    Mapped { file: PathBuf },
}

impl Pool {
    fn items(&self) -> Result<Vec<Bytes>> {
        let Shape { items, item_bytes, .. } = self.shape;
        match &self.items {
            Items::Made { seed } => Ok((0..items).map(|item| workload::object(*seed, item as u64, item_bytes).into()).collect()),
            Items::Mapped { file } => {
                let file = std::fs::File::open(file)?;
                // SAFETY: the run wrote the file before it started this process, and nobody writes to it from then on.
                let map = unsafe { memmap2::Mmap::map(&file)? };
                ensure!(map.len() == items * item_bytes, "a map of {} bytes", map.len());
                let map = Bytes::from_owner(map);
                Ok((0..items).map(|item| map.slice(item * item_bytes..(item + 1) * item_bytes)).collect())
            }
        }
    }
}

/// A request for `batch`, as long as framecache's own: its length, the number of items, their numbers, filler.
fn request(batch: &[u32], shape: &Shape) -> Vec<u8> {
    let mut message = vec![0; shape.request_bytes.max(8 + batch.len() * 4)];
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_le_bytes());
    message[4..8].copy_from_slice(&(batch.len() as u32).to_le_bytes());
    for (slot, item) in batch.iter().enumerate() {
        message[8 + slot * 4..12 + slot * 4].copy_from_slice(&item.to_le_bytes());
    }
    message
}

/// Reads such a request.
async fn receive_request<R: AsyncRead + Unpin>(stream: &mut R, shape: &Shape) -> Result<Vec<u32>> {
    let length = stream.read_u32_le().await? as usize;
    ensure!((8..1 << 20).contains(&length), "no request");
    let mut message = vec![0; length - 4];
    stream.read_exact(&mut message).await?;
    let numbers: Vec<u32> = message.chunks_exact(4).map(|n| u32::from_le_bytes([n[0], n[1], n[2], n[3]])).collect();
    let count = numbers[0] as usize;
    let items = numbers.get(1..=count).unwrap_or_default().to_vec();
    ensure!(items.len() == count && items.iter().all(|&item| (item as usize) < shape.items), "no such items");
    Ok(items)
}

/// Receives the items of `batch` into one block, as framecache's client does, and shows them.
async fn receive_items<R: AsyncRead + Unpin>(stream: &mut R, batch: &[u32], shape: &Shape, eye: &Eye) -> Result<()> {
    let mut block = vec![0; batch.len() * shape.item_bytes];
    let mut head = vec![0; shape.head_bytes];
    for slot in block.chunks_exact_mut(shape.item_bytes) {
        stream.read_exact(&mut head).await?;
        stream.read_exact(slot).await?;
    }
    for (slot, &item) in block.chunks_exact(shape.item_bytes).zip(batch) {
        eye.see(item, slot);
    }
    Ok(())
}
