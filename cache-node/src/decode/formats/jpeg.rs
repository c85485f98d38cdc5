//! The call into `jpeg.c`, made safe: windows in, samples out.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

// Its archive holds the libjpeg API that jpeg.c calls; nothing of the crate itself is used.
use turbojpeg_sys as _;

use super::{Failure, Input, Kind, Order, Samples, Sink, broken, ink_to_light};

/// Decodes the one frame: gray, or RGB.
pub(super) fn decode(input: &mut dyn Input, order: &Order<'_>, room: &mut [u8], sink: Sink<'_>) -> Result<(), Failure> {
    let probe = order.probe;
    let bytes = probe.width as usize * probe.height as usize * usize::from(probe.channels);
    let samples = &mut room[..bytes];
    let quick = order.wants.quick.map_or(0, |shift| QUICK | c_int::from(shift) << SHIFT);
    let flags = quick | if order.wants.truncated_pad { PAD } else { 0 };
    let Found { rows, width, height } = decode_samples(input, (probe.width, probe.height), probe.channels, flags, samples)?;
    let samples = &mut samples[..width * height * usize::from(probe.channels)];
    let kind = match probe.channels {
        1 => Kind::Gray,
        3 => Kind::Rgb,
        _ => {
            cmyk_to_rgb(samples);
            Kind::Rgb
        }
    };
    // Only where padding is asked for are there fewer rows than the picture has.
    samples[rows * width * kind.bytes()..].fill(GRAY);
    let pixels = &mut room[..width * height * kind.bytes()];
    sink(0, Ok(Samples { pixels, width: width as u32, height: height as u32, kind }));
    Ok(())
}

/// What stands for pixels that could not be decoded: libjpeg's own, the middle of its range.
const GRAY: u8 = 128;

/// As Adobe stores it, marker or not: inverted. In place, into the first three quarters.
fn cmyk_to_rgb(samples: &mut [u8]) {
    for i in 0..samples.len() / 4 {
        let stored: [u8; 4] = samples[4 * i..4 * i + 4].try_into().expect("four bytes");
        samples[3 * i..3 * i + 3].copy_from_slice(&ink_to_light(stored.map(|v| 255 - v)));
    }
}

/// A JPEG stream within another file: `bytes` holds all of it. `plain`: its components are not converted, whatever they seem to be.
pub(super) fn decode_within(bytes: &[u8], size: (u32, u32), layers: u8, plain: bool, samples: &mut [u8]) -> Result<(), Failure> {
    decode_samples(&mut &bytes[..], size, layers, if plain { PLAIN } else { 0 }, samples).map(drop)
}

/// What came out.
struct Found {
    /// Those that are there: all, unless [`PAD`] makes do with fewer.
    rows: usize,
    /// As asked for, unless [`QUICK`] scaled it down.
    width: usize,
    height: usize,
}

/// Decodes into `samples`, which holds exactly `width * height * layers` bytes: gray, RGB, or CMYK as stored.
fn decode_samples(
    input: &mut dyn Input,
    (width, height): (u32, u32),
    layers: u8,
    flags: c_int,
    samples: &mut [u8],
) -> Result<Found, Failure> {
    assert_eq!(samples.len() as u64, u64::from(width) * u64::from(height) * u64::from(layers), "sample buffer fits the frame");
    let mut message = [0 as c_char; MESSAGE_BYTES];
    let (mut rows, mut size) = (0, [width, height]);
    let (first, length) = (input.first().as_ptr(), input.first().len());
    let mut context = input;
    // SAFETY: `first` lives until the first call of `more`, after which C reads the window that call gave; `samples` has the size
    // asserted above, which C checks against the frame it finds; `size` has two numbers, `message` JMSG_LENGTH_MAX bytes. C's
    // longjmp passes over C frames only: `more` returns before any error is raised.
    let outcome = unsafe {
        framecache_jpeg_decode(
            first,
            length,
            more,
            (&raw mut context).cast(),
            layers.into(),
            width,
            height,
            flags,
            samples.as_mut_ptr(),
            size.as_mut_ptr(),
            &raw mut rows,
            message.as_mut_ptr(),
        )
    };
    // SAFETY: C wrote a terminated string of at most MESSAGE_BYTES.
    let said = || unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned();
    match outcome {
        DECODED => Ok(Found { rows: size[1] as usize, width: size[0] as usize, height: size[1] as usize }),
        TRUNCATED | BROKEN if flags & PAD != 0 => {
            Ok(Found { rows: rows as usize, width: size[0] as usize, height: size[1] as usize })
        }
        TRUNCATED => broken("truncated"),
        SIZE_DIFFERS => broken("frame differs from the header"),
        OUT_OF_MEMORY => Err(Failure::OutOfMemory),
        _ => broken(said()),
    }
}

unsafe extern "C" fn more(context: *mut c_void, skip: u64, length: *mut usize) -> *const u8 {
    // SAFETY: `context` is the `&mut dyn Input` of `decode`, which C uses only during that call and from one thread.
    let input = unsafe { &mut *context.cast::<&mut dyn Input>() };
    let window = input.more(skip);
    // SAFETY: C passes the address of its own variable.
    unsafe { *length = window.len() };
    window.as_ptr()
}

unsafe extern "C" {
    fn framecache_jpeg_decode(
        first: *const u8,
        length: usize,
        more: unsafe extern "C" fn(*mut c_void, u64, *mut usize) -> *const u8,
        context: *mut c_void,
        layers: c_int,
        width: c_uint,
        height: c_uint,
        flags: c_int,
        pixels: *mut u8,
        size: *mut c_uint,
        rows: *mut c_uint,
        message: *mut c_char,
    ) -> c_int;
}

// The flags in jpeg.c.
const PAD: c_int = 1;
const PLAIN: c_int = 2;
const QUICK: c_int = 4;
const SHIFT: c_int = 8;

// The outcomes in jpeg.c.
const DECODED: c_int = 0;
const TRUNCATED: c_int = 1;
const BROKEN: c_int = 2;
const SIZE_DIFFERS: c_int = 3;
const OUT_OF_MEMORY: c_int = 4;

/// libjpeg's JMSG_LENGTH_MAX.
const MESSAGE_BYTES: usize = 200;
