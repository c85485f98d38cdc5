//! `framecache get`: raw bytes, one decoded picture, frames of a video, or many of either on one sheet.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;

use super::failure::Failure;
use super::output::Output;
use super::{npy, png, sheet};
use crate::client::{Clip, ClipSlots, FoundClip, Outcome};
use crate::error::{Error, ErrorKind};
use crate::frame::{Dtype, Layout};
use crate::object::SPAN_BYTES;
use crate::spec::{Selection, Selector, SpecError};
use crate::{Batch, Call, Client, DecodeSpec, ImageSpec, ObjectId, Pictures};

/// Bytes that are asked for at once: a span has one owner, and a file of any size passes through this much memory.
const PART_BYTES: u64 = SPAN_BYTES;

const EXAMPLES: &str = "\
Examples:
  framecache get s3://photos/a.jpg -o a.jpg                             the raw bytes
  framecache get s3://photos/a.jpg --range 0-16 | xxd                   the first 16 of them
  framecache get s3://photos/a.jpg --spec 'image?short=256' -o a.png    decoded, as PNG
  framecache get s3://photos/a.jpg --spec image -o a.npy                decoded, for numpy.load
  framecache get s3://clips/a.mp4 --spec 'video?frames=0,8' -o a.npy    frames of a video or an animation
  framecache get s3://photos/ --contact-sheet sheet.png --limit 200     many on one sheet
  framecache get 'video?fps=2&from=1.5&to=4' s3://clips/a.mp4 --contact-sheet sheet.png
                                                                        frames of a video on one sheet";

/// Get an object's raw bytes, a decoded picture, frames of a video, or a sheet of many
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Object, s3://BUCKET/KEY; for a contact sheet several of them, or one prefix that ends in /. A spec may stand before them
    #[arg(required = true, value_name = "URI")]
    pub uris: Vec<String>,
    /// File to write; - is standard output
    #[arg(short, long, value_name = "FILE", conflicts_with = "contact_sheet")]
    pub output: Option<PathBuf>,
    /// Raw bytes from A up to, not including, B; A- is to the end
    #[arg(long, value_name = "A-B", value_parser = range, conflicts_with_all = ["spec", "contact_sheet"])]
    pub range: Option<(u64, Option<u64>)>,
    /// Decode by this spec, e.g. 'image?short=256&crop=224', 'video?frames=0,8&short=256', 'video?fps=2&from=1.5&to=4',
    /// 'video?uniform=16'
    #[arg(long)]
    pub spec: Option<Made>,
    /// Form of a decoded picture; by the file's extension if not given, else PNG
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Put many pictures on one sheet, a PNG file; broken ones are gray with a cross
    #[arg(long, value_name = "FILE")]
    pub contact_sheet: Option<PathBuf>,
    /// Most pictures on the sheet
    #[arg(long, default_value_t = 100, requires = "contact_sheet", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Pictures in one row of the sheet; if not given as many as fit 1,920 pixels, ten at most
    #[arg(long, requires = "contact_sheet", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub columns: Option<u32>,
}

/// What is made of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Made {
    /// A picture.
    Picture(ImageSpec),
    /// Frames of a video or an animation.
    Frames(Selection),
}

impl FromStr for Made {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text == "video" || text.starts_with("video?") {
            return text.parse().map(Self::Frames);
        }
        match text.parse()? {
            DecodeSpec::Image(image) => Ok(Self::Picture(image)),
            DecodeSpec::Video(_) => Err(SpecError::Form(text.into())),
        }
    }
}

impl Made {
    /// How each picture is made.
    pub(super) fn image(&self) -> &ImageSpec {
        match self {
            Self::Picture(image) => image,
            Self::Frames(selection) => &selection.image,
        }
    }
}

/// Form of a decoded picture.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A PNG file.
    Png,
    /// numpy's array file, uint8 (uint16 by dtype=u16) [height, width, channels].
    Npy,
}

