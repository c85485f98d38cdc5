//! What a selection comes to in one video: indices, by whole numbers.
//!
//! Times are compared in ticks of the video's time base, as fractions. A given time is known to the nanosecond, and a frame's own is often
//! a fraction that no decimal number has: so a time within half a nanosecond of a tick is that tick. What was reported as a
//! frame's time, in whatever way it was rounded, finds that frame; all other comparisons are exact as they stand.

use super::selector::{NANOS, SELECTED_MAX, gcd};
use super::{Rate, Seconds, Selector};

/// When the frames of a video are shown.
#[derive(Clone, Copy, Debug)]
pub struct Timeline<'a> {
    /// Each frame's presentation time in ticks, ascending. Of frames with one time the last is played at it.
    pub pts: &'a [i64],
    /// Seconds of a tick, over and under the line; neither is 0.
    pub time_base: (u32, u32),
    /// Where the last frame ends, in ticks.
    pub end: i64,
}

/// Why a selection has no frames in a video.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SelectError {
    /// There is no such frame. The valid indices are `-frames` to `frames - 1`.
    #[error("frame {frame} of {frames}")]
    Frame {
        /// As it was asked for.
        frame: i64,
        /// How many there are.
        frames: u64,
    },
    /// Nothing is played then. The end of a range may be `end` itself.
    #[error("time {at} s outside of the video's [{begin}, {end}) s")]
    Time {
        /// As it was asked for.
        at: Seconds,
        /// When the first frame is shown, in seconds.
        begin: f64,
        /// When the last one ends, in seconds.
        end: f64,
    },
    /// A range ends before it begins.
    #[error("range from {from} s to {to} s")]
    Backwards {
        /// Where it begins.
        from: f64,
        /// Where it ends.
        to: f64,
    },
    /// It comes to more than [`SELECTED_MAX`] frames: ask for parts, or for fewer a second.
    #[error("selection of {0} frames (at most {SELECTED_MAX})")]
    TooMany(u64),
    /// The video has no frames.
    #[error("video without frames")]
    Empty,
    /// The video's time base is 0, or so fine beside the rate that asks for it that no arithmetic here holds both.
    #[error("time base {}/{}", .0.0, .0.1)]
    TimeBase((u32, u32)),
}

impl Selector {
    /// The indices of the frames, in the order in which they are wanted: at most [`SELECTED_MAX`].
    ///
    /// The frame played at t is the one with `pts <= t < next pts`, whatever its duration; there is none outside of `[begin, end)`,
    /// from the first pts to the end of the last frame. A range from a time to itself is empty, and so is one that comes to no
    /// frame by its rate.
    ///
    /// # Errors
    /// [`SelectError`]: nothing is clamped, and nothing left out.
    ///
    /// ```
    /// use framecache::spec::{Selector, Timeline};
    /// let film = Timeline { pts: &[0, 1001, 2002], time_base: (1, 24_000), end: 3003 };
    /// let selector: Selector = "video?at=0.041708334,0.1".parse()?;
    /// assert_eq!(selector.resolve(&film), Ok(vec![1, 2]));
    /// # Ok::<(), framecache::spec::SpecError>(())
    /// ```
    pub fn resolve(&self, timeline: &Timeline<'_>) -> Result<Vec<u64>, SelectError> {
        let (over, under) = timeline.time_base;
        if over == 0 || under == 0 {
            return Err(SelectError::TimeBase(timeline.time_base));
        }
        if timeline.pts.is_empty() {
            return Err(SelectError::Empty);
        }
        match self {
            Selector::Frames(frames) => {
                bounded(frames.len() as u64)?;
                frames.iter().map(|&frame| timeline.counted(frame)).collect()
            }
            Selector::At(times) => {
                bounded(times.len() as u64)?;
                times.iter().map(|&at| timeline.played_at(timeline.ticks(at)).ok_or_else(|| timeline.outside(at))).collect()
            }
            Selector::Range { from, to, fps } => timeline.range(*from, *to, *fps),
            Selector::Uniform(count) => {
                bounded((*count).into())?;
                let last = timeline.pts.len() as u128 - 1;
                let gaps = u128::from(count.saturating_sub(1).max(1));
                Ok((0..*count).map(|k| (u128::from(k) * last / gaps) as u64).collect())
            }
        }
    }
}

