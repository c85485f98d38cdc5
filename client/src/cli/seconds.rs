//! Deadlines as people write them.

use std::time::Duration;

/// Longest deadline, in seconds: past a day it is none.
const SECONDS_MAX: f64 = 86_400.0;

/// A number of seconds, more than 0.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?;
    match seconds > 0.0 && seconds <= SECONDS_MAX {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(format!("want more than 0 and at most {SECONDS_MAX} seconds")),
    }
}
