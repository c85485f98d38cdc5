//! A GPU as a second engine: NVDEC for videos, nvJPEG for pictures of profile `fast`. Found at run time; nothing of CUDA is needed to build
//! this program, nor to run it where there is none.
//!
//! Only workers of profile `gpu` load any of it, never the node and never another worker. Such a worker opens the device, holds it to the
//! golden samples, shuts itself in, holds it to them again (the sandbox may be what a driver cannot bear), and says what it offers. Where
//! there is none it says why, and ends.
//!
//! What the device gives for `exact` is what the CPU gives: its planes, made into RGB by the same conversion. So only codecs whose pictures
//! are fixed by their definition, only frames that were decoded without a complaint, and only where the index has hashes to compare: a
//! device conceals damage without a word.
//!
//! - `choice`: which engine; policy. `engines`: both behind the face of one.
//! - `golden`: what an engine is held to. `planes`: surfaces to planes; pure.
//! - `driver`, `library`, `nvjpeg`: what is loaded. Videos go by FFmpeg, in `video/av/cuda`.

mod choice;
mod driver;
mod engines;
mod golden;
mod library;
mod nvjpeg;
pub(super) mod planes;

use std::fmt;

use super::formats::{Input, Kind as SampleKind, Samples};
use super::image::{self, Drawing};
use super::rendition::Rendition;
use super::video::{CODECS, DecodeEnd, Hardware, Sink};
use super::{Format, Limits, Probe, probe};
use choice::Kind;
use driver::Driver;
use golden::SAMPLES;
use library::Library;
use nvjpeg::NvJpeg;

pub use engines::{EngineStats, Engines};

/// What a GPU's worker offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The device, and the driver's version.
    pub device: String,
    /// Codecs, a bit each by its place among all.
    codecs: u16,
    jpeg: bool,
    /// What it does not offer, and why.
    pub lacks: Vec<String>,
}

impl Offer {
    pub(super) fn new(device: String, codecs: u16, jpeg: bool) -> Self {
        Self { device, codecs, jpeg, lacks: Vec::new() }
    }

    fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Jpeg => self.jpeg,
            Kind::Video(codec) => place(codec).is_some_and(|place| self.codecs >> place & 1 == 1),
        }
    }

    fn set(&mut self, codec: &str, offered: bool) {
        if let Some(place) = place(codec) {
            self.codecs = self.codecs & !(1 << place) | u16::from(offered) << place;
        }
    }

    /// Codecs and JPEG, as the protocol has them.
    pub(super) fn parts(&self) -> (u16, bool) {
        (self.codecs, self.jpeg)
    }

    fn is_empty(&self) -> bool {
        self.codecs == 0 && !self.jpeg
    }
}

fn place(codec: &str) -> Option<usize> {
    CODECS.iter().position(|known| *known == codec)
}

impl fmt::Display for Offer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let videos = CODECS.iter().filter(|codec| self.has(Kind::Video(codec)));
        let all: Vec<&str> = videos.copied().chain(self.jpeg.then_some("jpeg (fast)")).collect();
        write!(out, "{}: {}", self.device, if all.is_empty() { "nothing".into() } else { all.join(", ") })
    }
}

/// A worker's device and what drives it.
pub(super) struct Equipment {
    driver: Driver,
    hardware: Hardware,
    jpeg: Option<NvJpeg>,
    offer: Offer,
}

impl Equipment {
    /// Opens the device and tries each codec; or says in words why there is none. Starts threads and opens files.
    pub(super) fn open() -> Result<Self, String> {
        let mut driver = Driver::open()?;
        // FFmpeg loads it, too, and would only say that it could not.
        Library::open(&[c"libnvcuvid.so.1"]).map_err(|why| {
            format!("{}: no video decoder: {why} (in a container, NVIDIA_DRIVER_CAPABILITIES must name `video`)", driver.name)
        })?;
        let hardware = Hardware::open().map_err(|why| format!("{}: {why}", driver.name))?;
        driver.hold().map_err(|why| format!("{}: {why}", driver.name))?;
        let offer = Offer::new(driver.name.clone(), 0, false);
        let mut equipment = Self { driver, hardware, jpeg: None, offer };
        match NvJpeg::open(&equipment.driver) {
            Ok(jpeg) => equipment.jpeg = Some(jpeg),
            Err(why) => equipment.offer.lacks.push(format!("jpeg: {why}")),
        }
        equipment.prove();
        match equipment.offer.is_empty() {
            true => Err(format!(
                "{}: decodes none of the golden samples: {}",
                equipment.offer.device,
                equipment.offer.lacks.join("; ")
            )),
            false => Ok(equipment),
        }
    }

    /// Holds the device to the golden samples; what fails is offered no more. Called again once the process is shut in.
    pub(super) fn prove(&mut self) -> &Offer {
        for codec in CODECS {
            if self.offer.lacks.iter().any(|lack| lack.split([':', ' ']).next() == Some(codec))
                && !self.offer.has(Kind::Video(codec))
            {
                continue;
            }
            let proved = self.prove_codec(codec, false);
            let is_offered = proved == Some(Ok(()));
            self.offer.set(codec, is_offered);
            if let Some(Err(why)) = proved {
                self.offer.lacks.push(format!("{codec}: {why}"));
            }
            if let Some(Err(why)) = self.prove_codec(codec, true).filter(|_| is_offered && !self.hardware.refuses_odd(codec)) {
                self.hardware.refuse_odd(codec);
                self.offer.lacks.push(format!("{codec} of odd sizes: {why}"));
            }
        }
        if self.jpeg.is_some() {
            let proved = self.prove_jpeg();
            self.offer.jpeg = proved.is_ok();
            if let Err(why) = proved {
                self.jpeg = None;
                self.offer.lacks.push(format!("jpeg: {why}"));
            }
        }
        &self.offer
    }

