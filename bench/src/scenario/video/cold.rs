//! Cold: each request is for an object of which the node has all bytes and no frame.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use framecache::{Call, Client};

use super::{LONG, SHORT, SPEC, Selection, bucket, libraries, put};
use crate::agent::{Agent, ClipAsk, ClipTask, Role};
use crate::clip::Clip;
use crate::comparator::video::{VideoLibrary, VideoProcess};
use crate::levels::Levels;
use crate::meter::{Cost, Watch};
use crate::node::{Metrics, NodeProcess};
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::scenario::hit::uri;
use crate::workload::Random;

/// What the node knows of the clip before it is asked, and the way of torchcodec that knows as much.
const STATES: [(&str, bool, VideoLibrary); 2] =
    [("index unknown", false, VideoLibrary::EXACT), ("index known", true, VideoLibrary::APPROXIMATE)];

/// Holds no frame of 224 pixels, whatever share of it a shard has.
const DECODED_RAM: u64 = 64 << 10;

/// Frames that are decoded in one round, about: enough for clocks of ten milliseconds.
const DECODED: u32 = 1200;

pub(super) async fn measure(run: &Run, clip: Clip, file: &Path, selection: Selection, report: &mut Report) -> Result<()> {
    let requests = (DECODED / (clip.gop * selection.count() as u32)).max(1) as usize;
    // Each request's object, those of the first round too.
    let stage = Stage::set(run, clip, file, selection, 1 + run.rounds * requests * STATES.len()).await?;
    let mut libraries = libraries(run, run.size(&VideoLibrary::ALL[..], &VideoLibrary::FEW[..]), report).await?;
    let mut agent = stage.agent(run)?;
    let label = format!("{}, {}", clip.title(), selection.title());
    compare(run, &stage, &mut agent, &mut libraries, &label, report).await?;

    let mut random = Random::new(run.seed, u64::from(clip.height * 1000 + clip.gop));
    let mut rounds = Rounds::of(STATES.len() + libraries.len());
    let (mut workers, mut origin_requests) = ([0.0; STATES.len()], 0);
    for round in 0..run.rounds {
        let wanted: Vec<Vec<u64>> = (0..requests).map(|_| selection.draw(clip, &mut random)).collect();
        for subject in rounds.order(round) {
            let Some(&(_, is_known, _)) = STATES.get(subject) else {
                let library = &mut libraries[subject - STATES.len()];
                let watch = Watch::begin(&[library.agent.tree]);
                for frames in &wanted {
                    library.frames(file, frames, None).await?;
                }
                rounds.push(subject, watch.end());
                continue;
            };
            let mut asks = Vec::new();
            for (number, frames) in wanted.iter().enumerate() {
                let uri = stage.hold(&format!("{round}-{subject}-{number}.mp4"), is_known).await?;
                asks.push(ClipAsk { uri, frames: frames.clone(), keep: None });
            }
            let (before, asked) = (stage.node.metrics().await?, stage.origin.requests());
            let watch = Watch::begin(&[stage.node.tree, agent.tree]);
            for ask in &asks {
                agent.ask::<()>(ask).await?;
            }
            rounds.push(subject, watch.end());
            let after = stage.node.metrics().await?;
            origin_requests += stage.origin.requests() - asked;
            workers[subject] += moved(&before, &after, "framecache_decode_cpu_seconds_total");
            let units: usize = wanted.iter().map(|frames| units(clip, frames)).sum();
            let indexes = if is_known { 0 } else { requests };
            let counted = |name: &str| moved(&before, &after, name) as usize;
            ensure!(counted("framecache_units_total") == units, "not each of {units} units was decoded once");
            ensure!(counted("framecache_video_indexes_total") == indexes, "not {indexes} indexes were made");
        }
    }
    stage.node.stop().await?;

    let frames = (requests * selection.count()) as f64;
    let titles = STATES.iter().map(|(state, ..)| format!("framecache, {state}"));
    let titles = titles.chain(libraries.iter().map(|library| library.title.clone()));
    for (subject, title) in titles.enumerate() {
        let cpu = rounds.values(subject, |cost| cost.cpu / frames * 1000.0);
        report.push(Figure::new(format!("{label}: {title}"), "CPU-ms/frame", Better::Lower, cpu));
        let rate = rounds.values(subject, |cost| frames / cost.wall.as_secs_f64());
        report.push(Figure::new(format!("{label}: {title}"), "frames/s", Better::Higher, rate));
    }
    for (state, (name, ..)) in STATES.iter().enumerate() {
        let workers = workers[state] / run.rounds as f64 / frames * 1000.0;
        report.push(Figure::one(
            format!("{label}: framecache, {name}: of it in decoders"),
            "CPU-ms/frame",
            Better::Lower,
            workers,
        ));
    }
    ratios(clip, selection, &label, &rounds, &libraries, report);
    let requests = Figure::one(format!("{label}: origin requests meanwhile"), "requests", Better::Lower, origin_requests as f64);
    report.push(requests.at_most(0.0));
    rounds.tell(report);
    Ok(())
}

