//! How a command fails: one sentence, a hint, an exit code.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::error::{Error, ErrorKind};

/// Why a command did not do all that it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The process's exit code; `--help` says what each means.
    pub code: u8,
    /// What happened, in one sentence.
    pub message: String,
    /// What to do about it.
    pub hint: Option<&'static str>,
}

/// Some objects failed, or an output could not be written.
pub const CODE_ITEMS: u8 = 1;
/// Arguments, configuration or trust are wrong.
pub const CODE_USAGE: u8 = 2;
/// No answer from the cluster.
pub const CODE_UNREACHABLE: u8 = 3;

impl Failure {
    /// The arguments are wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: CODE_USAGE, message: message.into(), hint: Some("see --help") }
    }

    /// Some of many objects failed; each was told on its own.
    pub fn items(failed: usize, of: usize) -> Self {
        Self { code: CODE_ITEMS, message: format!("{failed} of {of} failed"), hint: None }
    }

    /// An output could not be written.
    pub fn write(path: &Path, error: &io::Error) -> Self {
        Self { code: CODE_ITEMS, message: format!("cannot write {}: {error}", path.display()), hint: None }
    }

    /// Tells the user, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        tell(&format_args!("framecache: {}", self.message));
        if let Some(hint) = self.hint {
            tell(&format_args!("hint: {hint}"));
        }
        ExitCode::from(self.code)
    }
}

/// A line on standard error. Where nobody takes it there is nobody else to tell.
pub(super) fn tell(line: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", visible(&line.to_string()));
}

/// One line for a terminal: names of others cannot move its cursor or begin another.
pub(super) fn visible(text: &str) -> String {
    let one = |letter: char| if letter.is_control() { letter.escape_default().to_string() } else { letter.to_string() };
    text.chars().map(one).collect()
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, mut hint) = advice(&error.kind);
        if error.kind == ErrorKind::Unavailable && error.node.is_some() {
            hint = Some("the node answered, its origin did not: see the node's log, and `[[bucket]]` in its configuration");
        }
        Self { code, message: error.to_string(), hint }
    }
}

impl From<crate::object::ParseError> for Failure {
    fn from(error: crate::object::ParseError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<crate::spec::SpecError> for Failure {
    fn from(error: crate::spec::SpecError) -> Self {
        Self::usage(error.to_string())
    }
}

fn advice(kind: &ErrorKind) -> (u8, Option<&'static str>) {
    match kind {
        ErrorKind::NotFound => (CODE_ITEMS, Some("`framecache ls` shows the keys under a prefix")),
        ErrorKind::Denied => {
            (CODE_ITEMS, Some("the cluster's policy or the origin refuses it: check --token and the bucket's credentials"))
        }
        ErrorKind::Changed => (CODE_ITEMS, Some("the object was replaced meanwhile: run it again")),
        ErrorKind::Undecodable => (CODE_ITEMS, Some("without --spec, get gives the raw bytes to look at")),
        ErrorKind::TooLarge => (CODE_ITEMS, Some("ask for a range, or a smaller picture")),
        ErrorKind::NotConfigured => {
            (CODE_USAGE, Some("check the bucket's name; `[[bucket]]` in the nodes' configuration names those they serve"))
        }
        ErrorKind::Invalid => (CODE_USAGE, None),
        ErrorKind::Busy { .. } => (CODE_UNREACHABLE, Some("the cluster is at its bound: ask later, or for less")),
        ErrorKind::Timeout => (CODE_UNREACHABLE, Some("raise --timeout, or see `framecache status`")),
        ErrorKind::Unavailable => (
            CODE_UNREACHABLE,
            Some("is a node running there? `framecache-node dev` starts one; --addr (FRAMECACHE_ADDR) says where it is"),
        ),
        ErrorKind::Protocol => (CODE_UNREACHABLE, Some("the node's log says more")),
        _ => (CODE_ITEMS, None),
    }
}

#[cfg(test)]
mod tests {
    /// Promise: what others named is shown as it is, and does nothing to the terminal.
    #[test]
    fn names_do_nothing() {
        assert_eq!(super::visible("a\nb\u{1b}[31m\u{9b}é"), "a\\nb\\u{1b}[31m\\u{9b}é");
    }
}
