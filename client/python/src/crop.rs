//! Random crops as Python values.

use framecache::spec::{RandomResizedCrop as Crop, Resize};
use framecache::{Error, ErrorKind, ImageSpec};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::exception;
use crate::spec::{Image, parsed};

/// torchvision's ``RandomResizedCrop``, and ``RandomHorizontalFlip``, as arithmetic: give it to ``Client.images`` in place of an
/// ``Image``, and each picture is cut by the draw of its address.
///
/// ``size`` is the side of the result, or ``(width, height)``. ``scale`` is the least and most share of the area that is kept, ``ratio``
/// the least and most width over height, ``flip`` how likely the result is mirrored. A draw follows from ``seed``, ``epoch`` and the
/// address alone, on any machine: ``crop.at(epoch)`` gives the next epoch's. Other keywords are those of ``Image`` that say nothing
/// of sizes: ``filter``, ``mode``, ``alpha``, ``depth``, ``layout``, ``orientation``, ``truncated``, ``profile``.
///
/// The cluster keeps the pictures, not their crops: those are made of the whole picture where it is held decoded, else decoded again.
///
/// >>> import framecache as fc
/// >>> crop = fc.RandomResizedCrop(224, flip=0.5, filter="bicubic", seed=17)
/// >>> batch = fc.Client("env").images(["s3://photos/pets/cat.jpg", "s3://photos/pets/dog.jpg"], crop.at(3))
/// >>> batch.data.shape
/// (2, 224, 224, 3)
/// >>> crop.draw("s3://photos/pets/cat.jpg", width=320, height=240) == crop.draw("s3://photos/pets/cat.jpg", width=320, height=240)
/// True
#[pyclass(frozen, eq, module = "framecache")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RandomResizedCrop {
    pub(crate) crop: Crop,
    pub(crate) epoch: u64,
}

#[derive(FromPyObject)]
enum Size {
    Side(u32),
    Sides((u32, u32)),
}

#[pymethods]
impl RandomResizedCrop {
    #[new]
    #[pyo3(
        signature = (size, scale=(0.08, 1.0), ratio=(3.0 / 4.0, 4.0 / 3.0), flip=0.0, seed=0, epoch=0, **image),
        text_signature = "(size, scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), flip=0.0, seed=0, epoch=0, **image)"
    )]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword of its own")]
    fn new(
        py: Python<'_>,
        size: Size,
        scale: (f64, f64),
        ratio: (f64, f64),
        flip: f64,
        seed: u64,
        epoch: u64,
        image: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let size = match size {
            Size::Side(side) => (side, side),
            Size::Sides(sides) => sides,
        };
        // With its size the spec keeps its filter, which means nothing without one.
        let keywords = image.map_or_else(|| Ok(PyDict::new(py)), Bound::copy)?;
        keywords.set_item("size", size)?;
        let image: Bound<'_, Image> = py.get_type::<Image>().call((), Some(&keywords))?.cast_into()?;
        let crop = Crop { size, scale, ratio, flip, image: sizeless(&image.get().spec), seed };
        crop.check().map_err(|wrong| exception(py, &Error::new(ErrorKind::Invalid, wrong.to_string())))?;
        Ok(Self { crop, epoch })
    }

    /// The same draws for another epoch.
    fn at(&self, epoch: u64) -> Self {
        Self { epoch, ..self.clone() }
    }

    /// What ``sample``, an address, gets of a picture of that size, as an ``Image``. ``width`` and ``height`` are as stored,
    /// ``orientation`` is the stored one.
    #[pyo3(signature = (sample, *, width, height, orientation=1))]
    fn draw(&self, py: Python<'_>, sample: &str, width: u32, height: u32, orientation: u8) -> PyResult<Image> {
        let spec = self.crop.draw(sample, self.epoch, (width, height), orientation);
        let spec = spec.map_err(|wrong| exception(py, &Error::new(ErrorKind::Invalid, wrong.to_string())))?;
        Ok(Image { spec })
    }

    /// The shape of every picture's array.
    #[getter]
    fn shape(&self) -> (u32, u32, u32) {
        self.crop.shape().into()
    }

    /// The epoch whose draws these are.
    #[getter]
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn __repr__(&self) -> String {
        let Crop { size, scale, ratio, flip, image, seed } = &self.crop;
        let drawn = format!("scale {scale:?}, ratio {ratio:?}, flip {flip}, seed {seed}, epoch {}", self.epoch);
        format!("<framecache.RandomResizedCrop: {size:?}, {drawn}, {image}>")
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, pyo3::types::PyTuple>)> {
        let Crop { size, scale, ratio, flip, image, seed } = &slf.get().crop;
        let image = ImageSpec { resize: Resize::Size(size.0, size.1), ..image.clone() };
        let state: State = (*size, *scale, *ratio, *flip, *seed, slf.get().epoch, image.to_string());
        Ok((slf.get_type().getattr("_of")?, (state,).into_pyobject(slf.py())?))
    }

    /// From what a pickle holds.
    #[staticmethod]
    fn _of(py: Python<'_>, state: State) -> PyResult<Self> {
        let (size, scale, ratio, flip, seed, epoch, image) = state;
        let image = sizeless(&parsed(py, &image)?.spec);
        Ok(Self { crop: Crop { size, scale, ratio, flip, image, seed }, epoch })
    }
}

/// Size, scale, ratio, flip, seed, epoch, and the rest as a spec with that size.
type State = ((u32, u32), (f64, f64), (f64, f64), f64, u64, u64, String);

fn sizeless(image: &ImageSpec) -> ImageSpec {
    ImageSpec { resize: Resize::Keep, ..image.clone() }
}
