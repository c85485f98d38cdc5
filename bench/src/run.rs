//! What every scenario is given: how large, how often, from which seed, and where.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::meter::Cost;
use crate::node::NodeSettings;
use crate::report::Report;
use crate::trust::Trust;
use crate::workload::Scratch;

/// One run of one scenario.
#[derive(Debug)]
pub struct Run {
    /// Rounds, at least five for figures that are quoted.
    pub rounds: usize,
    /// Small sizes, to see that all works.
    pub quick: bool,
    /// What all data and orders come from.
    pub seed: u64,
    /// Files of this run alone.
    pub scratch: Scratch,
    /// The node's binary.
    pub node: PathBuf,
    /// A folder of `bench/demo/photographs.py`; made there if it is not.
    pub photographs: PathBuf,
    /// A folder of clips; each is made there if it is not.
    pub clips: PathBuf,
    /// A Python that has Pillow.
    pub python: PathBuf,
    /// The run's certificates.
    pub trust: Trust,
}

impl Run {
    /// `full`, or `small` in a quick run.
    pub fn size<T>(&self, full: T, small: T) -> T {
        if self.quick { small } else { full }
    }

    /// A node's settings with nothing held back: RAM for all, no disk, a decoder for each core.
    pub fn node_settings(&self, name: &str, origin: std::net::SocketAddr) -> Result<NodeSettings> {
        Ok(NodeSettings {
            program: self.node.clone(),
            folder: self.scratch.folder(name)?,
            trust: self.trust.clone(),
            origin,
            ip: std::net::Ipv4Addr::LOCALHOST.into(),
            memory: 4 << 30,
            raw_ram: 1 << 30,
            decoded_ram: 1 << 30,
            disk: 0,
            workers: std::thread::available_parallelism().map_or(1, Into::into),
        })
    }

    /// The first `count` of the small photographs, as names below the folder.
    pub fn small_photographs(&self, count: usize) -> Result<Vec<String>> {
        self.make_photographs()?;
        let names: Vec<String> = (0..count).map(|number| format!("{number:05}.jpg")).collect();
        ensure!(
            names.iter().all(|name| self.photographs.join(name).exists()),
            "{} lacks photographs",
            self.photographs.display()
        );
        Ok(names)
    }

    /// The large photographs, as names below the folder; none where their package could not be had.
    pub fn large_photographs(&self) -> Result<Vec<String>> {
        self.make_photographs()?;
        let Ok(entries) = std::fs::read_dir(self.photographs.join("large")) else { return Ok(Vec::new()) };
        let mut names: Vec<String> = entries.flatten().map(|entry| format!("large/{}", entry.file_name().display())).collect();
        names.retain(|name| name.ends_with(".jpg"));
        names.sort();
        Ok(names)
    }

    fn make_photographs(&self) -> Result<()> {
        if self.photographs.join("01999.jpg").exists() {
            return Ok(());
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/photographs.py");
        let mut command = Command::new(&self.python);
        command.arg(script).arg(&self.photographs).args(["--count", "2000", "--large", "24", "--large-size", "4000x3000"]);
        let status = command.status().with_context(|| format!("run {}: tests/setup.sh makes it", self.python.display()))?;
        ensure!(status.success(), "photographs.py ended with {status}");
        Ok(())
    }
}

/// Rounds of several subjects, one after the other in turn, each round beginning with another.
#[derive(Debug, Default)]
pub struct Rounds {
    subjects: Vec<Vec<Cost>>,
}

impl Rounds {
    /// For so many subjects.
    pub fn of(subjects: usize) -> Self {
        Self { subjects: vec![Vec::new(); subjects] }
    }

    /// The order in which the subjects take part in round `round`.
    pub fn order(&self, round: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.subjects.len();
        (0..count).map(move |place| (place + round) % count)
    }

    /// What `subject` took in this round.
    pub fn push(&mut self, subject: usize, cost: Cost) {
        self.subjects[subject].push(cost);
    }

    /// One value a round.
    pub fn values(&self, subject: usize, value: impl Fn(&Cost) -> f64) -> Vec<f64> {
        self.subjects[subject].iter().map(value).collect()
    }

    /// Quotients of two subjects, round by round.
    pub fn ratios(&self, subject: usize, against: usize, value: impl Fn(&Cost) -> f64) -> Vec<f64> {
        self.subjects[subject].iter().zip(&self.subjects[against]).map(|(a, b)| value(a) / value(b)).collect()
    }

    /// Tells the report what others used meanwhile.
    pub fn tell(&self, report: &mut Report) {
        report.others_cores.extend(self.subjects.iter().flatten().map(|cost| cost.others_cores));
    }
}
