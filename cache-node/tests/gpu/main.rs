//! The GPU engine, tried on a machine that has one: a line for each promise, and how fast it is beside the CPU. `tests/gpu.sh` runs it.
//!
//! `FRAMECACHE_GPU_TRIAL` names a folder with `clips/` (named `codec_WIDTHxHEIGHT…`) and `pictures/`. Without it nothing is tried. The
//! node's binary lies beside this one, or `FRAMECACHE_NODE` names it. `FRAMECACHE_GPU_TRIAL_ENGINE=cpu` tries this program itself: a second
//! pool of the CPU stands for the GPU.

mod clips;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use framecache_node::decode::{Decoder, Engines, PoolSettings, Trust, WorkerPool};

use clips::{Clip, Made};

/// Passed, failed, and could not be tried.
#[derive(Default)]
struct Report {
    failed: usize,
    untried: usize,
}

impl Report {
    fn line(&mut self, name: &str, passed: Result<String, String>) {
        match passed {
            Ok(said) => println!("pass    {name}: {said}"),
            Err(why) => {
                self.failed += 1;
                println!("FAIL    {name}: {why}");
            }
        }
    }

    fn untried(&mut self, names: &[&str], why: &str) {
        self.untried += names.len();
        names.iter().for_each(|name| println!("cannot  {name}: {why}"));
    }

    fn note(&self, name: &str, said: &str) {
        println!("note    {name}: {said}");
    }
}

const LINES: [&str; 8] = ["golden samples", "planes", "rgb", "engines", "session reuse", "memory", "nvjpeg", "frames per second"];

/// Units of the memory line.
const UNITS: usize = 1000;

/// Growth of resident memory that a thousand units may leave, for each worker: caches of the allocator.
const GROWTH_MAX: u64 = 64 << 20;

fn main() -> ExitCode {
    let Some(folder) = std::env::var_os("FRAMECACHE_GPU_TRIAL").map(PathBuf::from) else {
        println!("gpu: not asked for; tests/gpu.sh tries it on a machine that has one");
        return ExitCode::SUCCESS;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    let mut report = Report::default();
    runtime.block_on(trial(&folder, &mut report));
    println!("{} failed, {} could not be tried", report.failed, report.untried);
    match (report.failed, report.untried) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(3),
        _ => ExitCode::FAILURE,
    }
}

fn program() -> PathBuf {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("framecache-node")).filter(|path| path.exists());
    let named = std::env::var_os("FRAMECACHE_NODE").map(PathBuf::from);
    named.or_else(beside).unwrap_or_else(|| env!("CARGO_BIN_EXE_framecache-node").into())
}

fn second(workers: usize) -> PoolSettings {
    match std::env::var("FRAMECACHE_GPU_TRIAL_ENGINE").as_deref() {
        Ok("cpu") => PoolSettings { workers, ..PoolSettings::new(program()) },
        _ => PoolSettings { workers, ..PoolSettings::of_gpu(program()) },
    }
}

async fn trial(folder: &Path, report: &mut Report) {
    let gpu = match WorkerPool::start(second(PoolSettings::of_gpu(program()).workers)).await {
        Ok(gpu) => Arc::new(gpu),
        Err(error) => {
            report.line("probe", Err(error.to_string()));
            return report.untried(&LINES, "there is no GPU to try it on");
        }
    };
    let offer = gpu.offer().unwrap_or_default();
    report.line("probe", Ok(format!("{offer}, in the sandbox")));
    let lacks = offer.lacks.join("; ");
    report.line("golden samples", if lacks.is_empty() { Ok("all".into()) } else { Err(lacks) });
    let cpu = Arc::new(WorkerPool::start(PoolSettings::new(program())).await.expect("workers of the CPU"));
    let clips = clips::read_all(&folder.join("clips"), Trust::Predicted);
    same(report, &clips, &gpu, &cpu).await;
    if let Some(corpus) = std::env::var_os("FRAMECACHE_CORPUS") {
        let corpus = clips::read_all(&Path::new(&corpus).join("video"), Trust::Predicted);
        report.note("corpus", &format!("{} clips", corpus.len()));
        same(report, &corpus, &gpu, &cpu).await;
    }
    // Without hashes to compare, none of them would be the GPU's.
    by_both(report, &clips::read_all(&folder.join("clips"), Trust::Mapped), &gpu, &cpu).await;
    reuse(report, &clips).await;
    memory(report, &clips, &gpu).await;
    pictures(report, folder, &gpu, &cpu).await;
    speed(report, &clips, &gpu, &cpu).await;
    gpu.close().await;
    cpu.close().await;
}

