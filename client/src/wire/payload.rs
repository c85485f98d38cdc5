//! What replies to control verbs carry.

use rkyv::{Archive, Deserialize, Serialize};

use super::Ext;

/// One member of a view, in the reply to [`super::Verb::View`].
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct NodeRow {
    /// The node's name.
    pub id: String,
    /// Host or address, and port, where it speaks QUIC. A host of `0.0.0.0` or `::` means: where you reached the sender.
    pub quic: String,
    /// Share of keys, absolute, in hundredths.
    pub weight: u32,
    /// The weight by which others look for what it still holds: the largest that it had within `settle_s`.
    pub held_weight: u32,
    /// Moves with each start of the node.
    pub incarnation: u64,
    /// Moves with each change of the row.
    pub version: u64,
    /// 0 joining, 1 serving, 2 leaving, 3 gone.
    pub state: u8,
    /// How much of its keys it serves already, of [`RAMP_FULL`]; the walk's next serves the rest.
    pub ramp: u16,
    /// Whether it has been a member for longer than `settle_s`: what it does not hold, none of the nodes after it in a walk does.
    pub settled: bool,
    /// Roles, e.g. `cache`, `decode`.
    pub roles: Vec<String>,
    /// Later additions.
    pub ext: Ext,
}

/// [`NodeRow::ramp`] of a node that serves all its keys.
pub const RAMP_FULL: u16 = 256;

/// Payload of the reply to [`super::Verb::View`].
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct ViewPayload {
    /// [`crate::View::digest`] of the whole view.
    pub view_id: u64,
    /// All rows; in [`super::ext::VIEW_DELTA`] those alone that the caller may not know.
    pub nodes: Vec<NodeRow>,
}

/// One object in the reply to [`super::Verb::List`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ListRow {
    /// Key inside the bucket.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// Version.
    pub version: String,
}

/// Payload of the reply to [`super::Verb::List`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ListPayload {
    /// Objects, in key order.
    pub rows: Vec<ListRow>,
    /// Whether more follow the last row.
    pub more: bool,
}

/// Payload of the reply to [`super::Verb::Stat`], one item an object.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct StatPayload {
    /// Name of the media format by content, empty if not a known one.
    pub format: String,
    /// Pixels; 0 if not a picture.
    pub width: u32,
    /// Pixels; 0 if not a picture.
    pub height: u32,
    /// EXIF orientation, 1 to 8.
    pub orientation: u8,
    /// Bytes that decoding it takes.
    pub decode_bytes: u64,
}

/// Payload of the reply to [`super::Verb::Explain`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ExplainPayload {
    /// Lines of `name`, `value`, in reading order; names are documented in `docs/PROTOCOL.md`.
    pub lines: Vec<(String, String)>,
}
