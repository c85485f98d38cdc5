//! Clips of several videos: frames of all of them in one call, as one array where they agree, and each clip's as one where they do not.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use framecache::client::{Clip, ClipSlots, FoundClip, Outcome, Transport};
use framecache::frame::Dtype;
use framecache::spec::{Selector, SpecError};
use framecache::wire::FrameRow;
use framecache::{Batch as Slots, Call, Error, ImageSpec, Pictures, Version};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyString, PyTuple};

use crate::batch::{OnError, Part, listed, whole};
use crate::client::{Client, call, object};
use crate::error::{build, exception, invalid};
use crate::frames::Frames;
use crate::process::wait;
use crate::tensor::{Array, Facts, Pixels, Tensor};
use crate::video::of_selector;
use crate::wanted::Out;

/// Frames of several videos, one clip each, in the order they were asked for.
///
/// ``clips[i]`` is the ``Frames`` of clip ``i``; ``clips.data`` is all of them as one array. Neither copies.
#[pyclass(frozen, module = "framecache")]
pub(crate) struct Clips {
    clips: Vec<Py<Frames>>,
    valid: Vec<bool>,
    /// All clips as one array, or why they are not.
    data: Result<Array, String>,
    errors: Py<PyDict>,
    keys: Py<PyList>,
}

/// What is asked for, as Python says it.
pub(crate) struct Asked<'a, 'py> {
    pub(crate) clips: &'a Bound<'py, PyAny>,
    /// Also of which stream.
    pub(crate) spec: ImageSpec,
    pub(crate) transport: Transport,
    pub(crate) on_error: OnError,
    pub(crate) out: Option<&'a Bound<'py, PyAny>>,
    pub(crate) timeout: Option<f64>,
}

/// Asks for clips, and waits until they are in.
pub(crate) fn receive(client: &Client, py: Python<'_>, asked: Asked<'_, '_>) -> PyResult<Clips> {
    let Asked { clips, spec, transport, on_error, out, timeout } = asked;
    let (keys, clips) = entries(clips)?;
    let (connected, call, began) = (client.connected(py)?, call(py, timeout)?, Instant::now());
    let (finder, wanted, stream, dtype) = (connected.clone(), clips.clone(), spec.stream, spec.dtype);
    let found = wait(py, async move { finder.find_clips(&wanted, stream, &call).await })?;
    let wrong = |(found, clip): (Result<FoundClip, Error>, &Clip)| found.map_err(|error| of_selector(&clip.frames, error));
    let found: Vec<_> = found.into_iter().zip(&clips).map(wrong).collect();
    if let Some(error) = found.iter().filter_map(|found| found.as_ref().err()).find(|error| on_error.raises(error)) {
        return Err(exception(py, error));
    }

    let agreed = agreed(&found, &clips, &spec, on_error);
    let out = out.map(|out| buffer(out, clips.len(), agreed, dtype)).transpose()?;
    let room = Room::of(&found, &clips, &spec, agreed, out.as_ref(), client.memory()).map_err(|error| exception(py, &error))?;
    let Room { batches, places } = room;
    // One deadline for both.
    let left = call.timeout.unwrap_or(client.timeout()).saturating_sub(began.elapsed());
    let (slots, call) = (places.clone(), Call { timeout: Some(left), transport, ..call });
    // `out` is held here until the work is gone, however it ends.
    let (found, outcomes, pictures) = wait(py, async move {
        let placed = found.iter().zip(&slots).filter_map(|(found, place)| {
            let clip = found.as_ref().ok()?;
            Some(ClipSlots { clip, batch: &batches[place.batch], first: place.slots.start })
        });
        let placed: Vec<ClipSlots<'_>> = placed.collect();
        let outcomes = connected.clips(&placed, &spec, &call).await;
        drop(placed);
        let pictures: Vec<Pictures> = batches.into_iter().map(Slots::finish).collect();
        (found, outcomes, pictures)
    })?;
    let mut outcomes = outcomes.into_iter();
    let received = found.into_iter().zip(places).zip(keys).map(|((found, place), key)| {
        let (rows, ended) = match found {
            Ok(found) => (found.rows, ended(outcomes.next().unwrap_or_default(), on_error)),
            Err(error) => (vec![FrameRow::default(); place.slots.len()], Err(error)),
        };
        Received { key, place, rows, ended }
    });
    clips_of(py, received.collect(), pictures, (out, dtype), agreed, on_error)
}

