//! Every clip of the corpus, judged by what another FFmpeg says of it, and by its own decode from the front.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;
use crate::decode::Limits;

/// Bytes in memory, which count what is read of them.
pub(super) struct Memory {
    pub(super) bytes: Vec<u8>,
    pub(super) read: u64,
    pub(super) reads: u64,
}

impl Memory {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, read: 0, reads: 0 }
    }
}

impl Input for Memory {
    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&mut self, range: ByteRange, into: &mut Vec<u8>) -> Result<(), Gone> {
        assert!(range.len() <= 8 << 20 && into.is_empty() && range.end() <= self.bytes(), "{range:?} is within bounds");
        into.extend_from_slice(&self.bytes[range.start() as usize..range.end() as usize]);
        (self.read, self.reads) = (self.read + range.len(), self.reads + 1);
        Ok(())
    }
}

pub(super) fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A frame as it was decoded: the hash of its planes and the mean of its colours.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) planes: String,
    pub(super) rgb: String,
    mean: [f64; 3],
}

fn seen(frame: &Frame<'_>, with_rgb: bool) -> Seen {
    let mut planes = vec![0; frame.planes_bytes()];
    frame.planes_into(&mut planes);
    let (mut rgb, mut mean) = (String::new(), [0.0; 3]);
    if with_rgb {
        let mut pixels = vec![0; frame.rgb_bytes()];
        frame.rgb_into(&mut pixels).expect("rgb");
        for pixel in pixels.as_chunks::<3>().0 {
            (0..3).for_each(|channel| mean[channel] += f64::from(pixel[channel]));
        }
        mean = mean.map(|sum| sum / (pixels.len() / 3) as f64);
        rgb = hex(Sha256::digest(&pixels));
    }
    Seen { planes: hex(Sha256::digest(&planes)), rgb, mean }
}

/// Frames by plan, package and decode, as a reader has them.
pub(super) fn read(
    index: &VideoIndex,
    object: &[u8],
    frames: &[u64],
    damaged_keep: bool,
    with_rgb: bool,
) -> Vec<(u64, Result<Seen, FrameError>)> {
    let mut out = Vec::new();
    for clip in index.plan(frames) {
        let part = |range: &ByteRange| (*range, Bytes::copy_from_slice(&object[range.start() as usize..range.end() as usize]));
        let parts: Vec<_> = clip.ranges.iter().map(part).collect();
        let package = index.package(&clip, &parts).expect("the bytes are there");
        let before = out.len();
        decode(&package, damaged_keep, &Limits::default(), &mut |place, frame| {
            out.push((clip.frames[place], frame.map(|frame| seen(&frame, with_rgb))));
            Ok(())
        })
        .expect("a sound package");
        assert_eq!(out.len() - before, clip.frames.len(), "each is answered once");
    }
    out
}

fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    let mut state = seed * 7919 + 1;
    for at in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(at, (state % (at as u64 + 1)) as usize);
    }
    order
}

/// The corpus, where it is named.
pub(super) fn corpus() -> Option<(PathBuf, Vec<Value>)> {
    let folder = Path::new(&std::env::var_os("FRAMECACHE_CORPUS")?).join("video");
    let manifest = std::fs::read_to_string(folder.join("manifest.jsonl")).expect("the named corpus is there");
    Some((folder, manifest.lines().map(|line| serde_json::from_str(line).expect("a line of the manifest")).collect()))
}

/// Clips of the corpus.
const CLIPS: usize = 64;

/// Of those, ones of which another FFmpeg has frames, or of which some are left where the rest is damaged; less the GIF, which is no video.
/// A file that ends before its list of frames is refused.
const DECODED: usize = 54;

