//! A part of a picture that is held decoded: pixels in, pixels out. No codec has a hand in it, so the node does it itself.

use framecache::frame::Dtype;
use framecache::spec::{Alpha, ImageSpec, Orientation, Profile, VideoSpec};
use framecache::{DecodeSpec, Tensor, TensorHead, pixels};

use super::Limits;
use super::formats::{Kind, Samples};
use super::rendition::Rendition;

/// The spec of the whole picture that `spec`, which takes a box of it, can be cut from with no other pixels than a decode gives;
/// `None` where there is no box, or no such picture: what is decoded at a smaller scale, resized with its alpha, or of more bits.
pub fn whole_of(spec: &DecodeSpec) -> Option<DecodeSpec> {
    let &ImageSpec { profile, mode, alpha, depth, dtype, orientation, truncated, damaged, stream, .. } = spec.image();
    spec.image().region?;
    if profile != Profile::Exact || alpha == Alpha::Keep || dtype != Dtype::U8 {
        return None;
    }
    let whole = ImageSpec { profile, mode, alpha, depth, orientation, truncated, damaged, stream, ..ImageSpec::default() };
    Some(match spec {
        DecodeSpec::Video(video) => VideoSpec { frames: video.frames.clone(), image: whole }.into(),
        _ => whole.into(),
    })
}

/// A cut that is worked out, and not made yet.
pub struct Cut {
    whole: Tensor,
    rendition: Rendition,
}

impl Cut {
    /// What `spec` makes of `whole`, which was decoded by [`whole_of`] it; `None` if it cannot be made of it.
    pub fn of(whole: Tensor, spec: &DecodeSpec, limits: &Limits) -> Option<Self> {
        let [height, width, channels] = whole.head.shape;
        let spec = ImageSpec { orientation: Orientation::Ignore, ..spec.image().clone() };
        let rendition = Rendition::of_pixels(spec, (width, height), limits)?;
        (channels == rendition.spec.channels()).then_some(Self { whole, rendition })
    }

    /// Bytes of what it gives.
    pub fn bytes(&self) -> u64 {
        self.rendition.bytes() as u64
    }

    /// Memory that making it takes besides: the resize's own, and the window before its channels are arranged.
    pub fn scratch_bytes(&self) -> u64 {
        let [height, width, channels] = self.whole.head.shape.map(|side| side as usize);
        let resize = pixels::resize_scratch_bytes(width, height, channels, &self.rendition.plan());
        self.bytes() + resize as u64
    }

    /// Makes it. Takes as long as a resize does.
    pub fn make(&self) -> Tensor {
        let [height, width, channels] = self.whole.head.shape;
        let kind = if channels == 1 { Kind::Gray } else { Kind::Rgb };
        let mut out = vec![0; self.rendition.bytes()];
        self.rendition.draw(&Samples { pixels: &self.whole.data, width, height, kind }, &mut out);
        let head = TensorHead { shape: self.rendition.shape(), layout: self.rendition.spec.layout, ..self.whole.head };
        Tensor { head, data: out.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{DecodeError, probe};

    /// Promise: what a box is cut from was decoded as the box would have been.
    #[test]
    fn the_whole_is_decoded_alike() {
        let whole = |text: &str| whole_of(&text.parse().expect("spec")).map(|whole| whole.to_string());
        for (part, of) in [
            ("image?box=1,1,2,2&size=9x9&truncated=pad", Some("image?truncated=pad")),
            ("video?frames=3&box=1,1,2,2&damaged=keep", Some("video?frames=3&damaged=keep")),
            ("image?box=1,1,2,2&profile=fast", None),
            ("image?size=9x9", None),
            ("video?frames=3&box=1,1,2,2&stream=2", Some("video?frames=3&stream=2")),
            ("video?frames=3&box=1,1,2,2&dtype=u16", None),
        ] {
            assert_eq!(whole(part).as_deref(), of, "{part}");
        }
    }

    /// Promise: pictures have no planes to give, and say so before anything is drawn.
    #[test]
    fn planes_of_a_picture_are_refused() {
        let bitmap =
            [&b"BM"[..], &[0; 8], &54u32.to_le_bytes(), &40u32.to_le_bytes(), &[1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 24, 0], &[0; 28]];
        let bytes = bitmap.concat();
        let probe = probe(&bytes, bytes.len() as u64, &Limits::default()).expect("a bitmap");
        let of = |text: &str| Rendition::of(&text.parse().expect("spec"), &probe, &Limits::default()).map(|made| made.bytes());
        assert!(matches!(of("video?frames=0&layout=chw"), Ok(3)));
        assert!(matches!(of("video?frames=0&layout=planes"), Err(DecodeError::Unsupported { .. })));
    }
}
