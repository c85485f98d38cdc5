//! What is told again and again, told now and then.

use std::time::{Duration, Instant};

/// Time between two complaints about the same, which whoever has the key could else write into the log without end.
const AGAIN: Duration = Duration::from_secs(60);

/// When something was complained of last.
#[derive(Default)]
pub(super) struct Complaint(Option<Instant>);

impl Complaint {
    /// Whether it is time to do so (again).
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.0.is_none_or(|then| now - then >= AGAIN);
        if due {
            self.0 = Some(now);
        }
        due
    }
}
