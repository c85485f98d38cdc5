//! The filter curves (Pillow 13.0.0, `Resample.c`, `*_filter`). Each operation is in Pillow's order: sums are compared by their bits.

use std::f64::consts::PI;

/// How the samples under an output pixel are weighed. All but `Nearest` widen when they shrink, so that nothing aliases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Filter {
    /// The sample under the centre of the output pixel.
    Nearest,
    /// Equal weights over the output pixel.
    Box,
    /// A triangle, torchvision's default.
    #[default]
    Bilinear,
    /// A raised cosine.
    Hamming,
    /// Cubic convolution with a = −0.5.
    Bicubic,
    /// A sinc windowed by a sinc, over three samples on each side.
    Lanczos,
}

impl Filter {
    /// Half the width of the curve, in output pixels (of the input when it grows).
    pub(super) fn support(self) -> f64 {
        match self {
            Self::Nearest => 0.0,
            Self::Box => 0.5,
            Self::Bilinear | Self::Hamming => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// Height of the curve at `x`, before weights are normalised.
    pub(super) fn at(self, x: f64) -> f64 {
        match self {
            Self::Nearest => 0.0,
            Self::Box if x > -0.5 && x <= 0.5 => 1.0,
            Self::Box => 0.0,
            Self::Bilinear => (1.0 - x.abs()).max(0.0),
            Self::Hamming => hamming(x.abs()),
            Self::Bicubic => bicubic(x.abs()),
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

fn bicubic(x: f64) -> f64 {
    if x < 1.0 {
        (1.5 * x - 2.5) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    } else {
        0.0
    }
}

/// The two constants are `float` in Pillow and are widened from there.
fn hamming(x: f64) -> f64 {
    if x == 0.0 {
        1.0
    } else if x >= 1.0 {
        0.0
    } else {
        let angle = x * PI;
        angle.sin() / angle * (f64::from(0.54f32) + f64::from(0.46f32) * angle.cos())
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let angle = x * PI;
    angle.sin() / angle
}
