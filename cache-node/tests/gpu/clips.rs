//! Clips and pictures of a folder, and what engines make of them.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use framecache::{ByteRange, ObjectId, Tensor, Version};
use framecache_node::decode::video::{Gone, Input, make};
use framecache_node::decode::{
    ClipFrame, ClipJob, DecodeError, DecodeJob, Decoder, Limits, Source, SourceError, Trust, VideoIndex, WorkerPool,
};

/// A clip with its index.
pub(crate) struct Clip {
    pub(crate) name: String,
    bytes: Bytes,
    index: VideoIndex,
}

/// What became of a unit: every frame's bytes, or why not.
#[derive(Debug, PartialEq)]
pub(crate) enum Made {
    All(Vec<Bytes>),
    Not(String),
}

impl Made {
    pub(crate) fn of(answer: Result<Vec<Result<Tensor, DecodeError>>, DecodeError>) -> Self {
        match answer.and_then(|each| each.into_iter().collect::<Result<Vec<_>, _>>()) {
            Ok(tensors) => Self::All(tensors.into_iter().map(|tensor| tensor.data).collect()),
            Err(error) => Self::Not(error.to_string()),
        }
    }
}

struct Memory(Bytes);

impl Input for Memory {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, range: ByteRange, into: &mut Vec<u8>) -> Result<(), Gone> {
        into.extend_from_slice(self.0.get(range.start() as usize..range.end() as usize).ok_or(Gone)?);
        Ok(())
    }
}

#[async_trait]
impl Source for Memory {
    async fn read(&self, range: ByteRange) -> Result<Bytes, SourceError> {
        Ok(self.0.slice(range.start() as usize..range.end() as usize))
    }
}

fn files(folder: &Path) -> Vec<(String, Bytes)> {
    let mut files: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| entry.path().is_file()).collect();
    files.sort_by_key(std::fs::DirEntry::file_name);
    let read = |entry: std::fs::DirEntry| {
        Some((entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path()).ok()?.into()))
    };
    files.into_iter().filter_map(read).collect()
}

/// Every file of the folder that has an index.
pub(crate) fn read_all(folder: &Path, trust: Trust) -> Vec<Clip> {
    let clip = |(name, bytes): (String, Bytes)| {
        let index = make(&mut Memory(bytes.clone()), trust, &Limits::default()).ok()?;
        Some(Clip { name, bytes, index })
    };
    files(folder).into_iter().filter_map(clip).collect()
}

pub(crate) fn named<'a>(clips: &'a [Clip], begin: &str) -> Option<&'a Clip> {
    clips.iter().find(|clip| clip.name.starts_with(begin))
}

impl Clip {
    /// Runs of frames, each of one unit, of the first `frames` frames.
    pub(crate) fn units(&self, frames: usize) -> Vec<RangeInclusive<u64>> {
        let first: Vec<u64> = (0..self.index.len()).take(frames).collect();
        let run = |clip: &framecache_node::decode::Clip| clip.frames[0]..=*clip.frames.last().expect("a frame");
        self.index.plan(&first).iter().map(run).collect()
    }

    /// A job for these frames of one unit, each with the spec that ends so.
    pub(crate) fn job(&self, frames: &RangeInclusive<u64>, spec: &str) -> ClipJob {
        let frames: Vec<u64> = frames.clone().take(framecache_node::decode::SPECS_MAX).collect();
        let clip = self.index.plan(&frames).remove(0);
        let part = |range: &ByteRange| (*range, self.bytes.slice(range.start() as usize..range.end() as usize));
        let parts: Vec<_> = clip.ranges.iter().map(part).collect();
        let package = self.index.package(&clip, &parts).expect("the bytes are there");
        let frame = |(number, &frame): (usize, &u64)| ClipFrame {
            number: number as u32,
            shape: self.index.shape(frame),
            pts_seconds: self.index.seconds(frame),
            spec: format!("video?frames={frame}{spec}").parse().expect("spec"),
        };
        let shape = self.index.shape(clip.frames[0]);
        let pixels = u64::from(shape.width) * u64::from(shape.height);
        ClipJob {
            id: ObjectId::new("trial", &self.name).expect("id"),
            version: Version::new("\"1\"").expect("version"),
            unit: clip.frames[0],
            codec: self.index.codec(),
            is_vouched: self.index.is_vouched(),
            package: package.into(),
            packets: clip.packets(),
            frames: clip.frames.iter().enumerate().map(frame).collect(),
            damaged_keep: false,
            decoder_bytes: 20 * pixels * 3,
            decoded_pixels: pixels * clip.frames.len() as u64,
        }
    }
}

/// The folder's pictures.
pub(crate) fn pictures(folder: &Path) -> Vec<(String, Bytes)> {
    files(folder)
}

/// A job for one picture.
pub(crate) fn picture(name: &str, bytes: &Bytes, spec: &str) -> DecodeJob {
    DecodeJob {
        id: ObjectId::new("trial", name).expect("id"),
        version: Version::new("\"1\"").expect("version"),
        size: bytes.len() as u64,
        source: Arc::new(Memory(bytes.clone())),
        specs: vec![spec.parse().expect("spec")],
    }
}

/// How near two pictures are, in decibels.
pub(crate) fn psnr(one: &[u8], other: &[u8]) -> f64 {
    if one.len() != other.len() {
        return 0.0;
    }
    let squares: u64 = one.iter().zip(other).map(|(a, b)| u64::from(a.abs_diff(*b)).pow(2)).sum();
    10.0 * (255.0f64.powi(2) * one.len() as f64 / (squares as f64).max(1e-9)).log10()
}

/// Resident memory of these processes, in bytes.
pub(crate) fn resident(pids: &[u32]) -> u64 {
    let pages = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?.split(' ').nth(1)?.parse::<u64>().ok();
    pids.iter().filter_map(pages).sum::<u64>() * 4096
}

/// Frames a second, as many units at once as the pool has workers; nothing where it does not decode the clip.
pub(crate) async fn rate(pool: &WorkerPool, clip: &Clip, during: Duration) -> Option<f64> {
    let units = clip.units(usize::MAX);
    let jobs: Vec<ClipJob> = units.iter().map(|unit| clip.job(unit, "&layout=planes")).collect();
    let deadline = || tokio::time::Instant::now() + Duration::from_secs(60);
    if let Made::Not(_) = Made::of(pool.clip(jobs[0].clone(), deadline()).await) {
        return None;
    }
    let (frames, begun) = (AtomicU64::new(0), Instant::now());
    let (jobs, frames) = (&jobs, &frames);
    let lane = |first: usize| async move {
        // Each its own unit: those who ask for the same one take turns.
        for (round, at) in (first..).enumerate() {
            if begun.elapsed() > during {
                break;
            }
            let mut job = jobs[at % jobs.len()].clone();
            job.unit = (first * 1_000_000 + round) as u64;
            if let Made::All(made) = Made::of(pool.clip(job, deadline()).await) {
                frames.fetch_add(made.len() as u64, Relaxed);
            }
        }
    };
    futures::future::join_all((0..pool.load().1).map(lane)).await;
    Some(frames.load(Relaxed) as f64 / begun.elapsed().as_secs_f64())
}
