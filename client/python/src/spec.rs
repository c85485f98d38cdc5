//! Decode specs as Python values.

use framecache::spec::SpecError;
use framecache::{Error, ErrorKind, ImageSpec};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::error;

/// How a picture is made: decoded, resized, cropped. The default is the picture as stored.
///
/// Sides are pixels. ``short`` brings the short side to that length, as torchvision's ``Resize(short)``; ``size`` is
/// ``(width, height)`` exactly; ``crop`` keeps the centred square of that side. ``filter`` is ``"bilinear"`` or ``"bicubic"``, with
/// Pillow's kernels. Values are immutable, comparable and hashable.
///
/// >>> import framecache as fc
/// >>> spec = fc.Image(short=256, crop=224)
/// >>> str(spec)
/// 'image?short=256&crop=224'
/// >>> spec == fc.Image.parse("image?crop=224&short=256")
/// True
/// >>> fc.Image(size=(640, 480)).output
/// (640, 480)
#[pyclass(frozen, eq, hash, str, module = "framecache")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Image {
    pub(crate) spec: ImageSpec,
}

impl std::fmt::Display for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.spec.fmt(f)
    }
}

#[pymethods]
impl Image {
    #[new]
    #[pyo3(signature = (short=None, crop=None, size=None, filter="bilinear"))]
    fn new(py: Python<'_>, short: Option<i64>, crop: Option<i64>, size: Option<(i64, i64)>, filter: &str) -> PyResult<Self> {
        let mut parameters = vec![format!("filter={filter}")];
        parameters.extend(short.map(|side| format!("short={side}")));
        parameters.extend(size.map(|(width, height)| format!("size={width}x{height}")));
        parameters.extend(crop.map(|side| format!("crop={side}")));
        parsed(py, &format!("image?{}", parameters.join("&")))
    }

    /// The spec that ``text`` writes, e.g. ``"image?short=256&crop=224"``.
    #[classmethod]
    fn parse(_class: &Bound<'_, PyType>, py: Python<'_>, text: &str) -> PyResult<Self> {
        parsed(py, text)
    }

    /// ``(width, height)`` of every picture, or ``None`` if it depends on the picture.
    #[getter]
    fn output(&self) -> Option<(u32, u32)> {
        self.spec.fixed_output()
    }

    fn __repr__(&self) -> String {
        format!("framecache.Image.parse({:?})", self.spec.to_string())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("parse")?, (slf.get().spec.to_string(),)))
    }
}

/// A spec given as an `Image`, as text, or not at all.
pub(crate) fn spec_of(spec: Option<&Bound<'_, PyAny>>) -> PyResult<ImageSpec> {
    let Some(spec) = spec.filter(|spec| !spec.is_none()) else { return Ok(ImageSpec::default()) };
    if let Ok(image) = spec.cast::<Image>() {
        return Ok(image.get().spec.clone());
    }
    match spec.cast::<PyString>() {
        Ok(text) => parsed(spec.py(), &text.to_cow()?).map(|image| image.spec),
        Err(_) => Err(PyTypeError::new_err(format!("spec is a {}: want framecache.Image or its text", spec.get_type().name()?))),
    }
}

/// The spec of `text`, in its canonical form: values that mean the same are equal.
fn parsed(py: Python<'_>, text: &str) -> PyResult<Image> {
    let spec = text.parse::<ImageSpec>().and_then(|spec| spec.to_string().parse());
    let spec = spec.map_err(|failure: SpecError| {
        let kind = if matches!(failure, SpecError::Unsupported(_)) { ErrorKind::Unsupported } else { ErrorKind::Invalid };
        error::exception(py, &Error::new(kind, failure.to_string()))
    })?;
    Ok(Image { spec })
}
