//! JPEG by nvJPEG, for profile `fast` alone: its samples are near those of libjpeg-turbo, and not the same.

use std::ffi::{c_int, c_uchar, c_void};
use std::ptr;

use super::driver::Driver;
use super::library::Library;

/// The library, with a state for one picture at a time.
#[derive(Debug)]
pub(super) struct NvJpeg {
    handle: *mut c_void,
    state: *mut c_void,
    info: Info,
    decode: Decode,
}

/// As nvjpeg.h has it: a pointer and the bytes between rows, of each of four channels.
#[repr(C)]
struct Image {
    channel: [*mut c_uchar; COMPONENTS],
    pitch: [usize; COMPONENTS],
}

const COMPONENTS: usize = 4;

/// Red, green and blue by turns, in one channel.
const INTERLEAVED: c_int = 5;

type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type StateCreate = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
type Info = unsafe extern "C" fn(*mut c_void, *const c_uchar, usize, *mut c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
type Decode = unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_uchar, usize, c_int, *mut Image, *mut c_void) -> c_int;

impl NvJpeg {
    /// Of the runtime that is there; or in words why there is none.
    pub(super) fn open(driver: &Driver) -> Result<Self, String> {
        driver.make_current()?;
        let library = Library::open(&[c"libnvjpeg.so.12", c"libnvjpeg.so.11", c"libnvjpeg.so.13"])?;
        // SAFETY: each as nvjpeg.h has it; handles, states and streams are pointers.
        unsafe {
            let create: Create = library.function(c"nvjpegCreateSimple")?;
            let state_create: StateCreate = library.function(c"nvjpegJpegStateCreate")?;
            let (mut handle, mut state) = (ptr::null_mut(), ptr::null_mut());
            check("nvjpegCreateSimple", create(&raw mut handle))?;
            check("nvjpegJpegStateCreate", state_create(handle, &raw mut state))?;
            let (info, decode) = (library.function(c"nvjpegGetImageInfo")?, library.function(c"nvjpegDecode")?);
            Ok(Self { handle, state, info, decode })
        }
    }

    /// Decodes a whole JPEG of `width` by `height` pixels into `out`, three bytes a pixel.
    pub(super) fn decode(&self, driver: &Driver, jpeg: &[u8], (width, height): (u32, u32), out: &mut [u8]) -> Result<(), String> {
        let row = 3 * width as usize;
        if row.checked_mul(height as usize) != Some(out.len()) {
            return Err("a place of another size".into());
        }
        driver.make_current()?;
        let (mut components, mut subsampling) = (0, 0);
        let (mut widths, mut heights) = ([0; COMPONENTS], [0; COMPONENTS]);
        // SAFETY: reads `jpeg` alone; writes two numbers, and one for each of four components to the others.
        check("nvjpegGetImageInfo", unsafe {
            (self.info)(
                self.handle,
                jpeg.as_ptr(),
                jpeg.len(),
                &raw mut components,
                &raw mut subsampling,
                widths.as_mut_ptr(),
                heights.as_mut_ptr(),
            )
        })?;
        // What it would write must fit the place.
        if (u32::try_from(widths[0]), u32::try_from(heights[0])) != (Ok(width), Ok(height)) {
            return Err(format!("nvJPEG reads {}x{}, the header says {width}x{height}", widths[0], heights[0]));
        }
        if !matches!(components, 1 | 3) {
            return Err(format!("{components} components"));
        }
        let memory = driver.memory(out.len())?;
        let mut image = Image { channel: [ptr::null_mut(); COMPONENTS], pitch: [0; COMPONENTS] };
        (image.channel[0], image.pitch[0]) = (memory.address as *mut c_uchar, row);
        // SAFETY: the place has `height` rows of `row` bytes on the device; the default stream is waited for by the copy below.
        check("nvjpegDecode", unsafe {
            (self.decode)(self.handle, self.state, jpeg.as_ptr(), jpeg.len(), INTERLEAVED, &raw mut image, ptr::null_mut())
        })?;
        memory.read(out)
    }
}

fn check(step: &str, answer: c_int) -> Result<(), String> {
    let name = match answer {
        0 => return Ok(()),
        1 => "not initialised",
        2 => "invalid parameter",
        3 => "bad JPEG",
        4 => "JPEG not supported",
        5 => "no memory",
        6 => "execution failed",
        7 => "architecture mismatch",
        8 => "internal error",
        9 => "not supported here",
        10 => "incomplete bitstream",
        _ => return Err(format!("{step}: status {answer}")),
    };
    Err(format!("{step}: {name}"))
}
