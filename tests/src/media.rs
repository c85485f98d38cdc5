//! Media with known pixels, and media that is none.
//!
//! The pictures were written by Pillow 13.0.0 (libjpeg-turbo 3.2.0), and their hashes are of what it reads back as RGB.

use framecache::Pictures;

/// A good picture: 96 x 64, baseline, chroma halved.
pub const PLAIN: Picture =
    Picture { file: include_bytes!("../golden/media/plain.jpg"), shape: [64, 96, 3], pixels_fnv: 0x3719_82af_3332_4c2e };

/// A good picture: 80 x 120, progressive, chroma whole.
pub const PROGRESSIVE: Picture =
    Picture { file: include_bytes!("../golden/media/progressive.jpg"), shape: [120, 80, 3], pixels_fnv: 0x419e_d670_7aa7_eec3 };

/// A picture and what it must decode to.
#[derive(Clone, Copy, Debug)]
pub struct Picture {
    /// The file.
    pub file: &'static [u8],
    /// Height, width, channels.
    pub shape: [u32; 3],
    /// FNV-1a, 64 bits, of the RGB bytes.
    pub pixels_fnv: u64,
}

impl Picture {
    /// Panics unless slot `index` holds exactly this picture's pixels, as stored.
    pub fn expect_in(&self, pictures: &Pictures, index: usize) {
        assert_eq!(pictures.head(index).map(|head| head.shape), Some(self.shape), "slot {index}");
        assert_eq!(pictures.pixels(index).map(fnv), Some(self.pixels_fnv), "pixels of slot {index}");
    }
}

/// A JPEG whose header declares 65,500 x 65,500 pixels: 12 GiB, were it decoded.
pub fn bomb() -> Vec<u8> {
    let mut file = PLAIN.file.to_vec();
    // SOF0 (ITU T.81, B.2.2): marker, length 2, precision 1, height 2, width 2.
    let at = file.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("SOF0");
    file[at + 5..at + 9].copy_from_slice(&[0xff, 0xdc, 0xff, 0xdc]);
    file
}

/// A good picture, but for decoders that are told to obey planted faults: those do what the fault's name says.
pub fn planted(fault: &str) -> Vec<u8> {
    let text = format!("FCTEST:{fault}");
    // COM (ITU T.81, B.2.4.5): marker, length with itself, text.
    let comment = [&[0xff, 0xfe, 0, text.len() as u8 + 2], text.as_bytes()].concat();
    [&PLAIN.file[..2], &comment, &PLAIN.file[2..]].concat()
}

/// A good picture's first half.
pub fn truncated() -> Vec<u8> {
    PLAIN.file[..PLAIN.file.len() / 2].to_vec()
}

/// What a proxy says instead of a picture.
pub const HTML: &[u8] = b"<!DOCTYPE html><html><body>502 Bad Gateway</body></html>";

/// The beginning of a HEIC picture: known, and not decoded.
pub const HEIC: &[u8] =
    b"\0\0\0\x18ftypheic\0\0\0\0mif1heic and so on, more than sixty-four bytes in all, of which none is looked at";

/// FNV-1a, 64 bits (draft-eastlake-fnv, section 6).
pub fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
