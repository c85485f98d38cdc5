//! What pixels are asked for, and where they are received.

use framecache::batch::External;
use framecache::client::{Outcome, Transport};
use framecache::frame::{Dtype, Layout};
use framecache::{Batch as Slots, Call, Client, Error, ImageSpec, ObjectId, Version};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::crop::RandomResizedCrop;
use crate::error::{invalid, passable};

/// One slot each, in this order.
pub(crate) enum Wanted {
    /// Pictures, alike.
    Images { ids: Vec<ObjectId>, spec: ImageSpec },
    /// Pictures, each cut by its own draw.
    Crops { ids: Vec<ObjectId>, crop: RandomResizedCrop },
    /// Frames of one animation.
    Frames {
        id: ObjectId,
        version: Version,
        frames: Vec<u64>,
        spec: ImageSpec,
        size: (u32, u32),
        orientation: u8,
        transport: Transport,
    },
}

/// The caller's buffer, by the type of its numbers.
pub(crate) enum Out {
    Bytes(PyBuffer<u8>),
    Shorts(PyBuffer<u16>),
}

impl Out {
    fn external(&self) -> External {
        match self {
            Self::Bytes(buffer) => External { pointer: buffer.buf_ptr().cast(), bytes: buffer.len_bytes() },
            Self::Shorts(buffer) => External { pointer: buffer.buf_ptr().cast(), bytes: buffer.len_bytes() },
        }
    }
}

impl Wanted {
    /// The type of its numbers.
    pub(crate) fn dtype(&self) -> Dtype {
        match self {
            Self::Images { spec, .. } | Self::Frames { spec, .. } => spec.dtype,
            Self::Crops { .. } => Dtype::U8,
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Images { ids, .. } | Self::Crops { ids, .. } => ids.len(),
            Self::Frames { frames, .. } => frames.len(),
        }
    }

    fn fixed_shape(&self) -> Option<[u32; 3]> {
        match self {
            Self::Images { spec, .. } | Self::Frames { spec, .. } => spec.fixed_shape(),
            Self::Crops { crop, .. } => Some(crop.crop.shape()),
        }
    }

    /// The shape, where the pictures' size is known too.
    fn known_shape(&self) -> Option<[u32; 3]> {
        self.fixed_shape().or_else(|| match self {
            Self::Frames { spec, size: (width, height), orientation, .. } if spec.layout != Layout::Planes => {
                let geometry = spec.turned_geometry(*width, *height, *orientation).ok()?;
                Some(spec.shape(geometry.output()))
            }
            _ => None,
        })
    }

    /// Fills `slots`.
    pub(crate) async fn ask(&self, client: &Client, slots: &Slots, call: &Call) -> Vec<Outcome> {
        match self {
            Self::Images { ids, spec } => client.images(ids, spec, slots, call).await,
            Self::Crops { ids, crop } => client.random_crops(ids, &crop.crop, crop.epoch, slots, call).await,
            Self::Frames { id, version, frames, spec, transport, .. } => {
                let call = Call { transport: *transport, ..*call };
                client.frames((id, version), frames, spec, slots, &call).await
            }
        }
    }

    /// The buffer of `out`, if the pictures fit it exactly.
    pub(crate) fn buffer(&self, out: &Bound<'_, PyAny>) -> PyResult<Out> {
        match self.dtype() {
            Dtype::U16 => self.buffer_of(out).map(Out::Shorts),
            _ => self.buffer_of(out).map(Out::Bytes),
        }
    }

    fn buffer_of<T: Element>(&self, out: &Bound<'_, PyAny>) -> PyResult<PyBuffer<T>> {
        let py = out.py();
        let shape = self.known_shape().ok_or_else(|| {
            invalid(py, "out= wants a spec whose output has one size, with crop or size; this one's depends on the picture")
        })?;
        // A torch tensor has no buffer of its own, but lends it as a numpy array.
        let buffer = PyBuffer::<T>::get(out).or_else(|failure| match out.getattr("numpy") {
            Ok(numpy) => PyBuffer::<T>::get(&numpy.call0()?),
            Err(raised) => passable(py, raised).and(Err(failure)),
        })?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("out= wants a writable, C-contiguous buffer"));
        }
        let [a, b, c] = shape.map(|side| side as usize);
        let want = [self.count(), a, b, c];
        match buffer.shape() == want {
            true => Ok(buffer),
            false => Err(invalid(py, format!("out has shape {:?}, want {want:?}", buffer.shape()))),
        }
    }

    /// Where the pictures are received.
    pub(crate) fn slots(&self, out: Option<&Out>, memory: u64) -> Result<Slots, Error> {
        let (count, dtype) = (self.count(), self.dtype());
        match (if out.is_some() { self.known_shape() } else { self.fixed_shape() }, out) {
            (Some(shape), Some(out)) => {
                // SAFETY: the caller holds `out` exported, so it stays valid, until the slots are gone; that nothing else uses it
                // meanwhile is asked of whoever passes `out=`.
                unsafe { Slots::external_of(count, shape, dtype, out.external()) }
            }
            (Some(shape), None) => Slots::fixed_of(count, shape, dtype),
            (None, _) => Ok(Slots::new(count, memory)),
        }
    }
}
