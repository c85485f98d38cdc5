//! What a run found: figures with all their rounds, as an aligned table for people and as JSON for machines.

use serde_json::{Value, json};

/// Which way is better, so that "worst" means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// A bound that the project set itself.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn holds(self, value: f64) -> bool {
        match self {
            Target::AtLeast(bound) => value >= bound,
            Target::AtMost(bound) => value <= bound,
        }
    }
}

/// One measured thing, all rounds of it.
#[derive(Clone, Debug)]
pub struct Figure {
    name: String,
    unit: &'static str,
    better: Better,
    rounds: Vec<f64>,
    against: String,
    target: Option<Target>,
    /// The target is for every round, not for the median.
    always: bool,
}

impl Figure {
    /// A figure of these rounds, in order.
    pub fn new(name: impl Into<String>, unit: &'static str, better: Better, rounds: Vec<f64>) -> Self {
        Self { name: name.into(), unit, better, rounds, against: String::new(), target: None, always: false }
    }

    /// A count or a single reading.
    pub fn one(name: impl Into<String>, unit: &'static str, better: Better, value: f64) -> Self {
        Self::new(name, unit, better, vec![value])
    }

    /// What it is compared with.
    pub fn against(mut self, what: impl Into<String>) -> Self {
        self.against = what.into();
        self
    }

    /// Its target is for the worst round: for what is promised each time, such as a count.
    pub fn always(mut self) -> Self {
        self.always = true;
        self
    }

    /// The target: its median is at least this.
    pub fn at_least(mut self, bound: f64) -> Self {
        self.target = Some(Target::AtLeast(bound));
        self
    }

    /// The target: its median is at most this.
    pub fn at_most(mut self, bound: f64) -> Self {
        self.target = Some(Target::AtMost(bound));
        self
    }

    fn median(&self) -> f64 {
        median(&self.rounds)
    }

    fn worst(&self) -> f64 {
        let pick = match self.better {
            Better::Higher => f64::min,
            Better::Lower => f64::max,
        };
        self.rounds.iter().copied().reduce(pick).unwrap_or(f64::NAN)
    }

    fn verdict(&self) -> Option<bool> {
        self.target.map(|target| target.holds(if self.always { self.worst() } else { self.median() }))
    }

    /// What stands behind the number: the comparator, and the target with its verdict.
    fn note(&self) -> String {
        let target = self.target.zip(self.verdict()).map(|(target, holds)| {
            let (sign, bound) = match target {
                Target::AtLeast(bound) => ("≥", bound),
                Target::AtMost(bound) => ("≤", bound),
            };
            let each = if self.always { " each round" } else { "" };
            format!("target {sign} {}{each}: {}", short(bound), if holds { "holds" } else { "misses" })
        });
        let parts = [Some(self.against.clone()).filter(|text| !text.is_empty()), target];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name, "value": self.median(), "unit": self.unit, "worst": self.worst(), "rounds": self.rounds,
            "against": self.note(),
        })
    }
}

/// The middle of the values; of an even number, the mean of the two in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Everything that one scenario found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Which scenario.
    pub scenario: String,
    /// Cores that others used while rounds ran, each round's.
    pub others_cores: Vec<f64>,
    figures: Vec<Figure>,
    notes: Vec<String>,
}

/// Cores of other processes above which wall-clock figures are not to be quoted.
const NOISY_CORES: f64 = 0.2;

impl Report {
    /// An empty report.
    pub fn new(scenario: &str) -> Self {
        Self { scenario: scenario.to_owned(), ..Self::default() }
    }

    /// Adds a figure.
    pub fn push(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// Adds a line for people: what was left out and why, or what a number means.
    pub fn note(&mut self, line: impl Into<String>) {
        self.notes.push(line.into());
    }

    /// The same, but not a second time.
    pub fn note_once(&mut self, line: String) {
        if !self.notes.contains(&line) {
            self.notes.push(line);
        }
    }

    /// Whether others used more than their share meanwhile.
    pub fn noisy(&self) -> bool {
        median(&self.others_cores) > NOISY_CORES
    }

    /// The JSON form.
    pub fn json(&self) -> Value {
        let figures: Vec<Value> = self.figures.iter().map(Figure::json).collect();
        json!({
            "scenario": self.scenario, "noisy": self.noisy(), "figures": figures, "others_cores": self.others_cores,
            "notes": self.notes,
        })
    }

    /// The table.
    pub fn text(&self) -> String {
        let mut rows = vec![["figure", "median", "worst", "unit", "rounds", "against"].map(str::to_owned)];
        rows.extend(self.figures.iter().map(|figure| {
            let (value, worst) = (short(figure.median()), short(figure.worst()));
            [figure.name.clone(), value, worst, figure.unit.to_owned(), figure.rounds.len().to_string(), figure.note()]
        }));
        let widths: Vec<usize> =
            (0..6).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &rows {
            for (column, cell) in row.iter().enumerate() {
                let gap = " ".repeat(widths[column] - cell.chars().count());
                let right = matches!(column, 1 | 2 | 4);
                text += &if right { format!("{gap}{cell}  ") } else { format!("{cell}{gap}  ") };
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        self.notes.iter().for_each(|note| text += &format!("note: {note}\n"));
        let verdicts: Vec<bool> = self.figures.iter().filter_map(Figure::verdict).collect();
        let held = verdicts.iter().filter(|&&holds| holds).count();
        let noisy = if self.noisy() { "NOISY: quote no wall-clock figure" } else { "calm" };
        text += &format!(
            "{}: {held} targets hold, {} miss; others used {:.2} cores (worst round {:.2}): {noisy}\n",
            self.scenario,
            verdicts.len() - held,
            median(&self.others_cores),
            self.others_cores.iter().copied().fold(0.0, f64::max),
        );
        text
    }
}

/// Four significant digits, without an exponent.
fn short(value: f64) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    let digits = match value.abs() {
        v if v == v.trunc() && v < 1e9 => 0,
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        v if v >= 0.1 => 3,
        _ => 5,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the median decides whether a target holds, the worst is on the right side, and all rounds are in the JSON.
    #[test]
    fn medians_decide() {
        let figure = Figure::new("f", "x", Better::Higher, vec![3.0, 1.0, 2.0]).against("peer").at_least(2.0);
        assert_eq!((figure.median(), figure.worst(), figure.verdict()), (2.0, 1.0, Some(true)));
        assert_eq!(figure.note(), "peer; target ≥ 2: holds");
        assert_eq!(figure.json()["rounds"], json!([3.0, 1.0, 2.0]));
        let figure = Figure::new("f", "x", Better::Lower, vec![3.0, 1.0]).at_most(1.9);
        assert_eq!((figure.worst(), figure.verdict()), (3.0, Some(false)));
        let figure = Figure::new("f", "x", Better::Lower, vec![1.0, 1.0, 2.0]).at_most(1.0);
        assert_eq!((figure.verdict(), figure.always().verdict()), (Some(true), Some(false)));
    }

    /// Promise: a run is noisy when others used more than 0.2 cores.
    #[test]
    fn others_make_noise() {
        let report = |cores: f64| Report { others_cores: vec![cores], ..Report::new("s") };
        assert!(report(0.21).noisy() && !report(0.2).noisy());
    }
}
