//! A load: several clients in this process, each asking again a pause after its last answer, each checking every byte.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use framecache::{Batch, Call, Client, ClientConfig, ImageSpec, ObjectId};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use xxhash_rust::xxh3::xxh3_64;

use crate::latency::Latencies;
use crate::node::BUCKET;
use crate::report::{Better, Figure, Report};
use crate::workload::{Objects, Random};

/// Failures that are kept word for word; all are counted.
const FAILURES_KEPT: usize = 20;
/// Pictures of one batch.
const BATCH: usize = 16;

/// What clients ask for.
#[derive(Clone)]
pub struct Diet {
    /// Raw objects.
    pub objects: Arc<Objects>,
    /// Their addresses, by number.
    ids: Arc<Vec<ObjectId>>,
    /// Pictures, of which every fourth request is a batch.
    pub album: Option<Arc<Album>>,
    /// One object in so many of a hundred requests.
    pub hot: Option<(usize, u64)>,
    /// Between an answer and the next request.
    pub pause: Duration,
}

impl Diet {
    /// Of `objects` alone.
    pub fn of(objects: &Objects, pause: Duration) -> Result<Self> {
        let ids = (0..objects.count).map(|number| id(&objects.key(number))).collect::<Result<_>>()?;
        Ok(Self { objects: Arc::new(objects.clone()), ids: Arc::new(ids), album: None, hot: None, pause })
    }

    /// Reads a range of one object and checks it; the bytes.
    pub async fn read(&self, client: &Client, number: usize, start: u64, length: Option<u64>) -> Result<u64, Flaw> {
        let raw = client.read(&self.ids[number], start, length, &Call::default()).await?;
        let size = self.objects.size(number) as u64;
        let wanted = length.unwrap_or(u64::MAX).min(size - start);
        let key = || self.objects.key(number);
        if (raw.size, raw.bytes.len() as u64) != (size, wanted) {
            return Err(Flaw::Wrong(format!("{} bytes of {} for {wanted} of {size} of {}", raw.bytes.len(), raw.size, key())));
        }
        match self.objects.first_wrong(number, start, &raw.bytes) {
            None => Ok(wanted),
            Some(place) => Err(Flaw::Wrong(format!("byte {place} of {}", key()))),
        }
    }

    /// Reads every object whole, `together` at once; how long each took.
    pub async fn read_all(&self, client: &Client, together: usize) -> Result<Latencies> {
        let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let mut readers = JoinSet::new();
        for _ in 0..together {
            let (diet, client, next) = (self.clone(), client.clone(), next.clone());
            readers.spawn(async move {
                let mut times = Latencies::default();
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= diet.objects.count {
                        return anyhow::Ok(times);
                    }
                    let begun = Instant::now();
                    diet.read(&client, number, 0, None).await.map_err(|flaw| anyhow::anyhow!("{flaw:?}"))?;
                    times.add(begun.elapsed());
                }
            });
        }
        let mut times = Latencies::default();
        while let Some(ended) = readers.join_next().await {
            times.merge(&ended??);
        }
        Ok(times)
    }
}

/// The address of that key.
pub fn id(key: &str) -> Result<ObjectId> {
    Ok(format!("s3://{BUCKET}/{key}").parse()?)
}

/// Pictures whose pixels were learnt before the trouble began.
pub struct Album {
    ids: Vec<ObjectId>,
    spec: ImageSpec,
    hashes: Vec<u64>,
}

impl Album {
    /// Asks for each picture, and learns what it is.
    pub async fn learn(client: &Client, keys: &[String]) -> Result<Self> {
        let ids = keys.iter().map(|key| id(key)).collect::<Result<Vec<_>>>()?;
        let mut album = Self { spec: "image?short=256&crop=224".parse()?, hashes: Vec::new(), ids };
        let all: Vec<usize> = (0..album.ids.len()).collect();
        for part in all.chunks(BATCH) {
            album.hashes.extend(album.ask(client, part).await?.into_iter().map(|(hash, _)| hash));
        }
        ensure!(album.hashes.len() >= BATCH, "want {BATCH} photographs at least");
        Ok(album)
    }

    /// Hash and bytes of each.
    async fn ask(&self, client: &Client, numbers: &[usize]) -> Result<Vec<(u64, u64)>> {
        let ids: Vec<ObjectId> = numbers.iter().map(|&number| self.ids[number].clone()).collect();
        let batch = Batch::new(ids.len(), 1 << 30);
        for outcome in client.images(&ids, &self.spec, &batch, &Call::default()).await {
            outcome?;
        }
        let pictures = batch.finish();
        let one =
            |slot| pictures.pixels(slot).map(|pixels| (xxh3_64(pixels), pixels.len() as u64)).context("a slot without pixels");
        (0..numbers.len()).map(one).collect()
    }

    async fn check(&self, client: &Client, random: &mut Random) -> Result<u64, Flaw> {
        let numbers: Vec<usize> = (0..BATCH).map(|_| random.below(self.ids.len() as u64) as usize).collect();
        let found = self.ask(client, &numbers).await.map_err(|error| Flaw::Failed(format!("{error:#}")))?;
        match numbers.iter().zip(&found).find(|(number, (hash, _))| self.hashes[**number] != *hash) {
            None => Ok(found.iter().map(|(_, bytes)| bytes).sum()),
            Some((number, _)) => Err(Flaw::Wrong(format!("pixels of {}", self.ids[*number]))),
        }
    }
}

