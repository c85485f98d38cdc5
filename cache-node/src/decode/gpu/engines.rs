//! Both engines behind one face: a unit goes to the GPU where that is sooner and gives the same pixels, and to the CPU in every other case,
//! the GPU's failures included. So a GPU changes when an answer comes, and never which.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use framecache::spec::Profile;
use framecache::{ByteRange, DecodeSpec, ObjectId, Version};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::worker::pool::{DecodeStats, WorkerPool};
use super::super::{ClipJob, DecodeError, DecodeJob, Decoder, Engine, Format, IndexJob, Limits, probe};
use super::Offer;
use super::choice::{Choice, Class, Kind, Rates, Standing, Unit, Why, choose};

type Answers = Vec<Result<framecache::Tensor, DecodeError>>;

/// A decoder that works on a device.
trait Device: Decoder {
    /// What it decodes there; nothing while it does not know.
    fn offer(&self) -> Option<Offer>;

    fn stats(&self) -> DecodeStats;
}

impl Device for WorkerPool {
    fn offer(&self) -> Option<Offer> {
        self.offer()
    }

    fn stats(&self) -> DecodeStats {
        self.stats()
    }
}

/// The CPU's workers, and a GPU's beside them.
pub struct Engines {
    cpu: Arc<dyn Decoder>,
    gpu: Arc<dyn Device>,
    rates: Mutex<Rates>,
    /// The GPU is left alone until then.
    rests_until: Mutex<Option<Instant>>,
    /// Objects that the GPU failed at, and until when it is not asked for them again.
    passed_over: Mutex<HashMap<(ObjectId, Version), Instant>>,
    done: [AtomicU64; 2],
    fallbacks: [AtomicU64; Why::ALL.len()],
}

/// What was decoded where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Units of videos that the GPU decoded.
    pub videos: u64,
    /// Pictures that the GPU decoded.
    pub pictures: u64,
    /// Units that the CPU decoded though there is a GPU, by reason.
    pub fallbacks: Vec<(&'static str, u64)>,
    /// The GPU's workers.
    pub gpu: DecodeStats,
}

impl Engines {
    /// Both, started.
    pub fn new(cpu: Arc<WorkerPool>, gpu: Arc<WorkerPool>) -> Self {
        Self::of(cpu, gpu)
    }

    fn of(cpu: Arc<dyn Decoder>, gpu: Arc<dyn Device>) -> Self {
        Self {
            cpu,
            gpu,
            rates: Mutex::default(),
            rests_until: Mutex::default(),
            passed_over: Mutex::default(),
            done: Default::default(),
            fallbacks: Default::default(),
        }
    }

    /// What was decoded where since the start.
    pub fn stats(&self) -> EngineStats {
        let count = |number: &AtomicU64| number.load(Relaxed);
        EngineStats {
            videos: count(&self.done[0]),
            pictures: count(&self.done[1]),
            fallbacks: Why::ALL.iter().zip(&self.fallbacks).map(|(why, number)| (why.name(), count(number))).collect(),
            gpu: self.gpu.stats(),
        }
    }

    /// The device and what is decoded on it, in words.
    pub fn device(&self) -> String {
        self.gpu.offer().map_or_else(String::new, |offer| offer.to_string())
    }

    fn choice(&self, unit: &Unit, id: &ObjectId, version: &Version) -> Choice {
        let now = Instant::now();
        let offer = self.gpu.offer();
        let is_offered = offer.as_ref().is_some_and(|offer| offer.has(unit.kind));
        let gone_by = |until: &Instant| *until <= now;
        let rests = !self.rests_until.lock().as_ref().is_none_or(gone_by);
        let passed_over = !self.passed_over.lock().get(&(id.clone(), version.clone())).is_none_or(gone_by);
        let rates = self.rates.lock();
        let standing = |engine: Engine, (inside, workers): (usize, usize)| {
            let pace = rates.pace(engine, unit.kind, unit.class, now);
            Standing { inside, workers, pace }
        };
        let (cpu, gpu) = (standing(Engine::Cpu, self.cpu.load()), standing(Engine::Gpu, self.gpu.load()));
        choose(unit, is_offered, rests || passed_over, &cpu, &gpu)
    }

