//! The client as Python has it.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use framecache::client::Listing as Page;
use framecache::spec::STREAMS_MAX;
use framecache::wire::Trace;
use framecache::{Call, ClientConfig, Error, ErrorKind, ObjectId};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::batch::{Batch, OnError, Received};
use crate::clips::{self, Asked, Clips};
use crate::crop::RandomResizedCrop;
use crate::error::{exception, invalid, passable};
use crate::facts::{Listing, Node, Stat};
use crate::process::{PerProcess, wait};
use crate::raw::Raw;
use crate::settings;
use crate::spec::spec_of;
use crate::video::{Video, frame_spec, transport_of};
use crate::wanted::Wanted;

/// A client of a cluster.
///
/// ``address`` is any node's ``"host:port"``, several (comma-separated, or a list), or ``"env"``, which reads ``FRAMECACHE_ADDR``,
/// ``FRAMECACHE_CA`` and ``FRAMECACHE_TOKEN``. ``ca``, ``cert`` and ``key`` are PEM files; ``ca`` may be left out for a local
/// node. ``timeout`` is the deadline of a call in seconds. ``memory`` bounds what the client itself holds; pixels and bytes that
/// you are given come on top and are freed with the objects that hold them.
///
/// Nothing is connected, and no thread started, before the first request. A client may be used from many threads. It may be
/// inherited by ``fork`` and pickled for ``spawn`` and ``forkserver``: the other process makes its own connections.
///
/// >>> import framecache as fc
/// >>> with fc.Client("env") as client:
/// ...     len(client.read("s3://photos/pets/cat.jpg", start=0, length=2))
/// 2
#[pyclass(frozen, module = "framecache")]
pub(crate) struct Client {
    config: ClientConfig,
    connected: PerProcess<framecache::Client>,
    closed: AtomicBool,
}

