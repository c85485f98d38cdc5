//! `kernels`: a resize alone, by each form of our kernels, by `fast_image_resize` and by Pillow, all on one thread.
//!
//! Pictures are in memory, decoded. Every result of ours is compared with Pillow's, byte by byte; what counts is CPU time of the
//! thread that resizes.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::agent::kernels::{Ask, Case, Kernel, Told};
use crate::agent::{Agent, Role};
use crate::meter::{Cost, Tree, Watch};
use crate::report::{Better, Figure, Report, median};
use crate::run::{Rounds, Run};

/// Pillow's time over AVX2's where it is the training case, at least.
const LEAST: f64 = 8.0;

const PILLOW: &str = "13.0.0";

const SCRIPT: &str = include_str!("../comparator/resize.py");

/// Decodes one photograph into raw samples.
const DECODE: &str = "import sys; from PIL import Image; i = Image.open(sys.argv[1]).convert(sys.argv[3]); \
                      open(sys.argv[2], 'wb').write(i.tobytes()); print(*i.size)";

#[derive(Serialize)]
struct PillowAsk {
    case: usize,
    times: usize,
    keep: Option<PathBuf>,
}

/// One case that is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// A colour picture made smaller by bilinear or bicubic, whole: what the target is for.
    Training,
    /// The same, of which the middle square alone is wanted: what a training loader asks a node for.
    Cropped,
    Other,
}

#[derive(Deserialize)]
struct Seconds(f64);

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("kernels");
    let cases = cases(run).await?;
    let (classes, cases): (Vec<Class>, Vec<Case>) = cases.into_iter().unzip();
    let mut pillow = pillow(run, &cases).await?;
    let mut own = Agent::start(&Role::Kernels(cases.clone()), &[])?;
    let kernels: Vec<Kernel> = Kernel::ALL.into_iter().filter(|kernel| kernel.is_here()).collect();
    let mut ratios: [Vec<Vec<f64>>; 2] = Default::default();
    for (number, case) in cases.iter().enumerate() {
        let right = run.scratch.path().join("resized");
        let _: Seconds = pillow.ask(&PillowAsk { case: number, times: 1, keep: Some(right.clone()) }).await?;
        let mut times = vec![0; kernels.len() + 1];
        let pass_seconds = run.size(0.1, 0.01);
        let counted = |seconds: f64| ((pass_seconds / seconds.max(1e-6)).ceil() as usize).clamp(1, 5000);
        for (kernel, times) in kernels.iter().zip(&mut times) {
            let ask = |times| Ask { case: number, kernel: *kernel, times, right: Some(right.clone()) };
            let told: Told = own.ask(&ask(1)).await?;
            pixels(*kernel, case, &told, &mut report)?;
            *times = counted(own.ask::<Told>(&ask(1)).await?.seconds);
        }
        let once: Seconds = pillow.ask(&PillowAsk { case: number, times: 1, keep: None }).await?;
        times[kernels.len()] = counted(once.0);

        let mut rounds = Rounds::of(times.len());
        for round in 0..run.rounds {
            for subject in rounds.order(round) {
                let watch = Watch::begin(&[Tree::own()]);
                let seconds = match kernels.get(subject) {
                    Some(&kernel) => {
                        let ask = Ask { case: number, kernel, times: times[subject], right: None };
                        own.ask::<Told>(&ask).await?.seconds
                    }
                    None => pillow.ask::<Seconds>(&PillowAsk { case: number, times: times[subject], keep: None }).await?.0,
                };
                rounds.push(subject, Cost { cpu: seconds / times[subject] as f64, ..watch.end() });
            }
        }
        tell(case, &kernels, &rounds, &mut report);
        let class = classes[number];
        if let Some(avx2) = kernels.iter().position(|&kernel| kernel == Kernel::Avx2).filter(|_| class != Class::Other) {
            ratios[usize::from(class == Class::Cropped)].push(rounds.ratios(kernels.len(), avx2, |cost| cost.cpu));
        }
        rounds.tell(&mut report);
    }
    let each_round = |cases: &[Vec<f64>]| -> Vec<f64> {
        (0..run.rounds).map(|round| median(&cases.iter().map(|rounds| rounds[round]).collect::<Vec<_>>())).collect()
    };
    let [whole, cropped] = &ratios;
    let name = "bilinear and bicubic, colour, made smaller: median case, Pillow / AVX2";
    report.push(Figure::new(name, "times", Better::Higher, each_round(whole)).at_least(LEAST));
    let name = "the same where the middle 224 alone is wanted";
    report.push(Figure::new(name, "times", Better::Higher, each_round(cropped)));
    report.note(
        "CPU time of the one thread that resizes; ours keeps an axis and scratch memory from call to call, as in a decoder",
    );
    report.note("Pillow has no window: it resizes all and crops; fast_image_resize takes the part of the source instead");
    Ok(report)
}

