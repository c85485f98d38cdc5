//! Windows bitmaps: everything but the pixels, after Pillow's `BmpImagePlugin`.

use super::first::First;
use super::{DecodeError, Format, HEADER_BYTES_MAX, Limits, Probe};

/// What the headers say, and where pixels lie.
pub(in crate::decode) struct Header {
    pub(in crate::decode) width: u32,
    pub(in crate::decode) height: u32,
    pub(in crate::decode) top_down: bool,
    pub(in crate::decode) layout: Layout,
    pub(in crate::decode) packing: Packing,
    pub(in crate::decode) palette: Vec<[u8; 3]>,
    /// Where pixels begin.
    pub(in crate::decode) offset: u64,
    mode: &'static str,
}

/// What a pixel is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::decode) enum Layout {
    /// Black or white.
    Bit,
    Gray,
    Index {
        bits: u8,
    },
    /// Sixteen bits: widths of red, green and blue.
    Packed([u8; 3]),
    /// Bytes of a pixel, and which of them are red, green, blue, and alpha if any.
    Bytes {
        count: u8,
        at: [u8; 3],
        alpha: Option<u8>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::decode) enum Packing {
    /// Bytes from one row to the next.
    Rows {
        stride: u64,
    },
    RunLengths {
        nibbles: bool,
    },
}

pub(super) fn probe(first: &First<'_>, limits: &Limits) -> Result<Probe, DecodeError> {
    let header = read(first, limits)?;
    let pixels = u64::from(header.width) * u64::from(header.height);
    let (channels, has_alpha, depth) = match header.layout {
        Layout::Bit => (1, false, 1),
        Layout::Gray => (1, false, 8),
        Layout::Index { bits } => (3, false, bits),
        Layout::Packed(_) => (3, false, 5),
        Layout::Bytes { alpha, .. } => (3, alpha.is_some(), 8),
    };
    Ok(Probe {
        format: Format::Bmp,
        width: header.width,
        height: header.height,
        channels,
        has_alpha,
        depth,
        mode: header.mode,
        orientation: 1,
        frames: Some(1),
        decoded_bytes: pixels * if has_alpha { 4 } else { u64::from(channels) },
        // Run lengths are laid out before they become rows.
        working_bytes: (1 << 20) + if matches!(header.packing, Packing::RunLengths { .. }) { pixels } else { 0 },
        input_bytes: first.size(),
    })
}

/// The header of a bitmap that lies in memory whole.
pub(in crate::decode) fn header(bytes: &[u8]) -> Result<Header, DecodeError> {
    let first = First::new(Format::Bmp, bytes, bytes.len() as u64, HEADER_BYTES_MAX);
    read(&first, &Limits { pixels_max: u64::MAX })
}

fn read(first: &First<'_>, limits: &Limits) -> Result<Header, DecodeError> {
    let long = |at: u64| first.array(at).map(u32::from_le_bytes);
    let word = |at: u64| first.array(at).map(u16::from_le_bytes);
    let (stated, info) = (long(10)?, long(14)?);
    first.get(14, info.into())?;
    let core = info == 12;
    if info == 16 {
        return Err(first.broken("short OS/2 header"));
    }
    let (width, height, bits, top_down) = if core {
        (word(18)?.into(), word(20)?.into(), word(24)?, false)
    } else {
        let (height, top_down) = (long(22)?, long(22)? >> 24 == 0xff);
        (long(18)?, if top_down { height.wrapping_neg() } else { height }, word(28)?, top_down)
    };
    let (compression, colours) = if core { (RAW, 0) } else { (long(30)?, long(46)?) };
    let colours = match colours {
        0 => 1u64.checked_shl(bits.into()).unwrap_or(0),
        colours => colours.into(),
    };
    limits.check((width, height))?;
    if width == 0 || height == 0 {
        return Err(first.broken("a side is 0"));
    }
    let padding = if core { 3 } else { 4 };
    let mut at = 14 + u64::from(info);
    let mut offset = u64::from(stated);
    if offset == at && bits <= 8 {
        offset += padding * colours;
    }
    let mut layout = match bits {
        1 | 4 | 8 => Layout::Index { bits: bits as u8 },
        16 => Layout::Packed([5, 5, 5]),
        24 => Layout::Bytes { count: 3, at: [2, 1, 0], alpha: None },
        32 => Layout::Bytes { count: 4, at: [2, 1, 0], alpha: None },
        _ => return Err(first.broken(format!("{bits} bits per pixel"))),
    };
    let packing = match compression {
        RAW | BITFIELDS => Packing::Rows { stride: (u64::from(width) * u64::from(bits) + 31) >> 3 & !3 },
        RLE8 | RLE4 if bits <= 8 => Packing::RunLengths { nibbles: compression == RLE4 },
        _ => return Err(first.broken(format!("compression {compression} of {bits} bits per pixel"))),
    };
    if compression == BITFIELDS {
        let masks = [long(54)?, long(58)?, long(62)?, if info >= 56 { long(66)? } else { 0 }];
        layout = fields(bits, masks).ok_or_else(|| first.broken("unsupported layout of bit fields"))?;
        at += if info == 40 { 12 } else { 0 };
    }
    let mut header = Header { width, height, top_down, layout, packing, palette: Vec::new(), offset, mode: "RGB" };
    if let Layout::Index { bits } = layout {
        if !(1..=65_536).contains(&colours) {
            return Err(first.broken(format!("{colours} colours")));
        }
        let table = first.up_to(at, padding * colours)?;
        at += table.len() as u64;
        header.take_palette(first, table, padding as usize, colours as usize, bits)?;
    } else if let Layout::Bytes { alpha: Some(_), .. } = layout {
        header.mode = "RGBA";
    }
    if header.offset == 0 {
        header.offset = at;
    }
    Ok(header)
}

