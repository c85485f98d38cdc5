//! Video: an exact table of a clip's frames, and the frames of it that are wanted, without the rest.
//!
//! A container's counts, rates and key flags are claims. The index is made of the packets themselves: which packet each frame comes
//! from, in which order frames are shown, and where decoding must begin to have a frame as a decoder that began at the front has it.
//! Its trust says how that was learned. A frame then costs the bytes of its decode unit, found without the container, and is known by
//! its packet's tag, never by counting.
//!
//! The parts, in the order in which a clip meets them:
//! - `av`: FFmpeg, in safe words. `codec`: which codecs, and their parameters.
//! - `boxes`: what of an MP4 need not be read. `scan`: a clip's packets and where their bytes lie; `bits`: what they say themselves.
//! - `table`: frames predicted from packets, or mapped and proved by decoding. `make` is the whole of it.
//! - `index`: the table as it is kept; `plan`: from wanted frames to byte ranges; `package`: from bytes to what a decoder takes.
//! - `unit`: one package decoded. `frame`: a picture's planes; `colour`: RGB of them.
//!
//! [`make`] and [`decode`] call codecs and belong into a worker process; all else is arithmetic.

mod av;
mod bits;
mod boxes;
mod codec;
mod colour;
#[cfg(test)]
mod corpus;
mod drawn;
mod extents;
mod frame;
mod index;
mod make;
mod package;
mod plan;
mod scan;
mod table;
#[cfg(test)]
pub(super) mod tests;
mod unit;

use framecache::ByteRange;

pub(super) use drawn::Drawn;
pub use drawn::FrameShape;
pub use frame::Frame;
pub use index::{Facts, INDEX_BYTES_MAX, PtsOrigin, Ratio, Trust, VideoIndex};
pub use make::{make, make_stream};
pub use package::PACKAGE_BYTES_MAX;
pub use plan::Clip;
pub use unit::{DecodeEnd, FrameError, Sink, Stop, decode};

/// The object's bytes, as an index is made of them. Blocking: in a worker, each read is a message to the node.
pub trait Input {
    /// Bytes of the object.
    fn bytes(&self) -> u64;

    /// Puts exactly the bytes of `range`, which lies within the object and is at most 8 MiB long, into `into`, which comes empty.
    fn read(&mut self, range: ByteRange, into: &mut Vec<u8>) -> Result<(), Gone>;
}

/// The bytes cannot be had; the input itself knows why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes cannot be had")]
pub struct Gone;

/// Why there is no index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VideoError {
    /// The bytes are no clip, or none that has a frame. Final for this version.
    #[error("undecodable: {0}")]
    Undecodable(String),
    /// A kind of clip that this release does not decode. Final until an upgrade.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// Memory could not be had.
    #[error("out of memory")]
    OutOfMemory,
    /// The input failed: nothing is known of the clip.
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// Which decoder library this process has. Damaged streams decode otherwise with another, so that an index holds for one only, and
/// belongs under a key that holds this.
pub fn library() -> u32 {
    av::library()
}

/// Does once what FFmpeg does once; to be called before a worker process is locked in.
pub fn warm_up() {
    av::warm_up();
}
