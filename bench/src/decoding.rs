//! What decoding costs: a node that holds raw bytes and no pixels, against libraries that have the same files in memory.
//!
//! The node's decoded tier is too small for one picture, so that every round decodes every picture anew, by the same spec. Counted
//! are node, decoders and client together. Pillow says what the pixels are, and every byte is compared with it.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use framecache::Call;

use crate::agent::{Agent, Look, Role, Round, Subject, Tally, Traffic};
use crate::comparator::Shape;
use crate::comparator::library::{Crop, Library, LibraryProcess, Missing};
use crate::levels::Levels;
use crate::meter::Watch;
use crate::node::{BUCKET, NodeProcess};
use crate::origin::Origin;
use crate::run::{Rounds, Run};

/// Holds no picture of 224 pixels, whatever share of it a shard has.
const DECODED_RAM: u64 = 64 << 10;

/// What is decoded, and by whom.
pub struct Decoding<'a> {
    /// Tells this one's files in the scratch folder from others'.
    pub label: &'a str,
    /// The folder that is the bucket.
    pub bucket: &'a Path,
    /// The pictures, as names below it.
    pub names: &'a [String],
    /// What is made of each.
    pub crop: Crop,
    /// Passes over all pictures in one round.
    pub times: usize,
    /// Ways in which the node is asked: a name, and what the spec has beside sizes and filter.
    pub ways: &'a [(&'static str, &'static str)],
    /// Beside Pillow, which always takes part.
    pub libraries: &'a [Library],
}

/// What it cost.
pub struct Decoded {
    /// Everyone who took part: the node's ways, Pillow, the other libraries that are here.
    pub titles: Vec<String>,
    /// How far their pixels are from Pillow's.
    pub levels: Vec<Levels>,
    /// Pictures of each way that differ from Pillow's in any byte.
    pub wrong: Vec<u64>,
    /// Everyone's rounds, in that order.
    pub rounds: Rounds,
    /// How many ways there are, and so the place of Pillow.
    pub pillow: usize,
    /// CPU-seconds of the decoders in all rounds of each way.
    pub workers: Vec<f64>,
    /// Decodes a picture and pass.
    pub decodes: f64,
    /// Requests to the origin meanwhile.
    pub origin_requests: f64,
    /// Libraries that are not here.
    pub missing: Vec<Missing>,
}

