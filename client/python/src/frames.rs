//! What a video gave: its frames, and which each is.

use framecache::wire::FrameRow;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::batch::Batch;
use crate::tensor::Tensor;

/// Frames of one video or animation, in the order they were asked for. Nothing of it copies.
#[pyclass(frozen, module = "framecache")]
pub(crate) struct Frames {
    pub(crate) batch: Py<Batch>,
    rows: Vec<FrameRow>,
}

impl Frames {
    pub(crate) fn new(py: Python<'_>, batch: Batch, rows: Vec<FrameRow>) -> PyResult<Self> {
        Ok(Self { batch: Py::new(py, batch)?, rows })
    }
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
        self.rows.iter().map(|row| row.frame).collect()
    }

    /// When each frame is shown; 0 of an animation.
    #[getter]
    fn pts_seconds(&self) -> Vec<f64> {
        self.rows.iter().map(|row| row.pts_seconds).collect()
    }

    /// For how long each frame is shown; 0 of an animation.
    #[getter]
    fn duration_seconds(&self) -> Vec<f64> {
        self.rows.iter().map(|row| row.duration_seconds).collect()
    }

    fn __len__(&self) -> usize {
        self.rows.len()
    }

    fn __getitem__(&self, place: isize) -> PyResult<Tensor> {
        self.batch.get().at(place)
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyIterator>> {
        slf.get().batch.bind(slf.py()).try_iter()
    }

    fn __repr__(&self) -> String {
        format!("<framecache.Frames: {} frames>", self.rows.len())
    }
}