/// Every frame that the GPU gives is the CPU's, as planes and as RGB; what it does not give, it refuses.
async fn same(report: &mut Report, clips: &[Clip], gpu: &WorkerPool, cpu: &WorkerPool) {
    for form in ["planes", "rgb"] {
        let (mut equal, mut refused, mut wrong) = (0, Vec::new(), Vec::new());
        for clip in clips {
            let specs = if form == "planes" { "&layout=planes" } else { "" };
            for unit in clip.units(FRAMES_MAX) {
                let job = clip.job(&unit, specs);
                let (one, other) = (Made::of(gpu.clip(job.clone(), far()).await), Made::of(cpu.clip(job, far()).await));
                match (one, other) {
                    (Made::All(one), Made::All(other)) if one == other => equal += one.len(),
                    (Made::All(_), Made::All(_)) => wrong.push(format!("{} unit {}", clip.name, unit.start())),
                    (Made::All(_), Made::Not(why)) => wrong.push(format!("{}: the CPU says {why}", clip.name)),
                    (Made::Not(why), _) => refused.push(format!("{}: {why}", clip.name)),
                }
            }
        }
        refused.dedup();
        refused.iter().for_each(|refused| report.note(form, &format!("left to the CPU: {refused}")));
        let said = format!("{equal} frames of {} clips are the CPU's, {} left to it", clips.len(), refused.len());
        report.line(
            form,
            match (equal, wrong.is_empty()) {
                (0, true) => Err("the GPU gave no frame".into()),
                (_, true) => Ok(said),
                _ => Err(format!("{said}; {} units differ: {}", wrong.len(), wrong.join(", "))),
            },
        );
    }
}

/// Both engines behind one face answer every unit as the CPU does.
async fn by_both(report: &mut Report, clips: &[Clip], gpu: &Arc<WorkerPool>, cpu: &Arc<WorkerPool>) {
    let engines = Engines::new(cpu.clone(), gpu.clone());
    let mut units = 0;
    for clip in clips {
        for unit in clip.units(FRAMES_MAX) {
            let job = clip.job(&unit, "&short=64");
            let (one, other) = (Made::of(engines.clip(job.clone(), far()).await), Made::of(cpu.clip(job, far()).await));
            if one != other {
                return report.line("engines", Err(format!("{} is not the CPU's", clip.name)));
            }
            units += 1;
        }
    }
    let stats = engines.stats();
    let reasons: Vec<String> =
        stats.fallbacks.iter().filter(|(_, number)| *number > 0).map(|(why, number)| format!("{number} {why}")).collect();
    report.line("engines", Ok(format!("{units} units, {} by the GPU; by the CPU {}", stats.videos, reasons.join(", "))));
}

/// A unit that follows one of its own stream finds a decoder, and is sooner done than one that follows another stream's.
async fn reuse(report: &mut Report, clips: &[Clip]) {
    let [one, other] = [clips::named(clips, "h264_1280x720"), clips::named(clips, "h264_1920x1080")];
    let (Some(one), Some(other)) = (one, other) else {
        return report.untried(&["session reuse"], "clips h264_1280x720 and h264_1920x1080 are not there");
    };
    let pool = WorkerPool::start(second(1)).await.expect("one worker");
    let mut took = [Duration::ZERO; 2];
    for (took, order) in took.iter_mut().zip([[one, one], [one, other]]) {
        for round in 0..2 * ROUNDS {
            let clip = order[round % 2];
            let begun = Instant::now();
            if let Made::Not(why) = Made::of(pool.clip(clip.job(&clip.units(1)[0], "&layout=planes"), far()).await) {
                return report.line("session reuse", Err(why));
            }
            // Of the first clip alone, so that both are the same work.
            if round % 2 == 0 && round > 0 {
                *took += begun.elapsed();
            }
        }
    }
    let [same, mixed] = took.map(|took| took.as_secs_f64() * 1e3 / (ROUNDS - 1) as f64);
    let said = format!("{same:.2} ms a unit behind its own stream, {mixed:.2} behind another");
    report.line("session reuse", if same <= mixed { Ok(said) } else { Err(said) });
    pool.close().await;
}