    /// Counts why the CPU decodes it, and what that says of the GPU.
    fn fall_back(&self, why: Why, id: &ObjectId, version: &Version) {
        self.fallbacks[why as usize].fetch_add(1, Relaxed);
        if let Why::Refused | Why::Failed = why {
            let now = Instant::now();
            let mut passed_over = self.passed_over.lock();
            if passed_over.len() >= PASSED_OVER_MAX {
                passed_over.retain(|_, until| *until > now);
            }
            if passed_over.len() < PASSED_OVER_MAX {
                passed_over.insert((id.clone(), version.clone()), now + PASSED_OVER);
            }
        }
    }

    /// The GPU's answer, if it is one; or why the CPU is to give it. What is wrong with a unit only the CPU says.
    fn taken(&self, answer: Result<Answers, DecodeError>) -> Result<Result<Answers, DecodeError>, Why> {
        match answer {
            Ok(answers) if answers.iter().all(Result::is_ok) => Ok(Ok(answers)),
            Ok(answers) => Err(match answers.iter().find_map(|answer| answer.as_ref().err()) {
                Some(DecodeError::Unsupported { .. }) => Why::Refused,
                _ => Why::Failed,
            }),
            Err(DecodeError::Busy { .. }) => Err(Why::Busy),
            Err(DecodeError::Unsupported { .. }) => Err(Why::Refused),
            Err(DecodeError::Source(error)) => Ok(Err(DecodeError::Source(error))),
            Err(DecodeError::WorkerLost(_) | DecodeError::Deadline) => {
                *self.rests_until.lock() = Some(Instant::now() + REST);
                Err(Why::Failed)
            }
            Err(_) => Err(Why::Failed),
        }
    }

    /// Runs a unit on one engine and learns from how long it took, unless it had to wait.
    async fn timed(
        &self,
        engine: Engine,
        unit: &Unit,
        run: impl Future<Output = Result<Answers, DecodeError>>,
    ) -> Result<Answers, DecodeError> {
        let (inside, workers) = if engine == Engine::Gpu { self.gpu.load() } else { self.cpu.load() };
        let begun = Instant::now();
        let answer = run.await;
        let is_whole = answer.as_ref().is_ok_and(|answers| answers.iter().all(Result::is_ok));
        if is_whole && inside < workers {
            self.rates.lock().measured(engine, unit, begun.elapsed(), Instant::now());
        }
        answer
    }

    /// A JPEG that is wanted by `fast` alone, from its first bytes.
    async fn picture(&self, job: &DecodeJob) -> Option<Unit> {
        let is_fast = |spec: &DecodeSpec| spec.image().profile == Profile::Fast;
        if job.specs.is_empty() || !job.specs.iter().all(is_fast) || job.size > JPEG_BYTES_MAX {
            return None;
        }
        let first = job.source.read(ByteRange::new(0, job.size.min(FIRST_BYTES))?).await.ok()?;
        let probe = probe(&first, job.size, &Limits { pixels_max: u64::MAX }).ok()?;
        let megapixels = f64::from(probe.width) * f64::from(probe.height) / 1e6;
        let class = Class::of(probe.width, probe.height);
        (probe.format == Format::Jpeg).then_some(Unit {
            kind: Kind::Jpeg,
            class,
            megapixels,
            is_exact: false,
            is_vouched: false,
            damaged_keep: false,
        })
    }
}