impl Arguments {
    pub(super) async fn run(mut self, client: &Client, call: &Call) -> Result<(), Failure> {
        self.take_spec()?;
        if self.format.is_some() && self.spec.is_none() {
            return Err(Failure::usage("--format is of a decoded picture: it wants a --spec"));
        }
        if let Some(file) = &self.contact_sheet {
            return sheet::run(&self, file, client, call).await;
        }
        let [uri] = &self.uris[..] else {
            return Err(Failure::usage("several objects want --contact-sheet"));
        };
        if uri.ends_with('/') {
            return Err(Failure::usage(format!(
                "{uri} is a prefix, not an object: `framecache ls` lists it, --contact-sheet shows it"
            )));
        }
        let id: ObjectId = uri.parse()?;
        match &self.spec {
            None => self.raw(&id, client, call).await,
            Some(spec) => self.pixels(&id, spec, client, call).await,
        }
    }

    /// The spec may stand before the objects: no address begins as one does.
    fn take_spec(&mut self) -> Result<(), Failure> {
        let is_spec = |text: &String| ["image", "video"].contains(&text.split('?').next().unwrap_or(""));
        if !self.uris.first().is_some_and(is_spec) {
            return Ok(());
        }
        let spec = self.uris.remove(0);
        if self.uris.is_empty() {
            return Err(Failure::usage(format!("{spec} is a spec: want an object behind it")));
        }
        if self.spec.is_some() || self.range.is_some() {
            return Err(Failure::usage(format!("{spec} goes with neither --spec nor --range")));
        }
        self.spec = Some(spec.parse()?);
        Ok(())
    }

    async fn raw(&self, id: &ObjectId, client: &Client, call: &Call) -> Result<(), Failure> {
        let mut output = Output::open(self.output.as_deref())?;
        let (mut at, end) = self.range.unwrap_or((0, None));
        let mut version = None;
        loop {
            let wanted = end.map_or(PART_BYTES, |end| (end - at).min(PART_BYTES));
            let part = client.read(id, at, Some(wanted), call).await?;
            let pinned = version.get_or_insert_with(|| part.version.clone());
            if *pinned != part.version {
                let message = format!("version {pinned}, then {}", part.version);
                return Err(Error::new(ErrorKind::Changed, message).about(id).into());
            }
            output.write(&part.bytes)?;
            at += part.bytes.len() as u64;
            if at >= end.unwrap_or(u64::MAX).min(part.size) {
                return output.done();
            }
        }
    }

    async fn pixels(&self, id: &ObjectId, spec: &Made, client: &Client, call: &Call) -> Result<(), Failure> {
        let format = self.format.unwrap_or_else(|| by_extension(self.output.as_deref()));
        if format == Format::Png && spec.image().layout != Layout::Hwc {
            return Err(Failure::usage("a PNG's channels come last: leave out layout=chw, or write to a .npy file"));
        }
        if format == Format::Png && spec.image().dtype != Dtype::U8 {
            return Err(Failure::usage("a PNG here has 8 bits a channel: leave out dtype=u16, or write to a .npy file"));
        }
        let is_one = |count: usize| count == 1 || format != Format::Png;
        let several = |count| {
            Failure::usage(format!(
                "a PNG holds one frame, not {count}: ask for one, write to a .npy file, or use --contact-sheet"
            ))
        };
        if let Made::Frames(Selection { frames: Selector::Frames(frames), .. }) = spec
            && !is_one(frames.len())
        {
            return Err(several(frames.len()));
        }
        let mut output = Output::open(self.output.as_deref())?;
        let (pictures, outcomes) = match spec {
            Made::Picture(image) => decode(std::slice::from_ref(id), image, client, call).await,
            Made::Frames(Selection { frames, image }) => {
                let clip = Clip { id: id.clone(), frames: frames.clone() };
                let found = client.find_clips(&[clip], image.stream, call).await.into_iter().collect::<Result<Vec<_>, _>>()?;
                match found.iter().map(|clip| clip.rows.len()).sum::<usize>() {
                    0 => return Err(Failure::usage("the selection comes to no frame")),
                    count if !is_one(count) => return Err(several(count)),
                    _ => {}
                }
                frames_of(&found[0], image, client.config().memory, client, call).await
            }
        };
        outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
        let one = || Some((pictures.head(0)?.shape, pictures.pixels(0)?));
        let found = if pictures.len() == 1 { one() } else { pictures.block() };
        let Some((shape, pixels)) = found else {
            return Err(Failure::usage("the frames pass the client's memory together: ask for fewer"));
        };
        let mut sides: Vec<usize> = shape.iter().map(|&side| side as usize).collect();
        if matches!(spec, Made::Frames(_)) {
            sides.insert(0, pictures.len());
        }
        let mut file = Vec::new();
        let encoded = match format {
            Format::Png => png::write(&mut file, shape, pixels),
            Format::Npy => npy::write(&mut file, &sides, spec.image().dtype, pixels),
        };
        encoded.map_err(|error| Failure::usage(format!("cannot encode the picture: {error}")))?;
        output.write(&file)?;
        output.done()
    }
}

