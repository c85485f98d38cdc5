//! What nodes tell each other, as texts that gossip carries: each its own row, and whom it cannot hear or holds for gone.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use framecache::wire::codec;
use framecache::wire::{NodeRow, RAMP_FULL, ViewPayload};
use serde::{Deserialize, Serialize};

use super::seal::is_node_id;

/// Field of [`NodeRow::ext`]: where the node answers liveness pings, as `address:port` in text.
pub const ROW_LIVENESS: u16 = 1;

/// Longest text of a row: an address and roles of ordinary length take 400.
const ROW_TEXT_MAX: usize = 8 << 10;

/// Longest text of a rumour: both lists full, with the longest names, take 40 KiB. Chitchat's own limit is 64.
const RUMOUR_TEXT_MAX: usize = 48 << 10;

/// Most names in one of its lists, the first by name: whoever is not named now is when the others are dealt with.
const NAMES_MAX: usize = 128;

/// Largest weight, in hundredths, as `node.weight` is checked.
pub(super) const WEIGHT_MAX: u32 = 100_000;

/// Largest number that a clock in milliseconds, or a count of changes, comes to: far from where adding to it could overflow.
pub(super) const NUMBER_MAX: u64 = 1 << 53;

/// The row as text. `None` if it passes a bound: nobody would take it.
pub(super) fn row_to_text(row: &NodeRow) -> Option<String> {
    if !is_sound(row) {
        return None;
    }
    let payload = ViewPayload { view_id: 0, nodes: vec![row.clone()] };
    let message = codec::encode(&payload).ok()?;
    let text = STANDARD_NO_PAD.encode(message.get(codec::PREFIX_BYTES..)?);
    (text.len() <= ROW_TEXT_MAX).then_some(text)
}

/// The row in a text that the node called `id` published.
pub(super) fn row_from_text(text: &str, id: &str) -> Option<NodeRow> {
    if text.len() > ROW_TEXT_MAX {
        return None;
    }
    let payload: ViewPayload = codec::decode(&STANDARD_NO_PAD.decode(text).ok()?).ok()?;
    let [row] = <[NodeRow; 1]>::try_from(payload.nodes).ok()?;
    (row.id == id && is_sound(&row)).then_some(row)
}

/// Whether every field is one that a node could mean.
fn is_sound(row: &NodeRow) -> bool {
    let ext_bytes: usize = row.ext.iter().map(|(_, bytes)| bytes.len()).sum();
    is_node_id(&row.id)
        && row.quic.len() <= 256
        && row.weight.max(row.held_weight) <= WEIGHT_MAX
        && row.incarnation <= NUMBER_MAX
        && row.version <= NUMBER_MAX
        && row.version.is_multiple_of(2)
        && row.state <= 3
        && row.ramp <= RAMP_FULL
        && row.roles.len() <= 8
        && row.roles.iter().all(|role| role.len() <= 32)
        && row.ext.len() <= 16
        && ext_bytes <= 1024
        // Who cannot be pinged could never be found silent.
        && liveness_of(row).is_some()
}

/// Where the node answers pings.
pub(super) fn liveness_of(row: &NodeRow) -> Option<SocketAddr> {
    let (_, text) = row.ext.iter().find(|(number, _)| *number == ROW_LIVENESS)?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// `row`, saying that pings are answered at `address`.
pub(super) fn with_liveness(mut row: NodeRow, address: SocketAddr) -> NodeRow {
    row.ext.retain(|(number, _)| *number != ROW_LIVENESS);
    row.ext.push((ROW_LIVENESS, address.to_string().into_bytes()));
    row
}

/// Of whom the teller thinks what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rumour {
    /// Whom it cannot hear, and the version of that one's row that it heard nothing after.
    pub(super) silent: Vec<(String, u64, u64)>,
    /// Whom it holds for gone.
    pub(super) gone: Vec<Gone>,
}

/// A node that is held for gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gone {
    pub(super) id: String,
    pub(super) incarnation: u64,
    /// The newest of its own statements that it was judged by.
    pub(super) version: u64,
    /// When, in seconds of Unix time: so that all forget it at about the same time.
    pub(super) since_s: u64,
}

impl Gone {
    /// At what it says in `row`.
    pub(super) fn at(row: &NodeRow, since_s: u64) -> Self {
        Self { id: row.id.clone(), incarnation: row.incarnation, version: row.version, since_s }
    }