impl Timeline<'_> {
    /// When a frame is shown and for how long, in seconds; `None` where there is no such frame.
    pub fn shown(&self, frame: u64) -> Option<(f64, f64)> {
        let frame = usize::try_from(frame).ok()?;
        let pts = *self.pts.get(frame)?;
        let next = self.pts.get(frame + 1).copied().unwrap_or(self.end);
        Some((self.seconds(pts.into()), self.seconds(i128::from(next) - i128::from(pts))))
    }

    fn seconds(&self, ticks: i128) -> f64 {
        let (over, under) = self.time_base;
        (ticks * i128::from(over)) as f64 / f64::from(under)
    }

    fn counted(&self, frame: i64) -> Result<u64, SelectError> {
        let frames = self.pts.len() as u64;
        let counted = match u64::try_from(frame) {
            Ok(frame) => Some(frame),
            Err(_) => frames.checked_sub(frame.unsigned_abs()),
        };
        counted.filter(|&counted| counted < frames).ok_or(SelectError::Frame { frame, frames })
    }

    /// In ticks: the tick within half a nanosecond, or else as it stands.
    fn ticks(&self, at: Seconds) -> Fraction {
        let (over, under) = (i128::from(self.time_base.0), i128::from(self.time_base.1));
        let nanos = i128::from(at.nanos());
        let exact = Fraction { over: nanos * under, under: NANOS * over };
        let tick = exact.rounded();
        match 2 * (tick * over * NANOS - nanos * under).abs() <= under {
            true => Fraction::whole(tick),
            false => exact,
        }
    }

    /// The index of the frame played then.
    fn played_at(&self, at: Fraction) -> Option<u64> {
        // A tick is whole: what has begun by a time has begun by its floor.
        let tick = at.floor();
        let begun = self.pts.partition_point(|&pts| i128::from(pts) <= tick);
        (begun > 0 && tick < i128::from(self.end)).then(|| begun as u64 - 1)
    }

    fn outside(&self, at: Seconds) -> SelectError {
        let begin = self.pts.first().copied().unwrap_or_default();
        SelectError::Time { at, begin: self.seconds(begin.into()), end: self.seconds(self.end.into()) }
    }

    fn range(&self, from: Option<Seconds>, to: Option<Seconds>, fps: Option<Rate>) -> Result<Vec<u64>, SelectError> {
        let begin = self.pts.first().copied().unwrap_or_default();
        let start = from.map_or(Fraction::whole(begin.into()), |from| self.ticks(from).in_lowest_terms());
        let stop = to.map_or(Fraction::whole(self.end.into()), |to| self.ticks(to).in_lowest_terms());
        let outside = |given: Option<Seconds>| given.map_or(SelectError::Empty, |at| self.outside(at));
        let first = self.played_at(start).ok_or_else(|| outside(from))?;
        if stop.ceil() > i128::from(self.end) || stop.floor() < i128::from(begin) {
            return Err(outside(to));
        }
        let too_fine = || SelectError::TimeBase(self.time_base);
        let length = stop.less(start).ok_or_else(too_fine)?;
        if length.over < 0 {
            let (over, under) = (f64::from(self.time_base.0), f64::from(self.time_base.1));
            let seconds = |ticks: Fraction| ticks.over as f64 * over / (ticks.under as f64 * under);
            return Err(SelectError::Backwards { from: seconds(start), to: seconds(stop) });
        }
        if length.over == 0 {
            return Ok(Vec::new());
        }
        let Some(fps) = fps else {
            let stop = stop.ceil();
            let begun = self.pts.partition_point(|&pts| i128::from(pts) < stop) as u64;
            bounded(begun.saturating_sub(first))?;
            return Ok((first..begun).collect());
        };
        let (frames, seconds) = fps.fraction();
        let (over, under) = self.time_base;
        let step = Fraction { over: i128::from(seconds) * i128::from(under), under: i128::from(frames) * i128::from(over) };
        let step = step.in_lowest_terms();
        let count = length.by(step).ok_or_else(too_fine)?.rounded();
        bounded(u64::try_from(count).unwrap_or(u64::MAX))?;
        // The last of them is at least half a step before the end.
        let at = |k: i128| self.played_at(start.plus(k, step)?);
        (0..count).map(|k| at(k).ok_or_else(too_fine)).collect()
    }
}

fn bounded(count: u64) -> Result<(), SelectError> {
    if count > SELECTED_MAX as u64 { Err(SelectError::TooMany(count)) } else { Ok(()) }
}

/// A whole number of parts, `under` of which (above 0) are one.
#[derive(Clone, Copy, Debug)]
struct Fraction {
    over: i128,
    under: i128,
}

impl Fraction {
    fn whole(over: i128) -> Self {
        Self { over, under: 1 }
    }

    fn in_lowest_terms(self) -> Self {
        let common = gcd(self.over, self.under);
        Self { over: self.over / common, under: self.under / common }
    }

    fn floor(self) -> i128 {
        self.over.div_euclid(self.under)
    }

    fn ceil(self) -> i128 {
        self.floor() + i128::from(self.over.rem_euclid(self.under) != 0)
    }

