//! A batch of pictures as Python has it.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use framecache::client::Outcome;
use framecache::frame::Dtype;
use framecache::{Error, Pictures, Version};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyString, PyTuple};

use crate::error::{build, exception, invalid};
use crate::tensor::{Array, Facts, Pixels, Tensor};
use crate::wanted::Out;

/// What happens to a picture that cannot be had because of itself: missing, denied, broken, unsupported, too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnError {
    /// The call raises the first such error.
    Raise,
    /// The batch is made without it.
    Skip,
    /// Its slot is zeros and not valid.
    Fill,
}

impl OnError {
    /// Whether a call raises this error.
    pub(crate) fn raises(self, error: &Error) -> bool {
        self == Self::Raise || !error.kind.is_bad_sample()
    }

    pub(crate) fn parse(py: Python<'_>, text: &str) -> PyResult<Self> {
        match text {
            "raise" => Ok(Self::Raise),
            "skip" => Ok(Self::Skip),
            "fill" => Ok(Self::Fill),
            _ => Err(invalid(py, format!("on_error={text:?}: want \"raise\", \"skip\" or \"fill\""))),
        }
    }
}

/// Decoded pictures, one slot each, in the order they were asked for.
///
/// ``batch[i]`` is the picture of slot ``i``; ``batch.data`` is all of them as one array. Neither copies.
#[pyclass(frozen, module = "framecache")]
pub(crate) struct Batch {
    slots: Vec<Slot>,
    /// All slots as one array, or why they are not.
    data: Result<Array, String>,
    errors: Py<PyDict>,
    keys: Py<PyList>,
}

struct Slot {
    array: Array,
    facts: Facts,
    valid: bool,
}

/// What a call to `Client.images` has when its pictures are in.
pub(crate) struct Received {
    pub(crate) pictures: Pictures,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) keys: Vec<Py<PyString>>,
    pub(crate) out: Option<Out>,
    pub(crate) dtype: Dtype,
    pub(crate) on_error: OnError,
}

impl Received {
    /// The batch; or the error that it may not pass over.
    pub(crate) fn batch(mut self, py: Python<'_>) -> PyResult<Batch> {
        let errors = PyDict::new(py);
        for (index, outcome) in self.outcomes.iter().enumerate() {
            match outcome {
                Err(error) if self.on_error.raises(error) => return Err(exception(py, error)),
                Err(error) => errors.set_item(index, build(py, error)?)?,
                Ok(_) => {}
            }
        }
        if self.on_error == OnError::Skip && !errors.is_empty() {
            self.leave_out();
        }
        let keys = PyList::new(py, &self.keys)?.unbind();
        let (outcomes, count) = (&self.outcomes, self.pictures.len());
        let part = Part::of(&mut self.pictures, 0..count, |index| outcomes[index].as_ref().ok());
        let owner = Arc::new(Pixels::new(self.pictures, self.out));
        Ok(part.batch(&owner, self.dtype, errors.unbind(), keys))
    }

    /// Removes the slots without a picture; those after move up.
    fn leave_out(&mut self) {
        let remains: Vec<bool> = self.outcomes.iter().map(Result::is_ok).collect();
        self.pictures.retain(|index| remains[index]);
        let mut remain = remains.iter();
        self.keys.retain(|_| *remain.next().unwrap_or(&true));
        self.outcomes.retain(Result::is_ok);
    }
}

/// Slots of finished pictures that follow one another, as long as their memory has no owner yet.
pub(crate) struct Part {
    /// Memory, shape and facts of each slot.
    slots: Vec<(*mut u8, [usize; 3], Facts)>,
    /// All of them as one array, or why they are not.
    pub(crate) whole: Result<(*mut u8, [usize; 4]), String>,
}

impl Part {
    /// `version` is of a slot that holds its picture.
    pub(crate) fn of<'a>(pictures: &mut Pictures, slots: Range<usize>, version: impl Fn(usize) -> Option<&'a Version>) -> Self {
        let slot = |index| {
            let version = version(index);
            let head = pictures.head(index).filter(|_| version.is_some());
            let facts = Facts {
                version: version.map(ToString::to_string),
                size: head.map(|head| head.source),
                orientation: head.map(|head| head.orientation),
                pts_seconds: head.map(|head| head.pts_seconds),
            };
            // Of one without a picture, zeros of the others' shape, and empty if they have several.
            match pictures.slot_mut(index) {
                Some((shape, pixels)) => (pixels.as_mut_ptr(), shape.map(|side| side as usize), facts),
                None => (NonNull::dangling().as_ptr(), [0, 0, 3], facts),
            }
        };
        let found = slots.clone().map(slot).collect();
        Self { slots: found, whole: whole(pictures, slots) }
    }

    /// As Python has it. `owner` holds the memory, of numbers of that type.
    pub(crate) fn batch(self, owner: &Arc<Pixels>, dtype: Dtype, errors: Py<PyDict>, keys: Py<PyList>) -> Batch {
        let slots = self.slots.into_iter().map(|(pointer, shape, facts)| Slot {
            array: Array::new(owner.clone(), pointer, &shape, dtype),
            valid: facts.version.is_some(),
            facts,
        });
        let data = self.whole.map(|(pointer, shape)| Array::new(owner.clone(), pointer, &shape, dtype));
        Batch { slots: slots.collect(), data, errors, keys }
    }
}

