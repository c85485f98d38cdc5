//! Warm: the frames are held decoded, in RAM or on NVMe, and are delivered.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use framecache::wire::{FrameAsk, FramesBody, ItemHead, TensorItem, Verb, codec};
use framecache::{Batch, Call, ImageSpec};

use super::{CROP, SPEC, Selection, bucket, libraries, put};
use crate::agent::{Agent, Look, Role, Round, Subject, Tally, Traffic};
use crate::clip::Clip;
use crate::comparator::video::VideoLibrary;
use crate::comparator::{Items, Pool, Shape};
use crate::meter::{Tree, Watch};
use crate::node::NodeProcess;
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::scenario::hit::{message_bytes, uri, version};
use crate::workload::Random;

/// Frames that are held, of the random ones: each request is for ten of them.
const HELD: usize = 120;

/// Requests of one round.
const REQUESTS: usize = 1200;

/// As little RAM as there can be before the disk: seven frames.
const LITTLE_RAM: u64 = 1 << 20;

/// Those who deliver, in the order of `Rounds`; the memory map is the last, and behind it comes torchcodec.
const SUBJECTS: [&str; 3] = ["framecache, from RAM", "framecache, from NVMe", "memory map behind bare quinn"];
const MAPPED: usize = 2;

const KEY: &str = "clip.mp4";