    pub(super) fn life(&self) -> (&str, u64) {
        (&self.id, self.incarnation)
    }

    /// Whether it is judged by nothing older than `row`.
    pub(super) fn is_of(&self, row: &NodeRow) -> bool {
        self.life() == (row.id.as_str(), row.incarnation) && self.version >= row.version
    }
}

impl Rumour {
    /// With as many names as may be told.
    pub(super) fn bounded(mut self) -> Self {
        self.silent.truncate(NAMES_MAX);
        self.gone.truncate(NAMES_MAX);
        self
    }

    pub(super) fn to_text(&self) -> Option<String> {
        serde_json::to_string(self).ok().filter(|text| text.len() <= RUMOUR_TEXT_MAX)
    }

    /// The rumour in a text; an unusable one tells nothing.
    pub(super) fn from_text(text: &str) -> Self {
        let rumour = (text.len() <= RUMOUR_TEXT_MAX).then(|| serde_json::from_str::<Self>(text).ok()).flatten();
        let mut rumour = rumour.unwrap_or_default();
        rumour.silent.retain(|(_, incarnation, version)| *incarnation.max(version) <= NUMBER_MAX);
        rumour.gone.retain(|gone| gone.incarnation.max(gone.version) <= NUMBER_MAX);
        rumour.bounded()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> NodeRow {
        let row = NodeRow { quic: "10.0.0.1:4433".into(), version: 2, ..NodeRow::member("a", 100) };
        with_liveness(row, "10.0.0.1:4435".parse().expect("address"))
    }

    /// Promise: a row arrives as it was said, from the node that it is about; no other text is one.
    #[test]
    fn rows_travel_as_text() {
        let text = row_to_text(&row()).expect("text");
        assert!(text.len() < 400, "{} bytes", text.len());
        assert_eq!(row_from_text(&text, "a"), Some(row()));
        assert_eq!(liveness_of(&row()).expect("address").port(), 4435);
        assert_eq!(row_from_text(&text, "b"), None, "said by somebody else");
        for at in 0..text.len() {
            assert_eq!(row_from_text(&text[..at], "a"), None);
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let _ = row_from_text(&String::from_utf8(bytes).expect("text"), "a");
        }
    }

    /// Promise: what no node could mean is not taken, and not said.
    #[test]
    fn rows_are_bounded() {
        let wrong: [fn(&mut NodeRow); 9] = [
            |row| row.id = "a b".into(),
            |row| row.quic = "x".repeat(257),
            |row| row.weight = WEIGHT_MAX + 1,
            |row| row.incarnation = u64::MAX,
            |row| row.version = 3,
            |row| row.state = 4,
            |row| row.ramp = 257,
            |row| row.roles = vec!["r".into(); 9],
            |row| row.ext = vec![(7, vec![0; 1025])],
        ];
        for (index, wrong) in wrong.into_iter().enumerate() {
            let mut row = row();
            wrong(&mut row);
            assert_eq!(row_to_text(&row), None, "{index}");
        }
    }

    /// Promise: rumours arrive as they were told, bounded; nonsense tells nothing.
    #[test]
    fn rumours_are_bounded() {
        let names = |n: usize| format!("{n:063}");
        let gone = |n| Gone { id: names(n), incarnation: NUMBER_MAX, version: NUMBER_MAX, since_s: NUMBER_MAX };
        let all =
            Rumour { silent: (0..500).map(|n| (names(n), NUMBER_MAX, NUMBER_MAX)).collect(), gone: (0..500).map(gone).collect() };
        let told = all.bounded();
        assert_eq!((told.silent.len(), told.gone.len()), (NAMES_MAX, NAMES_MAX));
        assert_eq!(Rumour::from_text(&told.to_text().expect("fits")), told);
        let of = |number| Rumour { silent: vec![("a".into(), 1, number)], gone: vec![Gone { version: number, ..gone(1) }] };
        assert_eq!(Rumour::from_text(&of(NUMBER_MAX + 1).to_text().expect("fits")), Rumour::default(), "numbers of nothing");
        assert_eq!(Rumour::from_text(&of(NUMBER_MAX).to_text().expect("fits")), of(NUMBER_MAX));
        for nonsense in ["", "{", "[]", "{\"silent\":[[1,2]],\"gone\":[]}", &"x".repeat(RUMOUR_TEXT_MAX + 1)] {
            assert_eq!(Rumour::from_text(nonsense), Rumour::default(), "{nonsense:.20}");
        }
    }
}
