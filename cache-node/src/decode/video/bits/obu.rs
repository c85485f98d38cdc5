//! AV1: the frames that a temporal unit shows.

use super::{Bits, Info, Start};

/// AV1 5.3 to 5.9: units of a packet; a start is a shown key frame that comes first.
pub(super) fn av1(data: &[u8], flagged: Start) -> Info {
    let mut info = Info { start: flagged, ..Info::default() };
    let (mut is_first, mut reduced) = (true, false);
    let mut rest = data;
    while let Some((&header, behind)) = rest.split_first() {
        let (kind, extended, sized) = (header >> 3 & 15, header >> 2 & 1 == 1, header >> 1 & 1 == 1);
        let behind = behind.get(usize::from(extended)..).unwrap_or(&[]);
        let Some((length, behind)) = (if sized { leb128(behind) } else { Some((behind.len(), behind)) }) else { break };
        let (unit, behind) = behind.split_at(length.min(behind.len()));
        rest = behind;
        if unit.is_empty() {
            continue;
        }
        let mut bits = Bits::new(unit);
        match kind {
            1 => {
                bits.take(4);
                reduced = bits.flag();
            }
            3 | 6 => {
                if reduced {
                    info.shows += 1;
                    info.start = Start::Closed;
                } else if bits.flag() {
                    info.shows += 1;
                } else {
                    let is_key = bits.take(2) == 0;
                    let is_shown = bits.flag();
                    info.shows += u32::from(is_shown);
                    if is_first {
                        info.start = if is_key && is_shown { Start::Closed } else { Start::No };
                    }
                }
                is_first = false;
            }
            _ => {}
        }
    }
    info
}

/// 4.10.5.
fn leb128(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0u64;
    for (number, &byte) in bytes.iter().enumerate().take(8) {
        value |= u64::from(byte & 127) << (7 * number);
        if byte & 128 == 0 {
            return Some((usize::try_from(value).ok()?, &bytes[number + 1..]));
        }
    }
    None
}