    /// Of the samples of a codec, those of odd sizes or the others; nothing where there are none.
    fn prove_codec(&mut self, codec: &str, is_odd: bool) -> Option<Result<(), String>> {
        let limits = Limits::default();
        let samples = SAMPLES.iter().filter(|sample| sample.codec == codec && sample.is_odd == is_odd);
        samples.map(|sample| sample.hold(&mut |package, each| self.hardware.decode(package, &limits, each))).reduce(Result::and)
    }

    /// A picture that is nowhere near libjpeg's is none.
    fn prove_jpeg(&self) -> Result<(), String> {
        let (probe, ours) = by_cpu(PICTURE)?;
        let mut theirs = vec![0; ours.len()];
        self.jpeg(PICTURE, &probe, &mut theirs)?;
        let off: u64 = ours.iter().zip(&theirs).map(|(one, other)| u64::from(one.abs_diff(*other))).sum();
        let mean = off as f64 / ours.len() as f64;
        if mean <= JPEG_OFF_MAX { Ok(()) } else { Err(format!("{mean:.1} levels off libjpeg in the mean")) }
    }

    fn jpeg(&self, jpeg: &[u8], probe: &Probe, out: &mut [u8]) -> Result<(), String> {
        let decoder = self.jpeg.as_ref().ok_or("no nvJPEG")?;
        decoder.decode(&self.driver, jpeg, (probe.width, probe.height), out)
    }

    /// Frames of a package, as the CPU gives them, or a word that it is to be asked.
    pub(super) fn clip(&mut self, package: &[u8], limits: &Limits, each: Sink<'_>) -> Result<(), DecodeEnd> {
        self.hardware.decode(package, limits, each)
    }

    /// Draws renditions of profile `fast` of a whole JPEG; `room` has three bytes for each of its pixels.
    pub(super) fn picture(
        &self,
        bytes: &[u8],
        probe: &Probe,
        room: &mut [u8],
        drawings: &mut [Drawing<'_>],
    ) -> Result<(), String> {
        if probe.format != Format::Jpeg || bytes.len() as u64 != probe.input_bytes {
            return Err("not a whole JPEG".into());
        }
        let pixels = u64::from(probe.width) * u64::from(probe.height);
        let room = usize::try_from(3 * pixels).ok().and_then(|bytes| room.get_mut(..bytes)).ok_or("no room")?;
        self.jpeg(bytes, probe, room)?;
        for drawing in drawings {
            let samples = Samples { pixels: &*room, width: probe.width, height: probe.height, kind: SampleKind::Rgb };
            drawing.rendition.draw(&samples, drawing.out);
            drawing.end = Some(Ok(()));
        }
        Ok(())
    }
}

/// The whole picture by libjpeg.
fn by_cpu(jpeg: &'static [u8]) -> Result<(Probe, Vec<u8>), String> {
    let limits = Limits::default();
    let probe = probe(jpeg, jpeg.len() as u64, &limits).map_err(|error| error.to_string())?;
    let spec = framecache::DecodeSpec::Image(Default::default());
    let rendition = Rendition::of(&spec, &probe, &limits).map_err(|error| error.to_string())?;
    let (mut room, mut out) = (vec![0; probe.decoded_bytes as usize], vec![0; rendition.bytes()]);
    let mut input: &[u8] = jpeg;
    let input: &mut dyn Input = &mut input;
    image::draw(input, &probe, &mut room, &mut [Drawing::new(&rendition, &mut out)]).map_err(|failure| format!("{failure:?}"))?;
    Ok((probe, out))
}

/// The picture that nvJPEG is held to.
const PICTURE: &[u8] = include_bytes!("../../tests/golden/jpeg/baseline420.jpg");

/// Levels that nvJPEG may be off in the mean: it interpolates chroma otherwise.
const JPEG_OFF_MAX: f64 = 4.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: where there is no driver, that is said in words, by the file that is missed, and nothing else happens.
    #[test]
    fn no_driver_is_said() {
        if std::path::Path::new("/dev/nvidiactl").exists() {
            return println!("there is a device: nothing to refuse");
        }
        let why = Equipment::open().err().expect("no device");
        assert_eq!(why, "no NVIDIA driver: libcuda.so.1 not found");
    }

    /// Promise: an offer holds what passed, by name, and survives the way over the protocol.
    #[test]
    fn offers_hold_what_passed() {
        let mut offer = Offer::new("a device".into(), 0, false);
        assert!(offer.is_empty() && offer.to_string() == "a device: nothing");
        offer.set("hevc", true);
        offer.set("av1", true);
        offer.set("cinepak", true);
        offer.set("av1", false);
        let (codecs, jpeg) = offer.parts();
        let mut offer = Offer::new("a device".into(), codecs, jpeg);
        assert!(offer.has(Kind::Video("hevc")) && !offer.has(Kind::Video("av1")) && !offer.has(Kind::Jpeg));
        offer.jpeg = true;
        assert_eq!(offer.to_string(), "a device: hevc, jpeg (fast)");
    }
}
