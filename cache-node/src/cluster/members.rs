//! What this node knows of the cluster at this moment: the view with its rings, and what callers with an older view lack.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use bytes::Bytes;
use framecache::view::{NodeState, state};
use framecache::wire::codec;
use framecache::wire::{NodeRow, ViewPayload};
use framecache::{Topology, View};
use parking_lot::Mutex;

/// Older views for which the difference is kept: a join is ten of them (its ramp), so that a client that was silent for minutes still
/// needs no whole view.
const OLDER_MAX: usize = 64;

/// Longest difference that travels with a reply: a few dozen rows. A caller that lacks more asks for the whole view.
const DELTA_BYTES_MAX: usize = 8 << 10;

/// More rows than this do not fit, whatever they say.
const DELTA_ROWS_MAX: usize = DELTA_BYTES_MAX / 64;

/// The members, swapped as a whole.
#[derive(Debug)]
pub struct Members {
    id: String,
    now: ArcSwap<Known>,
    joining: Mutex<()>,
}

#[derive(Debug)]
struct Known {
    topology: Arc<Topology>,
    digest: u64,
    /// The whole view as a reply says it, made when it is first asked for.
    whole: OnceLock<Bytes>,
    /// The views before this one, the latest first, with what each lacks. Rows are shared; rings are not kept.
    older: VecDeque<(u64, View, Bytes)>,
}

impl Members {
    /// The members as node `id` sees them.
    pub fn new(id: &str, view: View) -> Self {
        let digest = view.digest();
        let topology = Arc::new(Topology::new(view));
        let known = Known { digest, topology, whole: OnceLock::new(), older: VecDeque::new() };
        Self { id: id.to_owned(), now: ArcSwap::from_pointee(known), joining: Mutex::new(()) }
    }

    /// This node's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// From now on these are the members. Rings are made here, for milliseconds: not for the request path.
    pub fn join(&self, view: View) {
        let _one = self.joining.lock();
        let before = self.now.load_full();
        let digest = view.digest();
        if digest == before.digest {
            return;
        }
        let topology = Arc::new(Topology::after(view, Some(&before.topology)));
        let older = std::iter::once((before.digest, before.topology.view().clone()))
            .chain(before.older.iter().map(|(digest, old, _)| (*digest, old.clone())))
            .filter(|(old, _)| *old != digest)
            .take(OLDER_MAX)
            .map(|(name, old)| {
                let lacks = delta(digest, topology.view(), &old);
                (name, old, lacks)
            })
            .collect();
        self.now.store(Arc::new(Known { topology, digest, whole: OnceLock::new(), older }));
    }

    /// The view and its rings.
    pub fn topology(&self) -> Arc<Topology> {
        self.now.load().topology.clone()
    }

    /// The whole view as a reply says it; `None` if it cannot be said.
    pub fn whole(&self) -> Option<Bytes> {
        let known = self.now.load();
        if let Some(whole) = known.whole.get() {
            return Some(whole.clone());
        }
        let message = codec::encode(&known.topology.view().payload()).ok()?;
        Some(known.whole.get_or_init(|| Bytes::from(message).slice(codec::PREFIX_BYTES..)).clone())
    }

    /// What a caller lacks whose view has that digest: nothing if it is up to date, and empty bytes if it has to ask for the view.
    pub fn lacks(&self, digest: u64) -> Option<Bytes> {
        let known = self.now.load();
        if digest == known.digest {
            return None;
        }
        let found = known.older.iter().find(|(old, _, _)| *old == digest);
        Some(found.map(|(_, _, delta)| delta.clone()).unwrap_or_default())
    }
}

fn delta(digest: u64, view: &View, old: &View) -> Bytes {
    let nodes: Vec<NodeRow> = view.since(old).take(DELTA_ROWS_MAX + 1).cloned().collect();
    if nodes.len() > DELTA_ROWS_MAX {
        return Bytes::new();
    }
    // That a row is no more no delta can say; of a node that had gone it makes no difference.
    let whole = old.rows().filter(|row| state(row) != NodeState::Gone).all(|row| view.node(&row.id).is_some());
    match codec::encode(&ViewPayload { view_id: digest, nodes }) {
        Ok(message) if whole && message.len() <= DELTA_BYTES_MAX => Bytes::from(message).slice(codec::PREFIX_BYTES..),
        _ => Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(rows: &[(&str, u64)]) -> View {
        let mut view = View::default();
        for (id, version) in rows {
            view.merge(NodeRow { version: *version, ..NodeRow::member(id, 100) }).expect("merge");
        }
        view
    }

    /// Promise: with what it is told a caller has the current view, from any of the last ones; one that knows another asks for it whole.
    #[test]
    fn older_views_catch_up() {
        let members = Members::new("a", view(&[("a", 1)]));
        let first = view(&[("a", 1)]);
        let mut versions = vec![first.clone()];
        for version in 2..=OLDER_MAX as u64 + 2 {
            versions.push(view(&[("a", version), ("b", 1)]));
            members.join(versions[versions.len() - 1].clone());
        }
        let current = versions.pop().expect("current");
        assert_eq!(members.lacks(current.digest()), None);
        assert_eq!(members.lacks(first.digest()), Some(Bytes::new()), "too long ago");
        for mut old in versions.drain(2..) {
            let delta = members.lacks(old.digest()).expect("lacks something");
            let payload: ViewPayload = codec::decode(&delta).expect("a view");
            for row in payload.nodes {
                old.merge(row).expect("merge");
            }
            assert_eq!((old.digest(), payload.view_id), (current.digest(), current.digest()));
        }
        assert_eq!(members.lacks(77), Some(Bytes::new()));
        members.join(view(&[("a", 100)]));
        assert_eq!(members.lacks(current.digest()), Some(Bytes::new()), "a row went: no delta says that");
    }

    /// Promise: what travels with each reply stays small.
    #[test]
    fn large_differences_do_not_travel() {
        let members = Members::new("a", view(&[("a", 1)]));
        let names: Vec<String> = (0..200).map(|index| format!("node-{index}")).collect();
        members.join(view(&names.iter().map(|name| (name.as_str(), 1)).chain([("a", 1)]).collect::<Vec<_>>()));
        assert_eq!(members.lacks(view(&[("a", 1)]).digest()), Some(Bytes::new()));
    }
}