/// Why an answer is no good.
#[derive(Debug)]
pub enum Flaw {
    /// There is none.
    Failed(String),
    /// Its bytes are not the object's.
    Wrong(String),
}

impl From<framecache::Error> for Flaw {
    fn from(error: framecache::Error) -> Self {
        Self::Failed(format!("{error} (attempt {})", error.attempt))
    }
}

/// What clients met in one stretch of time.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// How long each request took, failed ones too.
    pub times: Latencies,
    /// Bytes that were right.
    pub bytes: u64,
    /// Requests without answer.
    pub failed: u64,
    /// Answers with other bytes than the object's.
    pub wrong: u64,
    /// The first failures and wrong answers, each with its second since the load began.
    pub words: Vec<String>,
    /// Which objects were asked for, and when, where that is kept.
    pub asked: Vec<(Instant, u32)>,
}

impl Page {
    /// This and what came after.
    pub fn and(mut self, later: Page) -> Self {
        self.times.merge(&later.times);
        (self.bytes, self.failed, self.wrong) = (self.bytes + later.bytes, self.failed + later.failed, self.wrong + later.wrong);
        self.words.extend(later.words);
        self.words.truncate(FAILURES_KEPT);
        self.asked.extend(later.asked);
        self
    }

    fn take(&mut self, outcome: Result<u64, Flaw>, asked: Option<(Instant, u32)>, took: Duration, load_begun: Instant) {
        self.times.add(took);
        self.asked.extend(asked);
        let words = match outcome {
            Ok(bytes) => {
                self.bytes += bytes;
                return;
            }
            Err(Flaw::Failed(why)) => {
                self.failed += 1;
                format!("failed: {why}")
            }
            Err(Flaw::Wrong(what)) => {
                self.wrong += 1;
                format!("wrong: {what}")
            }
        };
        if self.words.len() < FAILURES_KEPT {
            self.words.push(format!("{:.1} s, after {took:.1?}: {words}", load_begun.elapsed().as_secs_f64()));
        }
    }

    /// That nothing failed and nothing was wrong, as figures; what was, as notes.
    pub fn judge(&self, when: &str, report: &mut Report) {
        let none =
            |name: &str, value: u64| Figure::one(format!("{when}: {name}"), "answers", Better::Lower, value as f64).at_most(0.0);
        report.push(none("wrong bytes", self.wrong).against(format!("{} answers, every byte checked", self.times.count())));
        report.push(none("client errors", self.failed));
        self.words.iter().for_each(|words| report.note(format!("{when}: {words}")));
    }
}

/// Clients at work, until they are stopped.
pub struct Load {
    page: Arc<Mutex<Page>>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Load {
    /// `count` clients, each with connections of its own.
    pub fn start(config: &ClientConfig, count: usize, diet: &Diet, seed: u64) -> Result<Self> {
        let (page, stop) = (Arc::new(Mutex::new(Page::default())), Arc::new(AtomicBool::new(false)));
        let (mut tasks, begun) = (JoinSet::new(), Instant::now());
        for number in 0..count {
            let client = Client::new(config.clone())?;
            let random = Random::new(seed, number as u64);
            tasks.spawn(ask_on(client, diet.clone(), random, page.clone(), stop.clone(), begun));
        }
        Ok(Self { page, stop, tasks })
    }

    /// What was met since the load began, or since this was last called.
    pub fn turn(&self) -> Page {
        std::mem::take(&mut *self.page.lock())
    }

    /// Bytes that were right since the page was turned.
    pub fn bytes(&self) -> u64 {
        self.page.lock().bytes
    }

    /// Ends it, each request first; the last page.
    pub async fn stop(mut self) -> Result<Page> {
        self.stop.store(true, Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        Ok(self.turn())
    }
}

async fn ask_on(
    client: Client,
    diet: Diet,
    mut random: Random,
    page: Arc<Mutex<Page>>,
    stop: Arc<AtomicBool>,
    load_begun: Instant,
) {
    while !stop.load(Relaxed) {
        let number = match diet.hot {
            Some((hot, percent)) if random.below(100) < percent => hot,
            _ => random.below(diet.objects.count as u64) as usize,
        };
        let batch = diet.album.as_ref().filter(|_| random.below(4) == 0);
        let begun = Instant::now();
        let outcome = match batch {
            Some(album) => album.check(&client, &mut random).await,
            // One in four asks for a range, which may begin and end anywhere.
            None if random.below(4) == 0 => {
                let start = random.below(diet.objects.size(number) as u64);
                diet.read(&client, number, start, Some(1 + random.below(1 << 18))).await
            }
            None => diet.read(&client, number, 0, None).await,
        };
        let asked = batch.is_none().then_some((begun, number as u32));
        page.lock().take(outcome, asked, begun.elapsed(), load_begun);
        tokio::time::sleep(diet.pause).await;
    }
    client.close().await;
}
