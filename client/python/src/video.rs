//! Videos and animations: frames by index, by time, by range, evenly.

use framecache::client::{ObjectFacts, Transport};
use framecache::spec::{Damaged, Rate, SELECTED_MAX, Seconds, Selector};
use framecache::wire::{FrameRow, VideoFacts};
use framecache::{Error, ErrorKind, ImageSpec, ObjectId};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice, PyString};

use crate::batch::OnError;
use crate::client::{Client, object};
use crate::colours::{MATRICES, PRIMARIES, RANGES, TRANSFERS, named};
use crate::error::{exception, invalid};
use crate::frames::Frames;
use crate::spec::{Image, parsed, spec_of};
use crate::wanted::Wanted;

/// A video, an animated GIF, WebP, PNG or AVIF, or the pages of a TIFF: what is known of it, and its frames. Made by ``Client.video``;
/// holds no frame.
///
/// ``video[3]`` and ``video[-1]`` are frames, ``video[10:20:2]`` is several; ``len(video)`` counts them.
#[pyclass(frozen, module = "framecache")]
pub(crate) struct Video {
    client: Py<Client>,
    uri: Py<PyString>,
    facts: ObjectFacts,
    /// As it was asked for.
    stream: Option<u32>,
}

/// How frames are made, as Python says it.
struct How<'a, 'py> {
    spec: Option<&'a Bound<'py, PyAny>>,
    damaged: &'a str,
    transport: &'a str,
    out: Option<&'a Bound<'py, PyAny>>,
    timeout: Option<f64>,
    image: Option<&'a Bound<'py, PyDict>>,
}

impl Video {
    pub(crate) fn new(client: Py<Client>, uri: Py<PyString>, facts: ObjectFacts, stream: Option<u32>) -> Self {
        Self { client, uri, facts, stream }
    }

    fn film(&self) -> Option<&VideoFacts> {
        self.facts.video.as_ref()
    }

    fn refuse(&self, py: Python<'_>, kind: ErrorKind, message: String) -> PyErr {
        self.told(py, Error::new(kind, message))
    }

    fn told(&self, py: Python<'_>, error: Error) -> PyErr {
        exception(py, &Error { uri: Some(self.uri.to_string()), ..error })
    }

    /// Indices counted from the start, as far as it is known where the end is.
    fn counted(&self, py: Python<'_>, indices: &[i64]) -> PyResult<Vec<u64>> {
        self.facts.counted(indices).map_err(|error| self.told(py, error))
    }

    /// What a selection comes to: asked of the cluster, which has the index.
    fn rows(&self, py: Python<'_>, selector: Selector, timeout: Option<f64>) -> PyResult<Vec<FrameRow>> {
        let (id, version, stream) = (self.id(py)?, self.facts.version.clone(), self.stream);
        let select = |client: framecache::Client, call| async move {
            let selected = client.select(&id, Some(&version), &selector, stream, &call).await;
            selected.map_err(|error| of_selector(&selector, error))
        };
        Ok(self.client.get().ask(py, timeout, select)?.frames)
    }

    fn id(&self, py: Python<'_>) -> PyResult<ObjectId> {
        object(py, &self.uri.bind(py).to_cow()?)
    }

    /// Indices and times of frames, in that order.
    fn at(&self, py: Python<'_>, frames: &[u64], timeout: Option<f64>) -> PyResult<Vec<FrameRow>> {
        if self.film().is_none() {
            // Frames of animations are shown one after the other; how long is not kept.
            return Ok(frames.iter().map(|&frame| FrameRow { frame, ..FrameRow::default() }).collect());
        }
        let mut rows = Vec::with_capacity(frames.len());
        for part in frames.chunks(SELECTED_MAX) {
            let part = part.iter().map(|&frame| i64::try_from(frame).unwrap_or(i64::MAX)).collect();
            rows.extend(self.rows(py, Selector::Frames(part), timeout)?);
        }
        Ok(rows)
    }

