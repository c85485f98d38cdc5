//! A contact sheet: many pictures, or frames of videos, in rows on one PNG, so that a data set can be looked at.

use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};

use super::failure::{Failure, tell};
use super::get::{Arguments, Made, decode, frames_of};
use super::output::Output;
use super::png;
use crate::client::{Clip, FoundClip, Outcome};
use crate::error::Error;
use crate::frame::{Dtype, Layout};
use crate::object::ObjectId;
use crate::spec::{Resize, Selection};
use crate::{Call, Client, ImageSpec, Pictures};

/// Side of a tile where no spec is given, in pixels: ten fit a screen's width.
const TILE: u32 = 128;
/// Long side of a frame whose spec gives no size, in pixels: most are wide, and show whole what is played.
const FRAME: u32 = 192;
/// Width of a sheet whose columns are not given, in pixels: a common screen's. No more columns than [`COLUMNS_MAX`].
const WIDTH: usize = 1920;
const COLUMNS_MAX: usize = 10;
/// Space around each tile, in pixels.
const GAP: usize = 4;
/// Pictures that are asked for at once: enough to keep a cluster busy, few enough that the bar moves.
const BATCH: usize = 64;
/// Most bytes of a sheet, 512 MiB: about 13,000 pixels squared.
const SHEET_BYTES_MAX: usize = 512 << 20;

const PAPER: [u8; 3] = [255; 3];
const MISSING: [u8; 3] = [160; 3];
const CROSS: [u8; 3] = [96; 3];

/// One place of a sheet.
enum Tile {
    Picture { width: usize, height: usize, pixels: Box<[u8]> },
    Missing,
}

