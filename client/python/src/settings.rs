//! Arguments of a client as people write them.

use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::error::{invalid, passable};

/// Longest deadline: past a day it is none.
const TIMEOUT_MAX: f64 = 86_400.0;

/// A deadline in seconds.
pub(crate) fn timeout(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    let legal = seconds > 0.0 && seconds <= TIMEOUT_MAX;
    if !legal {
        return Err(invalid(py, format!("timeout of {seconds} seconds: want more than 0 and at most {TIMEOUT_MAX}")));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// A number of bytes: an `int`, or text such as `"256MiB"`.
pub(crate) fn bytes(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    match value.extract::<u64>() {
        Ok(number) => return Ok(number),
        Err(raised) => drop(passable(value.py(), raised)?),
    }
    let text: String =
        value.extract().map_err(|_| PyTypeError::new_err("memory: want a number of bytes, or text such as \"256MiB\""))?;
    bytes_of_text(&text)
        .ok_or_else(|| invalid(value.py(), format!("memory={text:?}: want bytes, or a number with KiB, MiB or GiB")))
}

fn bytes_of_text(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1_000),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("B", 1),
    ];
    let text = text.trim();
    let found = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
    let (number, unit) = found.unwrap_or((text, 1));
    let bytes = number.trim().parse::<f64>().ok()? * unit as f64;
    (bytes.is_finite() && bytes >= 0.0 && bytes < u64::MAX as f64).then_some(bytes as u64)
}

/// Addresses: one text, comma-separated, or a sequence of texts.
pub(crate) fn addresses(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = value.extract::<String>() {
        return Ok(text);
    }
    match value.extract::<Vec<String>>() {
        Ok(list) => Ok(list.join(",")),
        Err(raised) => {
            passable(value.py(), raised)?;
            Err(PyTypeError::new_err("address: want \"host:port\", a list of those, or \"env\""))
        }
    }
}
