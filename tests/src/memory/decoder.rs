//! The decoder of a world: pixels are a function of the bytes and the spec, so that any mixture shows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use framecache::frame::{Dtype, Layout};
use framecache::{ByteRange, DecodeSpec, Tensor, TensorHead};
use framecache_node::decode::{DecodeError, DecodeJob, Decoder};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use super::Climate;
use crate::dice::Dice;
use crate::media::fnv;

/// See the module.
pub struct ScriptedDecoder {
    climate: Climate,
    dice: Mutex<Dice>,
    jobs: AtomicU64,
}

/// What the decoder makes of an object's bytes, whose header says 96 x 64.
pub fn pixels(bytes: &[u8], spec: &DecodeSpec) -> Tensor {
    let (width, height) = spec.image().geometry(96, 64).expect("spec that fits").output();
    let mut dice = Dice::new(fnv(bytes) ^ fnv(spec.keyed_text().as_bytes()));
    let data: Vec<u8> = (0..width * height * 3).map(|_| dice.bits() as u8).collect();
    let (shape, source) = ([height, width, 3], (96, 64));
    let head =
        TensorHead { shape, dtype: Dtype::U8, layout: Layout::Hwc, source, orientation: 1, pts_seconds: 0.0, format: None };
    Tensor { head, data: Bytes::from(data) }
}

impl ScriptedDecoder {
    pub(super) fn new(climate: Climate, dice: Dice) -> Self {
        Self { climate, dice: Mutex::new(dice), jobs: AtomicU64::new(0) }
    }

    /// Jobs that were begun.
    pub fn jobs(&self) -> u64 {
        self.jobs.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Decoder for ScriptedDecoder {
    async fn decode(&self, job: DecodeJob, deadline: Instant) -> Result<Vec<Result<Tensor, DecodeError>>, DecodeError> {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        let (took, fails, how, cut) = {
            let mut dice = self.dice.lock();
            let fails = self.climate.strikes(self.climate.decoder_fails, &mut dice);
            (dice.within(1..40), fails, dice.chance(50), dice.within(1..4))
        };
        let work = async {
            // In several reads, as a worker that is given windows of a large file.
            let mut bytes = Vec::new();
            let step = job.size.div_ceil(cut).max(1);
            for start in (0..job.size).step_by(step as usize) {
                let range = ByteRange::at(start, step).expect("range").clamp(job.size);
                bytes.extend_from_slice(&job.source.read(range).await?);
            }
            sleep(Duration::from_millis(took)).await;
            match (fails, how) {
                (true, true) => Err(DecodeError::Busy { retry_after: Duration::from_millis(20) }),
                (true, false) => Err(DecodeError::WorkerLost("scripted".into())),
                _ => Ok(job.specs.iter().map(|spec| Ok(pixels(&bytes, spec))).collect()),
            }
        };
        timeout_at(deadline, work).await.unwrap_or(Err(DecodeError::Deadline))
    }

    fn load(&self) -> (usize, usize) {
        (0, 1)
    }
}
