//! Errors as Python has them: classes of `framecache.errors`, so that `except FileNotFoundError` and the like work.

use framecache::{Error, ErrorKind};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What to raise for `error`. Making it runs Python, which may raise something else, such as the KeyboardInterrupt of a Ctrl-C; that
/// goes before.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    build(py, error).unwrap_or_else(|raised| raised)
}

/// What was raised by Python that we ran and whose failure we can do without. A KeyboardInterrupt, a SystemExit and the like are not
/// about what we did, and are to be raised out of the call.
pub(crate) fn passable(py: Python<'_>, raised: PyErr) -> PyResult<PyErr> {
    match raised.is_instance_of::<PyException>(py) {
        true => Ok(raised),
        false => Err(raised),
    }
}

/// The exception for `error`, as a value. What was raised while it was made is no such value, and is to be raised out of the call.
pub(crate) fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let class = py.import("framecache.errors")?.getattr(class_name(&error.kind))?;
    let facts = PyDict::new(py);
    facts.set_item("kind", error.kind.name())?;
    facts.set_item("cause", &error.message)?;
    facts.set_item("uri", &error.uri)?;
    facts.set_item("node", &error.node)?;
    facts.set_item("attempt", error.attempt)?;
    if let ErrorKind::Busy { retry_after } = &error.kind {
        facts.set_item("retry_after", retry_after.as_secs_f64())?;
    }
    Ok(PyErr::from_value(class.call((error.to_string(),), Some(&facts))?))
}

/// Outcomes that a caller would handle alike share a class; `kind` tells them apart.
fn class_name(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "NotFoundError",
        ErrorKind::Denied => "DeniedError",
        ErrorKind::Changed => "ChangedError",
        ErrorKind::Undecodable => "UndecodableError",
        ErrorKind::Unsupported => "UnsupportedError",
        ErrorKind::TooLarge => "TooLargeError",
        ErrorKind::OutOfRange => "OutOfRangeError",
        ErrorKind::Invalid | ErrorKind::NotConfigured | ErrorKind::Closed => "InvalidError",
        ErrorKind::Busy { .. } => "BusyError",
        ErrorKind::Timeout => "TimeoutError",
        ErrorKind::Unavailable | ErrorKind::Leaving => "UnavailableError",
        _ => "FramecacheError",
    }
}

/// A wrong argument.
pub(crate) fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, &Error::new(ErrorKind::Invalid, message))
}
