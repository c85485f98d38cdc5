//! `video`: what frames of videos cost, against those who decode them where they are wanted.
//!
//! Ten frames at random and eight evenly, of clips with short, long and very long groups of pictures. Cold, with the file's bytes cached
//! and nothing decoded: node, decoders and client against torchcodec, PyAV and decord. Warm: against torchcodec, and against a memory map
//! of the frames, decoded before, behind bare quinn.

mod cold;
mod warm;

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::clip::{self, Clip};
use crate::comparator::library::{Crop, Missing};
use crate::comparator::video::{VideoLibrary, VideoProcess};
use crate::report::Report;
use crate::run::Run;
use crate::workload::Random;

const CROP: Crop = Crop { short: 224, side: 224 };
const SPEC: &str = "image?short=224&crop=224";

/// Groups of one, of eight and of twenty seconds. Four groups of the long ones are long enough; of short ones as many as make a clip.
const CLIPS: [Clip; 6] = [
    Clip { height: 720, gop: 30, units: 20 },
    Clip { height: 720, gop: 250, units: 4 },
    Clip { height: 720, gop: 600, units: 4 },
    SHORT,
    Clip { height: 1080, gop: 250, units: 4 },
    LONG,
];
const SHORT: Clip = Clip { height: 1080, gop: 30, units: 20 };
const LONG: Clip = Clip { height: 1080, gop: 600, units: 4 };

/// Which frames are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Selection {
    /// Ten, each other ones each time, in no order.
    Random,
    /// Eight over the whole clip, the first and the last among them.
    Uniform,
}

impl Selection {
    const fn count(self) -> usize {
        match self {
            Self::Random => 10,
            Self::Uniform => 8,
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Random => "10 random",
            Self::Uniform => "8 uniform",
        }
    }

    fn draw(self, clip: Clip, random: &mut Random) -> Vec<u64> {
        let frames = clip.frames();
        match self {
            Self::Random => random.order(frames as usize).into_iter().take(self.count()).map(u64::from).collect(),
            Self::Uniform => (0..8).map(|k| k * u64::from(frames - 1) / 7).collect(),
        }
    }
}

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("video");
    if !clip::can_be_made().await {
        report.note("not run: no ffmpeg with libx264 is installed (apt-get install ffmpeg)");
        return Ok(report);
    }
    let (clips, selections): (&[Clip], &[Selection]) = match run.quick {
        true => (&[SHORT, LONG], &[Selection::Random]),
        false => (&CLIPS, &[Selection::Random, Selection::Uniform]),
    };
    for &clip in clips {
        let file = clip.make(&run.clips).await?;
        report.note(format!("{}: {} frames, {:.1} Mbit/s", clip.title(), clip.frames(), clip.megabits(&file)?));
        for &selection in selections {
            cold::measure(run, clip, &file, selection, &mut report).await?;
        }
    }
    let file = LONG.make(&run.clips).await?;
    for &selection in selections {
        warm::measure(run, LONG, &file, selection, &mut report).await?;
    }
    report.note(
        "cold: the file's bytes are in the node's RAM, no frame of it was ever decoded (each request meets an object of its own); \
         index unknown: nor is the index made; index known: somebody has asked before what the video is",
    );
    report.note(
        "each library is one process, the file in the page cache, opened anew for each request; torchcodec: whole frames, then torch's \
         antialiased bilinear resize, but where it resizes inside (swscale, other pixels); PyAV (packets listed, each key frame sought \
         once) and decord (rising order): whole frames, then Pillow's resize",
    );
    report.note("warm: four requests in flight; memory map: the same frames, decoded, in one mapped file, sent by bare quinn");
    Ok(report)
}

/// Those of `libraries` that are here; of the others the report says why not.
async fn libraries(run: &Run, libraries: &[VideoLibrary], report: &mut Report) -> Result<Vec<VideoProcess>> {
    let folder = run.scratch.folder("library")?;
    let mut here = Vec::new();
    for &library in libraries {
        match VideoProcess::start(library, &run.python, &folder, CROP).await? {
            Ok(process) => here.push(process),
            Err(Missing(why)) => report.note_once(why),
        }
    }
    Ok(here)
}

/// The bucket of one measurement.
fn bucket(run: &Run, name: &str, clip: Clip, selection: Selection) -> Result<PathBuf> {
    Ok(run.scratch.folder(&format!("{name}-{}p-{}-{}", clip.height, clip.gop, selection.count()))?)
}

/// The clip as an object of that key.
fn put(file: &Path, bucket: &Path, key: &str) -> Result<()> {
    super::hit::link(&file.canonicalize()?, &bucket.join(key))
}
