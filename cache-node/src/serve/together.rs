//! Which items of a batch one decode serves. Policy: values in, an order out.

use std::collections::HashMap;

use framecache::DecodeSpec;
use framecache::spec::ImageSpec;
use framecache::wire::FrameAsk;

use crate::read::Specs;

/// Most specs of one decode: a group lands at once, and lies in memory until each who asked has taken its part.
const GROUP: usize = 16;

/// An item, and the specs that one decode makes together with its own.
pub(super) type Grouped = (FrameAsk, Option<Specs>);

/// The items in the order in which they are worked on, each with the specs that one decode makes together with its own.
///
/// A group is of one object and of specs that take the samples as they are: transparency, depth, a cut picture and profile `fast` each
/// change what is decoded. Its items follow one another, so that they are worked on in the same moment.
pub(super) fn grouped(asks: Vec<FrameAsk>, specs: &[Result<DecodeSpec, String>]) -> Vec<Grouped> {
    if specs.len() < 2 {
        return asks.into_iter().map(|ask| (ask, None)).collect();
    }
    let groups = groups(&asks, specs);
    let mut asks: Vec<Option<FrameAsk>> = asks.into_iter().map(Some).collect();
    let mut ordered = Vec::with_capacity(asks.len());
    for Group { members, mut specs } in groups {
        specs.sort_by_cached_key(|spec| (spec.frame(), spec.to_string()));
        let specs: Option<Specs> = (specs.len() > 1).then(|| specs.into());
        ordered.extend(members.into_iter().filter_map(|member| Some((asks[member].take()?, specs.clone()))));
    }
    ordered
}

/// Items by their places, and their specs, each once.
#[derive(Default)]
struct Group {
    members: Vec<usize>,
    specs: Vec<DecodeSpec>,
}

fn groups(asks: &[FrameAsk], specs: &[Result<DecodeSpec, String>]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut open: HashMap<(&str, &str), usize> = HashMap::new();
    let mut placed: HashMap<(&str, &str, &DecodeSpec), usize> = HashMap::new();
    for (member, ask) in asks.iter().enumerate() {
        let spec = specs.get(usize::from(ask.spec)).and_then(|spec| spec.as_ref().ok()).filter(|spec| is_plain(spec));
        let Some(spec) = spec else {
            groups.push(Group { members: vec![member], specs: Vec::new() });
            continue;
        };
        let object = (ask.uri.as_str(), ask.version.as_str());
        let group = *placed.entry((object.0, object.1, spec)).or_insert_with(|| {
            let found = open.get(&object).copied().filter(|&group| groups[group].specs.len() < GROUP);
            let group = found.unwrap_or_else(|| {
                groups.push(Group::default());
                open.insert(object, groups.len() - 1);
                groups.len() - 1
            });
            groups[group].specs.push(spec.clone());
            group
        });
        groups[group].members.push(member);
    }
    groups
}

fn is_plain(spec: &DecodeSpec) -> bool {
    let (image, plain) = (spec.image(), ImageSpec::default());
    spec.frame().is_some()
        && (image.profile, image.alpha, image.depth, image.truncated)
            == (plain.profile, plain.alpha, plain.depth, plain.truncated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(asks: &[(&str, u16)], specs: &[&str]) -> Vec<(String, u16, usize)> {
        let specs: Vec<_> = specs.iter().map(|spec| spec.parse().map_err(|_| (*spec).to_owned())).collect();
        let ask = |(index, (uri, spec)): (usize, &(&str, u16))| FrameAsk {
            index: index as u32,
            attempt: 1,
            spec: *spec,
            uri: (*uri).into(),
            version: String::new(),
        };
        let grouped = grouped(asks.iter().enumerate().map(ask).collect(), &specs);
        grouped.into_iter().map(|(ask, specs)| (ask.uri, ask.spec, specs.map_or(1, |specs| specs.len()))).collect()
    }

    /// Promise: items of one object stand together, each item once; what changes the samples stands alone, and so does what is wrong.
    #[test]
    fn items_of_one_object_stand_together() {
        let specs = ["image?short=9", "image", "image?alpha=keep", "video?frames=1,2", "nonsense", "video?frames=3"];
        let asks = [("a", 0), ("b", 1), ("a", 2), ("a", 1), ("a", 3), ("b", 1), ("a", 4), ("a", 5), ("a", 9), ("b", 0)];
        let of = |uri: &str, spec, together| (uri.to_owned(), spec, together);
        let want = [
            of("a", 0, 3),
            of("a", 1, 3),
            of("a", 5, 3),
            of("b", 1, 2),
            of("b", 1, 2),
            of("b", 0, 2),
            of("a", 2, 1),
            of("a", 3, 1),
            of("a", 4, 1),
            of("a", 9, 1),
        ];
        assert_eq!(ordered(&asks, &specs), want);
        assert_eq!(ordered(&[("a", 0), ("a", 0)], &["image"]), [of("a", 0, 1), of("a", 0, 1)]);
    }

    /// Promise: however many specs name one object, no decode is of more than its share of them.
    #[test]
    fn groups_are_bounded() {
        let specs: Vec<String> = (0..1000).map(|frame| format!("video?frames={frame}")).collect();
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        let asks: Vec<(&str, u16)> = (0..1000).map(|spec| ("a", spec)).collect();
        let ordered = ordered(&asks, &specs);
        assert_eq!(ordered.len(), 1000);
        assert!(ordered.iter().all(|(_, spec, together)| *together == if *spec < 992 { GROUP } else { 8 }));
    }
}