/// Against torchcodec: CPU against its way that knows as much, with one thread; time against the fastest of its ways.
fn ratios(clip: Clip, selection: Selection, label: &str, rounds: &Rounds, libraries: &[VideoProcess], report: &mut Report) {
    let place =
        |library: VideoLibrary| libraries.iter().position(|process| process.library == library).map(|at| STATES.len() + at);
    let theirs: Vec<usize> = VideoLibrary::ALL.into_iter().filter(|library| library.is_torchcodec()).filter_map(place).collect();
    let is_random = selection == Selection::Random;
    for (state, (name, _, alike)) in STATES.iter().enumerate() {
        let Some(alike) = place(*alike) else { return };
        let ratio = rounds.ratios(state, alike, |cost| cost.cpu);
        let cpu = Figure::new(format!("{label}: framecache, {name}: CPU"), "ratio", Better::Lower, ratio);
        let cpu = cpu.against(libraries[alike - STATES.len()].title.clone());
        let seconds = |cost: &Cost| cost.wall.as_secs_f64();
        let all: Vec<Vec<f64>> = theirs.iter().map(|&subject| rounds.values(subject, seconds)).collect();
        let least = |round: usize| all.iter().map(|rounds| rounds[round]).fold(f64::INFINITY, f64::min);
        let faster = rounds.values(state, seconds).into_iter().enumerate().map(|(round, own)| least(round) / own).collect();
        let faster = Figure::new(format!("{label}: framecache, {name}: frames/s"), "ratio", Better::Higher, faster);
        let faster = faster.against("the fastest of torchcodec's");
        let (cpu, faster) = match (clip, is_random) {
            (LONG, true) => (cpu.at_most(1.0), faster.at_least(1.2)),
            (SHORT, true) => (cpu.at_most(1.1), faster),
            _ => (cpu, faster),
        };
        report.push(cpu);
        report.push(faster);
    }
}

/// How far each library's pixels are from ours. It is also everyone's first round, which does not count.
async fn compare(
    run: &Run,
    stage: &Stage<'_>,
    agent: &mut Agent,
    libraries: &mut [VideoProcess],
    label: &str,
    report: &mut Report,
) -> Result<()> {
    let frames = stage.selection.draw(stage.clip, &mut Random::new(run.seed, 7));
    let kept = run.scratch.path().join("clip-pixels");
    let uri = stage.hold("compared.mp4", false).await?;
    agent.ask::<()>(&ClipAsk { uri, frames: frames.clone(), keep: Some(kept.clone()) }).await?;
    let ours = std::fs::read(&kept)?;
    let mut told = Vec::new();
    for library in libraries {
        library.frames(stage.file, &frames, Some(&kept)).await?;
        let levels = Levels::between(&std::fs::read(&kept)?, &ours);
        told.push(format!("{} {:.2}, {}", library.title, levels.mean(), levels.max));
    }
    std::fs::remove_file(&kept)?;
    report.note(format!("{label}: levels of 256 from framecache's pixels, mean and largest: {}", told.join("; ")));
    Ok(())
}

/// A node that has room for the bytes of so many clips, and none for a frame.
struct Stage<'a> {
    clip: Clip,
    file: &'a Path,
    selection: Selection,
    bucket: PathBuf,
    origin: Origin,
    node: NodeProcess,
    holder: Client,
}

impl<'a> Stage<'a> {
    async fn set(run: &Run, clip: Clip, file: &'a Path, selection: Selection, clips: usize) -> Result<Self> {
        let bucket = bucket(run, "cold", clip, selection)?;
        let origin = Origin::serve(&bucket).await?;
        let name = format!("node-cold-{}p-{}-{}", clip.height, clip.gop, selection.count());
        let mut settings = run.node_settings(&name, origin.address)?;
        let bytes = std::fs::metadata(file)?.len() * clips as u64;
        (settings.raw_ram, settings.decoded_ram) = (bytes + bytes / 2 + (256 << 20), DECODED_RAM);
        settings.memory += settings.raw_ram;
        let node = NodeProcess::start(&settings).await?;
        let holder = node.client()?;
        Ok(Self { clip, file, selection, bucket, origin, node, holder })
    }

    fn agent(&self, run: &Run) -> Result<Agent> {
        let task = ClipTask { address: self.node.quic, trust: run.scratch.folder("trust")?, spec: SPEC.into() };
        Agent::start(&Role::Clips(task), &[])
    }

    /// Has the node hold all bytes of the clip under a name of its own, and if `is_known` its index; gives the address.
    async fn hold(&self, key: &str, is_known: bool) -> Result<String> {
        put(self.file, &self.bucket, key)?;
        let (uri, call) = (uri(key), Call::default());
        let id = uri.parse()?;
        let raw = self.holder.read(&id, 0, None, &call).await?;
        ensure!(raw.bytes.len() as u64 == std::fs::metadata(self.file)?.len(), "the clip was not read whole");
        if is_known {
            self.holder.stat(&id, &call).await?;
        }
        Ok(uri)
    }
}

/// Groups of pictures that hold any of `frames`.
fn units(clip: Clip, frames: &[u64]) -> usize {
    let mut units: Vec<u64> = frames.iter().map(|frame| frame / u64::from(clip.gop)).collect();
    units.sort_unstable();
    units.dedup();
    units.len()
}

fn moved(before: &Metrics, after: &Metrics, name: &str) -> f64 {
    after.sum(name) - before.sum(name)
}