/// A picture of tiles: RGB, row-major.
#[derive(Debug, PartialEq)]
struct Sheet {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

pub(super) async fn run(arguments: &Arguments, file: &Path, client: &Client, call: &Call) -> Result<(), Failure> {
    let tile = || ImageSpec { resize: Resize::Short { side: TILE, max: None }, crop: Some(TILE), ..ImageSpec::default() };
    let made = arguments.spec.clone().unwrap_or_else(|| Made::Picture(tile()));
    if (made.image().channels(), made.image().layout, made.image().dtype) != (3, Layout::Hwc, Dtype::U8) {
        return Err(Failure::usage("a sheet is of colour pictures in 8 bits: leave out mode, alpha=keep, layout and dtype"));
    }
    let ids = objects(arguments, client, call).await?;
    if ids.is_empty() {
        return Err(Failure::usage(format!("no object under {}", arguments.uris.join(" "))));
    }
    let output = Output::open(Some(file))?;
    let tiles = match made {
        Made::Picture(spec) => pictures(&ids, &spec, client, call).await?,
        Made::Frames(selection) => frames(&ids, selection, arguments.limit as usize, client, call).await?,
    };
    tiles.bar.finish_and_clear();
    write(lay(&tiles.laid, arguments.columns.map(|columns| columns as usize))?, output)?;
    match tiles.failed {
        0 => Ok(()),
        failed => Err(Failure::items(failed, tiles.laid.len())),
    }
}

/// What is shown: the objects named, or those under the prefix, in key order.
async fn objects(arguments: &Arguments, client: &Client, call: &Call) -> Result<Vec<ObjectId>, Failure> {
    let limit = arguments.limit as usize;
    let mut ids = Vec::new();
    for uri in &arguments.uris {
        if !uri.ends_with('/') {
            ids.push(uri.parse()?);
            continue;
        }
        let mut after: Option<String> = None;
        while ids.len() < limit {
            let page = client.list(uri, after.as_deref(), (limit - ids.len()).min(1000) as u32, call).await?;
            ids.extend(page.rows.into_iter().map(|row| row.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    ids.truncate(limit);
    Ok(ids)
}

/// Decodes all.
async fn pictures(ids: &[ObjectId], spec: &ImageSpec, client: &Client, call: &Call) -> Result<Tiles, Failure> {
    let mut tiles = Tiles::new(ids.len());
    for part in ids.chunks(BATCH) {
        let (pictures, outcomes) = decode(part, spec, client, call).await;
        tiles.add(&pictures, outcomes)?;
    }
    Ok(tiles)
}

/// Decodes the frames that a selection comes to in each video, one video after the other.
async fn frames(ids: &[ObjectId], selection: Selection, limit: usize, client: &Client, call: &Call) -> Result<Tiles, Failure> {
    let Selection { frames, mut image } = selection;
    if (image.resize, image.crop, image.region) == (Resize::Keep, None, None) {
        image.resize = Resize::Max(FRAME);
    }
    let clips: Vec<Clip> = ids.iter().map(|id| Clip { id: id.clone(), frames: frames.clone() }).collect();
    let found = client.find_clips(&clips, image.stream, call).await;
    if found.iter().all(Result::is_err)
        && let Some(Err(error)) = found.first()
    {
        // A sheet of nothing but crosses would say less.
        return Err(error.clone().into());
    }
    let count: usize = found.iter().map(|found| found.as_ref().map_or(1, |clip| clip.rows.len())).sum();
    match count {
        0 => return Err(Failure::usage("the selection comes to no frame")),
        count if count > limit => {
            return Err(Failure::usage(format!(
                "the selection comes to {count} frames, and the sheet shows {limit}: raise --limit, or ask for fewer, \
                 as in video?uniform={limit}"
            )));
        }
        _ => {}
    }
    let mut tiles = Tiles::new(count);
    for found in found {
        let clip = match found {
            Ok(clip) => clip,
            Err(error) => {
                tiles.missing(error)?;
                continue;
            }
        };
        for part in clip.rows.chunks(BATCH) {
            let part = FoundClip { rows: part.to_vec(), ..clip.clone() };
            let (pictures, outcomes) = frames_of(&part, &image, 0, client, call).await;
            tiles.add(&pictures, outcomes)?;
        }
    }
    Ok(tiles)
}

/// Tiles in the order of the sheet, as far as they are there.
struct Tiles {
    laid: Vec<Tile>,
    failed: usize,
    bytes: usize,
    /// Drawn on a terminal only, and on standard error.
    bar: ProgressBar,
}

impl Tiles {
    fn new(count: usize) -> Self {
        let bar = ProgressBar::new(count as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} pictures, {eta} left") {
            bar.set_style(style);
        }
        Self { laid: Vec::new(), failed: 0, bytes: 0, bar }
    }

    /// Takes in what was decoded, and tells of each that failed.
    fn add(&mut self, pictures: &Pictures, outcomes: Vec<Outcome>) -> Result<(), Failure> {
        let count = outcomes.len();
        for (index, outcome) in outcomes.into_iter().enumerate() {
            match (outcome, pictures.head(index), pictures.pixels(index)) {
                (Ok(_), Some(head), Some(pixels)) => {
                    let [height, width, _] = head.shape.map(|side| side as usize);
                    self.bytes += pixels.len();
                    self.laid.push(Tile::Picture { width, height, pixels: pixels.into() });
                }
                (Ok(_), ..) => self.laid.push(Tile::Missing),
                (Err(error), ..) => self.missing(error)?,
            }
        }
        if self.bytes > SHEET_BYTES_MAX {
            return Err(too_large());
        }
        self.bar.inc(count as u64);
        Ok(())
    }

    fn missing(&mut self, error: Error) -> Result<(), Failure> {
        self.failed += 1;
        self.bar.suspend(|| tell(&error));
        self.laid.push(Tile::Missing);
        if error.kind.is_final() { Ok(()) } else { Err(error.into()) }
    }
}

/// Lays tiles in rows, each in the middle of a cell that holds the largest. Columns that are not given are as many as fit [`WIDTH`].
fn lay(tiles: &[Tile], columns: Option<usize>) -> Result<Sheet, Failure> {
    let sides = tiles.iter().filter_map(|tile| match tile {
        Tile::Picture { width, height, .. } => Some((*width, *height)),
        Tile::Missing => None,
    });
    let cell = sides.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1))).unwrap_or((TILE as usize, TILE as usize));
    let columns = columns.unwrap_or_else(|| ((WIDTH - GAP) / (cell.0 + GAP)).min(COLUMNS_MAX)).min(tiles.len()).max(1);
    let rows = tiles.len().div_ceil(columns);
    let (width, height) = (columns * (cell.0 + GAP) + GAP, rows * (cell.1 + GAP) + GAP);
    let bytes = width.checked_mul(height).and_then(|area| area.checked_mul(3)).filter(|&bytes| bytes <= SHEET_BYTES_MAX);
    let mut sheet = Sheet { width, height, pixels: PAPER.repeat(bytes.ok_or_else(too_large)? / 3) };
    for (index, tile) in tiles.iter().enumerate() {
        let at = (GAP + index % columns * (cell.0 + GAP), GAP + index / columns * (cell.1 + GAP));
        match tile {
            Tile::Missing => sheet.cross(at, cell),
            Tile::Picture { width, height, pixels } => {
                sheet.paste((at.0 + (cell.0 - width) / 2, at.1 + (cell.1 - height) / 2), *width, pixels);
            }
        }
    }
    Ok(sheet)
}

impl Sheet {
    fn paste(&mut self, (x, y): (usize, usize), width: usize, pixels: &[u8]) {
        for (row, line) in pixels.chunks_exact(width * 3).enumerate() {
            let at = ((y + row) * self.width + x) * 3;
            self.pixels[at..at + line.len()].copy_from_slice(line);
        }
    }

