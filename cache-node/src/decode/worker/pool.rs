//! The pool: admits, queues, hands out workers, buries them, and never lets a request hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use framecache::DecodeSpec;
use framecache::spec::{ImageSpec, VideoSpec};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::TaskTracker;

use super::errand::{Errand, Renditions};
use super::lane::{Inside, Lane};
use super::order::Order;
use super::parcel::Parcel;
use super::process::{Death, Gone, Spawner, StartError, Worker};
use super::settings::PoolSettings;
use super::survey::Survey;
use super::units::{Part, Turn, Unit, Units};
use crate::decode::quarantine::{Engine, Quarantine, Suspect, Verdict};
use crate::decode::{ClipJob, DecodeError, DecodeJob, Decoder, Format, IndexJob, SPECS_MAX};

/// Decodes in worker processes of this node. Cheap to clone; the last clone's end, or [`WorkerPool::close`], ends the workers.
#[derive(Clone)]
pub struct WorkerPool(Arc<Pool>);

/// How the pool stands, and what it has done since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodeStats {
    /// Workers that may decode at the same time.
    pub workers: usize,
    /// Jobs that were let in and are not answered yet, running ones included.
    pub inside: usize,
    /// Jobs that a worker answered.
    pub jobs: u64,
    /// Bytes that went through shared memory: compressed in, pixels out.
    pub bytes: u64,
    /// CPU time that workers spent on jobs, in microseconds.
    pub cpu_us: u64,
    /// Processes started.
    pub started: u64,
    /// Workers that a picture ended.
    pub deaths_judged: u64,
    /// Workers that ended otherwise: killed from outside, or for taking too long.
    pub deaths_lost: u64,
    /// Workers replaced for their age or growth.
    pub recycled: u64,
    /// Jobs turned away as busy.
    pub busy: u64,
    /// Units in quarantine.
    pub quarantined: usize,
    /// Process ids of the workers that run.
    pub pids: Vec<u32>,
}

impl WorkerPool {
    /// Starts a pool, and one worker in it, so that a program or a kernel that cannot is found out now. The others start with the
    /// first jobs that need them.
    pub async fn start(settings: PoolSettings) -> Result<Self, StartError> {
        let spawner = Spawner::start(settings.program.clone(), settings.test_codecs).map_err(StartError::Spawn)?;
        let pool = Arc::new(Pool {
            lane: Lane::new(settings.workers, settings.queue_max()),
            surveys: Lane::new(settings.workers.saturating_sub(1).max(1), settings.queue_max()),
            spawner,
            settings,
            idle: Mutex::default(),
            pids: Mutex::default(),
            units: Units::default(),
            quarantine: Mutex::default(),
            counts: Counts::default(),
            closed: AtomicBool::new(false),
            tasks: TaskTracker::new(),
        });
        let first = pool.start_worker().await?;
        if !first.landlock {
            tracing::warn!("this kernel has no Landlock: decode workers are held by seccomp and resource limits alone");
        }
        pool.idle.lock().push(first);
        Ok(Self(pool))
    }

    /// How the pool stands.
    pub fn stats(&self) -> DecodeStats {
        let pool = &self.0;
        let counts = &pool.counts;
        DecodeStats {
            workers: pool.settings.workers,
            inside: pool.lane.inside() + pool.surveys.inside(),
            jobs: counts.jobs.load(Relaxed),
            bytes: counts.bytes.load(Relaxed),
            cpu_us: counts.cpu_us.load(Relaxed),
            started: counts.started.load(Relaxed),
            deaths_judged: counts.deaths_judged.load(Relaxed),
            deaths_lost: counts.deaths_lost.load(Relaxed),
            recycled: counts.recycled.load(Relaxed),
            busy: counts.busy.load(Relaxed),
            quarantined: pool.quarantine.lock().banned(Instant::now()),
            pids: pool.pids.lock().clone(),
        }
    }

    /// Takes no more jobs, waits for those that run (each has its own limit), and ends the workers.
    pub async fn close(&self) {
        let pool = &self.0;
        pool.closed.store(true, Relaxed);
        pool.tasks.close();
        pool.tasks.wait().await;
        let idle = std::mem::take(&mut *pool.idle.lock());
        for worker in idle {
            pool.retire(worker).await;
        }
    }
}