/// Half of the time that is left: the other half is the CPU's, should the GPU hang.
fn half(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

/// A clip as a unit to be placed.
fn clip_unit(job: &ClipJob) -> Option<Unit> {
    let shape = job.frames.first()?.shape;
    Some(Unit {
        kind: Kind::Video(job.codec),
        class: Class::of(shape.width, shape.height),
        megapixels: job.decoded_pixels as f64 / 1e6,
        is_exact: job.frames.iter().any(|frame| frame.spec.image().profile != Profile::Fast),
        is_vouched: job.is_vouched,
        damaged_keep: job.damaged_keep,
    })
}

#[async_trait]
impl Decoder for Engines {
    async fn decode(&self, job: DecodeJob, deadline: Instant) -> Result<Answers, DecodeError> {
        let Some(unit) = self.picture(&job).await else { return self.cpu.decode(job, deadline).await };
        let why = match self.choice(&unit, &job.id, &job.version) {
            Choice::Cpu(why) => why,
            Choice::Gpu => match self.taken(self.timed(Engine::Gpu, &unit, self.gpu.decode(job.clone(), half(deadline))).await) {
                Ok(answer) => {
                    self.done[1].fetch_add(1, Relaxed);
                    return answer;
                }
                Err(why) => why,
            },
        };
        self.fall_back(why, &job.id, &job.version);
        self.timed(Engine::Cpu, &unit, self.cpu.decode(job, deadline)).await
    }

    async fn clip(&self, job: ClipJob, deadline: Instant) -> Result<Answers, DecodeError> {
        let Some(unit) = clip_unit(&job) else { return self.cpu.clip(job, deadline).await };
        let why = match self.choice(&unit, &job.id, &job.version) {
            Choice::Cpu(why) => why,
            Choice::Gpu => match self.taken(self.timed(Engine::Gpu, &unit, self.gpu.clip(job.clone(), half(deadline))).await) {
                Ok(answer) => {
                    self.done[0].fetch_add(1, Relaxed);
                    return answer;
                }
                Err(why) => why,
            },
        };
        self.fall_back(why, &job.id, &job.version);
        self.timed(Engine::Cpu, &unit, self.cpu.clip(job, deadline)).await
    }

    async fn index(&self, job: IndexJob, deadline: Instant) -> Result<Bytes, DecodeError> {
        self.cpu.index(job, deadline).await
    }

    fn load(&self) -> (usize, usize) {
        self.cpu.load()
    }
}

/// How long a GPU that lost its workers is left alone.
const REST: Duration = Duration::from_secs(10);

/// How long an object that the GPU failed at is decoded by the CPU at once.
const PASSED_OVER: Duration = Duration::from_secs(600);

/// Objects that are remembered so.
const PASSED_OVER_MAX: usize = 10_000;

/// Read to see whether a picture is a JPEG, and how large.
const FIRST_BYTES: u64 = 64 << 10;

/// Longer ones come to a worker in windows, and nvJPEG wants them whole.
const JPEG_BYTES_MAX: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use framecache::frame::{Dtype, Layout};
    use framecache::{Tensor, TensorHead};

    use super::super::super::{ClipFrame, FrameShape};
    use super::*;

    /// An engine whose every answer is what it is told, and which says by a byte who gave it.
    struct Fake {
        said: Mutex<Said>,
        mark: u8,
        asked: AtomicUsize,
    }

    #[derive(Clone)]
    enum Said {
        Made,
        Frame(DecodeError),
        Unit(DecodeError),
        Nothing,
    }

    fn fake(mark: u8) -> Arc<Fake> {
        Arc::new(Fake { said: Mutex::new(Said::Made), mark, asked: AtomicUsize::new(0) })
    }

    #[async_trait]
    impl Decoder for Fake {
        async fn decode(&self, _job: DecodeJob, deadline: Instant) -> Result<Answers, DecodeError> {
            self.asked.fetch_add(1, Relaxed);
            let said = self.said.lock().clone();
            let head = TensorHead {
                shape: [1, 1, 1],
                dtype: Dtype::U8,
                layout: Layout::Hwc,
                source: (1, 1),
                orientation: 1,
                pts_seconds: 0.0,
                format: None,
            };
            let made = || Ok(Tensor { head, data: Bytes::from(vec![self.mark]) });
            match said {
                Said::Made => Ok(vec![made(), made()]),
                Said::Frame(error) => Ok(vec![made(), Err(error)]),
                Said::Unit(error) => Err(error),
                Said::Nothing => {
                    tokio::time::sleep_until(deadline).await;
                    Err(DecodeError::Deadline)
                }
            }
        }

        async fn clip(&self, job: ClipJob, deadline: Instant) -> Result<Answers, DecodeError> {
            let source = Arc::new(Bytes::new());
            self.decode(DecodeJob { id: job.id, version: job.version, size: 0, source, specs: Vec::new() }, deadline).await
        }

        fn load(&self) -> (usize, usize) {
            (0, 4)
        }
    }

    #[async_trait]
    impl super::super::super::Source for Bytes {
        async fn read(&self, _range: ByteRange) -> Result<Bytes, super::super::super::SourceError> {
            Ok(self.clone())
        }
    }

    impl Device for Fake {
        fn offer(&self) -> Option<Offer> {
            let mut offer = Offer::default();
            offer.set("h264", true);
            Some(offer)
        }

        fn stats(&self) -> DecodeStats {
            DecodeStats::default()
        }
    }

    fn job(key: &str) -> ClipJob {
        let frame = ClipFrame {
            number: 0,
            shape: FrameShape { width: 3840, height: 2160, orientation: 1, planes_bytes: 0 },
            pts_seconds: 0.0,
            spec: "video?frames=0".parse().expect("spec"),
        };
        ClipJob {
            id: ObjectId::new("abc", key).expect("id"),
            version: Version::new("\"1\"").expect("version"),
            unit: 0,
            codec: "h264",
            is_vouched: true,
            package: Bytes::new(),
            packets: 1,
            frames: vec![frame],
            damaged_keep: false,
            decoder_bytes: 0,
            decoded_pixels: 3840 * 2160,
        }
    }

    async fn marks(engines: &Engines, job: ClipJob) -> Result<Vec<Option<u8>>, DecodeError> {
        let answers = engines.clip(job, Instant::now() + Duration::from_secs(30)).await?;
        Ok(answers.into_iter().map(|answer| answer.ok().map(|tensor| tensor.data[0])).collect())
    }

    fn unsupported() -> DecodeError {
        DecodeError::unsupported(Format::Video, "no such profile")
    }

    /// Promise: whatever the GPU says but pixels, the CPU is asked for the whole unit, and its word is the answer; it is counted by its
    /// reason, and the object is not tried there again for ten minutes.
    #[tokio::test(start_paused = true)]
    async fn what_the_gpu_fails_at_is_the_cpus() {
        for (said, why, again) in [
            (Said::Frame(DecodeError::IndexDiffers), "failed", false),
            (Said::Frame(unsupported()), "refused", false),
            (Said::Unit(unsupported()), "refused", false),
            (Said::Unit(DecodeError::undecodable(Format::Video, "broken")), "failed", false),
            (Said::Unit(DecodeError::WorkerLost("gone".into())), "failed", false),
            (Said::Unit(DecodeError::Busy { retry_after: Duration::ZERO }), "busy", true),
            (Said::Nothing, "failed", false),
        ] {
            let (cpu, gpu) = (fake(1), fake(2));
            let engines = Engines::of(cpu.clone(), gpu.clone());
            assert_eq!(marks(&engines, job("sound")).await.expect("made"), [Some(2), Some(2)]);
            assert_eq!((cpu.asked.load(Relaxed), engines.stats().videos), (0, 1));
            *gpu.said.lock() = said;
            assert_eq!(marks(&engines, job("poor")).await.expect("made"), [Some(1), Some(1)], "{why}");
            let counted = |why: &str| engines.stats().fallbacks.iter().find(|(name, _)| *name == why).expect("a reason").1;
            assert_eq!((counted(why), gpu.asked.load(Relaxed)), (1, 2), "{why}");
            *gpu.said.lock() = Said::Made;
            tokio::time::advance(REST).await;
            let want = if again { Some(2) } else { Some(1) };
            assert_eq!(marks(&engines, job("poor")).await.expect("made"), [want, want], "{why}");
            assert_eq!(marks(&engines, job("sound")).await.expect("made"), [Some(2), Some(2)], "{why}");
            tokio::time::advance(PASSED_OVER).await;
            assert_eq!(marks(&engines, job("poor")).await.expect("made"), [Some(2), Some(2)], "{why}");
        }
    }

    /// Promise: what is wrong with a unit is said in the CPU's words; a GPU that lost its workers is left alone for a while; what an index
    /// cannot vouch for is not tried there.
    #[tokio::test(start_paused = true)]
    async fn errors_are_the_cpus() {
        let (cpu, gpu) = (fake(1), fake(2));
        let engines = Engines::of(cpu.clone(), gpu.clone());
        *cpu.said.lock() = Said::Unit(DecodeError::undecodable(Format::Video, "by the CPU"));
        *gpu.said.lock() = Said::Unit(DecodeError::WorkerLost("by the GPU".into()));
        let error = marks(&engines, job("poor")).await.expect_err("broken");
        assert_eq!(error.to_string(), "undecodable (video): by the CPU");
        *cpu.said.lock() = Said::Made;
        assert_eq!(marks(&engines, job("other")).await.expect("made"), [Some(1), Some(1)]);
        assert_eq!((gpu.asked.load(Relaxed), engines.stats().fallbacks[Why::Rests as usize]), (1, ("rests", 1)));
        let other = ClipJob { codec: "vp9", ..job("vp9") };
        assert_eq!(marks(&engines, other).await.expect("made"), [Some(1), Some(1)]);
        assert_eq!(engines.stats().fallbacks[Why::NotOffered as usize].1, 1);
        tokio::time::advance(REST).await;
        let unseen = ClipJob { is_vouched: false, ..job("unseen") };
        assert_eq!(marks(&engines, unseen).await.expect("made"), [Some(1), Some(1)]);
        assert_eq!((gpu.asked.load(Relaxed), engines.stats().fallbacks[Why::Unproved as usize]), (1, ("unproved", 1)));
    }
}
