//! The point table: all points of a ring in order, and where to begin to look among them.

/// A point of a node on the circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) at: u32,
    /// The node's number.
    pub(super) node: u32,
}

/// All points, cut into equal arcs, one for each point and up to two: the search for the next point then looks at one or two, where
/// a binary search would miss the processor's caches twenty times.
#[derive(Debug)]
pub(super) struct Table {
    points: Vec<Point>,
    /// For each arc, the first point in it or after it.
    starts: Vec<u32>,
    /// Of a position, the bits below its arc.
    shift: u32,
}

impl Table {
    pub(super) fn new(mut points: Vec<Point>) -> Self {
        points.sort_unstable();
        let arcs = points.len().next_power_of_two();
        let shift = u32::BITS - arcs.ilog2();
        let mut starts = Vec::with_capacity(arcs);
        let mut first = 0;
        for arc in 0..arcs as u64 {
            while points.get(first).is_some_and(|point| u64::from(point.at) >> shift < arc) {
                first += 1;
            }
            starts.push(first as u32);
        }
        Self { points, starts, shift }
    }

    pub(super) fn points(&self) -> &[Point] {
        &self.points
    }

    /// Index of the first point at `spot` or after it; past the last comes the first.
    pub(super) fn after(&self, spot: u32) -> usize {
        let start = self.starts[(u64::from(spot) >> self.shift) as usize] as usize;
        self.points[start..].iter().position(|point| point.at >= spot).map_or(0, |ahead| start + ahead)
    }

    /// That point's distance, going forward, and its node.
    pub(super) fn near(&self, spot: u32) -> Option<(u32, u32)> {
        self.points.get(self.after(spot)).map(|point| (point.at.wrapping_sub(spot), point.node))
    }
}
