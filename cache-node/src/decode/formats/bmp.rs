//! Windows bitmaps, after Pillow's `BmpImagePlugin` in every turn, run lengths of damaged files included.

use super::{Failure, Kind, Order, Sink, broken, said};
use crate::decode::probe::bmp::{self, Header, Layout, Packing};

pub(super) fn decode(bytes: &[u8], order: &Order<'_>, room: &mut [u8], sink: Sink<'_>) -> Result<(), Failure> {
    let header = bmp::header(bytes).map_err(said)?;
    let (width, height) = order.size(header.width.into(), header.height.into())?;
    let data = usize::try_from(header.offset).ok().and_then(|at| bytes.get(at..)).unwrap_or(&[]);
    let kind = match header.layout {
        Layout::Bit | Layout::Gray => Kind::Gray,
        _ => order.colour(),
    };
    let line = width * kind.bytes();
    let mut rows = room[..line * height].chunks_exact_mut(line);
    // Pixels come bottom up, mostly.
    let mut next = || if header.top_down { rows.next() } else { rows.next_back() };
    match header.packing {
        Packing::Rows { stride } => {
            let (stride, used) = (stride as usize, row_bytes(header.layout, width));
            if stride < used {
                return broken("rows are shorter than their pixels");
            }
            for y in 0..height {
                // The last row needs no padding.
                let Some(row) = data.get(y * stride..).and_then(|row| row.get(..used)) else { return broken("truncated") };
                header.unpack(row, kind, next().expect("a row"));
            }
        }
        Packing::RunLengths { nibbles } => {
            let at = usize::try_from(header.offset).unwrap_or(usize::MAX);
            let indices = runs(data, at, nibbles, width, width * height)?;
            for row in indices.chunks_exact(width).take(height) {
                header.colour(row, next().expect("a row"));
            }
        }
    }
    order.give(0, kind, room, sink)
}

fn row_bytes(layout: Layout, width: usize) -> usize {
    match layout {
        Layout::Bit => width.div_ceil(8),
        Layout::Gray => width,
        Layout::Index { bits } => (width * usize::from(bits)).div_ceil(8),
        Layout::Packed(_) => width * 2,
        Layout::Bytes { count, .. } => width * usize::from(count),
    }
}

impl Header {
    fn unpack(&self, row: &[u8], kind: Kind, out: &mut [u8]) {
        let pixels = out.chunks_exact_mut(kind.bytes());
        match self.layout {
            Layout::Gray => out.copy_from_slice(row),
            Layout::Bit => pixels.enumerate().for_each(|(x, out)| out[0] = 255 * (row[x / 8] >> (7 - x % 8) & 1)),
            Layout::Index { bits } => {
                let bits = usize::from(bits);
                for (x, out) in pixels.enumerate() {
                    let index = row[x * bits / 8] >> (8 - bits - x * bits % 8) & ((1u16 << bits) - 1) as u8;
                    out.copy_from_slice(&self.entry(index));
                }
            }
            Layout::Packed([_, green, _]) => {
                for (out, pixel) in pixels.zip(row.chunks_exact(2)) {
                    let pixel = u32::from(u16::from_le_bytes([pixel[0], pixel[1]]));
                    let (greens, red) = ((1 << green) - 1, pixel >> (5 + green) & 31);
                    let colour = [red * 255 / 31, (pixel >> 5 & greens) * 255 / greens, (pixel & 31) * 255 / 31];
                    out.copy_from_slice(&colour.map(|v| v as u8));
                }
            }
            Layout::Bytes { count, at, alpha } => {
                for (out, pixel) in pixels.zip(row.chunks_exact(count.into())) {
                    for (out, at) in out.iter_mut().zip(at.into_iter().chain(alpha)) {
                        *out = pixel[usize::from(at)];
                    }
                }
            }
        }
    }

    /// Of run lengths, every pixel is a byte.
    fn colour(&self, indices: &[u8], out: &mut [u8]) {
        match self.layout {
            Layout::Bit => out.iter_mut().zip(indices).for_each(|(out, &index)| *out = if index == 0 { 0 } else { 255 }),
            Layout::Gray => out.copy_from_slice(indices),
            _ => out.chunks_exact_mut(3).zip(indices).for_each(|(out, &index)| out.copy_from_slice(&self.entry(index))),
        }
    }

    fn entry(&self, index: u8) -> [u8; 3] {
        self.palette.get(usize::from(index)).copied().unwrap_or([0; 3])
    }
}

/// Pillow's reading of run lengths, `total` pixels of rows as they come: pixels that pass a row's end are dropped, but what is left
/// open is filled; too few pixels are an error. `at` is where `data` lies in the file, since literal runs end on even offsets of it.
fn runs(data: &[u8], at: usize, nibbles: bool, width: usize, total: usize) -> Result<Vec<u8>, Failure> {
    let mut out: Vec<u8> = Vec::new();
    out.try_reserve_exact(total + 256).map_err(|_| Failure::OutOfMemory)?;
    let (mut here, mut x) = (0, 0usize);
    while out.len() < total {
        let Some(&[count, value]) = data.get(here..here + 2) else { break };
        here += 2;
        match (usize::from(count), usize::from(value)) {
            (0, 0) => {
                out.resize(out.len().next_multiple_of(width), 0);
                x = 0;
            }
            (0, 1) => break,
            (0, 2) => {
                let Some(&[right, up]) = data.get(here..here + 2) else { break };
                here += 2;
                let skipped = usize::from(right) + usize::from(up) * width;
                out.resize(out.len() + skipped.min(total - out.len()), 0);
                x = out.len() % width;
            }
            (0, literal) => {
                let pixels = literal.min(total - out.len());
                let length = if nibbles { pixels.div_ceil(2) } else { pixels };
                let run = &data[here..data.len().min(here + length)];
                here += run.len();
                match nibbles {
                    true => out.extend(run.iter().flat_map(|byte| [byte >> 4, byte & 15]).take(pixels)),
                    false => out.extend_from_slice(run),
                }
                if run.len() < length || out.len() == total {
                    break;
                }
                x += literal;
                here += (at + here) % 2;
            }
            (count, _) => {
                let count = if x + count > width { width.saturating_sub(x) } else { count };
                match nibbles {
                    true => out.extend([value >> 4, value & 15].into_iter().cycle().take(count)),
                    false => out.resize(out.len() + count, value),
                }
                x += count;
            }
        }
    }
    if out.len() < total {
        return broken("truncated");
    }
    Ok(out)
}
