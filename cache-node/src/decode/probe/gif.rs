//! GIF's screen and first frame: Pillow's canvas grows to hold that one.

use super::first::First;
use super::{DecodeError, Format, Limits, Probe};

/// Bytes of a colour table, by the flags that announce it.
fn table(flags: u8) -> u64 {
    if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) }
}

pub(super) fn probe(first: &First<'_>, limits: &Limits) -> Result<Probe, DecodeError> {
    let screen: [u8; 13] = first.array(0)?;
    let short = |bytes: &[u8], at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (mut width, mut height) = (short(&screen, 6), short(&screen, 8));
    let mut at = 13 + table(screen[10]);
    let mut transparent = false;
    loop {
        let [mark] = first.array(at)?;
        match mark {
            b',' => break,
            b';' => return Err(first.broken("no frame")),
            b'!' => {
                let label: [u8; 2] = first.array(at + 1)?;
                if label[0] == 0xf9 && label[1] > 0 {
                    let [flags] = first.array(at + 3)?;
                    transparent |= flags & 1 != 0;
                }
                at += 2;
                loop {
                    let [length] = first.array(at)?;
                    at += 1 + u64::from(length);
                    if length == 0 {
                        break;
                    }
                }
            }
            // Junk between blocks is stepped over, as in Pillow.
            _ => at += 1,
        }
    }
    let frame: [u8; 10] = first.array(at)?;
    width = width.max(short(&frame, 1) + short(&frame, 5));
    height = height.max(short(&frame, 3) + short(&frame, 7));
    limits.check((width, height))?;
    if width == 0 || height == 0 {
        return Err(first.broken("a side is 0"));
    }
    let pixels = u64::from(width) * u64::from(height);
    Ok(Probe {
        format: Format::Gif,
        width,
        height,
        channels: 3,
        has_alpha: transparent,
        depth: 8,
        mode: "P",
        orientation: 1,
        frames: None,
        decoded_bytes: pixels * if transparent { 4 } else { 3 },
        // The canvas, what a frame covers of it (which grows, so thrice for a moment), the frame's indices as stored and in order, and
        // the file without the junk between its blocks.
        working_bytes: pixels * 20 + first.size() + (1 << 20),
        input_bytes: first.size(),
    })
}
