//! The axes made last, kept because a training size is asked for again and again.

use std::sync::Arc;

use super::axis::{Axis, AxisSpec};

/// Axes kept: two for each of eight sizes in turn. A search through them costs nothing beside a pass.
const KEPT_MAX: usize = 16;

/// Memory of the axes kept, in bytes. One of a training size takes 10 to 100 KB; larger than this, an axis is not kept at all.
pub(super) const KEPT_BYTES_MAX: usize = 4 << 20;

/// Upper bound of what the table of axes takes beside the axes themselves, in bytes: a vector that grows holds half as much again.
pub(super) const TABLE_BYTES_MAX: usize = 2 * KEPT_MAX * (size_of::<(AxisSpec, Arc<Axis>)>() + size_of::<Axis>());

/// At most [`KEPT_MAX`] axes and [`KEPT_BYTES_MAX`] bytes, least recently used first.
#[derive(Default)]
pub(super) struct AxisCache {
    kept: Vec<(AxisSpec, Arc<Axis>)>,
    bytes: usize,
}

impl AxisCache {
    /// The axis of `spec`, computed if it is not kept.
    pub(super) fn axis(&mut self, spec: AxisSpec) -> Arc<Axis> {
        if let Some(at) = self.kept.iter().position(|(kept, _)| *kept == spec) {
            self.kept[at..].rotate_left(1);
        } else {
            let axis = Arc::new(Axis::new(&spec));
            if axis.bytes() > KEPT_BYTES_MAX {
                return axis;
            }
            self.make_room(axis.bytes());
            self.bytes += axis.bytes();
            self.kept.push((spec, axis));
        }
        Arc::clone(&self.kept[self.kept.len() - 1].1)
    }

    /// Memory held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn make_room(&mut self, bytes: usize) {
        while self.kept.len() >= KEPT_MAX || self.bytes + bytes > KEPT_BYTES_MAX {
            let (_, oldest) = self.kept.remove(0);
            self.bytes -= oldest.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::axis::Direction;
    use super::super::{Filter, Isa};
    use super::*;

    fn spec(input: usize, output: usize) -> AxisSpec {
        let (region, direction) = ((0.0, input as f32), Direction::Vertical);
        AxisSpec { input, region, output, range: 0..output, filter: Filter::Bicubic, direction, isa: Isa::Scalar }
    }

    /// An axis asked for again is the one made before, and the one unused for longest goes first.
    #[test]
    fn keeps_the_axes_used_last() {
        let mut cache = AxisCache::default();
        let first = cache.axis(spec(500, 224));
        for output in 1..KEPT_MAX {
            cache.axis(spec(500, output));
        }
        assert!(Arc::ptr_eq(&first, &cache.axis(spec(500, 224))));
        cache.axis(spec(500, 300));
        assert!(Arc::ptr_eq(&first, &cache.axis(spec(500, 224))));
        assert!(cache.kept.iter().all(|(kept, _)| kept.output != 1));
        assert_eq!(cache.kept.len(), KEPT_MAX);
    }

    /// The bytes kept stay within their bound, whatever is asked for.
    #[test]
    fn bounds_its_memory() {
        let mut cache = AxisCache::default();
        for input in [1_000, 60_000, 50_000, 3_000_000, 70_000, 90_000] {
            let axis = cache.axis(spec(input, input / 2));
            assert_eq!(axis.taps.len(), input / 2);
            assert_eq!(cache.bytes, cache.kept.iter().map(|(_, axis)| axis.bytes()).sum::<usize>());
            assert!(cache.bytes <= KEPT_BYTES_MAX);
        }
        assert!(cache.kept.iter().all(|(kept, _)| kept.input != 3_000_000));
    }
}
