//! What people decode with today: one Python process of one thread that has the same files in memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::agent::Agent;

/// The version of Pillow that the project's pixels are defined by.
const PILLOW: &str = "13.0.0";

const SCRIPT: &str = include_str!("library.py");

/// A library, and the way it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Decode, `convert("RGB")`, bicubic with antialiasing: the definition.
    Pillow,
    /// The same, with the picture reduced in the transform first: what Pillow offers where pixels need not be exact.
    PillowDraft,
    /// `imdecode`, `INTER_AREA`: OpenCV's filter that does not alias.
    OpenCvArea,
    /// `imdecode`, `INTER_LINEAR`: four samples a pixel whatever the scale, so that it aliases.
    OpenCvLinear,
    /// `IMREAD_REDUCED_COLOR_n`, then `INTER_AREA`.
    OpenCvReduced,
    /// `decode_jpeg`, `resize` on uint8, bicubic with antialiasing, `center_crop`.
    Torchvision,
}

impl Library {
    /// What the script calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Pillow => "pillow",
            Self::PillowDraft => "pillow-draft",
            Self::OpenCvArea => "opencv-area",
            Self::OpenCvLinear => "opencv-linear",
            Self::OpenCvReduced => "opencv-reduced",
            Self::Torchvision => "torchvision",
        }
    }

    /// For people.
    fn title(self) -> &'static str {
        match self {
            Self::Pillow => "Pillow",
            Self::PillowDraft => "Pillow, draft",
            Self::OpenCvArea => "OpenCV, INTER_AREA",
            Self::OpenCvLinear => "OpenCV, INTER_LINEAR (aliases)",
            Self::OpenCvReduced => "OpenCV, reduced, INTER_AREA",
            Self::Torchvision => "torchvision",
        }
    }
}

/// What is made of each file.
#[derive(Clone, Copy, Debug)]
pub struct Crop {
    /// Short side of the resized picture.
    pub short: u32,
    /// Side of the middle square.
    pub side: u32,
}

impl Crop {
    /// Bytes of the pixels.
    pub fn bytes(self) -> usize {
        (self.side * self.side * 3) as usize
    }
}

/// The running process.
pub struct LibraryProcess {
    /// Its process.
    pub agent: Agent,
    /// Library, version and way.
    pub title: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Hello {
    Here { version: String, files: usize },
    Missing { missing: String },
}

#[derive(Serialize)]
struct Passes<'a> {
    times: usize,
    keep: Option<&'a Path>,
}

#[derive(Deserialize)]
struct Passed {
    #[serde(rename = "seconds")]
    _seconds: f64,
}

/// A library that is not there, and why.
pub struct Missing(pub String);

impl LibraryProcess {
    /// Starts it on `files`, all of which it reads into memory before this returns.
    pub async fn start(
        library: Library,
        python: &Path,
        folder: &Path,
        crop: Crop,
        files: &[PathBuf],
    ) -> Result<std::result::Result<Self, Missing>> {
        let (script, list) = (folder.join("library.py"), folder.join("library-files.txt"));
        std::fs::write(&script, SCRIPT)?;
        std::fs::write(&list, files.iter().map(|file| format!("{}\n", file.display())).collect::<String>())?;
        let python = python.to_str().context("python's path is not text")?;
        let script = script.to_str().context("the folder's path is not text")?;
        let words = [python, script, library.name(), &crop.short.to_string(), &crop.side.to_string()];
        let mut agent = Agent::run(&words, &[&list])?;
        let (version, read) = match agent.listen().await? {
            Hello::Here { version, files } => (version, files),
            Hello::Missing { missing } => {
                return Ok(Err(Missing(format!(
                    "{} is not here ({missing}): tests/setup.sh tests/requirements-peers.txt brings it",
                    library.title()
                ))));
            }
        };
        let pinned = library != Library::Pillow || version == PILLOW;
        ensure!(pinned, "pillow is {version}, want {PILLOW}: run tests/setup.sh");
        ensure!(read == files.len(), "{} has read {read} of {} files", library.title(), files.len());
        let (name, way) = library.title().split_once(',').unwrap_or((library.title(), ""));
        let comma = if way.is_empty() { "" } else { "," };
        Ok(Ok(Self { agent, title: format!("{name} {version}{comma}{way}") }))
    }

    /// So many passes over all files.
    pub async fn pass(&mut self, times: usize) -> Result<()> {
        let _: Passed = self.agent.ask(&Passes { times, keep: None }).await?;
        Ok(())
    }

    /// One pass whose pixels are written to `file`.
    pub async fn keep(&mut self, file: &Path) -> Result<()> {
        let _: Passed = self.agent.ask(&Passes { times: 1, keep: Some(file) }).await?;
        Ok(())
    }
}
