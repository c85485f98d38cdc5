//! Planes to RGB by the shared conversion, which is the same on every machine.

use framecache::pixels::yuv::{self, Matrix, PlanesError, Range};

use super::frame::{Frame, Kind, Plane};

/// Draws `frame` into `out`, three bytes a pixel. Each pixel takes the chroma sample of its block, wherever the stream says that it lies.
pub(super) fn rgb(frame: &Frame<'_>, out: &mut [u8]) -> Result<(), PlanesError> {
    let upright: Vec<Option<Vec<u8>>> = frame.planes.iter().map(|plane| upright(frame, plane)).collect();
    let plane = |number: usize| match (frame.planes.get(number), upright.get(number)) {
        (Some(plane), Some(None)) => yuv::Plane { bytes: plane.bytes, stride: plane.line },
        (Some(plane), Some(Some(bytes))) => yuv::Plane { bytes, stride: row_bytes(frame, plane) },
        _ => yuv::Plane { bytes: &[], stride: 0 },
    };
    let (matrix, shift) = match frame.sampling.kind {
        Kind::Gray => (Matrix::Gray, (0, 0)),
        Kind::Gbr => (Matrix::Rgb, (0, 0)),
        Kind::Yuv { across, down } => {
            let matrix = Matrix::of_number(u8::try_from(frame.matrix).unwrap_or(0));
            (matrix, (across.ilog2() as u8, down.ilog2() as u8))
        }
    };
    let planes = yuv::Planes {
        planes: [plane(0), plane(1), plane(2)],
        width: frame.width as usize,
        height: frame.height as usize,
        bits: frame.sampling.bits as u8,
        shift,
        matrix,
        range: if frame.is_full { Range::Full } else { Range::Limited },
    };
    yuv::rgb(&planes, out)
}

fn row_bytes(frame: &Frame<'_>, plane: &Plane<'_>) -> usize {
    plane.columns * frame.sampling.sample_bytes()
}

/// A copy from the top of a plane that lies upside down, as few codecs leave them.
fn upright(frame: &Frame<'_>, plane: &Plane<'_>) -> Option<Vec<u8>> {
    let bytes = row_bytes(frame, plane);
    plane.is_upside_down.then(|| (0..plane.rows).flat_map(|row| &plane.row(row)[..bytes]).copied().collect())
}
