//! Decode specs as Python values.

use framecache::spec::SpecError;
use framecache::{Error, ErrorKind, ImageSpec};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::error;

/// How a picture is made: decoded, turned, resized, cropped, laid out. The default is the picture as stored, as RGB.
///
/// Sides are pixels. One of these sizes at most:
/// ``short`` brings the short side to that length, as torchvision's ``Resize(short)``; with ``max`` beside it, its ``max_size``.
/// ``size`` is ``(width, height)`` exactly. ``max`` brings the long side down to that length. ``max_pixels`` keeps the aspect, with both
/// sides a multiple of ``multiple`` (Qwen2-VL). ``tiles`` is the side of square tiles, of which there are at most ``max`` (InternVL): the
/// array is ``[tiles * side, side, channels]``, one tile under the other.
///
/// ``box`` is ``(x, y, width, height)``, the part that is resized, as Pillow's ``resize(box=)``. ``crop`` keeps the centred square of that
/// side. ``flip`` mirrors the result, left to right. ``filter`` is one of Pillow's: ``"nearest"``, ``"box"``, ``"bilinear"``,
/// ``"hamming"``, ``"bicubic"``, ``"lanczos"``. ``mode`` is ``"rgb"`` or ``"gray"``. ``alpha`` is ``"drop"``, ``"keep"`` (a fourth channel)
/// or a colour to lay it over, ``"over:ffffff"``. ``depth`` says how 16-bit gray becomes 8-bit: ``"pillow"`` clips, ``"scale"`` takes
/// the high byte. ``layout`` is ``"hwc"`` or ``"chw"``. ``orientation="apply"`` turns the picture as its EXIF says.
/// ``truncated="pad"`` fills a JPEG that ends early with gray. ``profile="fast"`` is close to the same pixels of a JPEG, sooner.
///
/// Values are immutable, comparable and hashable.
///
/// >>> import framecache as fc
/// >>> spec = fc.Image(short=256, crop=224)
/// >>> str(spec)
/// 'image?short=256&crop=224'
/// >>> spec == fc.Image.parse("image?crop=224&short=256")
/// True
/// >>> fc.Image(size=(640, 480)).output
/// (640, 480)
/// >>> fc.Image(size=(64, 64), layout="chw", alpha="keep").shape
/// (4, 64, 64)
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
    #[pyo3(signature = (
        short=None, crop=None, size=None, filter="bilinear", *, max=None, max_pixels=None, multiple=None, tiles=None, r#box=None,
        flip=false, mode="rgb", alpha="drop", depth="pillow", layout="hwc", orientation="ignore", truncated="error",
        profile="exact"
    ))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword of its own")]
    fn new(
        py: Python<'_>,
        short: Option<i64>,
        crop: Option<i64>,
        size: Option<(i64, i64)>,
        filter: &str,
        max: Option<i64>,
        max_pixels: Option<i64>,
        multiple: Option<i64>,
        tiles: Option<i64>,
        r#box: Option<(i64, i64, i64, i64)>,
        flip: bool,
        mode: &str,
        alpha: &str,
        depth: &str,
        layout: &str,
        orientation: &str,
        truncated: &str,
        profile: &str,
    ) -> PyResult<Self> {
        let words = [
            ("filter", filter),
            ("mode", mode),
            ("alpha", alpha),
            ("depth", depth),
            ("layout", layout),
            ("orientation", orientation),
            ("truncated", truncated),
            ("profile", profile),
        ];
        let sides = [
            ("short", short),
            ("crop", crop),
            ("max", max),
            ("max_pixels", max_pixels),
            ("multiple", multiple),
            ("tiles", tiles),
        ];
        let mut parameters: Vec<String> = words.iter().map(|(name, word)| format!("{name}={word}")).collect();
        parameters.extend(sides.iter().filter_map(|(name, side)| side.map(|side| format!("{name}={side}"))));
        parameters.extend(size.map(|(width, height)| format!("size={width}x{height}")));
        parameters.extend(r#box.map(|(x, y, width, height)| format!("box={x},{y},{width},{height}")));
        parameters.extend(flip.then(|| "flip=h".to_owned()));
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

    /// The shape of every picture's array, or ``None`` if it depends on the picture.
    #[getter]
    fn shape(&self) -> Option<(u32, u32, u32)> {
        self.spec.fixed_shape().map(Into::into)
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
pub(crate) fn parsed(py: Python<'_>, text: &str) -> PyResult<Image> {
    let spec = text.parse::<ImageSpec>().and_then(|spec| spec.to_string().parse());
    let spec = spec.map_err(|failure: SpecError| {
        let kind = if matches!(failure, SpecError::Unsupported(_)) { ErrorKind::Unsupported } else { ErrorKind::Invalid };
        error::exception(py, &Error::new(kind, failure.to_string()))
    })?;
    Ok(Image { spec })
}
