//! GIF: the `gif` crate for blocks and LZW, Pillow's compositing on a canvas of colours.
//!
//! Pillow's, not the standard's: transparent pixels of the first frame keep their palette colour; a disposal method stays until
//! another is named; the background is the frame's transparent colour if there is one; junk between blocks is stepped over.

use gif::{ColorOutput, DecodeOptions, Decoder, Frame, MemoryLimit};

use super::{Failure, Order, Sink, broken, said, unsupported, zeros};

pub(super) fn decode(bytes: &[u8], order: &Order<'_>, room: &mut [u8], sink: Sink<'_>) -> Result<(), Failure> {
    let (clean, controls) = without_junk(bytes)?;
    let global = bytes[10] & 0x80 != 0;
    let background = if global { bytes[11].into() } else { 0 };
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    // Pixels are read into the buffer below; nothing is left that the crate would allocate by a file's word.
    options.set_memory_limit(MemoryLimit::Unlimited);
    options.allow_unknown_blocks(true);
    let mut decoder = options.read_info(&clean[..]).map_err(said)?;
    let (width, height) = (order.probe.width as usize, order.probe.height as usize);
    let mut canvas = Canvas { pixels: zeros(width * height)?, width, height, method: 0, dispose: None };
    let mut indices: Vec<u8> = Vec::new();
    let kind = order.colour();
    let (mut gray, mut first_transparent) = (false, false);
    for frame in 0..=order.last() {
        let control = controls.get(frame as usize).copied().unwrap_or_default();
        let Some(next) = next(&mut decoder, &mut indices, &canvas, frame, control, background)? else {
            return Err(Failure::NoFrame { count: frame });
        };
        // What Pillow makes of these depends on its image modes: of a gray frame under a colour table, of colours over a gray frame, and
        // of frames over a gray one that is transparent.
        gray |= frame == 0 && next.is_gray;
        let mixed = frame > 0 && gray && (first_transparent || !next.is_gray);
        if frame == 0 && next.is_gray && next.is_local && global || mixed {
            return unsupported("a gray first frame with colours or transparency".into());
        }
        first_transparent |= frame == 0 && next.transparent.is_some();
        canvas.draw(&next, &indices, frame == 0);
        if order.is_wanted(frame) {
            for (pixel, out) in canvas.pixels.iter().zip(room.chunks_exact_mut(kind.bytes())) {
                out.copy_from_slice(&pixel[..out.len()]);
            }
            order.give(frame, kind, room, sink)?;
        }
    }
    Ok(())
}

/// A frame as it is to be drawn, its indices apart.
struct Layer {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    dispose: u8,
    /// Whether its table is a ramp of gray, and whether it is its own.
    is_gray: bool,
    is_local: bool,
    transparent: Option<u8>,
    background: usize,
    palette: Vec<[u8; 3]>,
}

impl Layer {
    fn of(frame: &Frame<'_>, global: Option<&[u8]>, background: usize, control: Control) -> Self {
        let table = frame.palette.as_deref().or(global);
        Self {
            x: frame.left.into(),
            y: frame.top.into(),
            width: frame.width.into(),
            height: frame.height.into(),
            dispose: control.dispose,
            is_gray: is_gray(table),
            is_local: frame.palette.is_some(),
            transparent: control.transparent,
            background,
            palette: palette(table),
        }
    }

    fn colour(&self, index: usize) -> [u8; 3] {
        self.palette.get(index).copied().unwrap_or([0; 3])
    }

    /// What an area is filled with behind a frame in colour: an index beyond the table stands for its first colour.
    fn ground(&self, index: usize) -> [u8; 3] {
        self.colour(if index < self.palette.len() { index } else { 0 })
    }

    fn pixel(&self, index: u8) -> Pixel {
        let [r, g, b] = self.colour(index.into());
        [r, g, b, if self.transparent == Some(index) { 0 } else { 255 }]
    }
}

/// A palette of nothing but the gray of its own index is none in Pillow, and then every index is a gray.
fn palette(colours: Option<&[u8]>) -> Vec<[u8; 3]> {
    match is_gray(colours) {
        true => (0..=255).map(|gray| [gray; 3]).collect(),
        false => colours.unwrap_or(&[]).chunks_exact(3).map(|c| [c[0], c[1], c[2]]).collect(),
    }
}

fn is_gray(colours: Option<&[u8]>) -> bool {
    colours.unwrap_or(&[]).chunks_exact(3).enumerate().all(|(index, colour)| colour.iter().all(|&v| usize::from(v) == index))
}

/// Reads one frame's indices. Only as much as its pixels need: what follows a wanted frame may be broken.
fn next(
    decoder: &mut Decoder<&[u8]>,
    indices: &mut Vec<u8>,
    canvas: &Canvas,
    number: u32,
    control: Control,
    background: usize,
) -> Result<Option<Layer>, Failure> {
    let global = decoder.global_palette().map(<[u8]>::to_vec);
    let Some(frame) = decoder.next_frame_info().map_err(said)? else { return Ok(None) };
    let (layer, interlaced) = (Layer::of(frame, global.as_deref(), background, control), frame.interlaced);
    if layer.x + layer.width > canvas.width || layer.y + layer.height > canvas.height {
        return match number {
            0 => broken("size differs from the header's"),
            _ => unsupported(format!("frame {number} lies outside the canvas")),
        };
    }
    if layer.width == 0 || layer.height == 0 {
        return broken(format!("frame {number} has no pixels"));
    }
    indices.clear();
    indices.resize(layer.width * layer.height, 0);
    if !decoder.fill_buffer(indices).map_err(said)? {
        return broken("truncated");
    }
    if interlaced {
        *indices = deinterlaced(indices, layer.width, layer.height)?;
    }
    Ok(Some(layer))
}