#[async_trait]
impl Decoder for WorkerPool {
    async fn decode(&self, job: DecodeJob, deadline: Instant) -> Result<Renditions, DecodeError> {
        let _inside = self.0.admit(&self.0.lane, deadline)?;
        timeout_at(deadline, self.0.clone().pictures(job)).await.unwrap_or(Err(DecodeError::Deadline))
    }

    async fn clip(&self, job: ClipJob, deadline: Instant) -> Result<Renditions, DecodeError> {
        let _inside = self.0.admit(&self.0.lane, deadline)?;
        timeout_at(deadline, self.0.clone().frames(job)).await.unwrap_or(Err(DecodeError::Deadline))
    }

    async fn index(&self, job: IndexJob, deadline: Instant) -> Result<Bytes, DecodeError> {
        let _inside = self.0.admit(&self.0.surveys, deadline)?;
        timeout_at(deadline, self.0.clone().index(job)).await.unwrap_or(Err(DecodeError::Deadline))
    }

    fn load(&self) -> (usize, usize) {
        (self.0.lane.inside(), self.0.settings.workers)
    }
}

struct Pool {
    settings: PoolSettings,
    spawner: Spawner,
    /// All jobs: a slot for each worker.
    lane: Arc<Lane>,
    /// Indexes of videos, which take slots of the above too, but one fewer than there are: one is always left for what takes milliseconds.
    surveys: Arc<Lane>,
    /// Workers at rest; the last one used is the first taken, so that few stay warm when little is to do.
    idle: Mutex<Vec<Worker>>,
    pids: Mutex<Vec<u32>>,
    units: Units,
    quarantine: Mutex<Quarantine>,
    counts: Counts,
    closed: AtomicBool,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Counts {
    jobs: AtomicU64,
    bytes: AtomicU64,
    cpu_us: AtomicU64,
    started: AtomicU64,
    deaths_judged: AtomicU64,
    deaths_lost: AtomicU64,
    recycled: AtomicU64,
    busy: AtomicU64,
}

impl Pool {
    fn admit(&self, lane: &Arc<Lane>, deadline: Instant) -> Result<Inside, DecodeError> {
        if self.closed.load(Relaxed) {
            return Err(DecodeError::WorkerLost("the pool is closed".into()));
        }
        let inside = lane.admit(deadline.saturating_duration_since(Instant::now()));
        inside.map_err(|retry_after| {
            self.counts.busy.fetch_add(1, Relaxed);
            DecodeError::Busy { retry_after }
        })
    }

    /// From an admitted job to its answer. Nothing is held while a turn is waited for; while a slot is, only the compressed bytes.
    async fn pictures(self: Arc<Self>, job: DecodeJob) -> Result<Renditions, DecodeError> {
        most_specs(job.specs.len())?;
        let turn = self.units.turn(Unit::picture(&job.id, &job.version)).await;
        let allowed: Vec<_> = suspects(&job).map(|suspect| self.allowed(&suspect)).collect();
        if !allowed.is_empty() && allowed.iter().all(Result::is_err) {
            return Ok(allowed.into_iter().filter_map(Result::err).map(Err).collect());
        }
        let tried = suspects(&job).zip(&allowed).filter(|(_, allowed)| allowed.is_ok()).map(|(suspect, _)| suspect).collect();
        let order = Order::prepare(&job, allowed, &self.settings).await?;
        match order.is_idle() {
            true => Ok(order.refusals()),
            false => self.clone().send_out(order, tried, turn, vec![self.lane.clone()]).await,
        }
    }

    /// The same of frames of one unit of a video.
    async fn frames(self: Arc<Self>, job: ClipJob) -> Result<Renditions, DecodeError> {
        most_specs(job.frames.len())?;
        let turn = self.units.turn(Unit { part: Part::Clip(job.unit), ..Unit::picture(&job.id, &job.version) }).await;
        job.suspects().try_for_each(|suspect| self.allowed(&suspect))?;
        let tried = job.suspects().last().into_iter().collect();
        let parcel = Parcel::prepare(&job, &self.settings)?;
        match parcel.is_idle() {
            true => Ok(parcel.refusals()),
            false => self.clone().send_out(parcel, tried, turn, vec![self.lane.clone()]).await,
        }
    }

