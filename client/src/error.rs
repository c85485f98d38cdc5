//! What can go wrong for a caller, as outcomes that can be acted on.

use std::fmt;
use std::time::Duration;

use crate::object::ObjectId;
use crate::wire::{ItemHead, Status};

/// A failed request, or one failed item of a batch: what happened, to which object, on which node, at which try.
#[derive(Clone, Debug)]
pub struct Error {
    /// What the caller can act on.
    pub kind: ErrorKind,
    /// Why, for people.
    pub message: String,
    /// The object that was asked for, if one was.
    pub uri: Option<String>,
    /// The node that said so, if one was reached.
    pub node: Option<String>,
    /// How many times it had been tried, this time included.
    pub attempt: u32,
}

/// Outcomes. *Final* ones are the same on every node and are never retried; *bad sample* ones belong to the object alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The origin has no such object. Final, bad sample.
    NotFound,
    /// Not permitted. Final, bad sample.
    Denied,
    /// The bucket is not configured on the cluster. Final: correct the address or the configuration.
    NotConfigured,
    /// The object was replaced during the read. Final: begin again, without the old version.
    Changed,
    /// No picture, or a broken one. Final, bad sample.
    Undecodable,
    /// Known, but not supported. Final, bad sample.
    Unsupported,
    /// Over a limit. Final, bad sample.
    TooLarge,
    /// The range starts past the end. Final: correct the range.
    OutOfRange,
    /// The request is wrong. Final: correct it.
    Invalid,
    /// The cluster is at its bound; retried until the deadline. Ask later, or less.
    Busy {
        /// What the node advises.
        retry_after: Duration,
    },
    /// The deadline passed. Ask with a longer one.
    Timeout,
    /// No node, or no origin, could be reached; retried until the deadline.
    Unavailable,
    /// The node leaves the cluster, and there was no other before the deadline.
    Leaving,
    /// The peer broke the protocol, or failed inside. Its log says more.
    Protocol,
    /// The client was closed.
    Closed,
}

impl ErrorKind {
    /// Whether every node would say the same, now and on the next try.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Busy { .. } | Self::Timeout | Self::Unavailable | Self::Leaving | Self::Protocol)
    }

    /// Whether the object itself is to blame, so that `on_error` may pass over it.
    pub fn is_bad_sample(&self) -> bool {
        matches!(self, Self::NotFound | Self::Denied | Self::Undecodable | Self::Unsupported | Self::TooLarge)
    }

    /// Its name, as messages have it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::Denied => "denied",
            Self::NotConfigured => "not configured",
            Self::Changed => "changed",
            Self::Undecodable => "undecodable",
            Self::Unsupported => "unsupported",
            Self::TooLarge => "too large",
            Self::OutOfRange => "out of range",
            Self::Invalid => "invalid",
            Self::Busy { .. } => "busy",
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Leaving => "leaving",
            Self::Protocol => "protocol",
            Self::Closed => "closed",
        }
    }
}

impl Error {
    /// An error of that kind, not yet bound to an object or node.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), uri: None, node: None, attempt: 0 }
    }

    /// The same, about `id`.
    pub fn about(mut self, id: &ObjectId) -> Self {
        self.uri = Some(id.to_string());
        self
    }

    /// The same, from `node` at try `attempt`.
    pub fn from_node(mut self, node: &str, attempt: u32) -> Self {
        self.node = Some(node.into());
        self.attempt = attempt;
        self
    }

    /// What an item's status says, if it is not `Ok`.
    pub(crate) fn from_item(item: &ItemHead) -> Option<Self> {
        let kind = match Status::from_number(item.status) {
            Status::Ok => return None,
            Status::NotFound => ErrorKind::NotFound,
            Status::Denied => ErrorKind::Denied,
            Status::NotConfigured => ErrorKind::NotConfigured,
            Status::Changed => ErrorKind::Changed,
            Status::Undecodable => ErrorKind::Undecodable,
            Status::Unsupported => ErrorKind::Unsupported,
            Status::TooLarge => ErrorKind::TooLarge,
            Status::OutOfRange => ErrorKind::OutOfRange,
            Status::Malformed => ErrorKind::Invalid,
            Status::Busy => ErrorKind::Busy { retry_after: Duration::from_millis(u64::from(item.retry_after_ms)) },
            Status::Timeout => ErrorKind::Timeout,
            Status::Leaving => ErrorKind::Leaving,
            Status::Unavailable => ErrorKind::Unavailable,
            Status::UnknownVerb => ErrorKind::Unsupported,
            Status::Internal => ErrorKind::Protocol,
        };
        Some(Self::new(kind, item.message.clone()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        if let Some(uri) = &self.uri {
            write!(f, " ({uri})")?;
        }
        match &self.node {
            Some(node) if self.attempt > 1 => write!(f, " [node {node}, attempt {}]", self.attempt),
            Some(node) => write!(f, " [node {node}]"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<crate::object::ParseError> for Error {
    fn from(error: crate::object::ParseError) -> Self {
        Self::new(ErrorKind::Invalid, error.to_string())
    }
}

impl From<crate::spec::SpecError> for Error {
    fn from(error: crate::spec::SpecError) -> Self {
        Self::new(ErrorKind::Invalid, error.to_string())
    }
}
