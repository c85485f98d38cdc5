//! Which frames of a video are meant: the values and their text. What they come to in one video is `timeline`'s.

use std::fmt;
use std::str::FromStr;

use super::{ImageSpec, SpecError};

/// Most frames that one selection may name, or come to.
pub const SELECTED_MAX: usize = 4096;

/// Longest text of a selection, in bytes: [`SELECTED_MAX`] times at their longest, and a spec.
pub const SELECTION_BYTES_MAX: usize = 128 << 10;

/// Frames of a video, and how each is made: `video?from=1.5&to=4&fps=2&short=256`.
///
/// ```
/// use framecache::spec::Selection;
/// let selection: Selection = "video?short=256&at=0.50,1.25".parse()?;
/// assert_eq!(selection.to_string(), "video?at=0.5,1.25&short=256");
/// # Ok::<(), framecache::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Which.
    pub frames: Selector,
    /// How each is made.
    pub image: ImageSpec,
}

/// Which frames of a video, in the order in which they are wanted. [`Selector::resolve`] says what it comes to in one video.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Selector {
    /// `frames=0,8,-1`: by presentation order from 0, or from the end, -1 being the last. In any order, and as often as one likes.
    Frames(Vec<i64>),
    /// `at=0.5,1.25`: the frames that are played at these times.
    At(Vec<Seconds>),
    /// `from=1.5&to=4`: from the frame played at the one to the last that begins before the other; where a bound is not given, to that end
    /// of the video. With `fps=2` so many a second: those played at `from + k / fps`, for k below `(to - from) fps`, rounded half up.
    Range {
        /// Where it begins.
        from: Option<Seconds>,
        /// Where it ends, itself not part of it.
        to: Option<Seconds>,
        /// How many a second; all, if not given.
        fps: Option<Rate>,
    },
    /// `uniform=8`: so many over the whole video, the first and the last among them: of n frames the k-th of N is
    /// `floor(k (n - 1) / (N - 1))`, and of one wanted the first. What `np.linspace(0, n - 1, N).astype(int)` is meant to give, as
    /// decord's users write it and torchcodec's regular samplers compute it. Of fewer frames than are wanted some come several times.
    Uniform(u32),
}

impl Selector {
    /// Every frame: the text `video`.
    pub const ALL: Self = Self::Range { from: None, to: None, fps: None };
}

/// A time in seconds, to the nanosecond: `1.25`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(i64);

/// Nanoseconds of a second.
pub(super) const NANOS: i128 = 1_000_000_000;

impl Seconds {
    /// So many nanoseconds.
    pub const fn of_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// The nearest nanosecond, ties away from zero; `None` past 292 years, and of what is no number.
    pub fn of(seconds: f64) -> Option<Self> {
        let nanos = (seconds * NANOS as f64).round();
        // Where the bound itself is no i64, as a double it is the first past it.
        (nanos.abs() < i64::MAX as f64).then_some(Self(nanos as i64))
    }

    /// In nanoseconds.
    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// As a double.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / NANOS as f64
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        write!(f, "{sign}{}", Decimal(self.0.unsigned_abs().into()))
    }
}

impl FromStr for Seconds {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (digits, sign) = text.strip_prefix('-').map_or((text, 1), |digits| (digits, -1));
        let nanos = nanos(digits).and_then(|nanos| i64::try_from(nanos * sign).ok());
        nanos.map(Self).ok_or_else(|| super::text::wrong("at", text, "seconds, as in 1.25"))
    }
}

/// Billionths as a decimal number without needless zeros.
struct Decimal(i128);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / NANOS, self.0 % NANOS);
        if part == 0 {
            return write!(f, "{whole}");
        }
        write!(f, "{whole}.{}", format!("{part:09}").trim_end_matches('0'))
    }
}