    /// The same of a video's index.
    async fn index(self: Arc<Self>, job: IndexJob) -> Result<Bytes, DecodeError> {
        let turn = self.units.turn(Unit { part: Part::Index, ..Unit::picture(&job.id, &job.version) }).await;
        let tried = vec![job.suspect()];
        tried.iter().try_for_each(|suspect| self.allowed(suspect))?;
        let survey = Survey::of(&job, &self.settings);
        self.clone().send_out(survey, tried, turn, vec![self.surveys.clone(), self.lane.clone()]).await
    }

    /// From an errand to its answer, when there is a slot for it.
    async fn send_out<E: Errand>(
        self: Arc<Self>,
        errand: E,
        tried: Vec<Suspect>,
        turn: Turn,
        lanes: Vec<Arc<Lane>>,
    ) -> Result<E::Made, DecodeError> {
        let mut slots = Vec::with_capacity(lanes.len());
        for lane in &lanes {
            slots.push(lane.slot().await.ok_or_else(|| DecodeError::WorkerLost("the pool is closed".into()))?);
        }
        let (reply, answer) = oneshot::channel();
        // On a task of its own: who gives up waiting does not tear a worker from its job, and deaths are counted all the same.
        let pool = self.clone();
        self.tasks.spawn(async move {
            let answer = pool.attempts(&errand, tried, &turn, &lanes[0], &reply).await;
            drop((slots, turn));
            let _ = reply.send(answer);
        });
        answer.await.unwrap_or_else(|_| Err(DecodeError::WorkerLost("the runtime is going down".into())))
    }

    /// Tries until there is an answer, the unit is banned, or too many workers were lost by other causes.
    async fn attempts<E: Errand>(
        &self,
        errand: &E,
        tried: Vec<Suspect>,
        _turn: &Turn,
        lane: &Lane,
        reply: &oneshot::Sender<Result<E::Made, DecodeError>>,
    ) -> Result<E::Made, DecodeError> {
        let mut lost = 0;
        loop {
            let death = match self.attempt(errand, lane).await {
                Ok(answer) => return answer,
                Err(death) => death,
            };
            match death {
                Death::Judged(cause) => {
                    self.counts.deaths_judged.fetch_add(1, Relaxed);
                    if let Some(banned) = self.convict(&tried, &cause) {
                        return Err(banned);
                    }
                }
                Death::Lost(cause) => {
                    self.counts.deaths_lost.fetch_add(1, Relaxed);
                    tracing::warn!(cause, "decode worker lost");
                    lost += 1;
                    if lost > RETRIES_MAX {
                        return Err(DecodeError::WorkerLost(cause));
                    }
                }
            }
            if reply.is_closed() {
                return Err(DecodeError::Deadline);
            }
        }
    }

    /// One job in one worker, which afterwards rests, is replaced, or is dead.
    async fn attempt<E: Errand>(&self, errand: &E, lane: &Lane) -> Result<Result<E::Made, DecodeError>, Death> {
        let mut worker = self.worker().await.map_err(|error| Death::Lost(error.to_string()))?;
        let begun = Instant::now();
        let ran = timeout(errand.deadline(&self.settings), worker.run(errand)).await.unwrap_or(Err(Gone::TimedOut));
        match ran {
            Ok((answer, cpu_us)) => {
                self.count(errand, cpu_us, begun.elapsed());
                lane.took(begun.elapsed());
                self.rest(worker).await;
                Ok(answer)
            }
            Err(gone) => {
                self.forget(&worker);
                Err(worker.judge(gone).await)
            }
        }
    }

    /// A worker at rest that still lives, or a new one.
    async fn worker(&self) -> Result<Worker, StartError> {
        loop {
            let Some(mut worker) = self.idle.lock().pop() else { return self.start_worker().await };
            if worker.is_alive() {
                return Ok(worker);
            }
            self.forget(&worker);
            self.counts.deaths_lost.fetch_add(1, Relaxed);
        }
    }

    async fn start_worker(&self) -> Result<Worker, StartError> {
        let worker = Worker::start(&self.spawner, &self.settings).await?;
        self.counts.started.fetch_add(1, Relaxed);
        self.pids.lock().push(worker.pid());
        Ok(worker)
    }

    async fn rest(&self, worker: Worker) {
        if worker.is_worn(&self.settings) {
            self.counts.recycled.fetch_add(1, Relaxed);
            return self.retire(worker).await;
        }
        self.idle.lock().push(worker);
    }

    async fn retire(&self, worker: Worker) {
        self.forget(&worker);
        worker.close().await;
    }

    fn forget(&self, worker: &Worker) {
        self.pids.lock().retain(|&pid| pid != worker.pid());
    }

