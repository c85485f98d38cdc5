//! `formats`: what a decode of every other format costs, against Pillow that does the same with the same file.
//!
//! The bench's photographs, written in each format by Pillow into the run's scratch folder.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tokio::process::Command;

use crate::comparator::library::Crop;
use crate::decoding::Decoding;
use crate::report::{Better, Figure, Report};
use crate::run::Run;

const CROP: Crop = Crop { short: 256, side: 224 };

/// CPU-seconds in parts of Pillow's, at most.
const MOST: f64 = 1.3;

const SCRIPT: &str = include_str!("formats.py");

/// What the script wrote.
#[derive(Deserialize)]
struct Written {
    kinds: Vec<(String, Vec<String>)>,
}

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("formats");
    let small = run.small_photographs(run.size(100, 16))?;
    measure(run, "500x375", &small, 2, &mut report).await?;
    let large = if run.quick { Vec::new() } else { run.large_photographs()? };
    if large.is_empty() {
        report.note("no large photographs: a quick run, or Debian's package of them could not be had");
    } else {
        measure(run, "4000x3000", &large[..4], 1, &mut report).await?;
    }
    report.note("raw cached, nothing decoded, as in `cold`; exact: every byte is compared with Pillow's");
    Ok(report)
}

async fn measure(run: &Run, size: &str, photographs: &[String], times: usize, report: &mut Report) -> Result<()> {
    let bucket = run.scratch.folder(&format!("formats-{size}"))?;
    for (kind, names) in write(run, &bucket, photographs).await?.kinds {
        let label = format!("{kind} {size}");
        let ways = [("exact", "")];
        let decoding = Decoding { label: &label, bucket: &bucket, names: &names, crop: CROP, times, ways: &ways, libraries: &[] };
        let decoded = decoding.run(run).await.with_context(|| label.clone())?;
        let per_thousand = 1000.0 / (names.len() * times) as f64;
        for (subject, title) in decoded.titles.iter().enumerate() {
            let cpu = decoded.rounds.values(subject, |cost| cost.cpu * per_thousand);
            report.push(Figure::new(format!("{label}: {title}"), "CPU-s/1,000", Better::Lower, cpu));
        }
        let workers = decoded.workers[0] / run.rounds as f64 * per_thousand;
        report.push(Figure::one(format!("{label}: of it in decoders"), "CPU-s/1,000", Better::Lower, workers));
        let ratio = Figure::new(format!("{label}: CPU"), "ratio", Better::Lower, decoded.of_pillow(0));
        report.push(ratio.against("Pillow").at_most(MOST));
        let wrong = Figure::one(format!("{label}: pictures that differ"), "pictures", Better::Lower, decoded.wrong[0] as f64);
        report.push(wrong.against("Pillow").at_most(0.0));
        decoded.rounds.tell(report);
    }
    std::fs::remove_dir_all(&bucket)?;
    Ok(())
}

async fn write(run: &Run, bucket: &Path, photographs: &[String]) -> Result<Written> {
    let (script, list) = (run.scratch.path().join("formats.py"), run.scratch.path().join("formats-files.txt"));
    std::fs::write(&script, SCRIPT)?;
    let paths: String = photographs.iter().map(|name| format!("{}\n", run.photographs.join(name).display())).collect();
    std::fs::write(&list, paths)?;
    let output = Command::new(&run.python).arg(&script).arg(bucket).arg(&list).output().await?;
    ensure!(output.status.success(), "formats.py: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}