impl Decoding<'_> {
    /// Measures.
    pub async fn run(&self, run: &Run) -> Result<Decoded> {
        let origin = Origin::serve(self.bucket).await?;
        let mut settings = run.node_settings(&format!("node-{}", self.label), origin.address)?;
        settings.decoded_ram = DECODED_RAM;
        let node = NodeProcess::start(&settings).await?;
        let uris: Vec<String> = self.names.iter().map(|name| format!("s3://{BUCKET}/{name}")).collect();
        hold_raw(&node, &uris).await?;
        let (mut libraries, missing) = self.libraries(run).await?;
        let kept = run.scratch.path().join("pillow-pixels");
        libraries[0].keep(&kept).await?;

        let (mut clients, mut wrong, mut levels) = (Vec::new(), Vec::new(), Vec::new());
        for (_, more) in self.ways {
            let mut client = self.client(run, &node, &uris, more)?;
            // Every byte is compared, and learnt for what the timed rounds look at.
            let same: Tally = client.ask(&Round { seed: run.seed, times: 1, look: Look::File(kept.clone()) }).await?;
            let _: Tally = client.ask(&Round { seed: run.seed, times: 1, look: Look::Learn }).await?;
            wrong.push(same.wrong);
            levels.push(same.levels);
            clients.push(client);
        }
        levels.push(Levels::default());
        let pixels = std::fs::read(&kept)?;
        for library in &mut libraries[1..] {
            library.keep(&kept).await?;
            levels.push(Levels::between(&std::fs::read(&kept)?, &pixels));
        }
        drop(pixels);
        std::fs::remove_file(&kept)?;

        let before = node.metrics().await?;
        let workers_cpu = async || anyhow::Ok(node.metrics().await?.sum("framecache_decode_cpu_seconds_total"));
        let mut rounds = Rounds::of(clients.len() + libraries.len());
        let mut workers = vec![0.0; clients.len()];
        for round in 0..run.rounds {
            for subject in rounds.order(round) {
                if let Some(client) = clients.get_mut(subject) {
                    let question = Round { seed: run.seed + round as u64, times: 1, look: Look::Edges };
                    let earlier = workers_cpu().await?;
                    let watch = Watch::begin(&[node.tree, client.tree]);
                    // Asked pass by pass: were one to begin before the last has ended, both would share a decode.
                    for _ in 0..self.times {
                        let tally: Tally = client.ask(&question).await?;
                        ensure!(tally.wrong == 0, "{} pictures changed", tally.wrong);
                    }
                    rounds.push(subject, watch.end());
                    workers[subject] += workers_cpu().await? - earlier;
                } else {
                    let library = &mut libraries[subject - clients.len()];
                    let watch = Watch::begin(&[library.agent.tree]);
                    library.pass(self.times).await?;
                    rounds.push(subject, watch.end());
                }
            }
        }
        let after = node.metrics().await?;
        let moved = |name: &str| after.sum(name) - before.sum(name);
        let passes = (run.rounds * self.times * clients.len() * self.names.len()) as f64;
        let decodes = moved("framecache_units_total") / passes;
        ensure!(decodes >= 1.0, "pictures came from the cache");
        let titles = self.ways.iter().map(|(name, _)| format!("framecache {name}"));
        let titles = titles.chain(libraries.iter().map(|library| library.title.clone())).collect();
        let origin_requests = moved("framecache_origin_requests_total");
        node.stop().await?;
        Ok(Decoded { titles, levels, wrong, rounds, pillow: clients.len(), workers, decodes, origin_requests, missing })
    }

    async fn libraries(&self, run: &Run) -> Result<(Vec<LibraryProcess>, Vec<Missing>)> {
        let files: Vec<PathBuf> = self.names.iter().map(|name| self.bucket.join(name)).collect();
        let folder = run.scratch.folder("library")?;
        let (mut here, mut missing) = (Vec::new(), Vec::new());
        for library in std::iter::once(Library::Pillow).chain(self.libraries.iter().copied()) {
            match LibraryProcess::start(library, &run.python, &folder, self.crop, &files).await? {
                Ok(process) => here.push(process),
                Err(Missing(why)) if library == Library::Pillow => anyhow::bail!("{why}"),
                Err(why) => missing.push(why),
            }
        }
        Ok((here, missing))
    }

    fn client(&self, run: &Run, node: &NodeProcess, uris: &[String], more: &str) -> Result<Agent> {
        let spec = format!("image?short={}&crop={}&filter=bicubic{more}", self.crop.short, self.crop.side);
        let shape = Shape {
            items: uris.len(),
            item_bytes: self.crop.bytes(),
            batch: 64.min(uris.len() / 2).max(1),
            in_flight: 2,
            request_bytes: 0,
            head_bytes: 0,
        };
        let (address, trust) = (node.quic.to_string(), run.scratch.folder("trust")?);
        let subject = Subject::Pictures { uris: uris.to_vec(), spec };
        Agent::start(&Role::Traffic(Traffic { subject, address, trust, shape }), &[])
    }
}

impl Decoded {
    /// CPU-seconds, round by round, in parts of Pillow's.
    pub fn of_pillow(&self, subject: usize) -> Vec<f64> {
        self.rounds.ratios(subject, self.pillow, |cost| cost.cpu)
    }
}

/// Reads every object once, so that its raw bytes are in RAM.
async fn hold_raw(node: &NodeProcess, uris: &[String]) -> Result<()> {
    let client = node.client()?;
    for uri in uris {
        client.read(&uri.parse()?, 0, None, &Call::default()).await?;
    }
    client.close().await;
    Ok(())
}
