//! One picture: decoded once, then every rendition that was asked for. Runs inside a worker.

use framecache::spec::{Alpha, Depth, Mode, Profile, Truncated};

use super::Probe;
use super::formats::{self, Failure, Input, Samples, Wants};
use super::rendition::Rendition;

/// One rendition, and the place it is drawn into.
pub(super) struct Drawing<'a> {
    pub(super) rendition: &'a Rendition,
    pub(super) out: &'a mut [u8],
    /// Whether it is drawn, or why not; nothing before it was its turn.
    pub(super) end: Option<Result<(), Failure>>,
}

impl<'a> Drawing<'a> {
    pub(super) fn new(rendition: &'a Rendition, out: &'a mut [u8]) -> Self {
        Self { rendition, out, end: None }
    }
}

/// Decodes into `room` (`probe.decoded_bytes` long), each frame once, and draws every rendition of it into its own place.
///
/// Each frame gets the answer that it would get alone: an error is that of the drawings that have no end yet.
pub(super) fn draw(input: &mut dyn Input, probe: &Probe, room: &mut [u8], drawings: &mut [Drawing<'_>]) -> Result<(), Failure> {
    let mut frames: Vec<u32> = drawings.iter().map(|drawing| drawing.rendition.frame).collect();
    frames.sort_unstable();
    frames.dedup();
    let wants = wants(drawings)?;
    let mut sink = |frame, given: Result<Samples<'_>, Failure>| {
        let given = given.and_then(|samples| of_probed_size(samples, frame, probe, &wants));
        for drawing in drawings.iter_mut().filter(|drawing| drawing.rendition.frame == frame) {
            let drawn = given.as_ref().map(|samples| drawing.rendition.draw(samples, drawing.out));
            drawing.end = Some(drawn.map_err(Failure::clone));
        }
    };
    formats::decode(input, probe, room, wants, &frames, &mut sink)
}

fn of_probed_size<'a>(samples: Samples<'a>, frame: u32, probe: &Probe, wants: &Wants) -> Result<Samples<'a>, Failure> {
    let shift = wants.quick.unwrap_or(0);
    let scaled = (probe.width.div_ceil(1 << shift), probe.height.div_ceil(1 << shift));
    let (width, height) = (samples.width, samples.height);
    if [(probe.width, probe.height), scaled].contains(&(width, height)) {
        return Ok(samples);
    }
    Err(Failure::Unsupported(format!("frame {frame} is {width}x{height}, the first {}x{}", probe.width, probe.height)))
}

/// What all drawings together need of the samples; each takes its part.
fn wants(drawings: &[Drawing<'_>]) -> Result<Wants, Failure> {
    let any = |wanted: &dyn Fn(&Rendition) -> bool| drawings.iter().any(|drawing| wanted(drawing.rendition));
    let pads = |rendition: &Rendition| rendition.spec.truncated == Truncated::Pad;
    if any(&pads) && any(&|rendition| !pads(rendition)) {
        return Err(Failure::Unsupported("one decode that pads a cut picture and refuses it".into()));
    }
    let quick = |rendition: &Rendition| rendition.spec.profile == Profile::Fast;
    if any(&quick) && any(&|rendition| !quick(rendition)) {
        return Err(Failure::Unsupported("one decode by two profiles".into()));
    }
    let shift = drawings.iter().map(|drawing| drawing.rendition.shift()).min();
    Ok(Wants {
        quick: shift.filter(|_| any(&quick)),
        alpha: any(&|rendition| {
            rendition.spec.mode == Mode::Rgb && rendition.spec.alpha != Alpha::Drop
                || matches!(rendition.spec.alpha, Alpha::Over(_))
        }),
        deep: any(&|rendition| rendition.spec.depth == Depth::Scale),
        truncated_pad: any(&pads),
    })
}
