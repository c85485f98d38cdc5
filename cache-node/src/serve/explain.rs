//! `explain`: where an object lies on this node, and why. Looks, and changes nothing: no origin is asked.

use framecache::wire::NodeRow;
use framecache::{ByteRange, DecodeSpec, ObjectId, Page, RouteKey, Span};

use super::Service;
use crate::cache::{DiskPresence, EntryKey, Presence, frames, pages};

/// Pages that are listed one by one; of a larger object the rest is counted.
const PAGES_LISTED: usize = 16;

/// Nodes of a walk that are named.
const WALK_LISTED: usize = 8;

/// Pages that are looked at, at most: 64 GiB of object.
const PAGES_MAX: u64 = 65_536;

/// Lines of name and value. Names: `object`; `key`, `owner`, `served by`, `walk`, `may hold it`, `asked`; `policy`, `last fill`, `version`,
/// `size`, `as of`; then `page N` and `pages` for raw bytes, or
/// `frame` for a spec; then `flushed`: whether all of it would survive a kill of the node.
pub(super) async fn lines(id: &ObjectId, spec: Option<&DecodeSpec>, service: &Service) -> Vec<(String, String)> {
    let mut lines = vec![("object".into(), id.to_string())];
    let key = spec.map_or(RouteKey::raw(id, Span::new(0)), |spec| spec.route(id));
    placement(key, service, &mut lines);
    if !service.reader.origin().knows(id.bucket()) {
        lines.push(("policy".into(), "bucket is not configured".into()));
        return lines;
    }
    lines.push(("policy".into(), service.reader.policy_text(id)));
    lines.push(("last fill".into(), last_fill(id, spec, service)));
    let Some(head) = service.reader.held_head(id).await else {
        lines.push(("version".into(), "not known here".into()));
        lines.push(("flushed".into(), "no".into()));
        return lines;
    };
    lines.push(("version".into(), head.version.to_string()));
    lines.push(("size".into(), head.size.to_string()));
    lines.push(("as of".into(), format!("{} s ago, by the origin's word", service.reader.age(&head).as_secs())));
    match spec {
        Some(spec) => {
            let presence = service.reader.store().presence(&frames::key(id, spec)).await;
            lines.push(("frame".into(), text(presence)));
            lines.push(("flushed".into(), yes(presence.disk == DiskPresence::Flushed)));
        }
        None => {
            let whole = ByteRange::at(0, head.size.max(1)).unwrap_or(Page::new(0).range());
            raw(id, whole, service, &mut lines).await;
        }
    }
    lines
}

/// What was brought in last: when, from where, how much, and how long that took.
fn last_fill(id: &ObjectId, spec: Option<&DecodeSpec>, service: &Service) -> String {
    let Some(fill) = service.reader.last_fill(id, spec) else { return "none that is remembered since the start".into() };
    let (ago, took) = (fill.ended.elapsed().as_secs(), fill.took.as_secs_f64() * 1e3);
    format!("{ago} s ago, {}, {} bytes in {took:.1} ms", fill.source, fill.bytes)
}

/// Who owns the key, who serves it by now, who comes after, and who is asked for what its server lacks.
fn placement(key: RouteKey, service: &Service, lines: &mut Vec<(String, String)>) {
    let topology = service.members.topology();
    let none = || "none".to_owned();
    let names = |rows: &mut dyn Iterator<Item = &NodeRow>| {
        rows.take(WALK_LISTED).map(|row| row.id.as_str()).collect::<Vec<_>>().join(", ")
    };
    let server = topology.server(key).map(|row| row.id.clone());
    lines.push(("key".into(), format!("{:016x}", key.0)));
    lines.push(("owner".into(), topology.walk(key).next().map_or_else(none, |row| row.id.clone())));
    lines.push(("served by".into(), server.clone().unwrap_or_else(none)));
    lines.push(("walk".into(), names(&mut topology.walk(key))));
    let holders = topology.holders(key, server.as_deref().unwrap_or_default());
    lines.push(("may hold it".into(), names(&mut holders.into_iter())));
    lines.push(("asked".into(), service.members.id().to_owned()));
}

async fn raw(id: &ObjectId, whole: ByteRange, service: &Service, lines: &mut Vec<(String, String)>) {
    let (mut total, mut ram, mut flushed) = (0u64, 0u64, 0u64);
    for page in whole.pages().take(PAGES_MAX as usize) {
        let key: EntryKey = pages::key(id, page);
        let presence = service.reader.store().presence(&key).await;
        total += 1;
        ram += u64::from(presence.ram);
        flushed += u64::from(presence.disk == DiskPresence::Flushed);
        if total as usize <= PAGES_LISTED {
            lines.push((format!("page {}", page.index()), text(presence)));
        }
    }
    lines.push(("pages".into(), format!("{total} in all, {ram} in ram, {flushed} flushed to disk")));
    lines.push(("flushed".into(), yes(flushed == total)));
}

fn text(presence: Presence) -> String {
    let ram = if presence.ram { "ram" } else { "not in ram" };
    let disk = match presence.disk {
        DiskPresence::No => "not on disk",
        DiskPresence::Queued => "disk: queued",
        DiskPresence::Flushed => "disk: flushed",
    };
    format!("{ram}, {disk}")
}

fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}
