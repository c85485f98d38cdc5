//! Planes to RGB by the shared conversion, which is the same on every machine.

use std::borrow::Cow;

use framecache::pixels::yuv::{self, Matrix, PlanesError, Range};
use framecache::pixels::{self, Plan, Source};

use super::frame::{Frame, Kind, Plane};
use crate::decode::rendition::Rendition;

/// Draws `frame` into `out`, three bytes a pixel. Each pixel takes the chroma sample of its block, wherever the stream says that it lies.
pub(super) fn rgb(frame: &Frame<'_>, out: &mut [u8]) -> Result<(), PlanesError> {
    as_planes(frame, |planes| yuv::rgb(planes, out))
}

/// The same at the samples' own depth, three numbers of two bytes a pixel.
pub(super) fn rgb16(frame: &Frame<'_>, out: &mut [u8]) -> Result<(), PlanesError> {
    as_planes(frame, |planes| yuv::rgb16(planes, out))
}

/// Hands the frame over in the words of the shared conversion.
fn as_planes<T>(frame: &Frame<'_>, take: impl FnOnce(&yuv::Planes<'_>) -> T) -> T {
    let upright: Vec<Option<Vec<u8>>> = frame.planes.iter().map(|plane| upright(frame, plane)).collect();
    let plane = |number: usize| match (frame.planes.get(number), upright.get(number)) {
        (Some(plane), Some(None)) => yuv::Plane { bytes: plane.bytes, stride: plane.line },
        (Some(plane), Some(Some(bytes))) => yuv::Plane { bytes, stride: row_bytes(frame, plane) },
        _ => yuv::Plane { bytes: &[], stride: 0 },
    };
    let yuv::Format { bits, shift, matrix, range } = format(frame);
    let (width, height) = (frame.width as usize, frame.height as usize);
    take(&yuv::Planes { planes: [plane(0), plane(1), plane(2)], width, height, bits, shift, matrix, range })
}

/// Draws what `rendition` makes of `frame`, of bytes with chroma, by its planes: each is resized at its own resolution, and RGB is made of
/// them at the size that is wanted. `room` has three bytes for each pixel of that.
pub(super) fn scaled(frame: &Frame<'_>, rendition: &Rendition, room: &mut [u8], out: &mut [u8]) -> Result<(), PlanesError> {
    let plan = rendition.plan();
    let (width, height) = (plan.window.width, plan.window.height);
    let part = plan.region.unwrap_or([0.0, 0.0, frame.width as f32, frame.height as f32]);
    let stored = format(frame);
    let shift = stored.shift;
    for (number, room) in room.chunks_exact_mut(width * height).take(3).enumerate() {
        let plane = &frame.planes[number];
        let packed = packed(frame, plane);
        let source = Source { pixels: &packed, width: plane.columns, height: plane.rows, channels: 1 };
        let (across, down) = if number == 0 { (1.0, 1.0) } else { ((1 << shift.0) as f32, (1 << shift.1) as f32) };
        let [x0, y0, x1, y1] = part;
        let region = [x0 / across, y0 / down, x1 / across, y1 / down];
        pixels::resize(&source, &Plan { region: Some(region), ..plan }, room);
    }
    let whole = yuv::Format { shift: (0, 0), ..stored };
    let planes = whole.packed(&room[..3 * width * height], width, height)?;
    let mut made = Ok(());
    rendition.lay_out(3, out, |out| made = yuv::rgb(&planes, out));
    made
}

/// A plane's rows without padding.
fn packed<'a>(frame: &Frame<'_>, plane: &Plane<'a>) -> Cow<'a, [u8]> {
    let bytes = row_bytes(frame, plane);
    match plane.line == bytes && !plane.is_upside_down {
        true => plane.bytes[..bytes * plane.rows].into(),
        false => (0..plane.rows).flat_map(|row| &plane.row(row)[..bytes]).copied().collect::<Vec<u8>>().into(),
    }
}

/// What the frame's samples mean.
pub(super) fn format(frame: &Frame<'_>) -> yuv::Format {
    let (matrix, shift) = match frame.sampling.kind {
        Kind::Gray => (Matrix::Gray, (0, 0)),
        Kind::Gbr => (Matrix::Rgb, (0, 0)),
        Kind::Yuv { across, down } => {
            let matrix = Matrix::of_number(u8::try_from(frame.matrix).unwrap_or(0));
            (matrix, (across.ilog2() as u8, down.ilog2() as u8))
        }
    };
    let range = if frame.is_full { Range::Full } else { Range::Limited };
    yuv::Format { bits: frame.sampling.bits as u8, shift, matrix, range }
}

fn row_bytes(frame: &Frame<'_>, plane: &Plane<'_>) -> usize {
    plane.columns * frame.sampling.sample_bytes()
}

/// A copy from the top of a plane that lies upside down, as few codecs leave them.
fn upright(frame: &Frame<'_>, plane: &Plane<'_>) -> Option<Vec<u8>> {
    let bytes = row_bytes(frame, plane);
    plane.is_upside_down.then(|| (0..plane.rows).flat_map(|row| &plane.row(row)[..bytes]).copied().collect())
}