/// Ours are to be Pillow's; how far the other crate is off is told.
fn pixels(kernel: Kernel, case: &Case, told: &Told, report: &mut Report) -> Result<()> {
    if kernel != Kernel::FastImageResize {
        ensure!(told.levels.is_none(), "{} {} differs from Pillow by {}", kernel.title(), case.name, told.levels.max);
        return Ok(());
    }
    let name = format!("{}: {} from Pillow's", case.name, kernel.title());
    report.push(Figure::one(format!("{name}, mean"), "levels", Better::Lower, told.levels.mean()));
    report.push(Figure::one(format!("{name}, at most"), "levels", Better::Lower, told.levels.max.into()));
    Ok(())
}

fn tell(case: &Case, kernels: &[Kernel], rounds: &Rounds, report: &mut Report) {
    for (subject, title) in kernels.iter().map(|kernel| kernel.title()).chain(["Pillow"]).enumerate() {
        let micros = rounds.values(subject, |cost| cost.cpu * 1e6);
        report.push(Figure::new(format!("{}: {title}", case.name), "µs", Better::Lower, micros));
    }
    for (subject, kernel) in kernels.iter().enumerate() {
        let times = rounds.ratios(kernels.len(), subject, |cost| cost.cpu);
        report.push(Figure::new(format!("{}: Pillow / {}", case.name, kernel.title()), "times", Better::Higher, times));
    }
}

async fn pillow(run: &Run, cases: &[Case]) -> Result<Agent> {
    let (script, list) = (run.scratch.path().join("resize.py"), run.scratch.path().join("cases.json"));
    std::fs::write(&script, SCRIPT)?;
    std::fs::write(&list, serde_json::to_vec(cases)?)?;
    let mut agent = Agent::run(&[run.python.to_str().context("python's path is not text")?], &[&script, &list])?;
    let version: String = agent.listen().await?;
    ensure!(version == PILLOW, "pillow is {version}, want {PILLOW}: run tests/setup.sh");
    Ok(agent)
}

/// The cases: the first photograph that lies, of each size, in colour and gray.
async fn cases(run: &Run) -> Result<Vec<(Class, Case)>> {
    let small = run.small_photographs(8)?;
    let large = if run.quick { Vec::new() } else { run.large_photographs()? };
    let mut cases = Vec::new();
    let mut add = |class, picture: &Picture, filter: &str, to: [usize; 2], window: Option<[usize; 4]>| {
        let Picture { file, width, height, channels } = picture;
        let what = if *channels == 1 { ", gray" } else { "" };
        let part = if window.is_some() { ", crop 224" } else { "" };
        cases.push((
            class,
            Case {
                name: format!("{width}x{height} to {}x{}, {filter}{what}{part}", to[0], to[1]),
                source: file.clone(),
                width: *width,
                height: *height,
                channels: *channels,
                filter: filter.to_owned(),
                to,
                window,
            },
        ));
    };
    let middle = Some([58, 16, 224, 224]);
    for names in [&small, &large] {
        if let Some(colour) = lying(run, names, "RGB").await? {
            for filter in ["bilinear", "bicubic", "lanczos"] {
                let training = filter != "lanczos";
                add(if training { Class::Training } else { Class::Other }, &colour, filter, [341, 256], None);
                add(if training { Class::Cropped } else { Class::Other }, &colour, filter, [341, 256], middle);
            }
            if colour.width <= 500 {
                for filter in ["bilinear", "bicubic", "lanczos"] {
                    add(Class::Other, &colour, filter, [1000, 750], None);
                }
            }
        }
        if let Some(gray) = lying(run, names, "L").await? {
            for filter in ["bilinear", "bicubic"] {
                add(Class::Other, &gray, filter, [341, 256], None);
            }
        }
    }
    Ok(cases)
}

/// A decoded photograph.
struct Picture {
    file: PathBuf,
    width: usize,
    height: usize,
    channels: usize,
}

/// The first that is wider than high, decoded.
async fn lying(run: &Run, names: &[String], mode: &str) -> Result<Option<Picture>> {
    for name in names {
        let file = run.scratch.path().join(format!("{}-{mode}.raw", name.replace('/', "-")));
        let mut command = Command::new(&run.python);
        let output = command.args(["-c", DECODE]).arg(run.photographs.join(name)).arg(&file).arg(mode).output().await?;
        ensure!(output.status.success(), "decode {name}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout)?;
        let sizes = text.split_whitespace().map(str::parse).collect::<std::result::Result<Vec<usize>, _>>()?;
        let &[width, height] = &sizes[..] else { anyhow::bail!("decode {name}: {text:?}") };
        if width > height {
            return Ok(Some(Picture { file, width, height, channels: mode.len() }));
        }
    }
    Ok(None)
}
