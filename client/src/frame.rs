//! Decoded frames: what they are called and what they look like.

use bytes::Bytes;

use crate::pixels::yuv::Format;

/// What one number of a tensor is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Dtype {
    /// Unsigned 8-bit.
    #[default]
    U8 = 0,
    /// Unsigned 16-bit, the lower byte first.
    U16 = 1,
}

impl Dtype {
    /// The type of that number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::U8, Self::U16].into_iter().find(|dtype| *dtype as u8 == number)
    }

    /// Bytes of one.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::U8 => 1,
            Dtype::U16 => 2,
        }
    }

    /// numpy's name of it.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::U8 => "uint8",
            Dtype::U16 => "uint16",
        }
    }
}

/// The order of a tensor's dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Layout {
    /// Height, width, channels; row-major without padding.
    #[default]
    Hwc = 0,
    /// Channels, height, width; row-major without padding.
    Chw = 1,
    /// A frame's samples as its decoder gave them, plane after plane, rows without padding: `[1, 1, bytes]`. How they lie follows from the
    /// video's pixel format and the frame's size.
    Planes = 2,
}

impl Layout {
    /// The layout of that number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Hwc, Self::Chw, Self::Planes].into_iter().find(|layout| *layout as u8 == number)
    }
}

/// What a tensor looks like, apart from its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorHead {
    /// Lengths of the dimensions, in the order of `layout`.
    pub shape: [u32; 3],
    /// The number type.
    pub dtype: Dtype,
    /// The order of `shape`.
    pub layout: Layout,
    /// Width and height of the picture or frame before resize and crop.
    pub source: (u32, u32),
    /// EXIF orientation, 1 to 8, as stored; 1 where there is none. Applied only where the spec says so.
    pub orientation: u8,
    /// Presentation time in seconds; 0 for a picture.
    pub pts_seconds: f64,
    /// Of [`Layout::Planes`], what the samples mean, where it is known.
    pub format: Option<Format>,
}

impl TensorHead {
    /// Bytes of the numbers: the product of the shape and of a number's own. Saturates, so that a hostile shape fails every bound instead
    /// of wrapping.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().fold(self.dtype.bytes() as u64, |product, &side| product.saturating_mul(u64::from(side)))
    }
}

/// A decoded frame: head and numbers. Cloning shares the numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Shape, type and origin.
    pub head: TensorHead,
    /// `head.bytes()` bytes.
    pub data: Bytes,
}