impl Client {
    pub(crate) fn connected(&self, py: Python<'_>) -> PyResult<framecache::Client> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(exception(py, &Error::new(ErrorKind::Closed, "this client was closed")));
        }
        let client = self.connected.get_or_make(|| framecache::Client::new(self.config.clone()));
        client.cloned().map_err(|error| exception(py, &error))
    }

    /// What the client may hold, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.config.memory
    }

    /// The deadline of a call that names none.
    pub(crate) fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Asks the cluster and waits for the answer.
    pub(crate) fn ask<T, W>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        work: impl FnOnce(framecache::Client, Call) -> W,
    ) -> PyResult<T>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let call = call(py, timeout)?;
        wait(py, work(self.connected(py)?, call))?.map_err(|error| exception(py, &error))
    }

    /// Asks for pixels, and waits until they are in.
    pub(crate) fn receive(
        &self,
        py: Python<'_>,
        wanted: Wanted,
        keys: Vec<Py<PyString>>,
        on_error: OnError,
        out: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Batch> {
        let out = out.map(|out| wanted.buffer(out)).transpose()?;
        let slots = wanted.slots(out.as_ref(), self.config.memory).map_err(|error| exception(py, &error))?;
        let (client, call, dtype) = (self.connected(py)?, call(py, timeout)?, wanted.dtype());
        // `out` is held here until the work is gone, however it ends.
        let (pictures, outcomes) = wait(py, async move {
            let outcomes = wanted.ask(&client, &slots, &call).await;
            (slots.finish(), outcomes)
        })?;
        Received { pictures, outcomes, keys, out, dtype, on_error }.batch(py)
    }

    pub(crate) fn list_page(
        &self,
        py: Python<'_>,
        prefix: String,
        after: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<Page> {
        let limit = framecache::wire::LIST_ITEMS_MAX;
        self.ask(py, timeout, |client, call| async move { client.list(&prefix, after.as_deref(), limit, &call).await })
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(
        signature = (address, ca=None, cert=None, key=None, token=None, timeout=30.0, memory=None),
        text_signature = "(address, ca=None, cert=None, key=None, token=None, timeout=30.0, memory='1GiB')"
    )]
    #[allow(clippy::too_many_arguments)] // the constructor's keywords
    fn new(
        py: Python<'_>,
        address: &Bound<'_, PyAny>,
        ca: Option<PathBuf>,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
        token: Option<String>,
        timeout: f64,
        memory: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let addresses = settings::addresses(address)?;
        let mut config = match addresses.as_str() {
            "env" => ClientConfig::from_env().map_err(|error| exception(py, &error))?,
            _ => ClientConfig::new(&addresses),
        };
        config.tls.ca = ca.or(config.tls.ca);
        (config.tls.cert, config.tls.key) = (cert, key);
        config.token = token.or(config.token);
        config.timeout = settings::timeout(py, timeout)?;
        if let Some(memory) = memory {
            config.memory = settings::bytes(memory)?;
        }
        // A wrong setting is told here, where it is written, and not at the first request.
        framecache::Client::new(config.clone()).map_err(|error| exception(py, &error))?;
        Ok(Self { config, connected: PerProcess::new(), closed: AtomicBool::new(false) })
    }

    /// Bytes ``[start, start + length)`` of an object, cut at its end; to the end if ``length`` is ``None``. All of one version.
    ///
    /// Raises ``NotFoundError``, ``DeniedError``, ``ChangedError`` (replaced while it was read), ``OutOfRangeError`` (``start`` is
    /// past the end), ``TooLargeError`` (more than the client's ``memory``: read ranges), ``BusyError``, ``TimeoutError``,
    /// ``UnavailableError``.
    ///
    /// >>> raw = fc.Client("env").read("s3://photos/pets/cat.jpg")
    /// >>> bytes(memoryview(raw)[:3]), len(raw) == raw.size
    /// (b'\xff\xd8\xff', True)
    #[pyo3(signature = (uri, start=0, length=None, timeout=None))]
    fn read(&self, py: Python<'_>, uri: &str, start: i64, length: Option<i64>, timeout: Option<f64>) -> PyResult<Raw> {
        let id = object(py, uri)?;
        let negative = |_| invalid(py, format!("start={start}, length={length:?}: want numbers of bytes, not negative"));
        let length = length.map(u64::try_from).transpose().map_err(negative)?;
        let start = u64::try_from(start).map_err(negative)?;
        self.ask(py, timeout, |client, call| async move { client.read(&id, start, length, &call).await }).map(Raw::from)
    }

    /// Decodes pictures, each by ``spec`` (an ``Image``, its text, or a ``RandomResizedCrop``), in the cluster; gives them in the order of
    /// ``uris``.
    ///
    /// ``on_error`` says what becomes of a picture that is missing, denied, broken, unsupported or too large: ``"raise"``;
    /// ``"skip"``: the batch is made without it, and ``batch.keys`` says which remain; ``"fill"``: its slot is zeros, and
    /// ``batch.valid`` is ``False`` there. With both, ``batch.errors`` has the reason. What is no fault of the picture (replaced
    /// while it was read, busy, deadline, nodes lost) is raised always, the last three after retries until the deadline.
    ///
    /// ``out`` is memory to receive into: a writable, C-contiguous uint8 buffer of exactly ``[len(uris), height, width, 3]``, for a
    /// spec whose output is the same for every picture. ``batch.data`` is then that memory; after an error its content is not
    /// defined.
    ///
    /// >>> batch = fc.Client("env").images(["s3://photos/pets/cat.jpg", "s3://photos/pets/dog.jpg"], fc.Image(short=256, crop=224))
    /// >>> batch.data.shape
    /// (2, 224, 224, 3)
    /// >>> import numpy
    /// >>> picture = numpy.asarray(batch[0])         # no copy
    /// >>> picture.shape, picture.dtype.name
    /// ((224, 224, 3), 'uint8')
    #[pyo3(signature = (uris, spec=None, on_error="raise", out=None, timeout=None))]
    #[allow(clippy::too_many_arguments)] // the method's keywords
    fn images(
        &self,
        py: Python<'_>,
        uris: &Bound<'_, PyAny>,
        spec: Option<&Bound<'_, PyAny>>,
        on_error: &str,
        out: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Batch> {
        let on_error = OnError::parse(py, on_error)?;
        let (keys, ids) = objects(uris)?;
        let wanted = match spec.and_then(|spec| spec.cast::<RandomResizedCrop>().ok()) {
            Some(crop) => Wanted::Crops { ids, crop: crop.get().clone() },
            None => Wanted::Images { ids, spec: spec_of(spec)? },
        };
        self.receive(py, wanted, keys, on_error, out, timeout)
    }

    /// Frames of many videos in one call: ``clips`` are pairs of an address and the indices of its frames, negative ones from the end,
    /// in any order, as often as you like; in place of indices a selection as text, ``"video?fps=2&from=1.5&to=4"``. ``spec`` and its
    /// keywords are those of ``Video.get_frames_at``, and so are ``damaged`` and ``transport``; ``stream`` is that of ``video``, the same
    /// for all. Each video's frames are of one version.
    ///
    /// ``on_error`` is as for ``images``, and speaks of whole clips: one bad frame makes a bad clip. An index that is not there raises
    /// ``OutOfRangeError`` (an ``IndexError``) that names those that are, whatever ``on_error`` says.
    ///
    /// ``out`` is memory to receive into, exactly ``[len(clips), frames, height, width, 3]``, for clips of as many frames each and frames
    /// of one size; otherwise as for ``images``.
    ///
    /// >>> clips = fc.Client("env").clips([("s3://photos/fun/ball.gif", [0, 2]), ("s3://photos/fun/ball.gif", [1, 1])], short=64)
    /// >>> clips.data.shape, clips[1].indices
    /// ((2, 2, 64, 64, 3), [1, 1])
    #[pyo3(signature = (
        clips, spec=None, on_error="raise", out=None, timeout=None, *, damaged="error", transport="rgb", stream=None, **image
    ))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword of its own")]
    fn clips(
        &self,
        py: Python<'_>,
        clips: &Bound<'_, PyAny>,
        spec: Option<&Bound<'_, PyAny>>,
        on_error: &str,
        out: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        damaged: &str,
        transport: &str,
        stream: Option<i64>,
        image: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Clips> {
        let spec = frame_spec(py, spec, damaged, stream_of(py, stream)?, image)?;
        let (transport, on_error) = (transport_of(py, transport)?, OnError::parse(py, on_error)?);
        clips::receive(self, py, Asked { clips, spec, transport, on_error, out, timeout })
    }

    /// What a video, an animation (GIF, WebP, PNG, AVIF) or a TIFF of several pages is; its frames are then asked for.
    ///
    /// Of a video with several streams ``stream`` takes one by its index in the file, and not FFmpeg's best; ``UnsupportedError`` names
    /// those that there are.
    ///
    /// >>> video = fc.Client("env").video("s3://photos/fun/ball.gif")
    /// >>> video.width, video.height
    /// (96, 96)
    #[pyo3(signature = (uri, timeout=None, *, stream=None))]
    fn video(slf: &Bound<'_, Self>, uri: Bound<'_, PyString>, timeout: Option<f64>, stream: Option<i64>) -> PyResult<Video> {
        let py = slf.py();
        let id = object(py, &uri.to_cow()?)?;
        let stream = stream_of(py, stream)?;
        let stat = |client: framecache::Client, call| async move {
            match stream {
                Some(stream) => client.stat_stream(&id, stream, &call).await,
                None => client.stat(&id, &call).await,
            }
        };
        let facts = slf.get().ask(py, timeout, stat)?;
        if facts.media.format.is_empty() {
            let none = || Error::new(ErrorKind::Undecodable, "neither a video nor an animation nor a picture");
            let error = facts.refused.unwrap_or_else(none);
            return Err(exception(py, &Error { uri: Some(uri.to_string()), ..error }));
        }
        Ok(Video::new(slf.clone().unbind(), uri.unbind(), facts, stream))
    }

    /// Version, size and media facts of an object, without its bytes.
    ///
    /// >>> facts = fc.Client("env").stat("s3://photos/pets/cat.jpg")
    /// >>> facts.format, facts.width, facts.height
    /// ('jpeg', 320, 240)
    #[pyo3(signature = (uri, timeout=None))]
    fn stat(&self, py: Python<'_>, uri: &str, timeout: Option<f64>) -> PyResult<Stat> {
        let id = object(py, uri)?;
        self.ask(py, timeout, |client, call| async move { client.stat(&id, &call).await }).map(Stat::from)
    }

    /// The objects whose address begins with ``prefix`` (``s3://bucket/`` and any beginning of a key), in key order. They are
    /// fetched as they are iterated over, so that a listing of any length takes little memory.
    ///
    /// >>> [entry.uri for entry in fc.Client("env").list("s3://photos/pets/")]
    /// ['s3://photos/pets/cat.jpg', 's3://photos/pets/dog.jpg']
    #[pyo3(signature = (prefix, timeout=None))]
    fn list(slf: Bound<'_, Self>, prefix: String, timeout: Option<f64>) -> Listing {
        Listing::new(slf.unbind(), prefix, timeout)
    }

    /// Who owns an object, where it is cached and why, as names and values. ``spec`` asks about decoded pixels; without it, about
    /// the raw bytes.
    ///
    /// >>> said = fc.Client("env").explain("s3://photos/pets/cat.jpg")
    /// >>> "version" in said
    /// True
    #[pyo3(signature = (uri, spec=None, timeout=None))]
    fn explain<'py>(
        &self,
        py: Python<'py>,
        uri: &str,
        spec: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let id = object(py, uri)?;
        let spec = spec.map(|spec| spec_of(Some(spec))).transpose()?.map_or(String::new(), |spec| spec.to_string());
        let lines = self.ask(py, timeout, |client, call| async move { client.explain(&id, &spec, &call).await })?;
        let said = PyDict::new(py);
        lines.into_iter().try_for_each(|(name, value)| said.set_item(name, value))?;
        Ok(said)
    }

    /// The nodes of the cluster, as the one that was asked knows them.
    ///
    /// >>> [node.state for node in fc.Client("env").nodes()]
    /// ['serving']
    #[pyo3(signature = (timeout=None))]
    fn nodes(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Vec<Node>> {
        let rows = self.ask(py, timeout, |client, call| async move { client.nodes(&call).await })?;
        Ok(rows.into_iter().map(Node::from).collect())
    }

    /// Closes the connections and tells the nodes. Later calls raise ``InvalidError``; closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        match self.connected.get().cloned() {
            Some(client) => wait(py, async move { client.close().await }),
            None => Ok(()),
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    /// A copy in another process begins unconnected. The token travels with it.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let config = &slf.get().config;
        let tls = &config.tls;
        let seconds = config.timeout.as_secs_f64();
        let settings = (config.addresses.join(","), &tls.ca, &tls.cert, &tls.key, &config.token, seconds, config.memory);
        Ok((slf.get_type().into_any(), settings.into_pyobject(slf.py())?))
    }

    fn __repr__(&self) -> String {
        let state = if self.closed.load(Ordering::Relaxed) { ", closed" } else { "" };
        format!("<framecache.Client: {}{state}>", self.config.addresses.join(","))
    }
}