/// Addresses, and what is wanted of each: pairs with a list of indices, or with a selection as text.
fn entries(clips: &Bound<'_, PyAny>) -> PyResult<(Vec<Py<PyString>>, Vec<Clip>)> {
    let want = || PyTypeError::new_err("clips: want pairs of an address and the indices of its frames");
    let mut found = (Vec::new(), Vec::new());
    for entry in clips.try_iter()? {
        let entry = entry?;
        if entry.is_instance_of::<PyString>() || entry.len().ok() != Some(2) {
            return Err(want());
        }
        let uri = entry.get_item(0)?.cast_into::<PyString>().map_err(|_| want())?;
        let (id, frames) = (object(uri.py(), &uri.to_cow()?)?, entry.get_item(1)?);
        let frames = match frames.cast::<PyString>() {
            Ok(text) => text.to_cow()?.parse().map_err(|failure: SpecError| invalid(uri.py(), failure.to_string()))?,
            Err(_) => Selector::Frames(frames.extract()?),
        };
        found.0.push(uri.unbind());
        found.1.push(Clip { id, frames });
    }
    Ok(found)
}

/// What clips have in common: frames of each, and their shape, as far as it is known.
type Agreed = (usize, Option<[u32; 3]>);

/// What all clips have in common, if they do. One that was not found is taken to be as the others are, unless it named another number of
/// frames; one that is left out has no say.
fn agreed(found: &[Result<FoundClip, Error>], clips: &[Clip], spec: &ImageSpec, on_error: OnError) -> Option<Agreed> {
    // Planes have the shape that their format and the frames' size give.
    let look = |found: &FoundClip| {
        let (facts, shape) = (&found.facts, found.facts.shape(spec));
        let form = facts.video.as_ref().map(|video| video.pix_fmt.clone()).filter(|_| shape.is_none());
        (found.rows.len(), shape, form, (facts.media.width, facts.media.height))
    };
    let mut looks = found.iter().flatten().map(look);
    let first = looks.next();
    if let Some((frames, shape, form, size)) = &first {
        let is_alike = |other: &(usize, Option<[u32; 3]>, Option<String>, (u32, u32))| {
            (other.0, other.1, &other.2) == (*frames, *shape, form) && (shape.is_some() || other.3 == *size)
        };
        if !looks.all(|other| is_alike(&other)) {
            return None;
        }
    }
    let missing = || found.iter().zip(clips).filter(|(found, _)| found.is_err()).filter_map(|(_, clip)| named(clip));
    let (frames, shape) = match first {
        Some((frames, shape, ..)) => (frames, shape),
        None => (missing().next().unwrap_or(0), spec.fixed_shape()),
    };
    (on_error == OnError::Skip || missing().all(|named| named == frames)).then_some((frames, shape))
}

/// The number of frames that a clip names, where it names them.
fn named(clip: &Clip) -> Option<usize> {
    match &clip.frames {
        Selector::Frames(frames) => Some(frames.len()),
        _ => None,
    }
}

/// The buffer of `out`, if all clips fit it exactly.
fn buffer(out: &Bound<'_, PyAny>, clips: usize, agreed: Option<Agreed>, dtype: Dtype) -> PyResult<Out> {
    let Some((frames, Some([a, b, c]))) = agreed else {
        return Err(invalid(out.py(), "out= wants clips of as many frames each, and frames of one size, as by size or crop"));
    };
    Out::of(out, &[clips, frames, a as usize, b as usize, c as usize], dtype)
}

/// The slots of one clip.
#[derive(Clone)]
struct Place {
    batch: usize,
    slots: Range<usize>,
}

/// Where clips are received.
struct Room {
    batches: Vec<Slots>,
    places: Vec<Place>,
}

