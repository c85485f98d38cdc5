//! What people read clips with today: one Python process for each, that opens the file anew for every request.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::library::{Crop, Missing};
use crate::agent::Agent;

const SCRIPT: &str = include_str!("video.py");

/// A library, and the way it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoLibrary {
    /// What the script calls it.
    name: &'static str,
    /// The package that brings it.
    pub package: &'static str,
    /// Behind the version, for people.
    way: &'static str,
    /// Threads of its decoder.
    pub threads: u32,
}

impl VideoLibrary {
    /// Its seek mode `exact`, which reads all packets first; one thread. `get_frames_at`, whole frames, then torch's antialiased
    /// bilinear resize of the batch, as torchvision's is.
    pub const EXACT: Self = Self { name: "torchcodec-exact", package: "torchcodec", way: "exact", threads: 1 };
    /// Its seek mode `approximate`, which trusts the header; one thread.
    pub const APPROXIMATE: Self = Self { name: "torchcodec-approximate", package: "torchcodec", way: "approximate", threads: 1 };

    /// All of them. `resized`: torchcodec's own resize and crop, in its decoder by swscale, which gives other pixels.
    pub const ALL: [Self; 8] = [
        Self::EXACT,
        Self::APPROXIMATE,
        Self { name: "torchcodec-resized", package: "torchcodec", way: "approximate, resized inside", threads: 1 },
        Self { name: "torchcodec-approximate", package: "torchcodec", way: "approximate, 2 threads", threads: 2 },
        Self { name: "pyav", package: "av", way: "", threads: 1 },
        Self { name: "pyav", package: "av", way: "2 threads", threads: 2 },
        Self { name: "decord", package: "decord", way: "", threads: 1 },
        Self { name: "decord", package: "decord", way: "2 threads", threads: 2 },
    ];

    /// Those of a quick run: each library once, and torchcodec's fastest.
    pub const FEW: [Self; 5] = [Self::ALL[0], Self::ALL[1], Self::ALL[3], Self::ALL[4], Self::ALL[6]];

    /// Whether it is torchcodec, by the steps that the definition of our pixels has: whole RGB, then the resize.
    pub fn is_torchcodec(self) -> bool {
        self.package == "torchcodec" && self.name != "torchcodec-resized"
    }
}

/// The running process.
pub struct VideoProcess {
    /// Its process.
    pub agent: Agent,
    /// Library, version and way.
    pub title: String,
    /// What it is.
    pub library: VideoLibrary,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Hello {
    Here { version: String },
    Missing { missing: String },
}

#[derive(Serialize)]
struct Ask<'a> {
    file: &'a Path,
    frames: &'a [u64],
    keep: Option<&'a Path>,
}

#[derive(Deserialize)]
struct Told {
    #[serde(rename = "seconds")]
    _seconds: f64,
}

impl VideoProcess {
    /// Starts it.
    pub async fn start(
        library: VideoLibrary,
        python: &Path,
        folder: &Path,
        crop: Crop,
    ) -> Result<std::result::Result<Self, Missing>> {
        let script: PathBuf = folder.join("video.py");
        std::fs::write(&script, SCRIPT)?;
        let python = python.to_str().context("python's path is not text")?;
        let script = script.to_str().context("the folder's path is not text")?;
        let VideoLibrary { name, package, way, threads } = library;
        let words = [python, script, name, &threads.to_string(), &crop.short.to_string(), &crop.side.to_string()];
        let mut agent = Agent::run(&words, &[])?;
        Ok(match agent.listen().await? {
            Hello::Missing { missing } => Err(Missing(format!(
                "{package} is not here ({missing}): tests/setup.sh tests/requirements-peers.txt brings it; torchcodec also needs \
                 FFmpeg's libraries of the system"
            ))),
            Hello::Here { version } => {
                let comma = if way.is_empty() { "" } else { ", " };
                Ok(Self { agent, title: format!("{version}{comma}{way}"), library })
            }
        })
    }

    /// Opens `file` and takes `frames` of it, in that order; with `keep`, their pixels are written there.
    pub async fn frames(&mut self, file: &Path, frames: &[u64], keep: Option<&Path>) -> Result<()> {
        let _: Told = self.agent.ask(&Ask { file, frames, keep }).await?;
        Ok(())
    }
}
