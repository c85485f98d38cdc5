//! Where the numbers of all rooms come together, once a scrape.
//!
//! A room keeps its own atomics and snapshots; the floor above registers where to find them. Nothing is looked up by name on a
//! hot path.

use std::fmt::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;

use super::histogram::{Counter, Gauge, Histogram, Snapshot};
use super::metrics::{Kind, METRICS, Row};

/// Most series of one metric: labels come from small sets, and a set that is none must not grow without end.
pub const SERIES_MAX: usize = 1024;

/// Powers of two of the nanoseconds that `le` names, both ends included: 1.024 us, where a cache answers from RAM, to 68.7 s,
/// beyond the longest deadline.
const LE_POWERS: std::ops::RangeInclusive<u32> = 10..=36;

/// Name and value of each label, in the order of the metric's row.
pub type Labels = Vec<(&'static str, String)>;

/// All metrics of one node.
#[derive(Default)]
pub struct Registry {
    /// By row of the table.
    sources: Mutex<Vec<(&'static Row, Source)>>,
}

enum Source {
    Counter(Labels, Arc<Counter>),
    Gauge(Labels, Arc<Gauge>),
    Histogram(Labels, Arc<Histogram>),
    Collect(Labels, Box<dyn FnMut() -> f64 + Send>),
    Each(Box<dyn FnMut(&mut Emit<'_>) + Send>),
}

/// A metric with its series at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    pub row: &'static Row,
    pub series: Vec<(Labels, Value)>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    Histogram(Snapshot),
}

/// Takes the series of [`Registry::collect_each`].
pub struct Emit<'a> {
    family: &'a mut Family,
}

impl Registry {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A new counter for these labels.
    ///
    /// # Panics
    ///
    /// As all that registers: if no metric has that name, kind and labels, in this order.
    pub fn counter(&self, name: &str, labels: &[(&'static str, &str)]) -> Arc<Counter> {
        let counter = Arc::<Counter>::default();
        self.add(name, Kind::Counter, labels, |labels| Source::Counter(labels, counter.clone()));
        counter
    }

    /// A new gauge for these labels.
    pub fn gauge(&self, name: &str, labels: &[(&'static str, &str)]) -> Arc<Gauge> {
        let gauge = Arc::<Gauge>::default();
        self.add(name, Kind::Gauge, labels, |labels| Source::Gauge(labels, gauge.clone()));
        gauge
    }

    /// A new histogram for these labels.
    pub fn histogram(&self, name: &str, labels: &[(&'static str, &str)]) -> Arc<Histogram> {
        let histogram = Arc::<Histogram>::default();
        self.collect_histogram(name, labels, histogram.clone());
        histogram
    }

    /// A histogram that a room keeps.
    pub fn collect_histogram(&self, name: &str, labels: &[(&'static str, &str)], histogram: Arc<Histogram>) {
        self.add(name, Kind::Histogram, labels, |labels| Source::Histogram(labels, histogram));
    }

    /// A number that a room keeps: `read` is called once a scrape, may not block, and may not use this registry.
    pub fn collect(&self, name: &str, labels: &[(&'static str, &str)], read: impl FnMut() -> f64 + Send + 'static) {
        let kind = if Row::find(name).is_some_and(|row| row.kind == Kind::Counter) { Kind::Counter } else { Kind::Gauge };
        self.add(name, kind, labels, |labels| Source::Collect(labels, Box::new(read)));
    }

    /// Numbers that a room keeps, several series from one snapshot: `read` emits each. As for [`Registry::collect`].
    pub fn collect_each(&self, name: &str, read: impl FnMut(&mut Emit<'_>) + Send + 'static) {
        let row = Row::find(name).unwrap_or_else(|| panic!("no metric is called {name}"));
        assert!(row.kind != Kind::Histogram, "{name} is a histogram");
        self.sources.lock().push((row, Source::Each(Box::new(read))));
    }

    /// Every metric that somebody registered, in the order of the table.
    pub fn families(&self) -> Vec<Family> {
        let mut families: Vec<Family> = METRICS.iter().map(|row| Family { row, series: Vec::new() }).collect();
        for (row, source) in self.sources.lock().iter_mut() {
            let Some(family) = families.iter_mut().find(|family| family.row.name == row.name) else { continue };
            match source {
                Source::Counter(labels, counter) => family.put(labels.clone(), Value::Number(counter.value() as f64)),
                Source::Gauge(labels, gauge) => family.put(labels.clone(), Value::Number(gauge.value() as f64)),
                Source::Histogram(labels, histogram) => family.put(labels.clone(), Value::Histogram(histogram.snapshot())),
                Source::Collect(labels, read) => family.put(labels.clone(), Value::Number(read())),
                Source::Each(read) => read(&mut Emit { family }),
            }
        }
        families.retain(|family| !family.series.is_empty());
        families
    }

    /// All metrics in Prometheus' text format, version 0.0.4.
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(16 << 10);
        for family in self.families() {
            // Writing to a string cannot fail.
            let _ = family.render(&mut text);
        }
        text
    }

    fn add(&self, name: &str, kind: Kind, labels: &[(&'static str, &str)], source: impl FnOnce(Labels) -> Source) {
        let row = Row::find(name).unwrap_or_else(|| panic!("no metric is called {name}"));
        assert_eq!(row.kind, kind, "{name} is of another kind");
        self.sources.lock().push((row, source(labelled(row, labels))));
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Registry").field("sources", &self.sources.lock().len()).finish()
    }
}

fn labelled(row: &'static Row, labels: &[(&'static str, &str)]) -> Labels {
    let same = row.labels.len() == labels.len() && row.labels.iter().zip(labels).all(|(want, (name, _))| want == name);
    assert!(same, "{} has the labels {:?}, not {labels:?}", row.name, row.labels);
    labels.iter().map(|(name, value)| (*name, value.to_string())).collect()
}

impl Emit<'_> {
    /// One series.
    pub fn series(&mut self, labels: &[(&'static str, &str)], value: f64) {
        let labels = labelled(self.family.row, labels);
        self.family.put(labels, Value::Number(value));
    }
}

impl Family {
    /// Two sources of one series add up (Prometheus refuses a page on which one stands twice); what is past the bound is left out.
    fn put(&mut self, labels: Labels, value: Value) {
        let full = self.series.len() >= SERIES_MAX;
        let twin = self.series.iter_mut().find(|(other, _)| *other == labels);
        match (twin, value) {
            (Some((_, Value::Number(sum))), Value::Number(value)) => *sum += value,
            (Some((_, Value::Histogram(sum))), Value::Histogram(value)) => sum.merge(&value),
            (None, value) if !full => self.series.push((labels, value)),
            _ => {}
        }
    }

    fn render(&self, text: &mut String) -> fmt::Result {
        let Row { name, kind, help, .. } = self.row;
        writeln!(text, "# HELP {name} {}", help.replace('\\', "\\\\").replace('\n', "\\n"))?;
        writeln!(text, "# TYPE {name} {}", kind.name())?;
        for (labels, value) in &self.series {
            match value {
                Value::Number(number) => writeln!(text, "{name}{} {}", braces(labels, None), Float(*number))?,
                Value::Histogram(snapshot) => {
                    for power in LE_POWERS {
                        let le = Float(f64::from(power).exp2() / 1e9).to_string();
                        writeln!(text, "{name}_bucket{} {}", braces(labels, Some(&le)), snapshot.at_most(power))?;
                    }
                    writeln!(text, "{name}_bucket{} {}", braces(labels, Some("+Inf")), snapshot.count())?;
                    writeln!(text, "{name}_sum{} {}", braces(labels, None), Float(snapshot.sum().as_secs_f64()))?;
                    writeln!(text, "{name}_count{} {}", braces(labels, None), snapshot.count())?;
                }
            }
        }
        Ok(())
    }
}

/// `{a="x",le="1"}`, or nothing; values escaped as the format says.
fn braces(labels: &Labels, le: Option<&str>) -> String {
    let escape = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs = labels.iter().map(|(name, value)| (*name, value.as_str())).chain(le.map(|le| ("le", le)));
    let pairs: Vec<_> = pairs.map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

/// A number as the format writes it.
struct Float(f64);

impl fmt::Display for Float {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            number if number == f64::INFINITY => out.write_str("+Inf"),
            number if number == f64::NEG_INFINITY => out.write_str("-Inf"),
            number => write!(out, "{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The page is what the format's specification says, in the order of the table.
    #[test]
    fn the_page_is_prometheus_text() {
        let registry = Registry::new();
        registry.collect_each("framecache_budget_waiting", |out| {
            out.series(&[("level", "read")], 3.0);
            out.series(&[("level", "peek")], 0.0);
        });
        let requests = registry.counter("framecache_requests_total", &[("verb", "read"), ("outcome", "ok")]);
        requests.add(7);
        registry.gauge("framecache_streams", &[]).set(-2);
        registry.collect("framecache_origin_retries_total", &[], || 1.5);
        let wanted = [
            "# HELP framecache_requests_total Requests answered, by verb and outcome (ok, busy, not_found, denied, changed, timeout, error).",
            "# TYPE framecache_requests_total counter",
            "framecache_requests_total{verb=\"read\",outcome=\"ok\"} 7",
            "# HELP framecache_streams Requests under way.",
            "# TYPE framecache_streams gauge",
            "framecache_streams -2",
            "# HELP framecache_budget_waiting Requests that wait for memory.",
            "# TYPE framecache_budget_waiting gauge",
            "framecache_budget_waiting{level=\"read\"} 3",
            "framecache_budget_waiting{level=\"peek\"} 0",
            "# HELP framecache_origin_retries_total Requests repeated after a failure.",
            "# TYPE framecache_origin_retries_total counter",
            "framecache_origin_retries_total 1.5",
        ];
        assert_eq!(registry.render().lines().collect::<Vec<_>>(), wanted);
    }

    /// Values are escaped, so that no label can end its line.
    #[test]
    fn labels_cannot_break_out() {
        let registry = Registry::new();
        registry.collect("framecache_build_info", &[("version", "a\"b\\c\nd")], || 1.0);
        let page = registry.render();
        assert!(page.ends_with("framecache_build_info{version=\"a\\\"b\\\\c\\nd\"} 1\n"), "{page}");
    }

    /// Buckets are cumulative, end in +Inf, and agree with the count.
    #[test]
    fn histograms_are_cumulative() {
        let registry = Registry::new();
        let seconds = registry.histogram("framecache_request_seconds", &[("verb", "read")]);
        for micros in [1, 500, 500, 2_000_000, 100_000_000] {
            seconds.record(Duration::from_micros(micros));
        }
        let page = registry.render();
        let lines: Vec<_> = page.lines().filter(|line| line.contains("_bucket")).collect();
        assert_eq!(lines[0], "framecache_request_seconds_bucket{verb=\"read\",le=\"0.000001024\"} 1");
        let counts: Vec<u64> =
            lines.iter().map(|line| line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("count")).collect();
        assert!(counts.is_sorted() && counts[counts.len() - 2..] == [4, 5], "{counts:?}");
        assert!(lines[lines.len() - 1].contains("le=\"+Inf\""));
        assert!(page.ends_with("_sum{verb=\"read\"} 102.001001\nframecache_request_seconds_count{verb=\"read\"} 5\n"), "{page}");
    }

    /// One series never stands twice on a page, and no metric grows without end.
    #[test]
    fn series_are_unique_and_bounded() {
        let registry = Registry::new();
        for _ in 0..2 {
            registry.counter("framecache_origin_retries_total", &[]).add(2);
            registry.histogram("framecache_busy_refusal_seconds", &[]).record(Duration::from_micros(3));
        }
        registry.collect_each("framecache_budget_fixed_bytes", |out| {
            (0..2000).for_each(|line| out.series(&[("line", &line.to_string())], 1.0));
        });
        let page = registry.render();
        assert!(page.contains("\nframecache_origin_retries_total 4\n"), "{page}");
        assert!(page.contains("\nframecache_busy_refusal_seconds_count 2\n"));
        assert_eq!(page.matches("\nframecache_budget_fixed_bytes{").count(), SERIES_MAX);
    }

    /// What the table does not know cannot be registered.
    #[test]
    #[should_panic(expected = "has the labels [\"verb\", \"outcome\"]")]
    fn labels_are_those_of_the_table() {
        Registry::new().counter("framecache_requests_total", &[("outcome", "ok"), ("verb", "read")]);
    }
}
