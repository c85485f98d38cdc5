//! The clips of `video`, made on the spot by the `ffmpeg` program, once.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// Frames a second of every clip.
pub const FPS: u32 = 30;

/// A clip of H.264 as `x264` makes it by default, that moves everywhere and has grain: its key frames are `gop` frames apart, and nowhere
/// else, so that each group of pictures is one decode unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clip {
    /// Height in pixels, of 16:9.
    pub height: u32,
    /// Frames of one group of pictures.
    pub gop: u32,
    /// Groups.
    pub units: u32,
}

impl Clip {
    /// Frames of the clip.
    pub fn frames(self) -> u32 {
        self.gop * self.units
    }

    /// For people.
    pub fn title(self) -> String {
        format!("{}p, GOP {}", self.height, self.gop)
    }

    /// The clip's file below `folder`; made if it is not there.
    pub async fn make(self, folder: &Path) -> Result<PathBuf> {
        let Self { height, gop, units } = self;
        let file = folder.join(format!("{height}p-{gop}x{units}.mp4"));
        if file.exists() {
            return Ok(file);
        }
        std::fs::create_dir_all(folder)?;
        // One that was broken off in the middle has another name.
        let unfinished = folder.join(format!("{height}p-{gop}x{units}-{}.mp4", std::process::id()));
        let source =
            format!("{SOURCE},scale={}:{height}:flags=bicubic,noise=alls={GRAIN}:allf=t,format=yuv420p", height * 16 / 9);
        let gop = gop.to_string();
        let mut command = Command::new("ffmpeg");
        command.args(["-nostdin", "-loglevel", "error", "-y", "-f", "lavfi", "-i", &source]);
        command.args(["-frames:v", &self.frames().to_string(), "-c:v", "libx264", "-pix_fmt", "yuv420p"]);
        command.args(["-g", &gop, "-keyint_min", &gop, "-sc_threshold", "0", "-movflags", "+faststart"]);
        let made = command.arg(&unfinished).stdin(Stdio::null()).kill_on_drop(true).output().await.context("start ffmpeg")?;
        ensure!(made.status.success(), "ffmpeg: {}", String::from_utf8_lossy(&made.stderr));
        std::fs::rename(&unfinished, &file)?;
        Ok(file)
    }

    /// Bits a second of its file, in millions.
    pub fn megabits(self, file: &Path) -> Result<f64> {
        let seconds = f64::from(self.frames()) / f64::from(FPS);
        Ok(std::fs::metadata(file)?.len() as f64 * 8.0 / seconds / 1e6)
    }
}

/// Whether there is an `ffmpeg` to make clips with.
pub async fn can_be_made() -> bool {
    let mut command = Command::new("ffmpeg");
    let asked = command.args(["-hide_banner", "-h", "encoder=libx264"]).stdin(Stdio::null()).output().await;
    asked.is_ok_and(|told| told.status.success() && String::from_utf8_lossy(&told.stdout).contains("Encoder libx264"))
}

/// What moves, as large as any clip.
const SOURCE: &str = "testsrc2=size=1920x1080:rate=30";

/// Strength of the grain, anew in each frame: with it a frame of 1080 lines costs what one of film costs, some 7 Mbit/s.
const GRAIN: u32 = 5;