/// Four passes: every eighth row, those between, every fourth, every second (GIF89a, appendix E).
fn deinterlaced(stored: &[u8], width: usize, height: usize) -> Result<Vec<u8>, Failure> {
    let mut out: Vec<u8> = zeros(stored.len())?;
    let passes = [(0, 8), (4, 8), (2, 4), (1, 2)];
    let rows = passes.into_iter().flat_map(|(first, step)| (first..height).step_by(step));
    for (row, stored) in rows.zip(stored.chunks_exact(width.max(1))) {
        out[row * width..(row + 1) * width].copy_from_slice(stored);
    }
    Ok(out)
}

type Pixel = [u8; 4];

struct Canvas {
    pixels: Vec<Pixel>,
    width: usize,
    height: usize,
    /// Stays until a frame names another. 2 is the background, 3 and above what was there before.
    method: u8,
    /// What is put back before the next frame: the area's corner and width, and its pixels.
    dispose: Option<(usize, usize, usize, Vec<Pixel>)>,
}

impl Canvas {
    fn draw(&mut self, layer: &Layer, indices: &[u8], first: bool) {
        if first {
            self.pixels.fill(layer.pixel(layer.transparent.unwrap_or(0)));
        }
        if let Some((x, y, width, before)) = self.dispose.take() {
            for (row, before) in before.chunks_exact(width.max(1)).enumerate() {
                let at = (y + row) * self.width + x;
                self.pixels[at..at + width].copy_from_slice(before);
            }
        }
        if layer.dispose != 0 {
            self.method = layer.dispose;
        }
        let before = self.behind(layer, first);
        self.dispose = before.map(|before| (layer.x, layer.y, layer.width, before));
        for (row, indices) in indices.chunks_exact(layer.width.max(1)).enumerate() {
            let at = (layer.y + row) * self.width + layer.x;
            for (pixel, &index) in self.pixels[at..].iter_mut().zip(indices) {
                if first || layer.transparent != Some(index) {
                    *pixel = layer.pixel(index);
                }
            }
        }
    }

    /// What will lie in the layer's area once it is disposed of.
    fn behind(&self, layer: &Layer, first: bool) -> Option<Vec<Pixel>> {
        let area = layer.width * layer.height;
        match (self.method, layer.transparent) {
            // The first is filled by index, before there are colours.
            (2, Some(index)) if first => Some(vec![layer.pixel(index); area]),
            (2, None) if first => {
                let [r, g, b] = layer.colour(layer.background);
                Some(vec![[r, g, b, 255]; area])
            }
            (2, transparent) => {
                let [r, g, b] = layer.ground(transparent.map_or(layer.background, Into::into));
                Some(vec![[r, g, b, if transparent.is_some() { 0 } else { 255 }]; area])
            }
            (3.., Some(index)) if first => Some(vec![layer.pixel(index); area]),
            (3.., _) if !first => {
                let rows = (layer.y..layer.y + layer.height).map(|y| y * self.width + layer.x);
                Some(rows.flat_map(|at| &self.pixels[at..at + layer.width]).copied().collect())
            }
            _ => None,
        }
    }
}

/// What is said of a frame before it. The crate gives a frame without a word of it one of its own.
#[derive(Clone, Copy, Default)]
struct Control {
    /// How it is disposed of; 0 where nothing is said.
    dispose: u8,
    transparent: Option<u8>,
}

impl Control {
    /// Takes in a graphic control extension (GIF89a, 23) that begins with its label.
    fn read(&mut self, block: &[u8]) {
        if let [0xf9, length, flags, rest @ ..] = block
            && *length > 0
        {
            self.dispose = Some(flags >> 2 & 7).filter(|&method| method != 0).unwrap_or(self.dispose);
            if flags & 1 != 0 && *length >= 4 {
                self.transparent = rest.get(2).copied();
            }
        }
    }
}

/// Drops bytes between blocks that begin none: Pillow steps over them one by one, the crate stops. With what is said of each frame.
fn without_junk(bytes: &[u8]) -> Result<(Vec<u8>, Vec<Control>), Failure> {
    let table = |flags: u8| if flags & 0x80 == 0 { 0 } else { 3usize << ((flags & 7) + 1) };
    let Some(&flags) = bytes.get(10) else { return broken("truncated in the header") };
    let mut out = Vec::new();
    out.try_reserve_exact(bytes.len()).map_err(|_| Failure::OutOfMemory)?;
    let (mut controls, mut control) = (Vec::new(), Control::default());
    let mut at = 13 + table(flags);
    out.extend_from_slice(&bytes[..at.min(bytes.len())]);
    while let Some(&mark) = bytes.get(at) {
        let begin = at;
        match mark {
            b';' => {
                out.push(mark);
                break;
            }
            b'!' => {
                control.read(&bytes[at + 1..]);
                at += 2;
            }
            b',' => {
                controls.push(std::mem::take(&mut control));
                at += 11 + table(bytes.get(at + 9).copied().unwrap_or(0));
            }
            _ => {
                at += 1;
                continue;
            }
        }
        while let Some(&length) = bytes.get(at).filter(|&&length| length > 0) {
            at += 1 + usize::from(length);
        }
        at += 1;
        out.extend_from_slice(&bytes[begin.min(bytes.len())..at.min(bytes.len())]);
    }
    Ok((out, controls))
}
