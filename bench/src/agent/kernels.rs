//! Resizes alone, on one thread, by the kernels of one instruction set or by another crate; the CPU of that thread is what counts.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions};
use framecache::pixels::{Filter, Isa, Plan, Resizer, Source, Window};
use serde::{Deserialize, Serialize};

use super::{Questions, say};
use crate::levels::Levels;
use crate::meter::thread_cpu;

/// One resize: of which picture, to what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// What it is called.
    pub name: String,
    /// File of the samples, rows from the top.
    pub source: PathBuf,
    pub width: usize,
    pub height: usize,
    pub channels: usize,
    /// `bilinear`, `bicubic` or `lanczos`.
    pub filter: String,
    /// Width and height of the whole result.
    pub to: [usize; 2],
    /// The part of the result that is wanted, `x, y, width, height`; all of it if not given.
    pub window: Option<[usize; 4]>,
}

/// Who resizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kernel {
    /// Framecache, plain Rust.
    Scalar,
    /// Framecache, AVX2.
    Avx2,
    /// Framecache, AVX-512 with VNNI.
    Vnni,
    /// The crate `fast_image_resize`, by the best it has for this processor: on x86-64 AVX2.
    FastImageResize,
}

/// What the parent asks.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ask {
    pub case: usize,
    pub kernel: Kernel,
    pub times: usize,
    /// A file that says what the bytes should be.
    pub right: Option<PathBuf>,
}

/// What it is told.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Told {
    /// CPU-seconds of all times.
    pub seconds: f64,
    /// How far from what the file says.
    pub levels: Levels,
}

impl Kernel {
    /// All of them, slowest first.
    pub const ALL: [Kernel; 4] = [Self::Scalar, Self::Avx2, Self::Vnni, Self::FastImageResize];

    /// Whether this processor can.
    pub fn is_here(self) -> bool {
        let isa = self.isa().unwrap_or(Isa::Scalar);
        Isa::available().any(|one| one == isa)
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "AVX2",
            Self::Vnni => "AVX-512",
            Self::FastImageResize => "fast_image_resize",
        }
    }

    fn isa(self) -> Option<Isa> {
        match self {
            Self::Scalar => Some(Isa::Scalar),
            Self::Avx2 => Some(Isa::Avx2),
            Self::Vnni => Some(Isa::Vnni),
            Self::FastImageResize => None,
        }
    }
}

impl Case {
    fn window(&self) -> Window {
        let [x, y, width, height] = self.window.unwrap_or([0, 0, self.to[0], self.to[1]]);
        Window { x, y, width, height }
    }

    /// Bytes of the result.
    fn bytes(&self) -> usize {
        let Window { width, height, .. } = self.window();
        width * height * self.channels
    }
}

/// Answers until its parent goes.
pub(super) async fn play(cases: Vec<Case>) -> Result<()> {
    let pictures = cases.iter().map(|case| std::fs::read(&case.source)).collect::<std::io::Result<Vec<_>>>()?;
    let mut bench = Bench::default();
    let mut questions = Questions::listen();
    while let Some(ask) = questions.next::<Ask>().await? {
        let (case, pixels) = (&cases[ask.case], &pictures[ask.case]);
        let mut out = vec![0; case.bytes()];
        let seconds = match ask.kernel.isa() {
            Some(isa) => bench.own(isa, case, pixels, ask.times, &mut out)?,
            None => bench.foreign(case, pixels, ask.times, &mut out)?,
        };
        let right = ask.right.map(std::fs::read).transpose()?;
        say(&Told { seconds, levels: right.map_or(Levels::default(), |right| Levels::between(&out, &right)) })?;
    }
    Ok(())
}

/// What either keeps between calls, as a decoder that runs for long does.
#[derive(Default)]
struct Bench {
    own: Resizer,
    foreign: fast_image_resize::Resizer,
}

impl Bench {
    fn own(&mut self, isa: Isa, case: &Case, pixels: &[u8], times: usize, out: &mut [u8]) -> Result<f64> {
        let filter = match &*case.filter {
            "bilinear" => Filter::Bilinear,
            "bicubic" => Filter::Bicubic,
            _ => Filter::Lanczos,
        };
        let source = Source { pixels, width: case.width, height: case.height, channels: case.channels };
        let plan = Plan { size: (case.to[0], case.to[1]), region: None, window: case.window(), filter };
        plan.check(&source)?;
        let begun = thread_cpu();
        for _ in 0..times {
            self.own.resize_with(isa, &source, &plan, out);
        }
        Ok(thread_cpu() - begun)
    }

    /// It has no window of the result; the part of the source below one, which it takes instead, gives the same picture but for
    /// what a filter sees behind that part's border.
    fn foreign(&mut self, case: &Case, pixels: &[u8], times: usize, out: &mut [u8]) -> Result<f64> {
        let kind = if case.channels == 1 { PixelType::U8 } else { PixelType::U8x3 };
        let filter = match &*case.filter {
            "bilinear" => FilterType::Bilinear,
            "bicubic" => FilterType::CatmullRom,
            _ => FilterType::Lanczos3,
        };
        let Window { x, y, width, height } = case.window();
        let source = ImageRef::new(case.width as u32, case.height as u32, pixels, kind)?;
        let mut made = Image::from_slice_u8(width as u32, height as u32, out, kind)?;
        let across = case.width as f64 / case.to[0] as f64;
        let down = case.height as f64 / case.to[1] as f64;
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter));
        let options = options.crop(x as f64 * across, y as f64 * down, width as f64 * across, height as f64 * down);
        let begun = thread_cpu();
        for _ in 0..times {
            self.foreign.resize(&source, &mut made, &options).context("fast_image_resize")?;
        }
        let seconds = thread_cpu() - begun;
        ensure!(made.width() as usize == width, "another size");
        Ok(seconds)
    }
}
