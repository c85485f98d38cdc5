//! `cold`: what a decode costs when the raw bytes are cached and the pixels are not: JPEG, exact and fast.
//!
//! Against Pillow, which says what exact is, and against what else people decode with, each at its own cheaper way too.

use anyhow::Result;

use crate::comparator::library::{Crop, Library, Missing};
use crate::decoding::{Decoded, Decoding};
use crate::report::{Better, Figure, Report};
use crate::run::Run;

const CROP: Crop = Crop { short: 256, side: 224 };

const WAYS: [(&str, &str); 2] = [("exact", ""), ("fast", "&profile=fast")];

const LIBRARIES: [Library; 5] =
    [Library::PillowDraft, Library::OpenCvArea, Library::OpenCvLinear, Library::OpenCvReduced, Library::Torchvision];

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("cold");
    let small = run.small_photographs(run.size(2000, 200))?;
    measure(run, "500x375", &small, [1.0 / 1.7, 1.0 / 2.0], &mut report).await?;
    match run.large_photographs()? {
        large if large.is_empty() => report.note("no large photographs: Debian's package of them could not be had"),
        large => {
            let large = &large[..run.size(large.len(), 4)];
            measure(run, "4000x3000", large, [1.0 / 1.5, 1.0 / 3.5], &mut report).await?;
        }
    }
    report.note("raw cached, nothing decoded: the node's decoded tier holds no picture, so each round decodes all of them again");
    report.note("levels are of 256, against Pillow's exact pixels; each library is one process of one thread, files in memory");
    Ok(report)
}

/// `most`: exact's and fast's share of Pillow's CPU-seconds.
async fn measure(run: &Run, label: &str, names: &[String], most: [f64; 2], report: &mut Report) -> Result<()> {
    let decoding = Decoding { label, bucket: &run.photographs, names, crop: CROP, times: 1, ways: &WAYS, libraries: &LIBRARIES };
    let decoded = decoding.run(run).await?;
    let per_thousand = 1000.0 / names.len() as f64;
    for (subject, title) in decoded.titles.iter().enumerate() {
        let cpu = decoded.rounds.values(subject, |cost| cost.cpu * per_thousand);
        report.push(Figure::new(format!("{label}: {title}"), "CPU-s/1,000", Better::Lower, cpu));
        let rate = decoded.rounds.values(subject, |cost| names.len() as f64 / cost.wall.as_secs_f64());
        report.push(Figure::new(format!("{label}: {title}"), "pictures/s", Better::Higher, rate));
        if subject != decoded.pillow {
            let ratio = Figure::new(format!("{label}: {title}: CPU"), "ratio", Better::Lower, decoded.of_pillow(subject));
            let ratio = ratio.against("Pillow, exact");
            report.push(most.get(subject).map_or(ratio.clone(), |most| ratio.at_most(*most)));
        }
    }
    for (subject, (way, _)) in WAYS.iter().enumerate() {
        let workers = decoded.workers[subject] / run.rounds as f64 * per_thousand;
        report.push(Figure::one(format!("{label}: framecache {way}: of it in decoders"), "CPU-s/1,000", Better::Lower, workers));
    }
    pixels(label, &decoded, report);
    let counted = |name: &str, unit, value| Figure::one(format!("{label}: {name}"), unit, Better::Lower, value);
    report.push(counted("decodes of each picture and round", "decodes", decoded.decodes).at_most(1.0));
    report.push(counted("origin requests meanwhile", "requests", decoded.origin_requests).at_most(0.0));
    decoded.missing.iter().for_each(|Missing(why)| report.note(format!("{label}: {why}")));
    decoded.rounds.tell(report);
    Ok(())
}

fn pixels(label: &str, decoded: &Decoded, report: &mut Report) {
    let wrong = decoded.wrong[0] as f64;
    let name = format!("{label}: exact: pictures that differ from Pillow's");
    report.push(Figure::one(name, "pictures", Better::Lower, wrong).at_most(0.0));
    for (subject, title) in decoded.titles.iter().enumerate().filter(|(subject, _)| ![0, decoded.pillow].contains(subject)) {
        let levels = decoded.levels[subject];
        report.push(Figure::one(format!("{label}: {title}: from exact, mean"), "levels", Better::Lower, levels.mean()));
        report.push(Figure::one(format!("{label}: {title}: from exact, at most"), "levels", Better::Lower, levels.max.into()));
    }
}
