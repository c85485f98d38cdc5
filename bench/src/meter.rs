//! What processes cost: CPU and memory of whole process trees, and what others used of the machine meanwhile. From /proc.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

/// A process and all its descendants.
#[derive(Clone, Copy, Debug)]
pub struct Tree(pub u32);

/// What one round cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Clock time.
    pub wall: Duration,
    /// CPU-seconds of the watched trees together.
    pub cpu: f64,
    /// Cores that processes outside this bench used.
    pub others_cores: f64,
}

/// A round being measured.
#[derive(Debug)]
pub struct Watch {
    trees: Vec<Tree>,
    begun: Instant,
    cpu: f64,
    machine: f64,
    own: f64,
}

impl Watch {
    /// Begins to measure `trees`.
    pub fn begin(trees: &[Tree]) -> Self {
        let (machine, own) = (machine_cpu(), own_cpu());
        Self { trees: trees.to_vec(), cpu: trees_cpu(trees), machine, own, begun: Instant::now() }
    }

    /// Ends the round.
    pub fn end(self) -> Cost {
        let wall = self.begun.elapsed();
        let cpu = trees_cpu(&self.trees) - self.cpu;
        let others = (machine_cpu() - self.machine) - (own_cpu() - self.own);
        Cost { wall, cpu, others_cores: (others / wall.as_secs_f64()).max(0.0) }
    }
}

impl Tree {
    /// This process with all that it started.
    pub fn own() -> Self {
        Self(std::process::id())
    }

    /// CPU-seconds so far, of children that ended too.
    pub fn cpu(self) -> f64 {
        self.members().into_iter().filter_map(Stat::of).map(|stat| stat.cpu).sum()
    }

    /// Proportional set size in bytes: what the tree would free if it ended, shared pages by their share.
    pub fn pss(self) -> u64 {
        self.members().into_iter().filter_map(pss).sum()
    }

    fn members(self) -> HashSet<u32> {
        let parents: HashMap<u32, u32> = processes().filter_map(|pid| Some((pid, Stat::of(pid)?.parent))).collect();
        let mut members = HashSet::from([self.0]);
        loop {
            let born: Vec<u32> = parents
                .iter()
                .filter(|(pid, parent)| members.contains(parent) && !members.contains(pid))
                .map(|(pid, _)| *pid)
                .collect();
            if born.is_empty() {
                return members;
            }
            members.extend(born);
        }
    }
}

/// Trees of which none is part of another.
fn trees_cpu(trees: &[Tree]) -> f64 {
    trees.iter().map(|tree| tree.cpu()).sum()
}

fn own_cpu() -> f64 {
    Tree::own().cpu()
}

/// What is needed of /proc/PID/stat.
struct Stat {
    parent: u32,
    cpu: f64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// proc_pid_stat(5): after the name in brackets, field 4 is the parent, 14 to 17 are utime, stime, cutime, cstime.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: f64 = fields.get(11..15)?.iter().map(|field| field.parse().unwrap_or(0.0)).sum();
        Some(Self { parent: fields.get(1)?.parse().ok()?, cpu: ticks / ticks_per_second() })
    }
}

/// CPU-seconds of the whole machine so far, whoever used them: user, nice, system, irq, softirq, steal of proc_stat(5).
fn machine_cpu() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<f64> =
        text.lines().next().unwrap_or("").split_whitespace().skip(1).map(|f| f.parse().unwrap_or(0.0)).collect();
    [0, 1, 2, 5, 6, 7].iter().filter_map(|&field| fields.get(field)).sum::<f64>() / ticks_per_second()
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn pss(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// CPU-seconds of the calling thread so far.
pub fn thread_cpu() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live value of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn ticks_per_second() -> f64 {
    // SAFETY: a query without arguments in memory.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the fields of /proc/PID/stat are found whatever the process is called.
    #[test]
    fn names_do_not_confuse() {
        let stat = Stat::parse("7 (a b) c) S 5 1 1 0 -1 0 0 0 0 0 100 50 25 25 20 0 1 0").expect("stat");
        assert_eq!((stat.parent, stat.cpu), (5, 200.0 / ticks_per_second()));
    }

    /// Promise: work of this process is seen, and is not taken for others'.
    #[test]
    fn own_work_is_own() {
        let watch = Watch::begin(&[Tree::own()]);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(200) {
            std::hint::black_box((0..1000u64).sum::<u64>());
        }
        assert!(watch.end().cpu >= 0.05);
    }
}
