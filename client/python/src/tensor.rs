//! Pixels as Python has them: the memory they were received into, by buffer protocol and DLPack.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use framecache::Pictures;
use framecache::frame::Dtype;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::dlpack;
use crate::wanted::Out;

/// The memory of a batch. From the moment that Python may see it, only Python reads and writes it; we keep it alive.
pub(crate) struct Pixels {
    /// Owns the memory, unless `out` does.
    _pictures: Pictures,
    /// The caller's buffer, exported (so neither moved nor freed) as long as a tensor of it lives.
    _out: Option<Out>,
}

impl Pixels {
    pub(crate) fn new(pictures: Pictures, out: Option<Out>) -> Self {
        Self { _pictures: pictures, _out: out }
    }
}

/// Where an array lies, and its shape. Row-major without padding.
#[derive(Clone)]
pub(crate) struct Array {
    /// Keeps the memory alive.
    _owner: Arc<Pixels>,
    pub(crate) pointer: *mut u8,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<ffi::Py_ssize_t>,
    /// In bytes.
    pub(crate) strides: Vec<ffi::Py_ssize_t>,
}

// SAFETY: `pointer` is used by Python alone (see `Pixels`), under its own rules for shared memory.
unsafe impl Send for Array {}
// SAFETY: as above; all else is immutable.
unsafe impl Sync for Array {}

impl Array {
    /// `pointer` must be valid for as many numbers as the product of `shape` as long as `owner` lives; it is not read where that is 0.
    pub(crate) fn new(owner: Arc<Pixels>, pointer: *mut u8, shape: &[usize], dtype: Dtype) -> Self {
        let mut strides = vec![dtype.bytes() as ffi::Py_ssize_t; shape.len()];
        for dimension in (1..shape.len()).rev() {
            strides[dimension - 1] = strides[dimension] * shape[dimension] as ffi::Py_ssize_t;
        }
        let shape = shape.iter().map(|&side| side as ffi::Py_ssize_t).collect();
        Self { _owner: owner, pointer, dtype, shape, strides }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<ffi::Py_ssize_t>() as usize * self.dtype.bytes()
    }
}

/// What is known of one picture beside its pixels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) version: Option<String>,
    pub(crate) size: Option<(u32, u32)>,
    pub(crate) orientation: Option<u8>,
    pub(crate) pts_seconds: Option<f64>,
}

/// Pixels: uint8, or uint16 of a video by ``dtype="u16"``; row-major. One picture is ``[height, width, 3]``, a whole batch
/// ``[pictures, height, width, 3]``.
///
/// The memory is the one that the pixels were received into. ``numpy.asarray(t)``, ``numpy.from_dlpack(t)``,
/// ``torch.from_dlpack(t)`` and ``memoryview(t)`` use it without a copy, may write to it, and keep it alive. A picture of a batch
/// and the batch's ``data`` share memory.
#[pyclass(frozen, module = "framecache")]
pub(crate) struct Tensor {
    pub(crate) array: Array,
    pub(crate) facts: Facts,
}

#[pymethods]
impl Tensor {
    /// Lengths of the dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.array.shape)
    }

    /// The type of the numbers, by numpy's name: ``"uint8"`` or ``"uint16"``.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.array.dtype.name()
    }

    /// Number of bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.array.bytes()
    }

    /// Address of the first byte, for whoever checks that nothing was copied.
    #[getter]
    fn address(&self) -> usize {
        self.array.pointer as usize
    }

    /// The version (etag) of the picture's object; ``None`` for a batch, and for a slot without a picture.
    #[getter]
    fn version(&self) -> Option<&str> {
        self.facts.version.as_deref()
    }

    /// ``(width, height)`` of the picture as stored, before resize and crop; ``None`` as for ``version``.
    #[getter]
    fn size(&self) -> Option<(u32, u32)> {
        self.facts.size
    }

    /// The EXIF orientation, 1 to 8, which is reported and not applied; ``None`` as for ``version``.
    #[getter]
    fn orientation(&self) -> Option<u8> {
        self.facts.orientation
    }

    fn __len__(&self) -> usize {
        self.array.shape[0] as usize
    }

    fn __repr__(&self) -> String {
        let shape: Vec<String> = self.array.shape.iter().map(ToString::to_string).collect();
        format!("<framecache.Tensor: {} [{}]>", self.dtype(), shape.join(", "))
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let array = &slf.get().array;
        // SAFETY: the memory and the arrays live in `slf`, which never moves nor changes, and which the view keeps.
        unsafe { fill_view(view, flags, slf.as_any(), (array.pointer, array.dtype), &array.shape, &array.strides, false) }
    }

    /// A DLPack capsule over the same memory (Array API standard): versioned if ``max_version`` is ``(1, 0)`` or above.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("memory of the host has no stream: want stream=None"));
        }
        if dl_device.is_some_and(|device| device != dlpack::HOST) {
            return Err(PyBufferError::new_err(format!("pixels are in memory of the host, {:?}", dlpack::HOST)));
        }
        let versioned = max_version.is_some_and(|version| version >= (1, 0));
        dlpack::capsule(py, &self.array, versioned, copy == Some(true))
    }

    /// The device of the memory, as DLPack names it: always the host, ``(1, 0)``.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::HOST
    }
}

/// Fills a view of row-major numbers.
///
/// # Safety
/// `view` is the caller's, to be filled. `pointer`, `shape` and `strides` stay valid and unchanged as long as `owner` lives.
pub(crate) unsafe fn fill_view(
    view: *mut ffi::Py_buffer,
    flags: c_int,
    owner: &Bound<'_, PyAny>,
    (pointer, dtype): (*mut u8, Dtype),
    shape: &[ffi::Py_ssize_t],
    strides: &[ffi::Py_ssize_t],
    readonly: bool,
) -> PyResult<()> {
    let asks = |flag: c_int| flags & flag == flag;
    if view.is_null() {
        return Err(PyBufferError::new_err("no view to fill"));
    }
    if readonly && asks(ffi::PyBUF_WRITABLE) {
        return Err(PyBufferError::new_err("raw bytes are read-only"));
    }
    if shape.len() > 1 && asks(ffi::PyBUF_F_CONTIGUOUS) {
        return Err(PyBufferError::new_err("pixels are row-major, not column-major"));
    }
    static BYTES: [c_char; 2] = [b'B' as c_char, 0];
    static SHORTS: [c_char; 2] = [b'H' as c_char, 0];
    let format = if dtype == Dtype::U16 { &SHORTS } else { &BYTES };
    let given = |flag, array: *const ffi::Py_ssize_t| if asks(flag) { array.cast_mut() } else { std::ptr::null_mut() };
    // SAFETY: `view` is ours to fill; who takes the view gives `obj` back and only reads the arrays.
    unsafe {
        (*view).buf = pointer.cast();
        (*view).obj = owner.clone().into_ptr();
        (*view).len = shape.iter().product::<ffi::Py_ssize_t>() * dtype.bytes() as ffi::Py_ssize_t;
        (*view).itemsize = dtype.bytes() as ffi::Py_ssize_t;
        (*view).readonly = readonly.into();
        (*view).ndim = shape.len() as c_int;
        (*view).format = if asks(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { std::ptr::null_mut() };
        (*view).shape = given(ffi::PyBUF_ND, shape.as_ptr());
        (*view).strides = given(ffi::PyBUF_STRIDES, strides.as_ptr());
        (*view).suboffsets = std::ptr::null_mut();
        (*view).internal = std::ptr::null_mut();
    }
    Ok(())
}
