//! DLPack: how array libraries hand memory to each other. The layouts are those of `dlpack.h`, version 1.0; the capsule's life is
//! that of the Python specification of DLPack: a consumer renames the capsule and calls the deleter when it is done, and a capsule
//! that nobody consumed calls it itself.

use std::ffi::{CStr, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::tensor::Array;

/// Device type and number of host memory (`kDLCPU`).
pub(crate) const HOST: (i32, i32) = (1, 0);

const NAME: &CStr = c"dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";

/// `DLPACK_FLAG_BITMASK_IS_COPIED`.
const FLAG_COPIED: u64 = 1 << 1;

/// `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    /// `DLDataType`: code (1 is unsigned integer), bits, lanes.
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, with what it owns behind it.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    owned: Owned,
}

/// `DLManagedTensorVersioned`, with what it owns behind it.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
    owned: Owned,
}

/// What a tensor's pointers point into. Freed without the GIL: consumers call the deleter from any thread.
struct Owned {
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    memory: Memory,
}

enum Memory {
    Shared(Array),
    Copied(Box<[u8]>),
}

/// A capsule over `array`, or over a copy of it.
pub(crate) fn capsule<'py>(py: Python<'py>, array: &Array, versioned: bool, copy: bool) -> PyResult<Bound<'py, PyAny>> {
    let numbers = |numbers: &[ffi::Py_ssize_t]| numbers.iter().map(|&n| n as i64).collect();
    let mut owned = Owned { shape: numbers(&array.shape), strides: numbers(&array.strides), memory: memory(array, copy) };
    let number = array.dtype.bytes();
    // DLPack counts them in numbers.
    owned.strides.iter_mut().for_each(|stride| *stride /= number as i64);
    let tensor = tensor(&mut owned, number);
    if versioned {
        let flags = if copy { FLAG_COPIED } else { 0 };
        let deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)> = Some(delete::<ManagedVersioned>);
        let managed = ManagedVersioned { major: 1, minor: 0, context: ptr::null_mut(), deleter, flags, tensor, owned };
        wrap(py, managed, NAME_VERSIONED, forget::<ManagedVersioned, true>)
    } else {
        let managed = Managed { tensor, context: ptr::null_mut(), deleter: Some(delete::<Managed>), owned };
        wrap(py, managed, NAME, forget::<Managed, false>)
    }
}

fn memory(array: &Array, copy: bool) -> Memory {
    if !copy || array.bytes() == 0 {
        return Memory::Shared(array.clone());
    }
    let mut bytes = vec![0; array.bytes()].into_boxed_slice();
    // SAFETY: the array's memory has that many bytes and lives; the copy is new, so they do not overlap.
    unsafe { ptr::copy_nonoverlapping(array.pointer, bytes.as_mut_ptr(), bytes.len()) };
    Memory::Copied(bytes)
}

/// The pointers stay right when `owned` moves: they point into its boxes.
fn tensor(owned: &mut Owned, number: usize) -> DlTensor {
    let data = match &mut owned.memory {
        Memory::Shared(array) => array.pointer,
        Memory::Copied(bytes) => bytes.as_mut_ptr(),
    };
    DlTensor {
        data: data.cast(),
        device_type: HOST.0,
        device_id: HOST.1,
        ndim: owned.shape.len() as i32,
        code: 1,
        bits: 8 * number as u8,
        lanes: 1,
        shape: owned.shape.as_mut_ptr(),
        strides: owned.strides.as_mut_ptr(),
        byte_offset: 0,
    }
}

fn wrap<'py, M>(
    py: Python<'py>,
    managed: M,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    let managed = Box::into_raw(Box::new(managed));
    // SAFETY: pointer and name are not null; the name is static.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), name.as_ptr(), Some(destructor)) };
    if capsule.is_null() {
        // SAFETY: made above, and no capsule took it.
        drop(unsafe { Box::from_raw(managed) });
        return Err(PyErr::fetch(py));
    }
    // SAFETY: a new reference, which is ours.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule) })
}

/// The deleter that consumers call.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    // SAFETY: made by `wrap`; called once, by whoever owns it (the specification of DLPack).
    drop(unsafe { Box::from_raw(managed) });
}

/// The capsule's end. It was renamed if somebody took the tensor; under its own name, the tensor is still ours.
unsafe extern "C" fn forget<M, const VERSIONED: bool>(capsule: *mut ffi::PyObject) {
    let name = if VERSIONED { NAME_VERSIONED } else { NAME };
    // SAFETY: called by Python with a capsule that `wrap` made.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast::<M>());
        }
    }
}
