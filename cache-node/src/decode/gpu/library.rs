//! A library that may be there or not: found at run time, and kept until the process ends.

use std::ffi::{CStr, c_void};

/// A library that is loaded. Never unloaded: what it started (threads, mappings of a device) lives as long as the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Library {
    handle: *mut c_void,
}

impl Library {
    /// The first of `names` that is there; of the first, why it is not.
    ///
    /// Where they are looked for is the operator's word: the loader's folders, and `LD_LIBRARY_PATH`.
    pub(super) fn open(names: &[&CStr]) -> Result<Self, String> {
        let mut why = None;
        for name in names {
            // SAFETY: a terminated name; nothing is unloaded, so that the handle stays.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Self { handle });
            }
            why = why.or_else(|| Some(not_loaded(name)));
        }
        Err(why.unwrap_or_default())
    }

    /// The function of that name, as a value of the type that the caller knows it to have.
    ///
    /// SAFETY: `F` is a function pointer, of the type that the library's header gives that name.
    pub(super) unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: a live handle and a terminated name.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        match found.is_null() {
            true => Err(format!("{} is not in it", name.to_string_lossy())),
            // SAFETY: of the same size; the type is the caller's word.
            false => Ok(unsafe { std::mem::transmute_copy(&found) }),
        }
    }
}

/// Why a library was not loaded, in the loader's words; the usual reason in ours.
fn not_loaded(name: &CStr) -> String {
    let name = name.to_string_lossy();
    // SAFETY: gives a terminated text, or null, of this thread's last failure.
    let said = unsafe {
        let said = libc::dlerror();
        if said.is_null() { String::new() } else { CStr::from_ptr(said).to_string_lossy().into_owned() }
    };
    if said.contains("No such file") { format!("{name} not found") } else { format!("{name} cannot be loaded ({said})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a library that is not there is named, one that is there is found, and so are its functions.
    #[test]
    fn libraries_are_found_or_named() {
        let none = Library::open(&[c"libframecache-none.so.9"]).expect_err("none");
        assert_eq!(none, "libframecache-none.so.9 not found");
        let math = Library::open(&[c"libframecache-none.so.9", c"libm.so.6"]).expect("libm");
        // SAFETY: `cos` of a double is a double.
        let cos: unsafe extern "C" fn(f64) -> f64 = unsafe { math.function(c"cos") }.expect("cos");
        // SAFETY: a number in, a number out.
        assert!((unsafe { cos(0.0) } - 1.0).abs() < 1e-9);
        // SAFETY: never called.
        let none = unsafe { math.function::<unsafe extern "C" fn()>(c"framecache_none") }.expect_err("none");
        assert_eq!(none, "framecache_none is not in it");
    }
}
