//! `frames`: a video's frames from a node that holds them, as RGB and as planes; and what drawing them costs by each profile.
//!
//! The clip is made on the spot, 1080p in groups of 24. Held frames travel in batches of 16; counted are the node and this process
//! apart. Drawn frames are decoded anew each round by a node whose decoded tier holds none of them; counted is its decoders' time, the
//! decode included, which is the same for each.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use framecache::client::Transport;
use framecache::frame::Dtype;
use framecache::{Batch, Call, Client, ImageSpec, ObjectId, Version};

use crate::meter::Watch;
use crate::node::{BUCKET, NodeProcess};
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};

const WIDTH: u32 = 1920;
const HEIGHT: u32 = 1080;
const FRAMES: u64 = 48;

/// Frames of one call.
const BATCH: usize = 16;

/// A texture that moves, so that neither decoding nor motion is trivial.
const CLIP: &str = "\
import sys, av, numpy
path, width, height, count = sys.argv[1], *map(int, sys.argv[2:])
dice = numpy.random.default_rng(7)
small = dice.integers(0, 256, (height // 8 + 32, width // 8 + 32, 3), numpy.uint8)
whole = small.repeat(8, 0).repeat(8, 1)
whole = (whole + dice.integers(0, 24, whole.shape)).clip(0, 255).astype(numpy.uint8)
with av.open(path, 'w') as out:
    stream = out.add_stream('libx264', rate=24, options={'preset': 'veryfast', 'crf': '23'})
    stream.width, stream.height, stream.pix_fmt, stream.codec_context.gop_size = width, height, 'yuv420p', 24
    for at in range(count):
        cut = numpy.ascontiguousarray(whole[3 * at : 3 * at + height, 4 * at : 4 * at + width])
        out.mux(stream.encode(av.VideoFrame.from_ndarray(cut, format='rgb24')))
    out.mux(stream.encode(None))
";

/// How frames are drawn: a name, and the spec.
const DRAWN: [(&str, &str); 6] = [
    ("exact, short=256", "image?short=256"),
    ("fast, short=256", "image?short=256&profile=fast"),
    ("swscale, short=256", "image?short=256&profile=swscale"),
    ("exact, as stored", "image"),
    ("planes, as stored", "image?layout=planes"),
    ("dtype=u16, as stored", "image?dtype=u16"),
];

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("frames");
    let bucket = run.scratch.folder("clips")?;
    make(run, &bucket.join("clip.mp4"))?;
    let origin = Origin::serve(&bucket).await?;
    held(run, &origin, &mut report).await?;
    drawn(run, &origin, &mut report).await?;
    report.note("1920x1080, H.264, a moving texture, groups of 24");
    Ok(report)
}

fn make(run: &Run, path: &Path) -> Result<()> {
    let mut command = Command::new(&run.python);
    command.args(["-c", CLIP]).arg(path).args([WIDTH.to_string(), HEIGHT.to_string(), FRAMES.to_string()]);
    let status = command.status().with_context(|| format!("run {}: tests/setup.sh makes it", run.python.display()))?;
    ensure!(status.success(), "the clip could not be made: {status}");
    Ok(())
}

async fn held(run: &Run, origin: &Origin, report: &mut Report) -> Result<()> {
    let node = NodeProcess::start(&run.node_settings("held", origin.address)?).await?;
    let (client, film) = open(&node).await?;
    let rgb = ImageSpec::default();
    let mut pixels = Vec::new();
    for transport in [Transport::Rgb, Transport::Yuv420] {
        // Twice: a frame is made, then held.
        for _ in 0..2 {
            pixels.push(ask(&client, &film, &rgb, transport).await?);
        }
    }
    ensure!(pixels.iter().all(|bytes| *bytes == pixels[0]), "planes gave other pixels");
    drop(pixels);
    let passes = run.size(4, 1);
    let frames = (passes * FRAMES as usize) as f64;
    let titles = ["rgb", "yuv420"];
    let mut rounds = [Rounds::of(2), Rounds::of(2)];
    let mut sent = [0.0; 2];
    for round in 0..run.rounds {
        for subject in rounds[0].order(round) {
            let transport = [Transport::Rgb, Transport::Yuv420][subject];
            let before = node.metrics().await?.sum("framecache_sent_bytes_total");
            let (own, watch) = (process_cpu(), Watch::begin(&[node.tree]));
            for _ in 0..passes {
                ask(&client, &film, &rgb, transport).await?;
            }
            let cost = watch.end();
            rounds[0].push(subject, cost);
            rounds[1].push(subject, crate::meter::Cost { cpu: process_cpu() - own, ..cost });
            sent[subject] = (node.metrics().await?.sum("framecache_sent_bytes_total") - before) / frames;
        }
    }
    for (subject, title) in titles.into_iter().enumerate() {
        for (who, rounds) in ["node", "client"].into_iter().zip(&rounds) {
            let cpu = rounds.values(subject, |cost| cost.cpu * 1000.0 / frames);
            report.push(Figure::new(format!("held, {title}: {who}"), "CPU-ms/frame", Better::Lower, cpu));
        }
        let rate = rounds[0].values(subject, |cost| frames / cost.wall.as_secs_f64());
        report.push(Figure::new(format!("held, {title}"), "frames/s", Better::Higher, rate));
        report.push(Figure::one(format!("held, {title}: on the wire"), "MB/frame", Better::Lower, sent[subject] / 1e6));
    }
    let half = Figure::one("held, yuv420 / rgb: on the wire", "ratio", Better::Lower, sent[1] / sent[0]);
    report.push(half.at_most(0.51));
    rounds[0].tell(report);
    client.close().await;
    node.stop().await
}

async fn drawn(run: &Run, origin: &Origin, report: &mut Report) -> Result<()> {
    let mut settings = run.node_settings("drawn", origin.address)?;
    settings.decoded_ram = 64 << 10;
    let node = NodeProcess::start(&settings).await?;
    let (client, film) = open(&node).await?;
    let workers = async || anyhow::Ok(node.metrics().await?.sum("framecache_decode_cpu_seconds_total"));
    let mut cpu: Vec<Vec<f64>> = vec![Vec::new(); DRAWN.len()];
    let mut rounds = Rounds::of(DRAWN.len());
    for round in 0..run.rounds {
        for subject in rounds.order(round) {
            let spec: ImageSpec = DRAWN[subject].1.parse()?;
            let (before, watch) = (workers().await?, Watch::begin(&[node.tree]));
            ask(&client, &film, &spec, Transport::Rgb).await?;
            rounds.push(subject, watch.end());
            cpu[subject].push((workers().await? - before) * 1000.0 / FRAMES as f64);
        }
    }
    for ((title, _), cpu) in DRAWN.into_iter().zip(cpu) {
        report.push(Figure::new(format!("drawn: {title}: decoders"), "CPU-ms/frame", Better::Lower, cpu));
    }
    rounds.tell(report);
    client.close().await;
    node.stop().await
}

type Film = (ObjectId, Version);

async fn open(node: &NodeProcess) -> Result<(Client, Film)> {
    let (client, id) = (node.client()?, ObjectId::new(BUCKET, "clip.mp4")?);
    let facts = client.stat(&id, &Call::default()).await?;
    ensure!(facts.frames == Some(FRAMES as u32), "{:?} frames", facts.frames);
    Ok((client, (id, facts.version)))
}

/// All frames, a batch after the other; a sum of their bytes' beginnings.
async fn ask(client: &Client, (id, version): &Film, spec: &ImageSpec, transport: Transport) -> Result<u64> {
    let (call, mut sum) = (Call { transport, ..Call::default() }, 0u64);
    let all: Vec<u64> = (0..FRAMES).collect();
    let stored = *spec == ImageSpec::default();
    for frames in all.chunks(BATCH) {
        let batch = match stored {
            true => Batch::fixed_of(frames.len(), [HEIGHT, WIDTH, 3], Dtype::U8)?,
            false => Batch::new(frames.len(), client.config().memory),
        };
        for outcome in client.frames((id, version), frames, spec, &batch, &call).await {
            outcome?;
        }
        let pictures = batch.finish();
        for index in 0..pictures.len() {
            let pixels = pictures.pixels(index).context("a frame")?;
            sum = pixels.iter().step_by(4099).fold(sum, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        }
    }
    Ok(sum)
}

/// CPU-seconds of this process so far, without what it started.
fn process_cpu() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live value of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