    fn cross(&mut self, (x, y): (usize, usize), (width, height): (usize, usize)) {
        for row in 0..height {
            for column in 0..width {
                let falling = (column * height).abs_diff(row * width) < 2 * width.max(height);
                let rising = ((width - 1 - column) * height).abs_diff(row * width) < 2 * width.max(height);
                let at = ((y + row) * self.width + x + column) * 3;
                self.pixels[at..at + 3].copy_from_slice(if falling || rising { &CROSS } else { &MISSING });
            }
        }
    }
}

fn write(sheet: Sheet, mut output: Output) -> Result<(), Failure> {
    let mut file = Vec::new();
    let encoded = png::write(&mut file, [sheet.height as u32, sheet.width as u32, 3], &sheet.pixels);
    encoded.map_err(|error| Failure::usage(format!("cannot encode the sheet: {error}")))?;
    output.write(&file)?;
    output.done()
}

fn too_large() -> Failure {
    Failure::usage("the sheet would pass 512 MiB: lower --limit, or give a --spec with smaller pictures")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: usize, height: usize, value: u8) -> Tile {
        Tile::Picture { width, height, pixels: vec![value; width * height * 3].into() }
    }

    fn pixel(sheet: &Sheet, x: usize, y: usize) -> u8 {
        sheet.pixels[(y * sheet.width + x) * 3]
    }

    /// Promise: every tile has its place, smaller ones in the middle of it; what is missing is seen to be missing.
    #[test]
    fn tiles_lie_in_rows() {
        let sheet = lay(&[picture(8, 8, 1), picture(4, 2, 2), Tile::Missing], Some(2)).expect("sheet");
        assert_eq!((sheet.width, sheet.height), (2 * 12 + 4, 2 * 12 + 4));
        assert_eq!((pixel(&sheet, 3, 4), pixel(&sheet, 4, 4), pixel(&sheet, 11, 11), pixel(&sheet, 12, 11)), (255, 1, 1, 255));
        assert_eq!((pixel(&sheet, 17, 7), pixel(&sheet, 18, 7), pixel(&sheet, 18, 9)), (255, 2, 255));
        assert_eq!((pixel(&sheet, 4, 16), pixel(&sheet, 8, 16), pixel(&sheet, 16, 16)), (CROSS[0], MISSING[0], 255));
    }

    /// Promise: where columns are not given, a sheet fits a screen, whatever its tiles; ten small ones are enough.
    #[test]
    fn sheets_fit_a_screen() {
        let width = |tile: usize| {
            let tiles: Vec<Tile> = (0..40).map(|_| picture(tile, 2, 1)).collect();
            lay(&tiles, None).expect("sheet").width
        };
        assert_eq!((width(4), width(128), width(192)), (10 * 8 + 4, 10 * 132 + 4, 9 * 196 + 4));
        assert_eq!((width(455), width(1916), width(3000)), (4 * 459 + 4, 1924, 3008));
    }

    /// Promise: a sheet has a bound, and one of broken pictures alone is still a sheet.
    #[test]
    fn sheets_are_bounded() {
        let large: Vec<Tile> = (0..100).map(|_| Tile::Missing).chain([picture(20_000, 1, 1), picture(1, 20_000, 1)]).collect();
        assert!(lay(&large, None).is_err());
        assert_eq!(lay(&[Tile::Missing], Some(10)).map(|sheet| sheet.width), Ok(TILE as usize + 2 * GAP));
    }
}