/// Slots as one array, or why they are not.
pub(crate) fn whole(pictures: &mut Pictures, slots: Range<usize>) -> Result<(*mut u8, [usize; 4]), String> {
    let count = slots.len();
    if let Some(([height, width, channels], pixels)) = pictures.part_mut(slots.clone()) {
        return Ok((pixels.as_mut_ptr(), [count, height as usize, width as usize, channels as usize]));
    }
    let shapes = pictures.shapes(slots);
    match shapes.len() {
        0 => Ok((NonNull::dangling().as_ptr(), [count, 0, 0, 3])),
        1 => {
            Err("the pictures lie in separate memory, as they pass the client's memory together: use batch[i], or ask for fewer"
                .into())
        }
        _ => Err(format!(
            "pictures differ in shape, [height, width, 3]: {}; use batch[i], or a spec with crop or size",
            listed(&shapes)
        )),
    }
}

/// The first few, for a message.
pub(crate) fn listed(shapes: &[impl std::fmt::Debug]) -> String {
    shapes.iter().take(8).map(|shape| format!("{shape:?}")).collect::<Vec<_>>().join(", ")
}

impl Batch {
    /// When the frame of a slot is shown, if there is one.
    pub(crate) fn pts_seconds(&self, place: usize) -> Option<f64> {
        self.slots.get(place)?.facts.pts_seconds
    }
}

#[pymethods]
impl Batch {
    /// All pictures as one array, ``[pictures, height, width, 3]``. Raises ``ValueError`` naming the shapes if they differ.
    #[getter]
    pub(crate) fn data(&self) -> PyResult<Tensor> {
        match &self.data {
            Ok(array) => Ok(Tensor { array: array.clone(), facts: Facts::default() }),
            Err(why) => Err(PyValueError::new_err(why.clone())),
        }
    }

    /// Whether each slot holds its picture. ``False`` only with ``on_error="fill"``.
    #[getter]
    fn valid(&self) -> Vec<bool> {
        self.slots.iter().map(|slot| slot.valid).collect()
    }

    /// The error of each picture that was passed over, by its place in the list that was asked for.
    #[getter]
    fn errors(&self, py: Python<'_>) -> Py<PyDict> {
        self.errors.clone_ref(py)
    }

    /// ``(width, height)`` of each picture as stored; ``None`` for a slot that is not valid.
    #[getter]
    fn sizes(&self) -> Vec<Option<(u32, u32)>> {
        self.slots.iter().map(|slot| slot.facts.size).collect()
    }

    /// The address of each slot's picture. With ``on_error="skip"``, those that remain.
    #[getter]
    fn keys(&self, py: Python<'_>) -> Py<PyList> {
        self.keys.clone_ref(py)
    }

    fn __len__(&self) -> usize {
        self.slots.len()
    }

    #[pyo3(name = "__getitem__")]
    pub(crate) fn at(&self, index: isize) -> PyResult<Tensor> {
        let place = if index < 0 { index + self.slots.len() as isize } else { index };
        let slot = usize::try_from(place).ok().and_then(|place| self.slots.get(place));
        let slot = slot.ok_or_else(|| PyIndexError::new_err(format!("slot {index} of a batch of {}", self.slots.len())))?;
        Ok(Tensor { array: slot.array.clone(), facts: slot.facts.clone() })
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyIterator>> {
        let py = slf.py();
        let tensor = |slot: &Slot| Bound::new(py, Tensor { array: slot.array.clone(), facts: slot.facts.clone() });
        let tensors: Vec<_> = slf.get().slots.iter().map(tensor).collect::<PyResult<_>>()?;
        PyTuple::new(py, tensors)?.try_iter()
    }

    fn __repr__(&self) -> String {
        let shape = match &self.data {
            Ok(array) => format!("{:?}", array.shape),
            Err(_) => "of several shapes".into(),
        };
        let bad = self.slots.iter().filter(|slot| !slot.valid).count();
        format!("<framecache.Batch: {} pictures {shape}, {bad} not valid>", self.slots.len())
    }
}
