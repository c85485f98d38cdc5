//! The same decode without a worker: for tests of other rooms.

use async_trait::async_trait;
use bytes::Bytes;
use framecache::{ByteRange, Tensor};
use tokio::time::{Instant, timeout_at};

use super::image::{self, Drawing};
use super::rendition::Rendition;
use super::{DecodeError, DecodeJob, Decoder, Limits, probe, refusal};

/// Decodes in this process, on the blocking pool.
///
/// For tests that need pixels and no processes. A node never uses it: hostile bytes would meet a codec inside the node.
#[derive(Clone, Debug, Default)]
pub struct InProcess {
    /// What is refused from the header.
    pub limits: Limits,
}

#[async_trait]
impl Decoder for InProcess {
    async fn decode(&self, job: DecodeJob, deadline: Instant) -> Result<Vec<Result<Tensor, DecodeError>>, DecodeError> {
        let limits = self.limits;
        let answer = async {
            let range = ByteRange::at(0, job.size).unwrap_or(ByteRange::at(0, 0).expect("empty range"));
            let bytes = if job.size == 0 { Bytes::new() } else { job.source.read(range).await? };
            let decode = tokio::task::spawn_blocking(move || decode(&bytes, &job, &limits));
            decode.await.map_err(|error| DecodeError::WorkerLost(error.to_string()))?
        };
        timeout_at(deadline, answer).await.unwrap_or(Err(DecodeError::Deadline))
    }

    fn load(&self) -> (usize, usize) {
        (0, 1)
    }
}

fn decode(bytes: &Bytes, job: &DecodeJob, limits: &Limits) -> Result<Vec<Result<Tensor, DecodeError>>, DecodeError> {
    let probe = probe(bytes, bytes.len() as u64, limits)?;
    let planned: Vec<_> = job.specs.iter().map(|spec| Rendition::of(spec, &probe, limits)).collect();
    let mut places: Vec<_> = planned.iter().flatten().map(|rendition| vec![0; rendition.bytes()]).collect();
    let drawing = |(rendition, out)| Drawing::new(rendition, out);
    let mut drawings: Vec<_> = planned.iter().flatten().zip(places.iter_mut().map(Vec::as_mut_slice)).map(drawing).collect();
    let mut room = vec![0; probe.decoded_bytes as usize];
    let made = image::draw(&mut &bytes[..], &probe, &mut room, &mut drawings);
    let ends: Vec<_> = drawings.into_iter().map(|drawing| drawing.end).collect();
    let mut places = places.into_iter().zip(ends);
    let mut tensor = |rendition: Rendition| {
        let (place, end) = places.next().ok_or_else(|| DecodeError::WorkerLost("no place".into()))?;
        end.unwrap_or_else(|| made.clone()).map_err(|failure| refusal(failure, probe.format))?;
        Ok(Tensor { head: rendition.head(&probe), data: Bytes::from(place) })
    };
    Ok(planned.into_iter().map(|planned| planned.and_then(&mut tensor)).collect())
}
