//! What pixels are asked for, and where they are received.

use framecache::batch::External;
use framecache::client::{Outcome, Transport};
use framecache::frame::Dtype;
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
        /// Of each, as far as the frames are of the size that is told.
        shape: Option<[u32; 3]>,
        transport: Transport,
    },
}

/// The caller's buffer, by the type of its numbers.
pub(crate) enum Out {
    Bytes(PyBuffer<u8>),
    Shorts(PyBuffer<u16>),
}

impl Out {
    /// The buffer of `out`, if it has exactly that shape and type.
    pub(crate) fn of(out: &Bound<'_, PyAny>, want: &[usize], dtype: Dtype) -> PyResult<Self> {
        match dtype {
            Dtype::U16 => buffer(out, want).map(Self::Shorts),
            _ => buffer(out, want).map(Self::Bytes),
        }
    }

    /// Slots in its memory.
    ///
    /// # Safety
    /// It is held until the slots are gone. That nothing else uses the memory meanwhile is asked of whoever passes `out=`.
    pub(crate) unsafe fn slots(&self, count: usize, shape: [u32; 3], dtype: Dtype) -> Result<Slots, Error> {
        let external = match self {
            Self::Bytes(buffer) => External { pointer: buffer.buf_ptr().cast(), bytes: buffer.len_bytes() },
            Self::Shorts(buffer) => External { pointer: buffer.buf_ptr().cast(), bytes: buffer.len_bytes() },
        };
        // SAFETY: what is exported stays valid; the rest is promised (see above).
        unsafe { Slots::external_of(count, shape, dtype, external) }
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
        match self {
            Self::Frames { shape, .. } => *shape,
            _ => self.fixed_shape(),
        }
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
        let shape = self.known_shape().ok_or_else(|| {
            invalid(out.py(), "out= wants a spec whose output has one size, with crop or size; this one's depends on the picture")
        })?;
        let [a, b, c] = shape.map(|side| side as usize);
        Out::of(out, &[self.count(), a, b, c], self.dtype())
    }

    /// Where the pictures are received.
    pub(crate) fn slots(&self, out: Option<&Out>, memory: u64) -> Result<Slots, Error> {
        let (count, dtype) = (self.count(), self.dtype());
        match (if out.is_some() { self.known_shape() } else { self.fixed_shape() }, out) {
            // SAFETY: the caller holds `out` exported until the slots are gone.
            (Some(shape), Some(out)) => unsafe { out.slots(count, shape, dtype) },
            (Some(shape), None) => Slots::fixed_of(count, shape, dtype),
            (None, _) => Ok(Slots::new(count, memory)),
        }
    }
}

/// A buffer of exactly that shape.
fn buffer<T: Element>(out: &Bound<'_, PyAny>, want: &[usize]) -> PyResult<PyBuffer<T>> {
    let py = out.py();
    // A torch tensor has no buffer of its own, but lends it as a numpy array.
    let buffer = PyBuffer::<T>::get(out).or_else(|failure| match out.getattr("numpy") {
        Ok(numpy) => PyBuffer::<T>::get(&numpy.call0()?),
        Err(raised) => passable(py, raised).and(Err(failure)),
    })?;
    if buffer.readonly() || !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("out= wants a writable, C-contiguous buffer"));
    }
    match buffer.shape() == want {
        true => Ok(buffer),
        false => Err(invalid(py, format!("out has shape {:?}, want {want:?}", buffer.shape()))),
    }
}