impl Header {
    /// A palette of plain grays is dropped, and pixels are taken for what they are, as wide as that makes them.
    fn take_palette(
        &mut self,
        first: &First<'_>,
        table: &[u8],
        padding: usize,
        colours: usize,
        bits: u8,
    ) -> Result<(), DecodeError> {
        let gray = |index: usize| if colours == 2 { 255 * index } else { index } as u8;
        let entry = |index: usize| table.get(index * padding..index * padding + 3);
        if (0..colours).all(|index| entry(index) == Some(&[gray(index); 3])) {
            (self.layout, self.mode) = if colours <= 2 { (Layout::Bit, "1") } else { (Layout::Gray, "L") };
            return Ok(());
        }
        if table.len() / padding > 256 {
            return Err(first.broken(format!("{colours} colours")));
        }
        self.mode = "P";
        self.layout = Layout::Index { bits };
        // Blue comes first.
        self.palette = table.chunks_exact(padding).map(|colour| [colour[2], colour[1], colour[0]]).collect();
        Ok(())
    }
}

/// The layouts of bit fields that Pillow knows; it refuses all others.
fn fields(bits: u16, masks: [u32; 4]) -> Option<Layout> {
    let bytes = |at, alpha| Some(Layout::Bytes { count: 4, at, alpha });
    match (bits, masks) {
        (32, [0xff_0000, 0xff00, 0xff, 0]) => bytes([2, 1, 0], None),
        (32, [0xff00_0000, 0xff_0000, 0xff00, 0]) => bytes([3, 2, 1], None),
        (32, [0xff00_0000, 0xff00, 0xff, 0]) => bytes([3, 1, 0], None),
        (32, [0xff00_0000, 0xff_0000, 0xff00, 0xff]) => bytes([3, 2, 1], Some(0)),
        (32, [0xff, 0xff00, 0xff_0000, 0xff00_0000]) => bytes([0, 1, 2], Some(3)),
        (32, [0xff_0000, 0xff00, 0xff, 0xff00_0000] | [0, 0, 0, 0]) => bytes([2, 1, 0], Some(3)),
        (32, [0xff00_0000, 0xff00, 0xff, 0xff_0000]) => bytes([3, 1, 0], Some(2)),
        (24, [0xff_0000, 0xff00, 0xff, _]) => Some(Layout::Bytes { count: 3, at: [2, 1, 0], alpha: None }),
        (16, [0xf800, 0x7e0, 0x1f, _]) => Some(Layout::Packed([5, 6, 5])),
        (16, [0x7c00, 0x3e0, 0x1f, _]) => Some(Layout::Packed([5, 5, 5])),
        _ => None,
    }
}

// The compressions.
const RAW: u32 = 0;
const RLE8: u32 = 1;
const RLE4: u32 = 2;
const BITFIELDS: u32 = 3;
