//! Raw bytes as Python has them.

use std::ffi::c_int;

use framecache::frame::Dtype;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::tensor::fill_view;

/// Raw bytes of one version of an object: a read-only buffer over the memory that they were received into.
///
/// ``memoryview(raw)``, ``numpy.frombuffer(raw, "uint8")`` and file writes use it without a copy; ``bytes(raw)`` copies.
#[pyclass(frozen, module = "framecache")]
pub(crate) struct Raw {
    raw: framecache::Raw,
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
}

impl From<framecache::Raw> for Raw {
    fn from(raw: framecache::Raw) -> Self {
        Self { shape: [raw.bytes.len() as ffi::Py_ssize_t], strides: [1], raw }
    }
}

#[pymethods]
impl Raw {
    /// The version (etag) that all bytes belong to.
    #[getter]
    fn version(&self) -> &str {
        self.raw.version.as_str()
    }

    /// Bytes of the whole object.
    #[getter]
    fn size(&self) -> u64 {
        self.raw.size
    }

    /// Place of the first byte in the object.
    #[getter]
    fn start(&self) -> u64 {
        self.raw.start
    }

    /// Address of the first byte, for whoever checks that nothing was copied.
    #[getter]
    fn address(&self) -> usize {
        self.raw.bytes.as_ptr() as usize
    }

    fn __len__(&self) -> usize {
        self.raw.bytes.len()
    }

    fn __repr__(&self) -> String {
        let (bytes, start, size) = (self.raw.bytes.len(), self.raw.start, self.raw.size);
        format!("<framecache.Raw: {bytes} bytes from {start} of {size}, version {}>", self.raw.version)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let (pointer, shape, strides) = (this.raw.bytes.as_ptr().cast_mut(), &this.shape[..], &this.strides[..]);
        // SAFETY: the memory and the arrays live in `slf`, which never moves nor changes, and which the view keeps.
        unsafe { fill_view(view, flags, slf.as_any(), (pointer, Dtype::U8), shape, strides, true) }
    }
}
