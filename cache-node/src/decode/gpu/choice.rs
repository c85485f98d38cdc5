//! Which engine decodes a unit: values in, an answer out; and the rates that it goes by, as they were measured here.
//!
//! A GPU is not faster at everything: of small frames, setting up and fetching pixels takes longer than a core takes to decode them. So
//! nothing is sent there by rule; each engine's seconds for a million pixels are kept by codec and size of frame, and the sooner is chosen.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::super::Engine;

/// What is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::decode) enum Kind {
    /// A video's unit, by its codec's name.
    Video(&'static str),
    /// A JPEG.
    Jpeg,
}

/// Frames by their size: rates differ from one class to the next, and little within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::decode) enum Class {
    /// Up to half a megapixel: 854x480.
    Small,
    /// Up to 1.2: 1280x720.
    Middle,
    /// Up to 4: 1920x1080, 2560x1440.
    Large,
    /// More: 3840x2160.
    Huge,
}

impl Class {
    pub(in crate::decode) fn of(width: u32, height: u32) -> Self {
        match u64::from(width) * u64::from(height) {
            0..=500_000 => Self::Small,
            500_001..=1_200_000 => Self::Middle,
            1_200_001..=4_000_000 => Self::Large,
            _ => Self::Huge,
        }
    }
}

/// A unit that somebody wants.
#[derive(Clone, Copy, Debug)]
pub(in crate::decode) struct Unit {
    pub(in crate::decode) kind: Kind,
    pub(in crate::decode) class: Class,
    /// Pixels of all that is decoded on the way, in millions.
    pub(in crate::decode) megapixels: f64,
    /// Whether the pixels are to be those of the definition.
    pub(in crate::decode) is_exact: bool,
    /// Whether each frame is compared with one that was seen sound.
    pub(in crate::decode) is_vouched: bool,
    /// Whether damaged frames are wanted as the CPU conceals them.
    pub(in crate::decode) damaged_keep: bool,
}

/// How an engine stands.
#[derive(Clone, Copy, Debug)]
pub(in crate::decode) struct Standing {
    /// Units inside.
    pub(in crate::decode) inside: usize,
    /// How many are decoded side by side.
    pub(in crate::decode) workers: usize,
    /// Seconds for a million pixels of such a unit, without waiting.
    pub(in crate::decode) pace: f64,
}

impl Standing {
    fn expected(&self, megapixels: f64) -> f64 {
        let ahead = (self.inside / self.workers.max(1)) as f64;
        self.pace * megapixels.max(MEGAPIXELS_MIN) * (1.0 + ahead)
    }
}

/// Where a unit is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::decode) enum Choice {
    /// On the GPU first.
    Gpu,
    /// On the CPU, and why.
    Cpu(Why),
}

/// Why a unit that a GPU might have decoded was decoded by the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::decode) enum Why {
    /// The device does not decode that codec, or failed its golden samples.
    NotOffered,
    /// The codec's definition leaves its decoder's arithmetic open, or the device's is another: only `fast` may have it.
    Inexact,
    /// The index holds nothing to compare its frames with, or was made of a damaged stream. A device conceals damage without a word, and
    /// `exact` may have no such frame.
    Unproved,
    /// Damaged frames were wanted, which every decoder conceals in its own way.
    Damaged,
    /// The GPU failed a moment ago.
    Rests,
    /// The CPU is sooner done.
    Sooner,
    /// The GPU tried, and its device refused the stream.
    Refused,
    /// The GPU tried, and something was wrong: what, the CPU says.
    Failed,
    /// The GPU had no place for it.
    Busy,
}

impl Why {
    pub(in crate::decode) const ALL: [Self; 9] = [
        Self::NotOffered,
        Self::Inexact,
        Self::Unproved,
        Self::Damaged,
        Self::Rests,
        Self::Sooner,
        Self::Refused,
        Self::Failed,
        Self::Busy,
    ];

    /// As a metric's label.
    pub(in crate::decode) fn name(self) -> &'static str {
        match self {
            Self::NotOffered => "not_offered",
            Self::Inexact => "inexact",
            Self::Unproved => "unproved",
            Self::Damaged => "damaged",
            Self::Rests => "rests",
            Self::Sooner => "sooner",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Busy => "busy",
        }
    }
}

/// Codecs whose pictures are the same from every decoder that keeps to their definition. MPEG-1, -2 and -4 leave the inverse transform's
/// rounding open, so that a device may differ where a few golden samples did not show it.
pub(in crate::decode) const EXACT: [&str; 5] = ["h264", "hevc", "vp8", "vp9", "av1"];