/// Billionths of digits with or without a point between, rounded half up; no more digits than a double's longest.
fn nanos(text: &str) -> Option<i128> {
    let (whole, part) = text.split_once('.').map_or((text, None), |(whole, part)| (whole, Some(part)));
    let digits = |text: &str, most| (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole, 20) || part.is_some_and(|part| !digits(part, 40)) {
        return None;
    }
    let part = part.unwrap_or("0");
    let tenths: i128 = format!("{part:0<10}")[..10].parse().ok()?;
    Some(whole.parse::<i128>().ok()? * NANOS + (tenths + 5) / 10)
}

/// Frames in a second, a fraction of whole numbers: `2`, `29.97`, `30000/1001`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    over: u32,
    under: u32,
}

impl Rate {
    /// `over / under` in lowest terms; `None` if either is 0.
    pub fn new(over: u32, under: u32) -> Option<Self> {
        let common = gcd(over.into(), under.into()) as u32;
        (over > 0 && under > 0).then(|| Self { over: over / common, under: under / common })
    }

    /// The simplest fraction of which `rate` is the nearest double: 29.97002997002997 is 30000/1001. `None` where it has more than 32 bits,
    /// and of what is not above zero.
    pub fn of(rate: f64) -> Option<Self> {
        if !(1e-6..=1e9).contains(&rate) {
            return None;
        }
        // Exactly as it is stored, and then by continued fraction: a fraction that near is among its convergents.
        let exponent = ((rate.to_bits() >> 52) as i32 - 1075).min(0);
        let (mut n, mut d) = ((rate * 2f64.powi(-exponent)) as i128, 1i128 << -exponent);
        let (mut last, mut this) = ((0, 1), (1, 0));
        while d != 0 {
            let whole = n / d;
            (last, this) = (this, (whole * this.0 + last.0, whole * this.1 + last.1));
            (n, d) = (d, n % d);
            let (over, under) = (u32::try_from(this.0).ok()?, u32::try_from(this.1).ok()?);
            if f64::from(over) / f64::from(under) == rate {
                return Self::new(over, under);
            }
        }
        None
    }

    /// Over and under the line, in lowest terms.
    pub const fn fraction(self) -> (u32, u32) {
        (self.over, self.under)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let billionths = i128::from(self.over) * NANOS;
        match billionths % i128::from(self.under) {
            0 => Decimal(billionths / i128::from(self.under)).fmt(f),
            _ => write!(f, "{}/{}", self.over, self.under),
        }
    }
}

impl FromStr for Rate {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let whole = |digits: &str| digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let rate = match text.split_once('/') {
            Some((over, under)) => whole(over).zip(whole(under)).and_then(|(over, under)| Self::new(over, under)),
            None => Self::of_text(text),
        };
        rate.ok_or_else(|| super::text::wrong("fps", text, "frames a second, as in 2, 29.97 or 30000/1001"))
    }
}

impl Rate {
    /// Digits as they are written; with more than nine behind the point, of the double that somebody printed.
    fn of_text(text: &str) -> Option<Self> {
        let exact = nanos(text)?;
        if text.split_once('.').is_some_and(|(_, part)| part.len() > 9) {
            return Self::of(text.parse().ok()?);
        }
        let common = gcd(exact, NANOS);
        Self::new(u32::try_from(exact / common).ok()?, u32::try_from(NANOS / common).ok()?)
    }
}

