//! Objects that are replaced, and clients that read them all the time and know which generation each byte must be of.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use framecache::{Call, Client, ClientConfig};
use framecache_tests::dice::Dice;
use framecache_tests::harness::id;
use framecache_tests::model::stamped;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// How many objects there are.
const OBJECTS: usize = 40;
/// Pause of a reader between two reads: a few hundred reads a second leave the machine to the nodes.
const PAUSE: Duration = Duration::from_millis(10);

/// From here on a read is worth a line in the book: far below any bound, and few are that slow.
const SLOW: Duration = Duration::from_millis(50);

/// Objects in a folder, each of some generation.
pub(crate) struct Shelf {
    folder: PathBuf,
    lengths: Vec<usize>,
    /// What may be there: moved before a file is replaced.
    begun: AtomicU32,
    /// What is there at least: moved once all files are replaced.
    done: AtomicU32,
}

impl Shelf {
    /// All of them, of generation 1.
    pub(crate) fn fill(folder: &Path, seed: u64) -> Arc<Self> {
        let mut dice = Dice::new(seed);
        let lengths = (0..OBJECTS).map(|_| dice.within(10_000..100_000) as usize).collect();
        let shelf = Self { folder: folder.to_owned(), lengths, begun: 0.into(), done: 0.into() };
        shelf.replace();
        Arc::new(shelf)
    }

    /// Replaces each by its next generation, whole, as a careful writer does.
    pub(crate) fn replace(&self) {
        let generation = self.begun.fetch_add(1, SeqCst) + 1;
        for (number, length) in self.lengths.iter().enumerate() {
            let (fresh, path) = (self.folder.join("fresh"), self.folder.join(key(number)));
            std::fs::write(&fresh, stamped(generation, *length)).expect("write");
            std::fs::rename(fresh, path).expect("rename");
        }
        self.done.store(generation, SeqCst);
    }

    /// Reads one and says what is wrong with the answer.
    async fn read(&self, client: &Client, number: usize) -> Result<(), String> {
        let least = self.done.load(SeqCst);
        let read = client.read(&id(&key(number)), 0, None, &Call::default()).await;
        let raw = read.map_err(|error| error.to_string())?;
        let most = self.begun.load(SeqCst);
        let generation = u32::from(raw.bytes.first().copied().unwrap_or_default());
        if !(least..=most).contains(&generation) {
            return Err(format!("{} is of generation {generation}, not of {least} to {most}", key(number)));
        }
        match raw.bytes == stamped(generation, self.lengths[number]) {
            true => Ok(()),
            false => Err(format!("{} of generation {generation} has wrong bytes", key(number))),
        }
    }
}

fn key(number: usize) -> String {
    format!("object-{number}")
}

/// Clients at work.
pub(crate) struct Readers {
    stop: Arc<AtomicBool>,
    book: Arc<Mutex<Book>>,
    tasks: JoinSet<()>,
}

/// What they met.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Reads that gave the right bytes.
    pub(crate) right: u64,
    /// What went wrong, and when it was asked.
    pub(crate) wrong: Vec<(Instant, String)>,
    /// When each slow read was asked, and how long it took.
    slow: Vec<(Instant, Duration)>,
}

impl Book {
    /// The longest read of those that were asked since then.
    pub(crate) fn slowest_since(&self, since: Instant) -> Duration {
        self.slow.iter().filter(|(asked, _)| *asked >= since).map(|(_, took)| *took).max().unwrap_or_default()
    }

    fn note(&mut self, asked: Instant, outcome: Result<(), String>) {
        let took = asked.elapsed();
        if took >= SLOW {
            self.slow.push((asked, took));
        }
        match outcome {
            Ok(()) => self.right += 1,
            Err(what) => self.wrong.push((asked, what)),
        }
    }
}

impl Readers {
    /// `count` clients that read at random until they are stopped.
    pub(crate) fn start(config: &ClientConfig, shelf: &Arc<Shelf>, count: usize, seed: u64) -> Self {
        let (stop, book) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Book::default())));
        let mut tasks = JoinSet::new();
        let mut dice = Dice::new(seed);
        for _ in 0..count {
            let client = Client::new(config.clone()).expect("client");
            let (shelf, stop, book, mut dice) = (shelf.clone(), stop.clone(), book.clone(), dice.fork());
            tasks.spawn(async move {
                while !stop.load(SeqCst) {
                    let asked = Instant::now();
                    let outcome = shelf.read(&client, dice.within(0..OBJECTS as u64) as usize).await;
                    book.lock().note(asked, outcome);
                    sleep(PAUSE).await;
                }
                client.close().await;
            });
        }
        Self { stop, book, tasks }
    }

    /// Waits until `more` further reads were right; half a minute at most.
    pub(crate) async fn read_on(&self, more: u64) {
        let (wanted, deadline) = (self.book.lock().right + more, Instant::now() + Duration::from_secs(30));
        while self.book.lock().right < wanted {
            assert!(Instant::now() < deadline, "readers stand still: {:?}", self.book.lock());
            sleep(PAUSE).await;
        }
    }

    /// Ends them; what they met.
    pub(crate) async fn stop(mut self) -> Book {
        self.stop.store(true, SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("reader");
        }
        std::mem::take(&mut *self.book.lock())
    }
}