/// Chooses the engine. `is_offered`: the device decodes this kind, and passed its samples; `rests`: it failed a moment ago.
pub(in crate::decode) fn choose(unit: &Unit, is_offered: bool, rests: bool, cpu: &Standing, gpu: &Standing) -> Choice {
    let is_same = match unit.kind {
        Kind::Video(codec) => EXACT.contains(&codec),
        Kind::Jpeg => false,
    };
    match () {
        () if !is_offered => Choice::Cpu(Why::NotOffered),
        () if unit.is_exact && !is_same => Choice::Cpu(Why::Inexact),
        () if unit.is_exact && !unit.is_vouched => Choice::Cpu(Why::Unproved),
        () if unit.damaged_keep => Choice::Cpu(Why::Damaged),
        () if rests => Choice::Cpu(Why::Rests),
        () if gpu.expected(unit.megapixels) < cpu.expected(unit.megapixels) => Choice::Gpu,
        () => Choice::Cpu(Why::Sooner),
    }
}

/// A unit of a few pixels still is handed over and back.
const MEGAPIXELS_MIN: f64 = 0.05;

/// What one more unit weighs in the running mean: an eighth forgets a burst after a dozen.
const WEIGHT: f64 = 1.0 / 8.0;

/// How long a rate is believed without another unit. Then the start value counts again, so that an engine that was slow once is tried.
const AGE: Duration = Duration::from_secs(60);

/// What was measured. Bounded by its keys: two engines, eleven kinds, four classes.
#[derive(Debug, Default)]
pub(in crate::decode) struct Rates(HashMap<(Engine, Kind, Class), (f64, Instant)>);

impl Rates {
    /// Seconds for a million pixels: measured, or the start value.
    pub(in crate::decode) fn pace(&self, engine: Engine, kind: Kind, class: Class, now: Instant) -> f64 {
        match self.0.get(&(engine, kind, class)) {
            Some((pace, at)) if now.saturating_duration_since(*at) < AGE => *pace,
            _ => start(engine, kind, class),
        }
    }

    /// A unit took so long, and waited for no other.
    pub(in crate::decode) fn measured(&mut self, engine: Engine, unit: &Unit, took: Duration, now: Instant) {
        let pace = took.as_secs_f64() / unit.megapixels.max(MEGAPIXELS_MIN);
        let before = self.pace(engine, unit.kind, unit.class, now);
        self.0.insert((engine, unit.kind, unit.class), (before + (pace - before) * WEIGHT, now));
    }
}