/// Decodes pictures of one request.
pub(super) async fn decode(ids: &[ObjectId], spec: &ImageSpec, client: &Client, call: &Call) -> (Pictures, Vec<Outcome>) {
    // Of several sizes each gets memory of its own: the block is made on a guess that would be wrong.
    let block_bytes = if spec.fixed_output().is_some() || ids.len() == 1 { client.config().memory } else { 0 };
    let batch = Batch::new(ids.len(), block_bytes);
    let outcomes = client.images(ids, spec, &batch, call).await;
    (batch.finish(), outcomes)
}

/// Decodes the frames of a clip. Up to `block_bytes` of them are one array.
pub(super) async fn frames_of(
    clip: &FoundClip,
    spec: &ImageSpec,
    block_bytes: u64,
    client: &Client,
    call: &Call,
) -> (Pictures, Vec<Outcome>) {
    let batch = Batch::new(clip.rows.len(), block_bytes);
    let slots = ClipSlots { clip, batch: &batch, first: 0 };
    let outcomes = client.clips(&[slots], spec, call).await.into_iter().flatten().collect();
    (batch.finish(), outcomes)
}

fn by_extension(file: Option<&Path>) -> Format {
    match file.and_then(Path::extension).is_some_and(|extension| extension.eq_ignore_ascii_case("npy")) {
        true => Format::Npy,
        false => Format::Png,
    }
}

fn range(text: &str) -> Result<(u64, Option<u64>), String> {
    let wrong = || format!("{text:?} is no range: want A-B with A below B, or A-");
    let (start, end) = text.split_once('-').ok_or_else(wrong)?;
    let start = start.parse().map_err(|_| wrong())?;
    match end {
        "" => Ok((start, None)),
        end => end.parse().ok().filter(|&end| end > start).map(|end| (start, Some(end))).ok_or_else(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a range is half open, may be open at its end, and is never empty or reversed.
    #[test]
    fn ranges() {
        assert_eq!(range("0-16"), Ok((0, Some(16))));
        assert_eq!(range("5-"), Ok((5, None)));
        for text in ["", "-", "-5", "5", "5-5", "6-5", "a-b", "1-2-3"] {
            assert!(range(text).is_err(), "{text}");
        }
    }

    /// Promise: a spec is of pictures or of frames, and each is refused where it is wrong.
    #[test]
    fn specs() {
        assert!(matches!("image?short=9".parse(), Ok(Made::Picture(_))));
        for text in ["video", "video?fps=2&from=1.5&to=4&short=256", "video?frames=-1", "video?uniform=3", "video?at=1"] {
            assert!(matches!(text.parse(), Ok(Made::Frames(_))), "{text}");
        }
        for text in ["video?short", "videos", "video?layout=planes&short=9", "image?fps=2", "image?layout=planes", ""] {
            assert!(text.parse::<Made>().is_err(), "{text}");
        }
    }

    /// Promise: the form follows the file's name.
    #[test]
    fn forms() {
        let form = |name: &str| by_extension(Some(Path::new(name)));
        assert_eq!(
            (form("a.NPY"), form("a.png"), form("a"), by_extension(None)),
            (Format::Npy, Format::Png, Format::Png, Format::Png)
        );
    }
}