pub(super) fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.abs().max(1) } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::DecodeSpec;

    fn selection(text: &str) -> Result<Selection, SpecError> {
        text.parse()
    }

    /// Promise: one selection has one text, and is what that text says.
    #[test]
    fn canonical_text_is_one() {
        for (text, canonical) in [
            ("video", "video"),
            ("video?short=256", "video?short=256"),
            ("video?frames=0,-1,8,8", "video?frames=0,-1,8,8"),
            ("video?frames=007,-0", "video?frames=7,0"),
            ("video?crop=9&at=0.50,01,-0.25,2.0000000004&short=9", "video?at=0.5,1,-0.25,2&short=9&crop=9"),
            ("video?at=0.0333666666666667,0.0000000005,0.00000000049", "video?at=0.033366667,0.000000001,0"),
            ("video?at=-0.0000000001", "video?at=0"),
            ("video?fps=2.0&to=4.0&from=1.5", "video?from=1.5&to=4&fps=2"),
            ("video?to=4", "video?to=4"),
            ("video?fps=29.97", "video?fps=29.97"),
            ("video?fps=60000/2002", "video?fps=30000/1001"),
            ("video?fps=29.97002997002997", "video?fps=30000/1001"),
            ("video?fps=23.976023976023978", "video?fps=24000/1001"),
            ("video?fps=0.1", "video?fps=0.1"),
            ("video?fps=3.999999999", "video?fps=3.999999999"),
            ("video?fps=1/3", "video?fps=1/3"),
            ("video?uniform=8&size=9x9", "video?uniform=8&size=9x9"),
            ("video?uniform=08&damaged=keep", "video?uniform=8&damaged=keep"),
        ] {
            let of = selection(text).expect(text);
            assert_eq!(of.to_string(), canonical);
            assert_eq!(selection(canonical).expect(canonical), of);
        }
    }

    /// Promise: what names no frames, or names them twice, is refused by name; so are more than there may be.
    #[test]
    fn wrong_selections_are_refused() {
        let long = |name: &str, count: usize| format!("video?{name}={}", vec!["1"; count].join(","));
        for text in [
            "image?frames=0",
            "video?frames=",
            "video?frames=1,,2",
            "video?frames=1.5",
            "video?frames=9223372036854775808",
            "video?at=",
            "video?at=1,",
            "video?at=.5",
            "video?at=1.",
            "video?at=1e3",
            "video?at=+1",
            "video?at=--1",
            "video?at=nan",
            "video?at=9223372037",
            "video?from=1,2",
            "video?fps=0",
            "video?fps=-2",
            "video?fps=1/0",
            "video?fps=+1/2",
            "video?fps=5000000000",
            "video?uniform=0",
            "video?uniform=4097",
            "video?uniform=-1",
            "video?frames=1&at=1",
            "video?frames=1&fps=1",
            "video?at=1&to=2",
            "video?uniform=2&from=1",
            "video?uniform=2&uniform=2",
            &long("frames", SELECTED_MAX + 1),
            &long("at", SELECTED_MAX + 1),
        ] {
            assert!(selection(text).is_err(), "{}", &text[..text.len().min(40)]);
        }
        for name in ["frames", "at"] {
            assert!(selection(&long(name, SELECTED_MAX)).is_ok());
        }
        let longest = format!("video?at={}", vec!["-9223372036.854775807"; SELECTED_MAX].join(","));
        assert!(selection(&longest).is_ok());
        // What travels and what is cached is one frame, found already.
        for text in ["video?at=1", "video?from=1", "video?fps=2", "video?uniform=3"] {
            assert!(matches!(text.parse::<DecodeSpec>(), Err(SpecError::Unsupported(_))), "{text}");
        }
    }

    /// Promise: a double is read once, to the nearest nanosecond or to the fraction it was made of.
    #[test]
    fn doubles_are_read_once() {
        for (seconds, nanos) in
            [(0.0, 0), (-0.0, 0), (1001.0 / 30000.0, 33_366_667), (-1.25, -1_250_000_000), (1e9, 1_000_000_000_000_000_000)]
        {
            assert_eq!(Seconds::of(seconds).map(Seconds::nanos), Some(nanos));
        }
        for seconds in [f64::NAN, f64::INFINITY, -1e300, 9.3e9] {
            assert_eq!(Seconds::of(seconds), None);
        }
        for (over, under) in
            [(1, 1), (30_000, 1001), (24_000, 1001), (60_000, 1001), (2997, 100), (1, 3), (1, 86_400), (120, 1), (1_000_003, 7)]
        {
            assert_eq!(Rate::of(f64::from(over) / f64::from(under)).map(Rate::fraction), Some((over, under)));
        }
        for rate in [0.0, -1.0, f64::NAN, 1e-9, 1e10, std::f64::consts::PI * 1e-6] {
            assert_eq!(Rate::of(rate), None, "{rate}");
        }
    }
}
