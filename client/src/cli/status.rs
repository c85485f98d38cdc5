//! `framecache status`: the nodes, and what each says about itself.

use futures::StreamExt;
use serde_json::{Map, Value, json};

use super::failure::{Failure, visible};
use super::output::print;
use crate::view::{NodeState, state};
use crate::wire::{NodeRow, RAMP_FULL};
use crate::{Call, Client, Error};

/// Nodes that are asked at once.
const AT_ONCE: usize = 32;

/// Show the cluster's nodes, their states, and what each says about itself
#[derive(clap::Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  framecache status\n  framecache --addr cache-0.cache:4433 status --json | jq '.nodes[].state'"
)]
pub struct Arguments {
    /// One JSON document: {"nodes": [{id, address, state, weight, share, ramp, settled, roles, status | error}]}
    #[arg(long)]
    pub json: bool,
}

type Said = Result<Vec<(String, String)>, Error>;

impl Arguments {
    pub(super) async fn run(self, client: &Client, call: &Call) -> Result<(), Failure> {
        let rows = client.nodes(call).await?;
        let ask = |row: NodeRow| async move {
            let said = client.node_status(&row, call).await;
            (row, said)
        };
        let whole = rows.iter().map(share_of).sum();
        let nodes: Vec<(NodeRow, Said)> = futures::stream::iter(rows).map(ask).buffered(AT_ONCE).collect().await;
        match self.json {
            true => {
                print(&format!("{:#}\n", json!({"nodes": nodes.iter().map(|node| document(node, whole)).collect::<Vec<_>>()})))?
            }
            false => print(&nodes.iter().map(|node| shown(node, whole)).collect::<String>())?,
        }
        match nodes.iter().filter(|(_, said)| said.is_err()).count() {
            0 => Ok(()),
            silent => Err(Failure::items(silent, nodes.len())),
        }
    }
}

fn shown((row, said): &(NodeRow, Said), whole: f64) -> String {
    let said = match said {
        Ok(lines) => table(lines, "  "),
        Err(error) => format!("  {error}\n"),
    };
    let share = percent(share_of(row) / whole);
    let (ramp, settled) = (percent(ramp(row)), if row.settled { "settled" } else { "new" });
    format!(
        "{}  {}  {}  weight {} ({share} of the keys)  serves {ramp} of them, {settled}  {}\n{said}",
        row.id,
        state_name(row),
        row.quic,
        weight(row),
        row.roles.join(",")
    )
}

fn document((row, said): &(NodeRow, Said), whole: f64) -> Value {
    let mut node = json!({
        "id": row.id, "address": row.quic, "state": state_name(row), "weight": weight(row), "roles": row.roles,
        "share": share_of(row) / whole.max(f64::MIN_POSITIVE), "ramp": ramp(row), "settled": row.settled,
    });
    match said {
        Ok(lines) => node["status"] = object(lines),
        Err(error) => node["error"] = error.to_string().into(),
    }
    node
}

/// Lines of name and value, the values below each other.
pub(super) fn table(lines: &[(String, String)], indent: &str) -> String {
    let width = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    lines.iter().map(|(name, value)| format!("{indent}{name:width$}  {}\n", visible(value))).collect()
}

/// The same for programs.
pub(super) fn object(lines: &[(String, String)]) -> Value {
    lines.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect::<Map<_, _>>().into()
}

/// What a member has of the whole, by weight.
fn share_of(row: &NodeRow) -> f64 {
    let is_member = state(row) == NodeState::Serving && row.roles.iter().any(|role| role == "cache");
    if is_member { weight(row) } else { 0.0 }
}

/// How much of its keys a node serves by now.
fn ramp(row: &NodeRow) -> f64 {
    f64::from(row.ramp.min(RAMP_FULL)) / f64::from(RAMP_FULL)
}

fn percent(part: f64) -> String {
    format!("{:.0} %", if part.is_finite() { part * 100.0 } else { 0.0 })
}

/// As the configuration has it.
fn weight(row: &NodeRow) -> f64 {
    f64::from(row.weight) / 100.0
}

fn state_name(row: &NodeRow) -> &'static str {
    match state(row) {
        NodeState::Joining => "joining",
        NodeState::Serving => "serving",
        NodeState::Leaving => "leaving",
        NodeState::Gone => "gone",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: values stand below each other, and programs get the same names.
    #[test]
    fn lines_are_a_table() {
        let lines = [("owner".to_owned(), "node-1".to_owned()), ("cached in".to_owned(), "ram".to_owned())];
        assert_eq!(table(&lines, " "), " owner      node-1\n cached in  ram\n");
        assert_eq!(object(&lines).to_string(), r#"{"cached in":"ram","owner":"node-1"}"#);
    }
}
