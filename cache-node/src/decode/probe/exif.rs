//! The one EXIF field that matters to pixels: orientation. Reported, not applied.

/// Tag 274, "Orientation" (EXIF 2.32, 4.6.4 A).
const ORIENTATION: u16 = 0x0112;

/// Most fields of the first directory that are looked at; cameras write some twenty.
const FIELDS_MAX: usize = 512;

/// The orientation in an EXIF block (what follows `Exif\0\0`), 1 to 8; 1 where it is absent, damaged or out of range.
pub(super) fn orientation(tiff: &[u8]) -> u8 {
    find(tiff).filter(|value| (1..=8).contains(value)).map_or(1, |value| value as u8)
}

/// TIFF 6.0, section 2: byte order, 42, offset of the first directory; there a count and fields of 12 bytes.
fn find(tiff: &[u8]) -> Option<u32> {
    let order = match tiff.get(..4)? {
        [b'I', b'I', 42, 0] => Order::Little,
        [b'M', b'M', 0, 42] => Order::Big,
        _ => return None,
    };
    let start = order.u32(tiff, 4)? as usize;
    let count = order.u16(tiff, start)? as usize;
    let mut fields = (0..count.min(FIELDS_MAX)).map_while(|n| tiff.get(start.checked_add(2 + n * 12)?..)?.get(..12));
    let field = fields.find(|field| order.u16(field, 0) == Some(ORIENTATION))?;
    match (order.u16(field, 2)?, order.u32(field, 4)?) {
        (3, 1) => order.u16(field, 8).map(u32::from),
        (4, 1) => order.u32(field, 8),
        _ => None,
    }
}

enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(&self, bytes: &[u8], at: usize) -> Option<u16> {
        let raw = bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(*raw),
            Self::Big => u16::from_be_bytes(*raw),
        })
    }

    fn u32(&self, bytes: &[u8], at: usize) -> Option<u32> {
        let raw = bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(*raw),
            Self::Big => u32::from_be_bytes(*raw),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u16, count: u32, value: [u8; 4]) -> Vec<u8> {
        let mut tiff = b"II*\0\x08\0\0\0\x01\0".to_vec();
        tiff.extend(ORIENTATION.to_le_bytes());
        tiff.extend(kind.to_le_bytes());
        tiff.extend(count.to_le_bytes());
        tiff.extend(value);
        tiff
    }

    /// Promise: a sound field is read in both byte orders, a damaged one counts as upright.
    #[test]
    fn orientation_is_read_or_one() {
        assert_eq!(orientation(&block(3, 1, [6, 0, 0, 0])), 6);
        assert_eq!(orientation(b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0"), 8);
        for damaged in [block(3, 1, [9, 0, 0, 0]), block(3, 1, [0; 4]), block(3, 2, [6, 0, 0, 0]), block(7, 1, [6, 0, 0, 0])] {
            assert_eq!(orientation(&damaged), 1);
        }
        let whole = block(3, 1, [6, 0, 0, 0]);
        for cut in 0..whole.len() {
            assert_eq!(orientation(&whole[..cut]), 1);
        }
        assert_eq!(orientation(b"II*\0\xff\xff\xff\xff"), 1);
    }
}
