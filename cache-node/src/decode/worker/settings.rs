//! How a pool of decoder processes is set up.

use std::path::PathBuf;
use std::time::Duration;

use crate::decode::{Engine, Limits, PIXELS_MAX};

/// How the pool works. [`PoolSettings::new`] gives the defaults; every field may be changed before the pool starts.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// What decodes. Default: the CPU.
    pub engine: Engine,
    /// Processes that decode at the same time. Default: one per core.
    pub workers: usize,
    /// Address space that one job may take, in bytes; a picture that needs more by its header is refused, one that takes more all
    /// the same ends its worker. Default: 3 GiB, which the largest progressive picture under `pixels_max` needs (1.0 GiB of
    /// coefficients, 0.5 samples, 0.5 a full rendition, and the rest for a second one and its resize).
    pub worker_memory: u64,
    /// Wall-clock time that one job may take in a worker; what passes it is retried, not judged. Default: 30 s.
    pub deadline: Duration,
    /// Most CPU seconds that one job may take, small ones less; what passes them is judged. Well below `deadline`, or a spinning decoder
    /// would always be taken for a stopped one. Default: 15; at 179 megapixels a smooth picture took 2 (measured, 4:4:4), a dense one
    /// takes some more.
    pub cpu_seconds: u64,
    /// Wall-clock time that making a video's index may take. Default: 240 s; a scan reads the whole of what has no list of its frames.
    pub index_deadline: Duration,
    /// Most CPU seconds that making a video's index may take; what passes them is judged. Default: 180.
    pub index_cpu_seconds: u64,
    /// Most pixels of a picture, and of a rendition. Default: [`PIXELS_MAX`].
    pub pixels_max: u64,
    /// The node's own binary; run as `program worker`.
    pub program: PathBuf,
    /// Jobs after which a worker is replaced. Default: 10,000.
    pub recycle_jobs: u64,
    /// Growth of a worker's own memory, in bytes, after which it is replaced. Default: 64 MiB.
    pub recycle_growth: u64,
    /// Objects up to this size are given whole; larger ones are asked for window by window. Default: 16 MiB.
    pub whole_bytes_max: u64,
    /// Bytes of one such window. Default: 4 MiB.
    pub window_bytes: u64,
    /// Whether workers obey planted faults (`FCTEST:crash` and its like). For tests only.
    pub test_codecs: bool,
}

impl PoolSettings {
    /// Defaults for workers that run `program`, which is the node's own binary.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            engine: Engine::Cpu,
            workers: std::thread::available_parallelism().map_or(1, Into::into),
            worker_memory: 3 << 30,
            deadline: Duration::from_secs(30),
            cpu_seconds: 15,
            index_deadline: Duration::from_secs(240),
            index_cpu_seconds: 180,
            pixels_max: PIXELS_MAX,
            program: program.into(),
            recycle_jobs: 10_000,
            recycle_growth: 64 << 20,
            whole_bytes_max: 16 << 20,
            window_bytes: 4 << 20,
            test_codecs: false,
        }
    }

    /// The same for workers of a GPU: [`GPU_WORKERS`] of them, whose memory is watched instead of limited.
    pub fn of_gpu(program: impl Into<PathBuf>) -> Self {
        Self { engine: Engine::Gpu, workers: GPU_WORKERS, ..Self::new(program) }
    }

    /// What the pool holds while no job runs, by line, in bytes: for the node's memory budget. A job's own need is
    /// [`Probe::cost_bytes`](crate::decode::Probe::cost_bytes).
    pub fn memory_lines(&self) -> Vec<(&'static str, u64)> {
        let workers = self.workers as u64;
        if self.engine == Engine::Gpu {
            return vec![("gpu worker processes", workers * (GPU_WORKER_BASELINE + SAMPLES_KEPT + SHARED_KEPT))];
        }
        vec![
            ("decode worker processes", workers * WORKER_BASELINE),
            ("decode worker sample buffers", workers * SAMPLES_KEPT),
            ("decode worker shared memory", workers * SHARED_KEPT),
        ]
    }

    pub(super) fn limits(&self) -> Limits {
        Limits { pixels_max: self.pixels_max }
    }

    pub(super) fn queue_max(&self) -> usize {
        self.workers * QUEUE_PER_WORKER
    }
}

/// Own memory of an idle worker: 0.8 MiB were measured after 5,000 jobs of 500x375, samples included, and 6 MiB of what FFmpeg's libraries
/// relocate at their start (program text is shared by all). The rest is room for more of that.
pub(super) const WORKER_BASELINE: u64 = 8 << 20;

/// Workers of a GPU: each keeps one unit in the device's decoders, of which cards have one to seven, while another's pixels are fetched.
pub const GPU_WORKERS: usize = 4;

/// Own memory of an idle worker of a GPU: the driver's, for a context and a decoder. Not measured; what is said of the driver elsewhere.
pub(super) const GPU_WORKER_BASELINE: u64 = 384 << 20;

/// Sample buffer that a worker keeps between jobs: 500x375 takes 0.5 MiB, 4 megapixels 12 MiB; larger ones are rare, and then the
/// cost of mapping anew is small beside the decode.
pub(super) const SAMPLES_KEPT: u64 = 16 << 20;

/// Shared memory that a worker keeps between jobs: input and renditions of ordinary pictures.
pub(super) const SHARED_KEPT: u64 = 16 << 20;

/// 64 pictures of 500x375 wait 45 ms at the measured 0.7 ms each; of a few megapixels, half a second. A client that would wait longer
/// does better to ask elsewhere.
const QUEUE_PER_WORKER: usize = 64;
