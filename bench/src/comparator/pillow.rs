//! Pillow: one Python process that decodes the same files from memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::agent::Agent;

/// The version that the project's pixels are defined by.
const VERSION: &str = "13.0.0";

const SCRIPT: &str = include_str!("pillow.py");

/// The running process.
pub struct Pillow {
    /// Its process.
    pub agent: Agent,
}

#[derive(Deserialize)]
struct Hello {
    pillow: String,
    files: usize,
}

#[derive(Deserialize)]
struct Pass {
    seconds: f64,
}

impl Pillow {
    /// Starts it on `files`, all of which it reads into memory before this returns.
    pub async fn start(python: &Path, folder: &Path, short: u32, crop: u32, files: &[PathBuf]) -> Result<Self> {
        let (script, list) = (folder.join("pillow.py"), folder.join("pillow-files.txt"));
        std::fs::write(&script, SCRIPT)?;
        std::fs::write(&list, files.iter().map(|file| format!("{}\n", file.display())).collect::<String>())?;
        let python = python.to_str().context("python's path is not text")?;
        let script = script.to_str().context("the folder's path is not text")?;
        let mut agent = Agent::run(&[python, script, &short.to_string(), &crop.to_string()], &[&list])?;
        let hello: Hello = agent.listen().await?;
        ensure!(hello.pillow == VERSION, "pillow is {}, want {VERSION}: run tests/setup.sh", hello.pillow);
        ensure!(hello.files == files.len(), "pillow has read {} of {} files", hello.files, files.len());
        Ok(Self { agent })
    }

    /// One pass over all files, in seconds.
    pub async fn pass(&mut self) -> Result<f64> {
        Ok(self.agent.ask::<Pass>(&None::<&str>).await?.seconds)
    }

    /// One pass whose pixels are written to `file`.
    pub async fn keep(&mut self, file: &Path) -> Result<()> {
        self.agent.ask::<Pass>(&file).await?;
        Ok(())
    }
}
