//! The formats, judged by the pinned Pillow itself: on pictures that it makes, and on damaged copies of them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use sha2::{Digest, Sha256};

use super::*;
use crate::decode::{DecodeError, Limits, probe};

/// The test environment's Python, which holds the pinned Pillow.
fn pillow(arguments: &[&str]) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = std::env::var_os("PYO3_PYTHON").map_or_else(|| root.join("../.venv/bin/python"), PathBuf::from);
    let mut command = Command::new(python);
    command.arg(root.join("tests/pillow.py")).args(arguments);
    command
}

/// Pillow's word on one frame.
#[derive(Debug)]
enum Verdict {
    Refused(String),
    Sound { width: u32, height: u32, mode: String, rgb: String, rgba: String, deep: String },
}

impl Verdict {
    fn of(fields: &[&str]) -> Self {
        match *fields {
            ["ok", width, height, mode, rgb, rgba, deep] => Self::Sound {
                width: width.parse().expect("width"),
                height: height.parse().expect("height"),
                mode: mode.into(),
                rgb: rgb.into(),
                rgba: rgba.into(),
                deep: deep.into(),
            },
            ref other => Self::Refused(other.join(" ")),
        }
    }
}

/// A Pillow that judges any bytes.
struct Judge {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Judge {
    fn start() -> Self {
        let mut command = pillow(&["judge"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python of the test environment");
        let (ask, answers) = (child.stdin.take().expect("pipe"), child.stdout.take().expect("pipe"));
        Self { child, ask, answers: BufReader::new(answers) }
    }

    fn judge(&mut self, bytes: &[u8], frame: u32) -> Verdict {
        let head = [frame.to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat();
        self.ask.write_all(&head).and_then(|()| self.ask.write_all(bytes)).and_then(|()| self.ask.flush()).expect("ask");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("answer");
        Verdict::of(&line.split_whitespace().collect::<Vec<_>>())
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One frame as it is asked for: its kind, and its bytes, gray made wide.
fn decoded(bytes: &[u8], frame: u32, wants: Wants) -> Result<(Kind, u32, u32, Vec<u8>), String> {
    // Far below the default, so that damage to a size does not make a test slow.
    let limits = Limits { pixels_max: 64 << 20 };
    let probe = probe(bytes, bytes.len() as u64, &limits).map_err(|error: DecodeError| error.to_string())?;
    let mut room = vec![0; probe.decoded_bytes as usize];
    let mut got = None;
    let mut sink = |index, samples: Result<Samples<'_>, Failure>| {
        assert_eq!(index, frame);
        let made = |samples: Samples<'_>| {
            let wide = match samples.kind {
                Kind::Gray => samples.pixels.iter().flat_map(|&v| [v; 3]).collect(),
                _ => samples.pixels.to_vec(),
            };
            (samples.kind, samples.width, samples.height, wide)
        };
        got = Some(samples.map(made));
    };
    decode(&mut &bytes[..], &probe, &mut room, wants, &[frame], &mut sink).map_err(|failure| format!("{failure:?}"))?;
    got.expect("a frame for the sink").map_err(|failure| format!("{failure:?}"))
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Pictures of every kind, by name, and Pillow's verdict on each frame.
fn made() -> Vec<(String, Vec<u8>, Vec<Verdict>)> {
    let folder = tempfile::tempdir().expect("folder");
    let output = pillow(&["make", folder.path().to_str().expect("path")]).output().expect("python of the test environment");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut found: Vec<(String, Vec<u8>, Vec<Verdict>)> = Vec::new();
    for line in String::from_utf8(output.stdout).expect("text").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if fields[1] == "0" {
            let bytes = std::fs::read(folder.path().join(fields[0])).expect("picture");
            found.push((fields[0].into(), bytes, Vec::new()));
        }
        found.last_mut().expect("a picture").2.push(Verdict::of(&fields[2..]));
    }
    found
}

/// Promise: every kind of picture that Pillow writes has its pixels here, by colour, with alpha, and of 16 bits; and the header says
/// what it is. What is not made is said to be unsupported.
#[test]
fn every_kind_is_pillows() {
    let (mut frames, mut unlike) = (0, Vec::new());
    for (name, bytes, verdicts) in made() {
        for (frame, verdict) in verdicts.iter().enumerate() {
            let Verdict::Sound { width, height, mode, rgb, rgba, deep } = verdict else {
                unlike.push(format!("{name} {frame}: {verdict:?}"));
                continue;
            };
            frames += 1;
            let mut compare = |wants, kinds: &[Kind], want: &str| match decoded(&bytes, frame as u32, wants) {
                Ok((kind, w, h, pixels)) if (w, h) == (*width, *height) && kinds.contains(&kind) && sha256(&pixels) == want => {}
                Ok((kind, ..)) => unlike.push(format!("{name} {frame} {mode} {wants:?}: other pixels, {kind:?}")),
                Err(error) => unlike.push(format!("{name} {frame} {mode} {wants:?}: {error}")),
            };
            compare(Wants::default(), &[Kind::Gray, Kind::Rgb], rgb);
            if rgba != "-" {
                compare(Wants { alpha: true, ..Wants::default() }, &[Kind::Rgba], rgba);
            }
            if deep != "-" {
                compare(Wants { deep: true, ..Wants::default() }, &[Kind::Gray16], deep);
            }
            if frame == 0 {
                let probe = probe(&bytes, bytes.len() as u64, &Limits::default()).expect("probe");
                if (probe.mode, probe.has_alpha) != (mode, rgba != "-") {
                    unlike.push(format!("{name}: probed {} {}, is {mode} {rgba}", probe.mode, probe.has_alpha));
                }
            }
        }
    }
    println!("{frames} frames compared");
    assert!(unlike.is_empty(), "{} of {frames}:\n{}", unlike.len(), unlike.join("\n"));
    assert!(frames >= 215, "{frames}");
}

/// Promise: padding keeps what was decoded of a cut picture, and is gray behind it; without it, the picture is refused.
#[test]
fn cut_jpeg_is_padded_when_asked() {
    let whole = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/jpeg/baseline420.jpg")).expect("vector");
    let cut = &whole[..whole.len() * 7 / 10];
    assert!(decoded(cut, 0, Wants::default()).is_err());
    let pad = Wants { truncated_pad: true, ..Wants::default() };
    let (padded, sound) = (decoded(cut, 0, pad).expect("padded").3, decoded(&whole, 0, pad).expect("sound").3);
    let (line, rows) = (67 * 3, 45);
    assert_eq!(padded.len(), line * rows);
    let same = padded.chunks(line).zip(sound.chunks(line)).take_while(|(padded, sound)| padded == sound).count();
    assert!((8..rows).contains(&same), "{same} rows are the picture's");
    assert!(padded[line * (rows - 1)..].iter().all(|&v| v == GRAY), "{:?}", &padded[line * (rows - 1)..]);
    let error = decoded(b"GIF89a\x01\0\x01\0\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;", 0, pad).expect_err("no jpeg");
    assert!(error.starts_with("Unsupported"), "{error}");
}

/// libjpeg's middle of the range.
const GRAY: u8 = 128;

/// xorshift64*: the same numbers everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides.max(1)
    }

    /// Cut, flipped, zeroed, or longer by some bytes.
    fn damage(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        let at = self.roll(out.len());
        match self.roll(4) {
            0 => out.truncate(at),
            1 => (0..=self.roll(8)).for_each(|_| {
                let at = self.roll(bytes.len());
                out[at] ^= 1 << self.roll(8);
            }),
            2 => {
                let end = (at + 1 + self.roll(40)).min(out.len());
                out[at..end].fill(0);
            }
            _ => {
                let new: Vec<u8> = (0..=self.roll(12)).map(|_| self.roll(256) as u8).collect();
                out.splice(at..at, new);
            }
        }
        out
    }
}

fn copies() -> usize {
    std::env::var("FRAMECACHE_DAMAGED")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| if std::env::var_os("FRAMECACHE_SOAK").is_some() { 1000 } else { 200 })
}

/// Files of the corpus that are small enough to be judged often; those that are made, where there is none.
fn originals() -> Vec<(String, Vec<u8>)> {
    let Ok(corpus) = std::env::var("FRAMECACHE_CORPUS") else {
        return made().into_iter().map(|(name, bytes, _)| (name, bytes)).collect();
    };
    let images = Path::new(&corpus).join("images");
    let names = std::fs::read_dir(images).expect("the named corpus is there").map(|entry| entry.expect("entry").path());
    let mut found: Vec<_> = names.filter(|path| path.extension().is_none_or(|end| end != "jsonl")).collect();
    found.sort();
    let read =
        |path: PathBuf| (path.file_name().expect("name").to_string_lossy().into_owned(), std::fs::read(path).expect("file"));
    let mut files: Vec<_> = found.into_iter().map(read).filter(|(_, bytes)| (1..=100 << 10).contains(&bytes.len())).collect();
    files.extend(made().into_iter().map(|(name, bytes, _)| (name, bytes)));
    files
}

/// Promise: a damaged picture gives Pillow's bytes or its refusal, never other bytes. What is decoded here and refused there, or the
/// other way around, is at most one in two hundred.
#[test]
fn damage_is_judged_as_pillow_does() {
    let seed = 20_261_129;
    let (mut dice, mut judge) = (Dice(seed), Judge::start());
    let originals = originals();
    let (count, mut other, mut one_sided) = (copies(), Vec::new(), Vec::new());
    for number in 0..count {
        let (name, bytes) = &originals[dice.roll(originals.len())];
        // Pillow has the second picture of an MPO; here a JPEG is one.
        let frame = u32::from(dice.roll(4) == 0 && !bytes.starts_with(&[0xff, 0xd8]));
        let damaged = dice.damage(bytes);
        let said = format!("{number}: {name}, frame {frame}");
        let got = decoded(&damaged, frame, Wants::default());
        let differs = match (&got, judge.judge(&damaged, frame)) {
            (Ok((_, w, h, pixels)), Verdict::Sound { width, height, rgb, .. }) => {
                ((*w, *h) != (width, height) || sha256(pixels) != rgb).then(|| other.push(said.clone())).is_some()
            }
            (Ok(_), Verdict::Refused(why)) => {
                one_sided.push(format!("{said}: refused there, {why}"));
                true
            }
            // libtiff goes on after a bad code word, which no other decoder here does: refused, and not counted.
            (Err(_), Verdict::Sound { .. }) if name.contains("g4") || name.contains("fax") => false,
            (Err(why), Verdict::Sound { .. }) => {
                one_sided.push(format!("{said}: refused here, {why}"));
                true
            }
            (Err(_), Verdict::Refused(_)) => false,
        };
        if let (true, Some(folder)) = (differs, std::env::var_os("FRAMECACHE_KEEP")) {
            std::fs::write(Path::new(&folder).join(format!("{number}-{frame}-{name}")), damaged).expect("keep");
        }
    }
    println!("seed {seed}: {count} damaged copies of {} files; one-sided refusals:\n{}", originals.len(), one_sided.join("\n"));
    assert!(other.is_empty(), "other pixels:\n{}", other.join("\n"));
    assert!(one_sided.len() * 200 <= count, "{} of {count} one-sided", one_sided.len());
}