/// A thousand units leave the workers as large as a hundred did.
async fn memory(report: &mut Report, clips: &[Clip], gpu: &WorkerPool) {
    let mut before = 0;
    for number in 0..UNITS {
        let clip = &clips[number % clips.len()];
        let _ = gpu.clip(clip.job(&clip.units(1)[0], "&layout=planes"), far()).await;
        if number == UNITS / 10 {
            before = clips::resident(&gpu.stats().pids);
        }
    }
    let (after, stats) = (clips::resident(&gpu.stats().pids), gpu.stats());
    let most = GROWTH_MAX * stats.pids.len().max(1) as u64;
    let mib = |bytes: u64| bytes >> 20;
    let said = format!(
        "{} MiB resident after {}, {} after {UNITS} ({} workers); device memory is `nvidia-smi`'s to tell; {} deaths, {} recycled",
        mib(before),
        UNITS / 10,
        mib(after),
        stats.pids.len(),
        stats.deaths_judged + stats.deaths_lost,
        stats.recycled
    );
    let grew = after.saturating_sub(before) > most || stats.deaths_judged + stats.deaths_lost > 0;
    report.line("memory", if grew { Err(said) } else { Ok(said) });
}

/// nvJPEG's pictures are near libjpeg's.
async fn pictures(report: &mut Report, folder: &Path, gpu: &WorkerPool, cpu: &WorkerPool) {
    let pictures = clips::pictures(&folder.join("pictures"));
    if pictures.is_empty() {
        return report.untried(&["nvjpeg"], "no pictures are there");
    }
    let (mut least, mut faults) = (f64::INFINITY, Vec::new());
    for (name, bytes) in &pictures {
        let exact = Made::of(cpu.decode(clips::picture(name, bytes, "image"), far()).await);
        let quick = Made::of(gpu.decode(clips::picture(name, bytes, "image?profile=fast"), far()).await);
        match (exact, quick) {
            (Made::All(exact), Made::All(quick)) => least = least.min(clips::psnr(&exact[0], &quick[0])),
            (Made::Not(why), _) | (_, Made::Not(why)) => faults.push(format!("{name}: {why}")),
        }
    }
    let said = format!("{} pictures, PSNR at least {least:.1} dB against libjpeg", pictures.len() - faults.len());
    report.line(
        "nvjpeg",
        match faults.is_empty() && least >= PSNR_MIN {
            true => Ok(said),
            false => Err(format!("{said}; {}", faults.join("; "))),
        },
    );
}

/// Whole units, as many at once as there are workers, each engine alone.
async fn speed(report: &mut Report, clips: &[Clip], gpu: &WorkerPool, cpu: &WorkerPool) {
    println!(
        "        {:<24} {:>12} {:>12} {:>8}   (frames a second; CPU: {} workers)",
        "clip",
        "gpu",
        "cpu",
        "gpu/cpu",
        cpu.load().1
    );
    for clip in clips {
        let rates = [clips::rate(gpu, clip, SPEED_FOR).await, clips::rate(cpu, clip, SPEED_FOR).await];
        let text = |rate: Option<f64>| rate.map_or("-".into(), |rate| format!("{rate:.0}"));
        let ratio = rates[0].zip(rates[1]).map_or("-".into(), |(gpu, cpu)| format!("{:.2}", gpu / cpu));
        println!("        {:<24} {:>12} {:>12} {ratio:>8}", clip.name, text(rates[0]), text(rates[1]));
    }
    report.line("frames per second", Ok(format!("{} clips, {} s each", clips.len(), SPEED_FOR.as_secs())));
}

/// Frames of a clip that are compared.
const FRAMES_MAX: usize = 64;

/// Rounds of the line on reuse.
const ROUNDS: usize = 20;

/// Below this two decoders of one JPEG do not agree on what it shows.
const PSNR_MIN: f64 = 30.0;

/// How long each engine is timed with each clip: 30 clips take two minutes.
const SPEED_FOR: Duration = Duration::from_secs(2);

fn far() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(60)
}
