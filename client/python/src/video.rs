//! Animations: frames by index.

use framecache::{Error, ErrorKind, Version};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyString};

use crate::batch::{Batch, OnError};
use crate::client::{Client, object};
use crate::error::{exception, invalid};
use crate::facts::Stat;
use crate::spec::{Image, spec_of};
use crate::tensor::Tensor;
use crate::wanted::Wanted;

/// An animated GIF, WebP, PNG or AVIF, or the pages of a TIFF: what is known of it, and its frames. Made by ``Client.video``; holds
/// no frame.
#[pyclass(frozen, module = "framecache")]
pub(crate) struct Video {
    client: Py<Client>,
    uri: Py<PyString>,
    facts: Stat,
}

impl Video {
    pub(crate) fn new(client: Py<Client>, uri: Py<PyString>, facts: Stat) -> Self {
        Self { client, uri, facts }
    }

    /// Indices counted from the start, as far as it is known where the end is.
    fn counted(&self, py: Python<'_>, indices: &[i64]) -> PyResult<Vec<u64>> {
        let frames = self.facts.frames.map(i64::from);
        let refuse = |kind, message: String| {
            let uri = Some(self.uri.to_string());
            Err(exception(py, &Error { uri, ..Error::new(kind, message) }))
        };
        let count = |&index: &i64| match (u64::try_from(index), frames) {
            (Ok(_), Some(frames)) if index >= frames => refuse(ErrorKind::OutOfRange, format!("frame {index} of {frames}")),
            (Ok(frame), _) => Ok(frame),
            (Err(_), None) => {
                refuse(ErrorKind::Invalid, format!("frame {index}: the number of frames is not known before they are decoded"))
            }
            (Err(_), Some(frames)) => match u64::try_from(frames + index) {
                Ok(frame) => Ok(frame),
                Err(_) => refuse(ErrorKind::OutOfRange, format!("frame {index} of {frames}")),
            },
        };
        indices.iter().map(count).collect()
    }
}

#[pymethods]
impl Video {
    /// Its address.
    #[getter]
    fn uri(&self, py: Python<'_>) -> Py<PyString> {
        self.uri.clone_ref(py)
    }

    /// Number of frames; ``None`` where only decoding would tell.
    #[getter]
    fn num_frames(&self) -> Option<u32> {
        self.facts.frames
    }

    /// Width of a frame, in pixels.
    #[getter]
    fn width(&self) -> u32 {
        self.facts.width
    }

    /// Height of a frame, in pixels.
    #[getter]
    fn height(&self) -> u32 {
        self.facts.height
    }

    /// Its format: ``"gif"``, ``"webp"``, ``"png"``, ``"avif"``, ``"tiff"``.
    #[getter]
    fn format(&self) -> &str {
        &self.facts.format
    }

    /// Its version (etag), when it was looked at.
    #[getter]
    fn version(&self) -> &str {
        &self.facts.version
    }

    /// Frames by index, in that order; negative ones count from the end. Composited, as a player shows them. ``spec`` is an ``Image``,
    /// or its text, or its keywords.
    ///
    /// Raises ``OutOfRangeError`` (an ``IndexError``) for a frame that is not there, ``ChangedError`` where the file was replaced since
    /// it was looked at and the cluster does not hold that version any more, and otherwise what ``Client.images`` raises.
    ///
    /// >>> video = fc.Client("env").video("s3://photos/fun/ball.gif")
    /// >>> video.get_frames_at([0, 2, 2], short=64).data.shape
    /// (3, 64, 64, 3)
    #[pyo3(signature = (indices, spec=None, *, out=None, timeout=None, **image))]
    fn get_frames_at(
        &self,
        py: Python<'_>,
        indices: Vec<i64>,
        spec: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        image: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Frames> {
        let spec = match (spec, image) {
            (None, Some(_)) => py.get_type::<Image>().call((), image)?.cast_into::<Image>()?.get().spec.clone(),
            (Some(_), Some(_)) => {
                let message = "frames are made by a spec, or by its keywords, not by both";
                return Err(exception(py, &Error::new(ErrorKind::Invalid, message)));
            }
            (spec, None) => spec_of(spec)?,
        };
        let counted = self.counted(py, &indices)?;
        let uri = self.uri.bind(py);
        let id = object(py, &uri.to_cow()?)?;
        let keys = counted.iter().map(|_| self.uri.clone_ref(py)).collect();
        let version = Version::new(&self.facts.version).map_err(|error| invalid(py, error.to_string()))?;
        let wanted = Wanted::Frames { id, version, frames: counted.clone(), spec };
        let batch = self.client.get().receive(py, wanted, keys, OnError::Raise, out, timeout)?;
        Ok(Frames { batch: Py::new(py, batch)?, indices: counted })
    }

    fn __repr__(&self) -> String {
        let Stat { format, width, height, frames, .. } = &self.facts;
        let frames = frames.map_or("frames not counted".into(), |frames| format!("{frames} frames"));
        format!("<framecache.Video: {}, {format} {width}x{height}, {frames}>", self.uri)
    }
}

/// Frames of one animation, in the order they were asked for. Nothing of it copies.
#[pyclass(frozen, module = "framecache")]
pub(crate) struct Frames {
    batch: Py<Batch>,
    indices: Vec<u64>,
}

#[pymethods]
impl Frames {
    /// All frames as one array, ``[frames, height, width, channels]``.
    #[getter]
    fn data(&self) -> PyResult<Tensor> {
        self.batch.get().data()
    }

    /// The index of each frame, from 0.
    #[getter]
    fn indices(&self) -> Vec<u64> {
        self.indices.clone()
    }

    fn __len__(&self) -> usize {
        self.indices.len()
    }

    fn __getitem__(&self, place: isize) -> PyResult<Tensor> {
        self.batch.get().at(place)
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyIterator>> {
        slf.get().batch.bind(slf.py()).try_iter()
    }

    fn __repr__(&self) -> String {
        format!("<framecache.Frames: {} frames>", self.indices.len())
    }
}