impl Room {
    /// Clips that agree lie in one batch, side by side; others in one each, so that each is an array of its own. What was told of sizes is
    /// believed up to `memory` bytes.
    fn of(
        found: &[Result<FoundClip, Error>],
        clips: &[Clip],
        spec: &ImageSpec,
        agreed: Option<Agreed>,
        out: Option<&Out>,
        memory: u64,
    ) -> Result<Self, Error> {
        let count = |(found, clip): (&Result<FoundClip, Error>, &Clip)| match (found, agreed) {
            (Ok(found), _) => found.rows.len(),
            (Err(_), Some((frames, _))) => frames,
            (Err(_), None) => named(clip).unwrap_or(0),
        };
        let counts: Vec<usize> = found.iter().zip(clips).map(count).collect();
        let all: usize = counts.iter().sum();
        let fits = |count: usize, shape: [u32; 3]| {
            let sides = shape.iter().fold((count * spec.dtype.bytes()) as u64, |bytes, &side| bytes.saturating_mul(side.into()));
            spec.fixed_shape().is_some() || sides <= memory
        };
        let slots = |count, shape: Option<[u32; 3]>| match shape.filter(|&shape| fits(count, shape)) {
            Some(shape) => Slots::fixed_of(count, shape, spec.dtype),
            None => Ok(Slots::new(count, memory)),
        };
        let together = agreed.filter(|(_, shape)| out.is_some() || shape.is_none_or(|shape| fits(all, shape)));
        let Some((_, shape)) = together else {
            let shapes = found.iter().map(|found| found.as_ref().ok().and_then(|found| found.facts.shape(spec)));
            let batches = counts.iter().zip(shapes).map(|(&count, shape)| slots(count, shape)).collect::<Result<_, _>>()?;
            let places = counts.into_iter().enumerate().map(|(batch, count)| Place { batch, slots: 0..count });
            return Ok(Self { batches, places: places.collect() });
        };
        let batch = match (out, shape) {
            // SAFETY: `receive` holds `out` exported until the batch is gone.
            (Some(out), Some(shape)) => unsafe { out.slots(all, shape, spec.dtype) }?,
            _ => slots(all, shape)?,
        };
        Ok(Self { batches: vec![batch], places: side_by_side(counts) })
    }
}

fn side_by_side(counts: impl IntoIterator<Item = usize>) -> Vec<Place> {
    let place = |first: &mut usize, count: usize| {
        let slots = *first..*first + count;
        *first = slots.end;
        Some(Place { batch: 0, slots })
    };
    counts.into_iter().scan(0, place).collect()
}

/// How a clip ended: the version of each of its frames; else the error that is to be raised, before one that is not.
fn ended(outcomes: Vec<Outcome>, on_error: OnError) -> Result<Vec<Version>, Error> {
    let errors = || outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
    match errors().find(|error| on_error.raises(error)).or(errors().next()) {
        Some(error) => Err(error.clone()),
        None => Ok(outcomes.into_iter().flatten().collect()),
    }
}

/// A clip whose frames are in, or are not to be had.
struct Received {
    key: Py<PyString>,
    place: Place,
    rows: Vec<FrameRow>,
    ended: Result<Vec<Version>, Error>,
}

/// The clips; or the error that may not be passed over.
fn clips_of(
    py: Python<'_>,
    mut received: Vec<Received>,
    mut pictures: Vec<Pictures>,
    (mut out, dtype): (Option<Out>, Dtype),
    agreed: Option<Agreed>,
    on_error: OnError,
) -> PyResult<Clips> {
    let errors = PyDict::new(py);
    for (index, clip) in received.iter().enumerate() {
        match &clip.ended {
            Err(error) if on_error.raises(error) => return Err(exception(py, error)),
            Err(error) => errors.set_item(index, build(py, error)?)?,
            Ok(_) => {}
        }
    }
    let is_together = pictures.len() == 1 && received.iter().all(|clip| clip.place.batch == 0);
    if on_error == OnError::Skip && !errors.is_empty() {
        leave_out(&mut received, &mut pictures, is_together);
    }
    for clip in received.iter().filter(|clip| clip.ended.is_err()) {
        let pictures = &mut pictures[clip.place.batch];
        clip.place.slots.clone().for_each(|slot| {
            pictures.slot_mut(slot).into_iter().for_each(|(_, pixels)| pixels.fill(0));
        });
    }

    let part = |clip: &Received| {
        let (versions, first) = (clip.ended.as_ref().ok(), clip.place.slots.start);
        Part::of(&mut pictures[clip.place.batch], clip.place.slots.clone(), |slot| versions?.get(slot - first))
    };
    let parts: Vec<Part> = received.iter().map(part).collect();
    let frames = agreed.map_or(0, |(frames, _)| frames);
    let data = match (is_together, pictures.first_mut()) {
        (true, Some(pictures)) => {
            let all = 0..pictures.len();
            whole(pictures, all).map_err(|_| why_apart(&parts))
        }
        _ => Err(why_apart(&parts)),
    };
    let owners: Vec<Arc<Pixels>> = pictures.into_iter().map(|pictures| Arc::new(Pixels::new(pictures, out.take()))).collect();
    let data = data.map(|(pointer, [_, a, b, c])| Array::new(owners[0].clone(), pointer, &[parts.len(), frames, a, b, c], dtype));
    let valid = received.iter().map(|clip| clip.ended.is_ok()).collect();
    let keys = PyList::new(py, received.iter().map(|clip| &clip.key))?.unbind();
    let of_part = |(clip, part): (Received, Part)| {
        let keys = PyList::new(py, clip.rows.iter().map(|_| &clip.key))?.unbind();
        let batch = part.batch(&owners[clip.place.batch], dtype, PyDict::new(py).unbind(), keys);
        Py::new(py, Frames::new(py, batch, clip.rows)?)
    };
    let clips = received.into_iter().zip(parts).map(of_part).collect::<PyResult<_>>()?;
    Ok(Clips { clips, valid, data, errors: errors.unbind(), keys })
}