pub(super) async fn measure(run: &Run, clip: Clip, file: &Path, selection: Selection, report: &mut Report) -> Result<()> {
    let bucket = bucket(run, "warm", clip, selection)?;
    put(file, &bucket, KEY)?;
    let origin = Origin::serve(&bucket).await?;
    let mut random = Random::new(run.seed, 99);
    let frames: Vec<u64> = match selection {
        Selection::Random => random.order(clip.frames() as usize).into_iter().take(HELD).map(u64::from).collect(),
        Selection::Uniform => selection.draw(clip, &mut random),
    };
    let shape = shape(&frames, selection.count());
    let mut settings = run.node_settings(&format!("node-ram-{}", selection.count()), origin.address)?;
    let ram = NodeProcess::start(&settings).await?;
    settings.folder = run.scratch.folder(&format!("node-nvme-{}", selection.count()))?;
    (settings.decoded_ram, settings.disk) = (LITTLE_RAM, 4 << 30);
    let nvme = NodeProcess::start(&settings).await?;
    let decoded = run.scratch.path().join("decoded-frames");
    fill(&nvme, &frames, &decoded).await?;
    settle(&nvme).await?;
    fill(&ram, &frames, &decoded).await?;

    let frames_of = Subject::Frames { uri: uri(KEY), frames: frames.clone(), spec: SPEC.into() };
    let trust = run.scratch.folder("trust")?;
    let pool = Pool { shape, items: Items::Mapped { file: decoded.clone() }, trust: trust.clone(), ip: LOOPBACK };
    let mut mapped = Agent::start(&Role::QuinnServer(pool), &[])?;
    let port: u16 = mapped.listen().await?;
    let mut clients = Vec::new();
    for (subject, address, server) in [
        (frames_of.clone(), ram.quic, ram.tree),
        (frames_of, nvme.quic, nvme.tree),
        (Subject::Quinn, SocketAddr::new(LOOPBACK, port), mapped.tree),
    ] {
        let traffic = Traffic { subject, address: address.to_string(), trust: trust.clone(), shape };
        clients.push((Agent::start(&Role::Traffic(traffic), &[])?, server));
    }
    for (client, _) in &mut clients {
        // Every byte is compared with the decoded file, and learnt for what the timed rounds look at.
        let same: Tally = client.ask(&Round { seed: run.seed, times: 1, look: Look::File(decoded.clone()) }).await?;
        ensure!(same.wrong == 0, "{} frames were wrong", same.wrong);
        let _: Tally = client.ask(&Round { seed: run.seed, times: 1, look: Look::Learn }).await?;
    }
    let mut torchcodec = libraries(run, &[VideoLibrary::EXACT], report).await?.pop();

    let times = run.size(REQUESTS, REQUESTS / 4) * selection.count() / frames.len();
    let mut rounds = Rounds::of(SUBJECTS.len() + usize::from(torchcodec.is_some()));
    let mut client_cpu = vec![Vec::new(); SUBJECTS.len()];
    let before = [ram.metrics().await?, nvme.metrics().await?];
    for round in 0..run.rounds {
        for subject in rounds.order(round) {
            if let Some((client, server)) = clients.get_mut(subject) {
                let (tree, earlier): (Tree, f64) = (client.tree, client.tree.cpu());
                let watch = Watch::begin(&[*server, tree]);
                let question = Round { seed: run.seed + 1 + round as u64, times, look: Look::Edges };
                let tally: Tally = client.ask(&question).await?;
                rounds.push(subject, watch.end());
                client_cpu[subject].push(tree.cpu() - earlier);
                ensure!(tally.wrong == 0, "{} frames were wrong", tally.wrong);
            } else if let Some(torchcodec) = &mut torchcodec {
                let watch = Watch::begin(&[torchcodec.agent.tree]);
                torchcodec.frames(file, &selection.draw(clip, &mut random), None).await?;
                rounds.push(subject, watch.end());
            }
        }
    }
    let delivered = (times * frames.len()) as f64;
    let after = [ram.metrics().await?, nvme.metrics().await?];
    for (before, after) in before.iter().zip(&after) {
        let moved = after.sum("framecache_units_total") - before.sum("framecache_units_total");
        ensure!(moved == 0.0, "{moved} units were decoded: not all frames were held");
    }
    let hits = |at: usize| {
        after[at].sum_where("framecache_cache_hits_total", DISK) - before[at].sum_where("framecache_cache_hits_total", DISK)
    };
    let from_disk = hits(1) / (delivered * run.rounds as f64);
    ram.stop().await?;
    nvme.stop().await?;

    let label = format!("warm, {}", selection.title());
    for (subject, title) in SUBJECTS.iter().enumerate() {
        let rate = rounds.values(subject, |cost| delivered / cost.wall.as_secs_f64());
        report.push(Figure::new(format!("{label}: {title}"), "frames/s", Better::Higher, rate));
        let cpu = rounds.values(subject, |cost| cost.cpu / delivered * 1e6);
        report.push(Figure::new(format!("{label}: {title}, both sides"), "CPU-us/frame", Better::Lower, cpu));
        let cpu = client_cpu[subject].iter().map(|cpu| cpu / delivered * 1e6).collect();
        report.push(Figure::new(format!("{label}: {title}, client"), "CPU-us/frame", Better::Lower, cpu));
    }
    let share = Figure::one(format!("{label}: {}: read from disk", SUBJECTS[1]), "of frames", Better::Higher, from_disk);
    report.push(share);
    for (subject, title) in SUBJECTS.iter().enumerate().take(MAPPED) {
        let ratio = rounds.ratios(subject, MAPPED, |cost| 1.0 / cost.wall.as_secs_f64());
        let rate = Figure::new(format!("{label}: {title}: frames/s"), "ratio", Better::Higher, ratio).against("memory map");
        let ratio = rounds.ratios(subject, MAPPED, |cost| cost.cpu);
        let cpu = Figure::new(format!("{label}: {title}: CPU, both sides"), "ratio", Better::Lower, ratio).against("memory map");
        let is_headline = selection == Selection::Random;
        report.push(if is_headline { rate.at_least(0.5) } else { rate });
        report.push(cpu);
        let Some(torchcodec) = &torchcodec else { continue };
        let theirs = rounds.values(SUBJECTS.len(), |cost| selection.count() as f64 / cost.cpu);
        let ratio = client_cpu[subject].iter().zip(&theirs).map(|(cpu, theirs)| delivered / cpu / theirs).collect();
        let ratio = Figure::new(format!("{label}: {title}: frames a CPU-second of the client"), "ratio", Better::Higher, ratio);
        let ratio = ratio.against(format!("{}, {}", torchcodec.title, clip.title()));
        report.push(if is_headline { ratio.at_least(250.0) } else { ratio });
    }
    std::fs::remove_file(&decoded)?;
    rounds.tell(report);
    Ok(())
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const DISK: &str = "tier=\"disk\"";

/// Has the node decode all `frames`; writes them to `decoded`, one behind the other in that order.
async fn fill(node: &NodeProcess, frames: &[u64], decoded: &Path) -> Result<()> {
    let client = node.client()?;
    let (id, call, spec) = (uri(KEY).parse()?, Call::default(), SPEC.parse::<ImageSpec>()?);
    let version = client.stat(&id, &call).await?.version;
    // Near ones together: a decode of a unit serves all that are asked for at once.
    let mut places: Vec<usize> = (0..frames.len()).collect();
    places.sort_by_key(|&place| frames[place]);
    let mut pixels = vec![0; frames.len() * CROP.bytes()];
    for places in places.chunks(10) {
        let near: Vec<u64> = places.iter().map(|&place| frames[place]).collect();
        let slots = Batch::new(near.len(), 1 << 30);
        for outcome in client.frames((&id, &version), &near, &spec, &slots, &call).await {
            outcome?;
        }
        let pictures = slots.finish();
        for (slot, &place) in places.iter().enumerate() {
            let frame = pictures.pixels(slot).context("a slot without frame")?;
            pixels[place * CROP.bytes()..][..CROP.bytes()].copy_from_slice(frame);
        }
    }
    client.close().await;
    Ok(std::fs::write(decoded, pixels)?)
}

/// Waits until what is on its way to the disk is there.
async fn settle(node: &NodeProcess) -> Result<()> {
    while node.metrics().await?.sum("framecache_cache_disk_queued_bytes") > 0.0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Four requests at once, each as long as framecache's own.
fn shape(frames: &[u64], batch: usize) -> Shape {
    let ask = |index: usize| FrameAsk { index: index as u32, attempt: 1, spec: index as u16, uri: uri(KEY), version: version() };
    let specs = frames.iter().take(batch).map(|frame| format!("video?frames={frame}&short={}&crop={}", CROP.short, CROP.side));
    let body = FramesBody { specs: specs.collect(), items: (0..batch).map(ask).collect() };
    let tensor = TensorItem { shape: [224, 224, 3], dtype: 0, layout: 0, orientation: 1, source: [1920, 1080], pts_seconds: 1.5 };
    let head = ItemHead { version: version(), tensor: Some(tensor), last: true, ..ItemHead::default() };
    let request_bytes = message_bytes(Verb::Frames) + codec::encode(&body).map_or(0, |message| message.len());
    let head_bytes = codec::encode(&head).map_or(0, |message| message.len());
    Shape { items: frames.len(), item_bytes: CROP.bytes(), batch, in_flight: 4, request_bytes, head_bytes }
}