    /// Half away from zero, as doubles are read.
    fn rounded(self) -> i128 {
        let (whole, rest) = (self.over.abs() / self.under, self.over.abs() % self.under);
        (whole + i128::from(rest >= self.under - rest)) * self.over.signum()
    }

    fn less(self, other: Self) -> Option<Self> {
        let over = self.over.checked_mul(other.under)?.checked_sub(other.over.checked_mul(self.under)?)?;
        Some(Self { over, under: self.under.checked_mul(other.under)? }.in_lowest_terms())
    }

    fn by(self, other: Self) -> Option<Self> {
        Some(Self { over: self.over.checked_mul(other.under)?, under: self.under.checked_mul(other.over)? })
    }

    /// This and `times` of `step`.
    fn plus(self, times: i128, step: Self) -> Option<Self> {
        let added = times.checked_mul(step.over)?.checked_mul(self.under)?;
        let over = self.over.checked_mul(step.under)?.checked_add(added)?;
        Some(Self { over, under: self.under.checked_mul(step.under)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, timeline: &Timeline<'_>) -> Result<Vec<u64>, SelectError> {
        text.parse::<Selector>().expect(text).resolve(timeline)
    }

    /// Ten frames of a tenth of a second from 0.5 s on, but for a pause after the fourth: 0.5 … 0.8, 1.4, 1.5 … 1.9; the end is 2.
    const PAUSED: Timeline<'_> = Timeline { pts: &[5, 6, 7, 8, 14, 15, 16, 17, 18, 19], time_base: (1, 10), end: 20 };

    /// Promise: each rule, at its boundaries: indices from both ends, `pts <= t < next pts`, `[a, b)`, `a + k / fps`, uniform.
    #[test]
    fn rules_hold_at_their_boundaries() {
        for (text, frames) in [
            ("video?frames=0,9,-1,-10,3,3,-7", &[0, 9, 9, 0, 3, 3, 3][..]),
            ("video?at=0.5", &[0]),
            ("video?at=0.599999999,0.6,0.6999,0.5", &[0, 1, 1, 0]),
            ("video?at=0.8,1.1,1.399999999,1.4,1.999999999", &[3, 3, 3, 4, 9]),
            ("video", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            ("video?from=0.5&to=2", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            ("video?to=0.7", &[0, 1]),
            ("video?to=0.700000001", &[0, 1, 2]),
            ("video?from=1.9", &[9]),
            ("video?from=0.65&to=0.75", &[1, 2]),
            ("video?from=1.1&to=1.2", &[3]),
            ("video?from=1.1&to=1.400000001", &[3, 4]),
            ("video?from=1.1&to=1.1", &[]),
            ("video?from=0.5&to=0.5", &[]),
            ("video?from=0.5&to=2&fps=2", &[0, 3, 5]),
            ("video?from=0.5&to=1.5&fps=10", &[0, 1, 2, 3, 3, 3, 3, 3, 3, 4]),
            ("video?from=0.5&to=0.7&fps=20", &[0, 0, 1, 1]),
            ("video?from=0.55&to=0.85&fps=10", &[0, 1, 2]),
            ("video?fps=1", &[0, 5]),
            ("video?from=0.5&to=1.74&fps=2", &[0, 3]),
            ("video?from=0.5&to=1.75&fps=2", &[0, 3, 5]),
            ("video?from=0.5&to=0.6&fps=4", &[]),
            ("video?from=0.5&to=0.6&fps=5", &[0]),
            ("video?uniform=1", &[0]),
            ("video?uniform=2", &[0, 9]),
            ("video?uniform=4", &[0, 3, 6, 9]),
            ("video?uniform=8", &[0, 1, 2, 3, 5, 6, 7, 9]),
            ("video?uniform=10", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            ("video?uniform=12", &[0, 0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]),
        ] {
            assert_eq!(found(text, &PAUSED).as_deref(), Ok(frames), "{text}");
        }
    }

    /// Promise: outside of the video there is nothing: no time is clamped, and the error names what would be right.
    #[test]
    fn outside_is_an_error() {
        for text in [
            "video?at=0.499999999",
            "video?at=0.5,2",
            "video?at=-1",
            "video?from=0.499999999",
            "video?from=2",
            "video?to=2.000000001",
            "video?to=0.499999999",
            "video?from=0.5&to=3&fps=1",
        ] {
            match found(text, &PAUSED) {
                Err(SelectError::Time { begin, end, .. }) => assert_eq!((begin, end), (0.5, 2.0), "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        let said = found("video?at=2", &PAUSED).expect_err("outside").to_string();
        assert_eq!(said, "time 2 s outside of the video's [0.5, 2) s");
        assert_eq!(found("video?from=1.5&to=1.4", &PAUSED), Err(SelectError::Backwards { from: 1.5, to: 1.4 }));
        for (text, frame) in
            [("video?frames=10", 10), ("video?frames=0,-11", -11), ("video?frames=-9223372036854775808", i64::MIN)]
        {
            assert_eq!(found(text, &PAUSED), Err(SelectError::Frame { frame, frames: 10 }), "{text}");
        }
    }

    /// Promise: a frame's time finds that frame, whichever way the seconds were computed and rounded, over hours of video and in every
    /// usual time base; two nanoseconds before it are the frame before.
    #[test]
    fn a_frames_time_finds_it() {
        for time_base in
            [(1, 90_000), (1001, 30_000), (1, 24_000), (1, 15_360), (1, 12_800), (1, 1000), (1, 1_000_000), (1, 44_100)]
        {
            let (over, under) = (f64::from(time_base.0), f64::from(time_base.1));
            let step = (under / over / 29.97).ceil() as i64;
            let pts: Vec<i64> = (0..4000).map(|frame| frame * step * if frame > 2000 { 30 } else { 1 }).collect();
            let timeline = Timeline { pts: &pts, time_base, end: 4000 * step * 30 };
            for (frame, &pts) in pts.iter().enumerate() {
                let frame = frame as u64;
                let one = timeline.shown(frame).expect("a frame").0;
                for seconds in [one, pts as f64 * over / under, pts as f64 * (over / under)] {
                    let at = Seconds::of(seconds).expect("seconds");
                    assert_eq!(Selector::At(vec![at]).resolve(&timeline), Ok(vec![frame]), "{seconds} in {time_base:?}");
                    if frame > 0 {
                        let before = Seconds::of_nanos(at.nanos() - 2);
                        assert_eq!(
                            Selector::At(vec![before]).resolve(&timeline),
                            Ok(vec![frame - 1]),
                            "{before} in {time_base:?}"
                        );
                    }
                }
            }
        }
    }

    /// Promise: at the video's own rate, from any of its frames, each frame comes once; no sum of doubles drifts past a boundary.
    #[test]
    fn its_own_rate_gives_each_frame_once() {
        let pts: Vec<i64> = (0..5000).map(|frame| frame * 1001).collect();
        let timeline = Timeline { pts: &pts, time_base: (1, 30_000), end: 5000 * 1001 };
        for rate in [Rate::new(30_000, 1001), Rate::of(30_000.0 / 1001.0), "29.97002997002997".parse().ok()] {
            for first in [0u64, 1, 7, 900, 901, 902] {
                let from = Seconds::of(timeline.shown(first).expect("a frame").0);
                let to = Seconds::of(timeline.shown(first + 4096).expect("a frame").0);
                let frames = Selector::Range { from, to, fps: rate }.resolve(&timeline).expect("frames");
                assert!(frames.iter().copied().eq(first..first + 4096), "{rate:?} from {first}");
            }
        }
    }

    /// Promise: no file and no request makes it allocate past its bound, wrap or panic.
    #[test]
    fn hostile_timelines_are_refused() {
        let pts: Vec<i64> = (0..5000).collect();
        let long = Timeline { pts: &pts, time_base: (1, 1), end: 5000 };
        for (text, count) in
            [("video", 5000), ("video?fps=1", 5000), ("video?fps=4294967295", 21_474_836_475_000), ("video?from=1&to=4098", 4097)]
        {
            assert_eq!(found(text, &long), Err(SelectError::TooMany(count)), "{text}");
        }
        assert_eq!(found("video?from=1&to=4097", &long).map(|frames| frames.len()), Ok(4096));
        for selector in [Selector::Frames(vec![0; 4097]), Selector::At(vec![Seconds::of_nanos(0); 4097]), Selector::Uniform(4097)]
        {
            assert_eq!(selector.resolve(&long), Err(SelectError::TooMany(4097)));
        }
        assert_eq!(Selector::Uniform(0).resolve(&long), Ok(vec![]));
        let texts = [
            "video",
            "video?at=0",
            "video?frames=0",
            "video?uniform=3",
            "video?fps=1/3",
            "video?from=0&to=1&fps=4294967295/4294967294",
        ];
        let ends = [i64::MIN, -1, 0, 1, i64::MAX];
        for text in texts {
            assert_eq!(found(text, &Timeline { pts: &[], ..PAUSED }), Err(SelectError::Empty), "{text}");
            assert_eq!(found(text, &Timeline { time_base: (0, 1), ..PAUSED }), Err(SelectError::TimeBase((0, 1))), "{text}");
            for time_base in [(1, 1), (u32::MAX, 1), (1, u32::MAX), (u32::MAX, u32::MAX - 1)] {
                for pts in [&[i64::MIN, i64::MAX][..], &[0, 0], &[5, -5], &[i64::MAX]] {
                    for end in ends {
                        let _ = found(text, &Timeline { pts, time_base, end });
                    }
                }
            }
        }
    }
}