    fn count<E: Errand>(&self, errand: &E, cpu_us: u64, took: Duration) {
        self.counts.jobs.fetch_add(1, Relaxed);
        self.counts.bytes.fetch_add(errand.moved_bytes(), Relaxed);
        // What a worker says of itself is bounded by what was seen.
        self.counts.cpu_us.fetch_add(cpu_us.min(took.as_micros() as u64), Relaxed);
    }

    fn allowed(&self, suspect: &Suspect) -> Result<(), DecodeError> {
        match self.quarantine.lock().verdict(suspect, Instant::now()) {
            Verdict::Free => Ok(()),
            Verdict::Banned { deaths, cause, left } => Err(DecodeError::Quarantined { deaths, cause, retry_after: left }),
        }
    }

    /// Counts a death against every spec that was being drawn; gives the refusal if that bans one.
    fn convict(&self, tried: &[Suspect], cause: &str) -> Option<DecodeError> {
        let now = Instant::now();
        let mut quarantine = self.quarantine.lock();
        let verdicts: Vec<_> = tried.iter().map(|suspect| quarantine.record(suspect, cause, now)).collect();
        tracing::warn!(object = %tried[0].id, version = %tried[0].version, cause, "picture ended its decode worker");
        verdicts.into_iter().find_map(|verdict| match verdict {
            Verdict::Free => None,
            Verdict::Banned { deaths, cause, left } => Some(DecodeError::Quarantined { deaths, cause, retry_after: left }),
        })
    }
}

fn most_specs(count: usize) -> Result<(), DecodeError> {
    if count <= SPECS_MAX {
        return Ok(());
    }
    let reason = format!("{count} renditions of one decode, {SPECS_MAX} are the most");
    Err(DecodeError::Unsupported { format: Format::Unknown, reason })
}

fn suspects(job: &DecodeJob) -> impl Iterator<Item = Suspect> {
    job.specs.iter().map(|spec| Suspect {
        id: job.id.clone(),
        version: job.version.clone(),
        unit: spec.frame().unwrap_or(0),
        spec: spec.clone(),
        engine: Engine::Cpu,
    })
}

impl ClipJob {
    /// The unit, by how far decoding goes into it, in powers of two; itself is the last. What ends a worker early in a unit does so behind
    /// that, too: and so a unit of a thousand packets costs twenty workers at most, and not two for each frame and each spec.
    fn suspects(&self) -> impl Iterator<Item = Suspect> {
        (0..=self.packets.max(1).ilog2()).map(|reach| Suspect {
            id: self.id.clone(),
            version: self.version.clone(),
            unit: self.unit,
            spec: VideoSpec::at(reach.into(), ImageSpec::default()).into(),
            engine: Engine::Cpu,
        })
    }
}

impl IndexJob {
    fn suspect(&self) -> Suspect {
        let (id, version) = (self.id.clone(), self.version.clone());
        // One that is proved decodes much that one that is predicted does not.
        let unit = u64::MAX - self.trust as u64;
        Suspect { id, version, unit, spec: DecodeSpec::Image(ImageSpec::default()), engine: Engine::Cpu }
    }
}

/// Losses that say nothing about the picture and are made up for by another try.
const RETRIES_MAX: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn job(packets: u32) -> ClipJob {
        ClipJob {
            id: framecache::ObjectId::new("abc", "clip").expect("id"),
            version: framecache::Version::new("1").expect("version"),
            unit: 7,
            package: Bytes::new(),
            packets,
            frames: Vec::new(),
            damaged_keep: false,
            decoder_bytes: 0,
            decoded_pixels: 0,
        }
    }

    /// Promise: a unit that ends workers is left alone from there on, for all of its frames and specs; what comes before is not blamed.
    #[test]
    fn units_are_judged_by_their_depth() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        let own = |packets| job(packets).suspects().last().expect("itself");
        (0..2).for_each(|_| drop(quarantine.record(&own(100), "SIGSEGV", now)));
        let is_free = |packets| job(packets).suspects().all(|suspect| quarantine.verdict(&suspect, now) == Verdict::Free);
        let free: Vec<bool> = [1, 63, 64, 127, 128, 250, 100_000].map(is_free).into();
        assert_eq!(free, [true, true, false, false, false, false, false]);
        assert_eq!(job(u32::MAX).suspects().count(), 32);
    }
}