/// Promise: of every clip of the corpus, there are as many frames, at the same times, with the same planes, as another FFmpeg says;
/// and each, asked for alone and in any order, has the planes that decoding from the front gives. What cannot be read is refused.
#[test]
fn every_frame_of_every_clip() {
    let Some((folder, clips)) = corpus() else { return println!("corpus: not given") };
    let only = std::env::var("FRAMECACHE_CLIP").unwrap_or_default();
    println!("corpus: {} files from {}", clips.len(), folder.display());
    assert!(clips.len() >= CLIPS, "{} clips", clips.len());
    let (mut faults, mut decoded) = (Vec::new(), 0);
    for clip in clips.iter().filter(|clip| clip["file"].as_str().expect("a name").contains(&only)) {
        let name = clip["file"].as_str().expect("a name");
        let object = std::fs::read(folder.join(name)).expect("a clip");
        let mut say = |fault: String| faults.push(format!("{name}: {fault}"));
        match make(&mut Memory::new(object.clone()), Trust::Proved, &Limits::default()) {
            Ok(index) => {
                decoded += 1;
                judge(&index, &object, &clip["expect"], &mut say);
            }
            Err(error) if clip["expect"]["ok"] == true && name != "pil__chi.gif" => say(format!("refused: {error}")),
            Err(_) => {}
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(decoded >= DECODED || !only.is_empty(), "{decoded} decoded");
}

/// Promise: of every clip, an index that is predicted gives the same frames as one that is proved, or says that it differs.
#[test]
fn predictions_hold_or_differ() {
    let Some((folder, clips)) = corpus() else { return println!("corpus: not given") };
    let (mut faults, mut exact, mut listed) = (Vec::new(), 0, 0);
    for clip in &clips {
        let name = clip["file"].as_str().expect("a name");
        let object = std::fs::read(folder.join(name)).expect("a clip");
        let mut input = Memory::new(object.clone());
        let Ok(index) = make(&mut input, Trust::Predicted, &Limits::default()) else { continue };
        let (bytes_read, reads) = (input.read, input.reads);
        let Ok(proved) = make(&mut input, Trust::Proved, &Limits::default()) else {
            faults.push(format!("{name}: predicted, and cannot be proved"));
            continue;
        };
        let (kind, is_listed) = (clip["kind"].as_str().expect("a kind"), index.kept.is_listed);
        println!(
            "{name} ({kind}): {:?}{}, {bytes_read} of {} bytes in {reads} reads, proved {:?} damaged {}",
            index.facts().trust,
            if is_listed { " from its header" } else { "" },
            object.len(),
            proved.facts().trust,
            proved.facts().damaged
        );
        let times = |index: &VideoIndex| (0..index.len()).map(|frame| index.pts(frame)).collect::<Vec<_>>();
        if times(&index) != times(&proved) {
            // A packet of which nothing comes is found out by decoding it alone.
            if proved.facts().damaged {
                continue;
            }
            faults.push(format!("{name}: other frames"));
            continue;
        }
        let few: Vec<u64> = (0..index.len()).step_by(1 + index.len() as usize / 50).collect();
        let mut wrong = 0;
        for ((frame, guess), (_, truth)) in
            read(&index, &object, &few, false, false).into_iter().zip(read(&proved, &object, &few, false, false))
        {
            match (guess, truth) {
                (Ok(guess), Ok(truth)) if guess == truth => {}
                (Err(FrameError::Differs), _) => wrong += 1,
                (Err(guess), Err(truth)) if guess == truth => {}
                (guess, truth) => faults.push(format!("{name} {frame}: {guess:?}, proved {truth:?}")),
            }
        }
        println!("  {wrong} of {} differ", few.len());
        (exact, listed) = (exact + usize::from(wrong == 0), listed + usize::from(is_listed));
    }
    println!("{exact} exact, {listed} from headers");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(exact >= PREDICTED && listed >= LISTED, "{exact} exact, {listed} from headers");
}

/// Clips whose prediction holds, and those that were listed by their headers.
const PREDICTED: usize = 50;
const LISTED: usize = 20;

/// Promise: colours are the definition's, byte for byte, of every format in the corpus. The golden file is what `tests/video_rgb.py`
/// says, with the corpus's `reference_rgb.py`.
#[test]
fn colours_are_the_definition() {
    let Some((folder, _)) = corpus() else { return println!("corpus: not given") };
    let golden = include_str!("../../../tests/golden/video/rgb.txt");
    let (mut faults, mut compared, mut formats) = (Vec::new(), 0, std::collections::BTreeSet::new());
    let lines: Vec<Vec<&str>> = golden.lines().map(|line| line.split(' ').collect()).collect();
    for lines in lines.chunk_by(|a, b| a[0] == b[0]) {
        let name = lines[0][0];
        let object = std::fs::read(folder.join(name)).expect("a clip");
        let index = make(&mut Memory::new(object.clone()), Trust::Mapped, &Limits::default()).expect("a sound clip");
        formats.insert(index.facts().format.clone());
        for line in lines {
            let (_, got) = read(&index, &object, &[line[1].parse().expect("a number")], true, true).remove(0);
            compared += 1;
            if got.as_ref().map(|got| &got.rgb[..]) != Ok(line[2]) {
                faults.push(format!("{name} {}, {}: other colours", line[1], index.facts().format));
            }
        }
    }
    println!("{compared} frames of {formats:?}");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(compared >= 100 && formats.len() >= 7, "{compared} frames of {formats:?}");
}

fn judge(index: &VideoIndex, object: &[u8], expect: &Value, say: &mut dyn FnMut(String)) {
    let facts = index.facts();
    let want = if expect["ok"] == true { expect } else { &expect["tolerant"] };
    if want["frames"] != facts.frames {
        return say(format!("{} frames, not {}", facts.frames, want["frames"]));
    }
    facts_are(index, expect, want, say);
    times_are(index, expect, want, say);
    let all: Vec<u64> = (0..index.len()).collect();
    let whole = read(index, object, &all, true, false);
    if let Some((frame, error)) = whole.iter().find_map(|(frame, got)| Some((frame, got.as_ref().err()?))) {
        return say(format!("frame {frame}: {error}"));
    }
    let planes: Vec<&str> = whole.iter().filter_map(|(_, got)| got.as_ref().ok()).map(|got| &got.planes[..]).collect();
    let clean = read(index, object, &all, false, false);
    let damaged = clean.iter().filter(|(_, got)| matches!(got, Err(FrameError::Damaged(_)))).count();
    let sound =
        |(frame, got): &(u64, Result<Seen, FrameError>)| got.as_ref().is_ok_and(|got| got.planes == planes[*frame as usize]);
    if clean.iter().filter(|item| sound(item)).count() + damaged != clean.len() || (damaged > 0 && !facts.damaged) {
        say(format!("{damaged} frames are damaged, and the clip is: {}", facts.damaged));
    }
    let by_threads = !expect["thread_dependent"].is_null();
    for sample in want["samples"].as_array().expect("samples").iter().filter(|_| !by_threads) {
        let frame = sample["index"].as_u64().expect("an index");
        if planes[frame as usize] != sample["yuv_sha256"] {
            say(format!("frame {frame} has other planes"));
        }
        let (_, got) = read(index, object, &[frame], true, true).remove(0);
        let mean = got.expect("decoded a moment ago").mean;
        for (channel, mean) in mean.iter().enumerate() {
            let other = sample["rgb24_mean"][channel].as_f64().expect("a mean");
            if (mean - other).abs() > 2.0 {
                say(format!("frame {frame}: mean {mean:.2} of channel {channel}, not {other:.2}"));
            }
        }
    }
    // One at a time: all of them in a soak.
    let most = if std::env::var_os("FRAMECACHE_SOAK").is_some() { usize::MAX } else { 20 };
    let few = |order: Vec<u64>| order.into_iter().take(most);
    let orders = [shuffled(facts.frames, 1), all.iter().rev().copied().collect()];
    for frame in orders.into_iter().flat_map(few) {
        let (_, got) = read(index, object, &[frame], true, false).remove(0);
        match got {
            Ok(got) if got.planes == planes[frame as usize] => {}
            other => return say(format!("frame {frame} alone is another: {:?}", other.err())),
        }
    }
    let again = VideoIndex::from_bytes(&index.to_bytes().expect("an archive")).expect("reads its own archive");
    if again.kept != index.kept {
        say("another after its archive".into());
    }
}

fn facts_are(index: &VideoIndex, expect: &Value, want: &Value, say: &mut dyn FnMut(String)) {
    let facts = index.facts();
    let mut compare = |name: &str, have: Value, want: &Value| {
        if have != *want {
            say(format!("{name} is {have}, not {want}"));
        }
    };
    compare("codec", facts.codec.as_str().into(), &expect["codec"]);
    compare("format", facts.format.as_str().into(), &expect["pix_fmt"]);
    compare("width", facts.width.into(), &expect["width"]);
    compare("height", facts.height.into(), &expect["height"]);
    compare("rotation", facts.rotation.into(), &want["rotation"]);
    // VP8 says so only when it is decoded.
    if expect["codec"] != "vp8" {
        compare("range", facts.range.into(), &expect["color_range"]);
        compare("matrix", facts.matrix.into(), &expect["colorspace"]);
    }
    compare("frames of the header", facts.header_frames.unwrap_or(0).into(), &expect["container_frames"]);
    compare(
        "time base",
        format!("{}/{}", index.time_base().numerator, index.time_base().denominator).into(),
        &expect["time_base"],
    );
}

fn times_are(index: &VideoIndex, expect: &Value, want: &Value, say: &mut dyn FnMut(String)) {
    let Some(times) = want["pts"].as_array() else { return };
    let own: Vec<i64> = (0..index.len()).map(|frame| index.pts(frame)).collect();
    let theirs: Vec<Option<i64>> = times.iter().map(Value::as_i64).collect();
    let missing = theirs.iter().any(Option::is_none) || expect["container"] == "avi";
    match index.facts().pts_origin {
        PtsOrigin::Container if own.iter().zip(&theirs).all(|(own, theirs)| Some(*own) == *theirs) => {}
        PtsOrigin::Synthesized if missing => {}
        origin => {
            say(format!("other times, {origin:?}: {:?} not {:?}", &own[..own.len().min(5)], &theirs[..theirs.len().min(5)]))
        }
    }
    for frame in [0, index.len() / 2, index.len() - 1] {
        let shown = index.seconds(frame) + index.duration(frame) / 2.0;
        if index.played_at(shown) != Some(frame) {
            say(format!("frame {frame} is not played at {shown}"));
        }
    }
    if index.played_at(index.facts().end_seconds).is_some() || index.played_at(index.facts().begin_seconds - 1.0).is_some() {
        say("something is played outside".into());
    }
}