    fn frames(&self, py: Python<'_>, rows: Vec<FrameRow>, how: &How<'_, '_>) -> PyResult<Frames> {
        let spec = frame_spec(py, how.spec, how.damaged, self.stream, how.image)?;
        let transport = transport_of(py, how.transport)?;
        let frames: Vec<u64> = rows.iter().map(|row| row.frame).collect();
        let keys = frames.iter().map(|_| self.uri.clone_ref(py)).collect();
        let shape = self.facts.shape(&spec);
        let (id, version) = (self.id(py)?, self.facts.version.clone());
        let transport = if self.facts.has_yuv420() { transport } else { Transport::Rgb };
        let wanted = Wanted::Frames { id, version, frames, spec, shape, transport };
        let batch = self.client.get().receive(py, wanted, keys, OnError::Raise, how.out, how.timeout)?;
        // Decoding may have shown that the index was wrong: what was counted by the old one is not handed on.
        let is_meant = |(place, row): (usize, &FrameRow)| batch.pts_seconds(place).is_none_or(|pts| pts == row.pts_seconds);
        if let Some((_, row)) = rows.iter().enumerate().find(|row| self.film().is_some() && !is_meant(*row)) {
            return Err(self.told(py, self.facts.is_another(row.frame)));
        }
        Frames::new(py, batch, rows)
    }

    fn seconds(&self, py: Python<'_>, seconds: f64) -> PyResult<Seconds> {
        let VideoFacts { begin_seconds: begin, end_seconds: end, .. } = self.timed(py)?;
        let outside = || invalid(py, format!("time {seconds} s outside of the video's [{begin}, {end}) s"));
        Seconds::of(seconds).ok_or_else(outside)
    }

    /// What has no times has no frames by time.
    fn timed(&self, py: Python<'_>) -> PyResult<&VideoFacts> {
        self.film().ok_or_else(|| self.refuse(py, ErrorKind::Unsupported, "frames of an animation are had by index".into()))
    }
}

/// A frame that is not there is an `IndexError`; a time at which there is none is a value that is wrong.
pub(crate) fn of_selector(selector: &Selector, error: Error) -> Error {
    match (selector, &error.kind) {
        (Selector::Frames(_), _) => error,
        (_, ErrorKind::OutOfRange) => Error { kind: ErrorKind::Invalid, ..error },
        _ => error,
    }
}

/// How frames travel.
pub(crate) fn transport_of(py: Python<'_>, name: &str) -> PyResult<Transport> {
    match name {
        "rgb" => Ok(Transport::Rgb),
        "yuv420" => Ok(Transport::Yuv420),
        other => Err(invalid(py, format!("transport={other:?}: want \"rgb\" or \"yuv420\""))),
    }
}

/// How frames are made: by a spec, or by its keywords.
pub(crate) fn frame_spec(
    py: Python<'_>,
    spec: Option<&Bound<'_, PyAny>>,
    damaged: &str,
    stream: Option<u32>,
    image: Option<&Bound<'_, PyDict>>,
) -> PyResult<ImageSpec> {
    let mut spec = match (spec, image) {
        (Some(_), Some(_)) => return Err(invalid(py, "frames are made by a spec, or by its keywords, not by both")),
        (None, Some(keywords)) => keyworded(py, keywords)?,
        (spec, None) => spec_of(spec)?,
    };
    spec.stream = stream;
    spec.damaged = match damaged {
        "error" => Damaged::Error,
        "keep" => Damaged::Keep,
        other => return Err(invalid(py, format!("damaged={other:?}: want \"error\" or \"keep\""))),
    };
    Ok(spec)
}