fn stream_of(py: Python<'_>, stream: Option<i64>) -> PyResult<Option<u32>> {
    let known = |stream: i64| {
        let known = u32::try_from(stream).ok().filter(|&stream| stream < STREAMS_MAX);
        known.ok_or_else(|| invalid(py, format!("stream={stream}: want the index of a stream in its file, 0 to 63")))
    };
    stream.map(known).transpose()
}

pub(crate) fn call(py: Python<'_>, timeout: Option<f64>) -> PyResult<Call> {
    let timeout = timeout.map(|seconds| settings::timeout(py, seconds)).transpose()?;
    let trace = match trace(py) {
        Ok(trace) => trace.unwrap_or_default(),
        // Whatever is wrong with its tracing, the call is made.
        Err(raised) => passable(py, raised).map(|_| Trace::default())?,
    };
    Ok(Call { timeout, trace, ..Call::default() })
}

/// The span that the caller is in, if its program uses OpenTelemetry: the node's spans become that span's children. A program
/// that does not is not made to import it.
fn trace(py: Python<'_>) -> PyResult<Option<Trace>> {
    let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    let Some(api) = modules.get_item("opentelemetry.trace")? else { return Ok(None) };
    let context = api.call_method0("get_current_span")?.call_method0("get_span_context")?;
    let trace_id: u128 = context.getattr("trace_id")?.extract()?;
    let span_id: u64 = context.getattr("span_id")?.extract()?;
    let flags: u8 = context.getattr("trace_flags")?.extract()?;
    Ok(Some(Trace { trace_id: trace_id.to_be_bytes(), span_id: span_id.to_be_bytes(), flags }))
}

pub(crate) fn object(py: Python<'_>, uri: &str) -> PyResult<ObjectId> {
    uri.parse().map_err(|failure: framecache::object::ParseError| {
        exception(py, &Error { uri: Some(uri.to_owned()), ..Error::from(failure) })
    })
}

fn objects(uris: &Bound<'_, PyAny>) -> PyResult<(Vec<Py<PyString>>, Vec<ObjectId>)> {
    if uris.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("uris is one str: want a list of addresses"));
    }
    let mut found = (Vec::new(), Vec::new());
    for uri in uris.try_iter()? {
        let uri = uri?.cast_into::<PyString>().map_err(|_| PyTypeError::new_err("uris: want addresses, each a str"))?;
        found.1.push(object(uri.py(), &uri.to_cow()?)?);
        found.0.push(uri.unbind());
    }
    Ok(found)
}
