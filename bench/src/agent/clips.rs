//! Whoever reads clips through framecache as a loader does: what the video is, then its frames, in one request after another.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use framecache::{Batch, Call, Client, ClientConfig, ImageSpec, ObjectId, Pictures};
use serde::{Deserialize, Serialize};

use super::{Questions, say};
use crate::trust::Trust;

/// Longest wait for an answer: a decode of four groups of 600 pictures is far from it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whom to ask, and for what kind of frames.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClipTask {
    pub address: SocketAddr,
    /// Folder of the run's certificates.
    pub trust: PathBuf,
    /// What is made of each frame.
    pub spec: String,
}

/// One request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClipAsk {
    pub uri: String,
    /// Indices of the frames, in the order in which they are wanted.
    pub frames: Vec<u64>,
    /// Where the pixels are written, one frame behind the other.
    pub keep: Option<PathBuf>,
}

/// Answers each request with nothing, once all of it is there, until its parent goes.
pub(super) async fn play(task: ClipTask) -> Result<()> {
    let mut config = ClientConfig::new(&task.address.to_string());
    config.tls.ca = Some(Trust::at(&task.trust).ca);
    config.timeout = PATIENCE;
    let client = Client::new(config)?;
    let spec: ImageSpec = task.spec.parse()?;
    let mut questions = Questions::listen();
    while let Some(ask) = questions.next::<ClipAsk>().await? {
        let pictures = fetch(&client, &spec, &ask).await.with_context(|| ask.uri.clone())?;
        if let Some(file) = &ask.keep {
            let pixels: Option<Vec<&[u8]>> = (0..ask.frames.len()).map(|slot| pictures.pixels(slot)).collect();
            std::fs::write(file, pixels.context("a slot without frame")?.concat())?;
        }
        say(&())?;
    }
    client.close().await;
    Ok(())
}

async fn fetch(client: &Client, spec: &ImageSpec, ask: &ClipAsk) -> Result<Pictures> {
    let (id, call): (ObjectId, Call) = (ask.uri.parse()?, Call::default());
    let facts = client.stat(&id, &call).await?;
    ensure!(facts.video.is_some(), "no video");
    let slots = Batch::new(ask.frames.len(), 1 << 30);
    for outcome in client.frames((&id, &facts.version), &ask.frames, spec, &slots, &call).await {
        outcome?;
    }
    Ok(slots.finish())
}
