//! The call into `jpeg.c`, made safe: windows in, samples out.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

// Its archive holds the libjpeg API that jpeg.c calls; nothing of the crate itself is used.
use turbojpeg_sys as _;

/// Compressed bytes, window by window.
pub(super) trait Input {
    /// The window at the object's start; holds the whole header.
    fn first(&self) -> &[u8];

    /// Passes over `skip` bytes behind the current window and gives the next one; empty at the object's end.
    fn more(&mut self, skip: u64) -> &[u8];
}

/// All of the object at once.
impl Input for &[u8] {
    fn first(&self) -> &[u8] {
        self
    }

    fn more(&mut self, _skip: u64) -> &[u8] {
        &[]
    }
}

/// Why there are no samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JpegError {
    /// Data ends before the last row.
    Truncated,
    /// libjpeg's own words.
    Broken(String),
    /// libjpeg could not allocate.
    OutOfMemory,
}

/// Decodes into `samples`, which holds exactly `width * height * layers` bytes: gray, RGB, or CMYK as stored.
pub(super) fn decode(
    input: &mut dyn Input,
    (width, height): (u32, u32),
    layers: u8,
    samples: &mut [u8],
) -> Result<(), JpegError> {
    assert_eq!(samples.len() as u64, u64::from(width) * u64::from(height) * u64::from(layers), "sample buffer fits the frame");
    let mut message = [0 as c_char; MESSAGE_BYTES];
    let (first, length) = (input.first().as_ptr(), input.first().len());
    let mut context = input;
    // SAFETY: `first` lives until the first call of `more`, after which C reads the window that call gave; `samples` has the size
    // asserted above, which C checks against the frame it finds; `message` has JMSG_LENGTH_MAX bytes. C's longjmp passes over C
    // frames only: `more` returns before any error is raised.
    let outcome = unsafe {
        framecache_jpeg_decode(
            first,
            length,
            more,
            (&raw mut context).cast(),
            layers.into(),
            width,
            height,
            samples.as_mut_ptr(),
            message.as_mut_ptr(),
        )
    };
    // SAFETY: C wrote a terminated string of at most MESSAGE_BYTES.
    let said = || unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned();
    match outcome {
        DECODED => Ok(()),
        TRUNCATED => Err(JpegError::Truncated),
        SIZE_DIFFERS => Err(JpegError::Broken("frame differs from the header".into())),
        OUT_OF_MEMORY => Err(JpegError::OutOfMemory),
        _ => Err(JpegError::Broken(said())),
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
        pixels: *mut u8,
        message: *mut c_char,
    ) -> c_int;
}

// The outcomes in jpeg.c.
const DECODED: c_int = 0;
const TRUNCATED: c_int = 1;
const SIZE_DIFFERS: c_int = 3;
const OUT_OF_MEMORY: c_int = 4;

/// libjpeg's JMSG_LENGTH_MAX.
const MESSAGE_BYTES: usize = 200;