/// A spec by its keywords; what is a video's alone is none of a picture's.
fn keyworded(py: Python<'_>, keywords: &Bound<'_, PyDict>) -> PyResult<ImageSpec> {
    let keywords = keywords.copy()?;
    let mut own = Vec::new();
    for name in ["layout", "dtype"] {
        let Some(value) = keywords.get_item(name)? else { continue };
        let value = value.str()?.to_string();
        if name != "layout" || value == "planes" {
            keywords.del_item(name)?;
            own.push(format!("{name}={value}"));
        }
    }
    let image = py.get_type::<Image>().call((), Some(&keywords))?.cast_into::<Image>()?;
    let spec = &image.get().spec;
    if own.is_empty() {
        return Ok(spec.clone());
    }
    let mark = if *spec == ImageSpec::default() { '?' } else { '&' };
    parsed(py, &format!("{spec}{mark}{}", own.join("&"))).map(|image| image.spec)
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
    fn num_frames(&self) -> Option<u64> {
        self.facts.frame_count()
    }

    /// Number of frames that the file's header claims, if it does.
    #[getter]
    fn num_frames_header(&self) -> Option<u64> {
        self.film()?.header_frames
    }

    /// Frames a second, on average; ``None`` of an animation, as all that follows times.
    #[getter]
    fn average_fps(&self) -> Option<f64> {
        let (over, under) = self.film()?.average_fps;
        Some(f64::from(over) / f64::from(under))
    }

    /// Frames a second as the file's header claims, if it does.
    #[getter]
    fn header_fps(&self) -> Option<f64> {
        let (over, under) = self.film()?.header_fps()?;
        Some(f64::from(over) / f64::from(under))
    }

    /// Width of a pixel by its height, over and under the line, where the file says: ``(1, 1)`` are squares.
    #[getter]
    fn sample_aspect(&self) -> Option<(u32, u32)> {
        self.film()?.sample_aspect()
    }

    /// Index of this stream in its file; ``Client.video(uri, stream=1)`` takes another than FFmpeg's best.
    #[getter]
    fn stream(&self) -> Option<u32> {
        self.film()?.stream()
    }

    /// Indices of the file's video streams, attached pictures among them.
    #[getter]
    fn streams(&self) -> Vec<u32> {
        self.film().map_or(Vec::new(), VideoFacts::streams)
    }

    /// From the first frame's beginning to the last one's end.
    #[getter]
    fn duration_seconds(&self) -> Option<f64> {
        self.film().map(|film| film.duration_seconds)
    }

    /// When the first frame is shown.
    #[getter]
    fn begin_stream_seconds(&self) -> Option<f64> {
        self.film().map(|film| film.begin_seconds)
    }

    /// When the last frame is no longer.
    #[getter]
    fn end_stream_seconds(&self) -> Option<f64> {
        self.film().map(|film| film.end_seconds)
    }

    /// Width of a frame as stored, in pixels.
    #[getter]
    fn width(&self) -> u32 {
        self.facts.media.width
    }

    /// Height of a frame as stored, in pixels.
    #[getter]
    fn height(&self) -> u32 {
        self.facts.media.height
    }

    /// Degrees counter-clockwise by which frames are to be turned, as FFmpeg says it; ``orientation="apply"`` turns them.
    #[getter]
    fn rotation(&self) -> i16 {
        self.film().map_or(0, |film| film.rotation)
    }

    /// The codec, by FFmpeg's name.
    #[getter]
    fn codec(&self) -> Option<&str> {
        self.film().map(|film| &*film.codec)
    }

    /// The pixel format, by FFmpeg's name.
    #[getter]
    fn pix_fmt(&self) -> Option<&str> {
        self.film().map(|film| &*film.pix_fmt)
    }

    /// The matrix, by FFmpeg's name; ``None`` where the stream does not say.
    #[getter]
    fn color_space(&self) -> Option<&'static str> {
        named(&MATRICES, self.film()?.matrix)
    }

    /// ``"tv"`` (limited) or ``"pc"`` (full); ``None`` where the stream does not say.
    #[getter]
    fn color_range(&self) -> Option<&'static str> {
        named(&RANGES, self.film()?.range)
    }

    /// The primaries, by FFmpeg's name; ``None`` where the stream does not say.
    #[getter]
    fn color_primaries(&self) -> Option<&'static str> {
        named(&PRIMARIES, self.film()?.primaries)
    }

    /// The transfer characteristics, by FFmpeg's name; ``None`` where the stream does not say.
    #[getter]
    fn color_transfer(&self) -> Option<&'static str> {
        named(&TRANSFERS, self.film()?.transfer)
    }

    /// Its format: ``"video"``, ``"gif"``, ``"webp"``, ``"png"``, ``"avif"``, ``"tiff"``.
    #[getter]
    fn format(&self) -> &str {
        &self.facts.media.format
    }

    /// Bytes of the file.
    #[getter]
    fn size(&self) -> u64 {
        self.facts.size
    }

    /// Its version (etag), when it was looked at.
    #[getter]
    fn version(&self) -> &str {
        self.facts.version.as_str()
    }

    /// Indices of the frames at which decoding can begin; asks the cluster.
    #[getter]
    fn keyframes(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let Some(film) = self.film() else { return Ok(vec![0]) };
        let frames: Vec<u64> = (0..film.frames).collect();
        Ok(self.at(py, &frames, None)?.into_iter().filter(|row| row.starts).map(|row| row.frame).collect())
    }

    /// Where times come from: ``"container"``, or ``"synthesized"`` where it has none, and frames are counted out evenly.
    #[getter]
    fn pts_origin(&self) -> Option<&'static str> {
        self.film().map(|film| if film.pts_synthesized { "synthesized" } else { "container" })
    }

    /// Whether something is wrong with the stream, as far as was looked; frames that are affected are errors, unless
    /// ``damaged="keep"``.
    #[getter]
    fn damaged(&self) -> bool {
        self.film().is_some_and(|film| film.damaged)
    }

    /// Frames by index, in that order; negative ones count from the end. Composited, as a player shows them. ``spec`` is an ``Image``,
    /// or its text, or its keywords; of a video also ``layout="planes"``, the planes as decoded, ``dtype="u16"``, which
    /// keeps the samples' depth, and ``damaged="keep"``. ``transport="yuv420"`` has frames of their own size travel as planes, where they
    /// are 4:2:0 of 8 bits: half the bytes, and the same pixels, which are made here.
    ///
    /// Raises ``OutOfRangeError`` (an ``IndexError``) for a frame that is not there, ``ChangedError`` where the file was replaced since
    /// it was looked at and the cluster does not hold that version any more, and otherwise what ``Client.images`` raises.
    ///
    /// >>> video = fc.Client("env").video("s3://photos/fun/ball.gif")
    /// >>> video.get_frames_at([0, 2, 2], short=64).data.shape
    /// (3, 64, 64, 3)
    #[pyo3(signature = (indices, spec=None, *, damaged="error", transport="rgb", out=None, timeout=None, **image))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword of its own")]
    fn get_frames_at(
        &self,
        py: Python<'_>,
        indices: Vec<i64>,
        spec: Option<&Bound<'_, PyAny>>,
        damaged: &str,
        transport: &str,
        out: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        image: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Frames> {
        let rows = self.at(py, &self.counted(py, &indices)?, timeout)?;
        self.frames(py, rows, &How { spec, damaged, transport, out, timeout, image })
    }

    /// The frames that are played at these times, in that order: of each the last one that is shown by then. Otherwise as
    /// ``get_frames_at``; raises ``ValueError`` for a time at which nothing is shown.
    #[pyo3(signature = (seconds, spec=None, *, damaged="error", transport="rgb", out=None, timeout=None, **image))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword of its own")]
    fn get_frames_played_at(
        &self,
        py: Python<'_>,
        seconds: Vec<f64>,
        spec: Option<&Bound<'_, PyAny>>,
        damaged: &str,
        transport: &str,
        out: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        image: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Frames> {
        let times = seconds.iter().map(|&seconds| self.seconds(py, seconds)).collect::<PyResult<Vec<_>>>()?;
        let mut rows = Vec::with_capacity(times.len());
        for part in times.chunks(SELECTED_MAX) {
            rows.extend(self.rows(py, Selector::At(part.to_vec()), timeout)?);
        }
        self.frames(py, rows, &How { spec, damaged, transport, out, timeout, image })
    }

    /// The frames from the one played at ``start_seconds`` to the last that begins before ``stop_seconds``; with ``fps`` so many a second.
    /// At most 4,096. Otherwise as ``get_frames_played_at``.
    #[pyo3(signature = (
        start_seconds, stop_seconds, fps=None, spec=None, *, damaged="error", transport="rgb", out=None, timeout=None, **image
    ))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword of its own")]
    fn get_frames_played_in_range(
        &self,
        py: Python<'_>,
        start_seconds: f64,
        stop_seconds: f64,
        fps: Option<f64>,
        spec: Option<&Bound<'_, PyAny>>,
        damaged: &str,
        transport: &str,
        out: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        image: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Frames> {
        if start_seconds > stop_seconds {
            return Err(invalid(py, format!("the range from {start_seconds} to {stop_seconds} s ends before it begins")));
        }
        let (from, to) = (self.seconds(py, start_seconds)?, self.seconds(py, stop_seconds)?);
        let rate = |fps: f64| Rate::of(fps).ok_or_else(|| invalid(py, format!("fps={fps}: want frames a second, above 0")));
        let fps = fps.map(rate).transpose()?;
        let rows = self.rows(py, Selector::Range { from: Some(from), to: Some(to), fps }, timeout)?;
        self.frames(py, rows, &How { spec, damaged, transport, out, timeout, image })
    }

    /// ``count`` frames over the whole video, the first and the last among them, at equal steps. Otherwise as ``get_frames_at``.
    #[pyo3(signature = (count, spec=None, *, damaged="error", transport="rgb", out=None, timeout=None, **image))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword of its own")]
    fn get_frames_uniform(
        &self,
        py: Python<'_>,
        count: u32,
        spec: Option<&Bound<'_, PyAny>>,
        damaged: &str,
        transport: &str,
        out: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        image: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Frames> {
        self.timed(py)?;
        let rows = match count {
            0 => return Err(invalid(py, "count=0: want one frame at least")),
            count => self.rows(py, Selector::Uniform(count), timeout)?,
        };
        self.frames(py, rows, &How { spec, damaged, transport, out, timeout, image })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let unknown = || self.refuse(py, ErrorKind::Invalid, "the number of frames is not known before they are decoded".into());
        self.num_frames().map(|frames| frames as usize).ok_or_else(unknown)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, place: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let how = How { spec: None, damaged: "error", transport: "rgb", out: None, timeout: None, image: None };
        if let Ok(slice) = place.cast::<PySlice>() {
            let count = isize::try_from(self.__len__(py)?).unwrap_or(isize::MAX);
            let indices = slice.indices(count)?;
            let places = (0..indices.slicelength as isize).map(|k| (indices.start + k * indices.step) as u64);
            let rows = self.at(py, &places.collect::<Vec<u64>>(), None)?;
            return Ok(Bound::new(py, self.frames(py, rows, &how)?)?.into_any());
        }
        let Ok(index) = place.extract::<i64>() else {
            return Err(PyTypeError::new_err(format!(
                "a frame is had by an index or a slice, not a {}",
                place.get_type().name()?
            )));
        };
        let rows = self.at(py, &self.counted(py, &[index])?, None)?;
        let frames = self.frames(py, rows, &how)?;
        Ok(Bound::new(py, frames.batch.get().at(0)?)?.into_any())
    }

    fn __repr__(&self) -> String {
        let media = &self.facts.media;
        let frames = self.num_frames().map_or("frames not counted".into(), |frames| format!("{frames} frames"));
        let what = self.codec().unwrap_or(&media.format);
        format!("<framecache.Video: {}, {what} {}x{}, {frames}>", self.uri, media.width, media.height)
    }
}
