//! The NVIDIA driver, as far as this program talks to it itself: whether there is a device, which, and its memory. FFmpeg and nvJPEG
//! talk to the rest.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use super::library::Library;

/// A device of the driver's API.
type Device = c_int;

/// An address on the device.
pub(super) type Address = u64;

/// The driver and its first device.
#[derive(Debug)]
pub(super) struct Driver {
    /// The device's name, and the newest CUDA that the driver knows: `NVIDIA H200, CUDA 12.8`.
    pub(super) name: String,
    mem_alloc: unsafe extern "C" fn(*mut Address, usize) -> c_int,
    mem_free: unsafe extern "C" fn(Address) -> c_int,
    to_host: unsafe extern "C" fn(*mut c_void, Address, usize) -> c_int,
    set_current: unsafe extern "C" fn(*mut c_void) -> c_int,
    retain: unsafe extern "C" fn(*mut *mut c_void, Device) -> c_int,
    device: Device,
    /// The device's own context, once it is held.
    context: *mut c_void,
    error_name: ErrorName,
}

type ErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

impl Driver {
    /// The first device; or in words why there is none.
    pub(super) fn open() -> Result<Self, String> {
        let cuda = Library::open(&[c"libcuda.so.1"]).map_err(|why| format!("no NVIDIA driver: {why}"))?;
        let old = |why: String| format!("an NVIDIA driver that is too old: {why}");
        // SAFETY: each as cuda.h has it; handles of devices and contexts are an int and a pointer.
        unsafe {
            let error_name: ErrorName = cuda.function(c"cuGetErrorName").map_err(old)?;
            let init: unsafe extern "C" fn(c_uint) -> c_int = cuda.function(c"cuInit").map_err(old)?;
            let version: unsafe extern "C" fn(*mut c_int) -> c_int = cuda.function(c"cuDriverGetVersion").map_err(old)?;
            let count: unsafe extern "C" fn(*mut c_int) -> c_int = cuda.function(c"cuDeviceGetCount").map_err(old)?;
            let get: unsafe extern "C" fn(*mut Device, c_int) -> c_int = cuda.function(c"cuDeviceGet").map_err(old)?;
            let name: unsafe extern "C" fn(*mut c_char, c_int, Device) -> c_int =
                cuda.function(c"cuDeviceGetName").map_err(old)?;
            let check = |step: &str, answer| match answer {
                0 => Ok(()),
                code => Err(format!("the NVIDIA driver fails at {step}: {}", named(error_name, code))),
            };
            check("cuInit", init(0))?;
            let (mut newest, mut devices, mut device) = (0, 0, 0);
            check("cuDriverGetVersion", version(&raw mut newest))?;
            check("cuDeviceGetCount", count(&raw mut devices))?;
            if devices == 0 {
                return Err("an NVIDIA driver, and no device that this process may use".into());
            }
            check("cuDeviceGet", get(&raw mut device, 0))?;
            let mut text: [c_char; 128] = [0; 128];
            check("cuDeviceGetName", name(text.as_mut_ptr(), text.len() as c_int - 1, device))?;
            let (major, minor) = (newest / 1000, newest % 1000 / 10);
            Ok(Self {
                name: format!("{}, CUDA {major}.{minor}", CStr::from_ptr(text.as_ptr()).to_string_lossy()),
                mem_alloc: cuda.function(c"cuMemAlloc_v2").map_err(old)?,
                mem_free: cuda.function(c"cuMemFree_v2").map_err(old)?,
                to_host: cuda.function(c"cuMemcpyDtoH_v2").map_err(old)?,
                set_current: cuda.function(c"cuCtxSetCurrent").map_err(old)?,
                retain: cuda.function(c"cuDevicePrimaryCtxRetain").map_err(old)?,
                device,
                context: ptr::null_mut(),
                error_name,
            })
        }
    }

    /// Holds the device's own context. After FFmpeg has: it sets flags of its own, and takes none that is in use without them.
    pub(super) fn hold(&mut self) -> Result<(), String> {
        // SAFETY: writes one pointer; held for as long as the process lives.
        let answer = unsafe { (self.retain)(&raw mut self.context, self.device) };
        self.check("cuDevicePrimaryCtxRetain", answer)?;
        self.make_current()
    }

    /// Makes the device's own context this thread's: FFmpeg leaves another behind, or none.
    pub(super) fn make_current(&self) -> Result<(), String> {
        // SAFETY: the context is held for as long as the process lives.
        self.check("cuCtxSetCurrent", unsafe { (self.set_current)(self.context) })
    }

    /// Memory on the device, given back when dropped.
    pub(super) fn memory(&self, bytes: usize) -> Result<Memory<'_>, String> {
        let mut address = 0;
        // SAFETY: writes one address.
        self.check("cuMemAlloc", unsafe { (self.mem_alloc)(&raw mut address, bytes) })?;
        Ok(Memory { driver: self, address, bytes })
    }

    fn check(&self, step: &str, answer: c_int) -> Result<(), String> {
        match answer {
            0 => Ok(()),
            code => Err(format!("{step}: {}", named(self.error_name, code))),
        }
    }
}

fn named(error_name: ErrorName, code: c_int) -> String {
    let mut name = ptr::null();
    // SAFETY: writes a pointer to a constant text, or leaves null.
    unsafe {
        error_name(code, &raw mut name);
        if name.is_null() { format!("error {code}") } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
    }
}

/// Bytes on the device.
pub(super) struct Memory<'a> {
    driver: &'a Driver,
    pub(super) address: Address,
    bytes: usize,
}

impl Memory<'_> {
    /// Copies its first bytes out, when all that was begun before is done.
    pub(super) fn read(&self, out: &mut [u8]) -> Result<(), String> {
        if out.len() > self.bytes {
            return Err(format!("{} bytes of {}", out.len(), self.bytes));
        }
        // SAFETY: both sides have as many bytes.
        let answer = unsafe { (self.driver.to_host)(out.as_mut_ptr().cast(), self.address, out.len()) };
        self.driver.check("cuMemcpyDtoH", answer)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once.
        unsafe { (self.driver.mem_free)(self.address) };
    }
}
