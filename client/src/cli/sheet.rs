//! A contact sheet: many pictures in rows on one PNG, so that a data set can be looked at.

use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};

use super::failure::{Failure, tell};
use super::get::{Arguments, decode};
use super::output::Output;
use super::png;
use crate::frame::Layout;
use crate::object::ObjectId;
use crate::spec::Resize;
use crate::{Call, Client, DecodeSpec, ImageSpec};

/// Side of a tile where no spec is given, in pixels: ten fit a screen's width.
const TILE: u32 = 128;
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
pub(super) enum Tile {
    Picture { width: usize, height: usize, pixels: Box<[u8]> },
    Missing,
}

/// A picture of tiles: RGB, row-major.
#[derive(Debug, PartialEq)]
pub(super) struct Sheet {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

pub(super) async fn run(arguments: &Arguments, file: &Path, client: &Client, call: &Call) -> Result<(), Failure> {
    let spec = match arguments.spec.clone() {
        None => ImageSpec { resize: Resize::Short { side: TILE, max: None }, crop: Some(TILE), ..ImageSpec::default() },
        Some(DecodeSpec::Image(spec)) => spec,
        Some(_) => return Err(Failure::usage("a contact sheet shows pictures: want a --spec that begins with image")),
    };
    if (spec.channels(), spec.layout) != (3, Layout::Hwc) {
        return Err(Failure::usage("a sheet is of colour pictures: leave out mode, alpha=keep and layout"));
    }
    let ids = objects(arguments, client, call).await?;
    if ids.is_empty() {
        return Err(Failure::usage(format!("no object under {}", arguments.uris.join(" "))));
    }
    let output = Output::open(Some(file))?;
    let (tiles, failed) = tiles(&ids, &spec, client, call).await?;
    write(lay(&tiles, arguments.columns as usize)?, output)?;
    match failed {
        0 => Ok(()),
        failed => Err(Failure::items(failed, ids.len())),
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

/// Decodes all, and tells of each that failed.
async fn tiles(ids: &[ObjectId], spec: &ImageSpec, client: &Client, call: &Call) -> Result<(Vec<Tile>, usize), Failure> {
    // Drawn on a terminal only, and on standard error.
    let bar = ProgressBar::new(ids.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} pictures, {eta} left") {
        bar.set_style(style);
    }
    let (mut tiles, mut failed, mut bytes) = (Vec::new(), 0, 0);
    for part in ids.chunks(BATCH) {
        let (pictures, outcomes) = decode(part, spec, client, call).await;
        for (index, outcome) in outcomes.into_iter().enumerate() {
            let tile = match (pictures.head(index), pictures.pixels(index)) {
                (Some(head), Some(pixels)) => {
                    let [height, width, _] = head.shape.map(|side| side as usize);
                    bytes += pixels.len();
                    Tile::Picture { width, height, pixels: pixels.into() }
                }
                _ => Tile::Missing,
            };
            if let Err(error) = outcome {
                failed += 1;
                bar.suspend(|| tell(&error));
                if !error.kind.is_final() {
                    return Err(error.into());
                }
            }
            tiles.push(tile);
        }
        if bytes > SHEET_BYTES_MAX {
            return Err(too_large());
        }
        bar.inc(part.len() as u64);
    }
    bar.finish_and_clear();
    Ok((tiles, failed))
}

/// Lays tiles in rows, each in the middle of a cell that holds the largest.
pub(super) fn lay(tiles: &[Tile], columns: usize) -> Result<Sheet, Failure> {
    let sides = tiles.iter().filter_map(|tile| match tile {
        Tile::Picture { width, height, .. } => Some((*width, *height)),
        Tile::Missing => None,
    });
    let cell = sides.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1))).unwrap_or((TILE as usize, TILE as usize));
    let columns = columns.min(tiles.len()).max(1);
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
        let sheet = lay(&[picture(8, 8, 1), picture(4, 2, 2), Tile::Missing], 2).expect("sheet");
        assert_eq!((sheet.width, sheet.height), (2 * 12 + 4, 2 * 12 + 4));
        assert_eq!((pixel(&sheet, 3, 4), pixel(&sheet, 4, 4), pixel(&sheet, 11, 11), pixel(&sheet, 12, 11)), (255, 1, 1, 255));
        assert_eq!((pixel(&sheet, 17, 7), pixel(&sheet, 18, 7), pixel(&sheet, 18, 9)), (255, 2, 255));
        assert_eq!((pixel(&sheet, 4, 16), pixel(&sheet, 8, 16), pixel(&sheet, 16, 16)), (CROSS[0], MISSING[0], 255));
    }

    /// Promise: a sheet has a bound, and one of broken pictures alone is still a sheet.
    #[test]
    fn sheets_are_bounded() {
        let large: Vec<Tile> = (0..100).map(|_| Tile::Missing).chain([picture(20_000, 1, 1), picture(1, 20_000, 1)]).collect();
        assert!(lay(&large, 10).is_err());
        assert_eq!(lay(&[Tile::Missing], 10).map(|sheet| sheet.width), Ok(TILE as usize + 2 * GAP));
    }
}