/// Where nothing is measured yet: of the CPU, what one core did here; of a GPU, what others published (three times a core's pace at 1080p,
/// a fifth of it below 540p). Wrong ones are found out by the first twenty units.
fn start(engine: Engine, kind: Kind, class: Class) -> f64 {
    let core = match kind {
        Kind::Video("hevc") => 0.012,
        Kind::Video(_) => 0.010,
        Kind::Jpeg => 0.012,
    };
    match (engine, class) {
        (Engine::Cpu, _) => core,
        (Engine::Gpu, Class::Small) => 5.0 * core,
        (Engine::Gpu, Class::Middle) => core,
        (Engine::Gpu, Class::Large) => core / 3.0,
        (Engine::Gpu, Class::Huge) => core / 4.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(kind: Kind, (width, height): (u32, u32), frames: u32) -> Unit {
        let megapixels = f64::from(width) * f64::from(height) * f64::from(frames) / 1e6;
        Unit { kind, class: Class::of(width, height), megapixels, is_exact: true, is_vouched: true, damaged_keep: false }
    }

    fn standing(rates: &Rates, engine: Engine, unit: &Unit, (inside, workers): (usize, usize)) -> Standing {
        Standing { inside, workers, pace: rates.pace(engine, unit.kind, unit.class, Instant::now()) }
    }

    /// Promise: without measurements large frames go to the GPU and small ones do not; queues count; what is not the same pixels never
    /// goes there for `exact`.
    #[test]
    fn engines_are_chosen_by_table() {
        let h264 = Kind::Video("h264");
        let rates = Rates::default();
        let idle = (0, 4);
        for (kind, size, cpu, gpu, want) in [
            (h264, (640, 360), idle, idle, Choice::Cpu(Why::Sooner)),
            (h264, (640, 360), (19, 4), idle, Choice::Cpu(Why::Sooner)),
            (h264, (640, 360), (20, 4), idle, Choice::Gpu),
            (h264, (1280, 720), idle, idle, Choice::Cpu(Why::Sooner)),
            (h264, (1280, 720), (4, 4), idle, Choice::Gpu),
            (h264, (1920, 1080), idle, idle, Choice::Gpu),
            (h264, (1920, 1080), idle, (7, 4), Choice::Gpu),
            (h264, (1920, 1080), idle, (12, 4), Choice::Cpu(Why::Sooner)),
            (h264, (3840, 2160), idle, idle, Choice::Gpu),
            (Kind::Video("av1"), (3840, 2160), idle, idle, Choice::Gpu),
            (Kind::Video("mpeg2video"), (1920, 1080), idle, idle, Choice::Cpu(Why::Inexact)),
            (Kind::Video("mpeg4"), (1920, 1080), idle, idle, Choice::Cpu(Why::Inexact)),
            (Kind::Jpeg, (4000, 3000), idle, idle, Choice::Cpu(Why::Inexact)),
        ] {
            let unit = unit(kind, size, 12);
            let of = |engine, load| standing(&rates, engine, &unit, load);
            let got = choose(&unit, true, false, &of(Engine::Cpu, cpu), &of(Engine::Gpu, gpu));
            assert_eq!(got, want, "{kind:?} {size:?} cpu {cpu:?} gpu {gpu:?}");
        }
        let exact = unit(h264, (3840, 2160), 12);
        let of = |engine| standing(&rates, engine, &exact, idle);
        let with = |unit: Unit, offered, rests| choose(&unit, offered, rests, &of(Engine::Cpu), &of(Engine::Gpu));
        assert_eq!(with(exact, false, false), Choice::Cpu(Why::NotOffered));
        assert_eq!(with(exact, true, true), Choice::Cpu(Why::Rests));
        assert_eq!(with(Unit { damaged_keep: true, ..exact }, true, false), Choice::Cpu(Why::Damaged));
        assert_eq!(with(Unit { is_vouched: false, ..exact }, true, false), Choice::Cpu(Why::Unproved));
        let fast = Unit { kind: Kind::Jpeg, is_exact: false, is_vouched: false, ..exact };
        assert_eq!(with(fast, true, false), Choice::Gpu);
        assert_eq!(with(Unit { kind: Kind::Video("mpeg2video"), ..fast }, true, false), Choice::Gpu);
    }

    /// Promise: what is measured moves the choice within twenty units, for that codec and size alone, and is forgotten after a minute.
    #[tokio::test(start_paused = true)]
    async fn rates_are_measured() {
        let mut rates = Rates::default();
        let (large, small) = (unit(Kind::Video("h264"), (1920, 1080), 12), unit(Kind::Video("h264"), (640, 360), 12));
        let choice = |rates: &Rates, unit: &Unit| {
            let of = |engine| standing(rates, engine, unit, (0, 4));
            choose(unit, true, false, &of(Engine::Cpu), &of(Engine::Gpu))
        };
        assert_eq!((choice(&rates, &large), choice(&rates, &small)), (Choice::Gpu, Choice::Cpu(Why::Sooner)));
        for _ in 0..12 {
            rates.measured(Engine::Gpu, &large, Duration::from_millis(500), Instant::now());
        }
        assert_eq!((choice(&rates, &large), choice(&rates, &small)), (Choice::Cpu(Why::Sooner), Choice::Cpu(Why::Sooner)));
        for _ in 0..20 {
            rates.measured(Engine::Gpu, &small, Duration::from_millis(10), Instant::now());
        }
        let hevc = unit(Kind::Video("hevc"), (1920, 1080), 12);
        assert_eq!((choice(&rates, &large), choice(&rates, &small)), (Choice::Cpu(Why::Sooner), Choice::Gpu));
        assert_eq!(choice(&rates, &hevc), Choice::Gpu);
        tokio::time::advance(AGE).await;
        assert_eq!((choice(&rates, &large), choice(&rates, &small)), (Choice::Gpu, Choice::Cpu(Why::Sooner)));
    }

    /// Promise: sizes fall where the words say.
    #[test]
    fn sizes_have_classes() {
        for (size, class) in [
            ((1, 1), Class::Small),
            ((854, 480), Class::Small),
            ((1280, 720), Class::Middle),
            ((1920, 1080), Class::Large),
            ((2560, 1440), Class::Large),
            ((3840, 2160), Class::Huge),
            ((u32::MAX, u32::MAX), Class::Huge),
        ] {
            assert_eq!(Class::of(size.0, size.1), class, "{size:?}");
        }
    }
}