/// Removes the clips that are not to be had. Those after them move up in the memory that they share.
fn leave_out(received: &mut Vec<Received>, pictures: &mut [Pictures], is_together: bool) {
    let remains: Vec<bool> = received.iter().flat_map(|clip| clip.place.slots.clone().map(|_| clip.ended.is_ok())).collect();
    received.retain(|clip| clip.ended.is_ok());
    if let Some(pictures) = pictures.first_mut().filter(|_| is_together) {
        pictures.retain(|slot| remains[slot]);
        let places = side_by_side(received.iter().map(|clip| clip.place.slots.len()));
        received.iter_mut().zip(places).for_each(|(clip, place)| clip.place = place);
    }
}

/// Why clips are not one array.
fn why_apart(parts: &[Part]) -> String {
    let mut shapes = Vec::new();
    for part in parts {
        match &part.whole {
            Err(why) => return why.clone(),
            Ok((_, shape)) if !shapes.contains(shape) => shapes.push(*shape),
            Ok(_) => {}
        }
    }
    match shapes.len() {
        0 | 1 => {
            "the clips lie in separate memory, as they pass the client's memory together: use clips[i], or ask for fewer".into()
        }
        _ => format!(
            "clips differ in shape, [frames, height, width, 3]: {}; use clips[i], or as many frames of each and a spec with crop or size",
            listed(&shapes)
        ),
    }
}

#[pymethods]
impl Clips {
    /// All clips as one array, ``[clips, frames, height, width, 3]``. Raises ``ValueError`` naming the shapes if they differ.
    #[getter]
    fn data(&self) -> PyResult<Tensor> {
        match &self.data {
            Ok(array) => Ok(Tensor { array: array.clone(), facts: Facts::default() }),
            Err(why) => Err(PyValueError::new_err(why.clone())),
        }
    }

    /// Whether each clip holds its frames. ``False`` only with ``on_error="fill"``.
    #[getter]
    fn valid(&self) -> Vec<bool> {
        self.valid.clone()
    }

    /// The error of each clip that was passed over, by its place in the list that was asked for.
    #[getter]
    fn errors(&self, py: Python<'_>) -> Py<PyDict> {
        self.errors.clone_ref(py)
    }

    /// The address of each clip's video. With ``on_error="skip"``, those that remain.
    #[getter]
    fn keys(&self, py: Python<'_>) -> Py<PyList> {
        self.keys.clone_ref(py)
    }

    fn __len__(&self) -> usize {
        self.clips.len()
    }

    fn __getitem__(&self, py: Python<'_>, index: isize) -> PyResult<Py<Frames>> {
        let place = if index < 0 { index + self.clips.len() as isize } else { index };
        let clip = usize::try_from(place).ok().and_then(|place| self.clips.get(place));
        clip.map(|clip| clip.clone_ref(py)).ok_or_else(|| PyIndexError::new_err(format!("clip {index} of {}", self.clips.len())))
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyIterator>> {
        PyTuple::new(slf.py(), &slf.get().clips)?.try_iter()
    }

    fn __repr__(&self) -> String {
        let shape = match &self.data {
            Ok(array) => format!("{:?}", array.shape),
            Err(_) => "of several shapes".into(),
        };
        let bad = self.valid.iter().filter(|valid| !**valid).count();
        format!("<framecache.Clips: {} clips {shape}, {bad} not valid>", self.clips.len())
    }
}
