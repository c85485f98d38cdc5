//! Clips made on the spot: indexes of every trust, what they read, what they refuse, and what hostile bytes do to them.

use super::av::encoder::{MP4, Recipe, encode};
use super::corpus::{Memory, Seen, corpus, read};
use super::*;
use crate::decode::Limits;

fn index_of(object: &[u8], trust: Trust) -> Result<VideoIndex, VideoError> {
    make(&mut Memory::new(object.to_vec()), trust, &Limits::default())
}

fn frames_of(index: &VideoIndex, object: &[u8]) -> Vec<Seen> {
    let all: Vec<u64> = (0..index.len()).collect();
    read(index, object, &all, false, true).into_iter().map(|(_, got)| got.expect("a frame")).collect()
}

fn clip(recipe: &Recipe) -> Vec<u8> {
    encode(recipe).expect("an encoder that every build has")
}

/// Every container, with and without reordering.
fn recipes() -> Vec<Recipe> {
    let plain = [
        MP4,
        Recipe { container: "mov", b_frames: 0, ..MP4 },
        Recipe { options: &[("movflags", "frag_keyframe+empty_moov")], ..MP4 },
        Recipe { container: "matroska", ..MP4 },
        Recipe { container: "mpegts", codec: "mpeg2video", ..MP4 },
        Recipe { container: "mp4", codec: "mpeg2video", ..MP4 },
        Recipe { container: "matroska", codec: "mjpeg", b_frames: 0, ..MP4 },
        Recipe { container: "mpegts", codec: "mpeg1video", size: (320, 240), ..MP4 },
    ];
    plain.into()
}

/// Clips held in memory, to be worked on where nothing else can be had.
pub(in crate::decode) struct Trial(Vec<(String, Vec<u8>)>);

impl Trial {
    /// One of every kind that is made here, and of the corpus where that is named.
    pub(in crate::decode) fn prepare() -> Self {
        let mut clips: Vec<_> = recipes().iter().map(|recipe| (format!("{recipe:?}"), clip(recipe))).collect();
        for (folder, clip) in
            corpus().into_iter().flat_map(|(folder, clips)| clips.into_iter().map(move |clip| (folder.clone(), clip)))
        {
            let name = clip["file"].as_str().expect("a name");
            clips.push((name.into(), std::fs::read(folder.join(name)).expect("a clip")));
        }
        Self(clips)
    }

    /// Indexes each by every trust and decodes some of it; how many frames that gave.
    pub(in crate::decode) fn run(&self) -> usize {
        let mut frames = 0;
        for (_, object) in &self.0 {
            for trust in [Trust::Predicted, Trust::Proved] {
                let Ok(index) = index_of(object, trust) else { continue };
                let some = [0, index.len() / 2, index.len() - 1];
                frames += read(&index, object, &some, true, true).iter().filter(|(_, got)| got.is_ok()).count();
            }
        }
        frames
    }
}

/// Promise: of whatever trust, an index has the same frames at the same times, and each frame alone is that of the whole.
#[test]
fn trusts_agree() {
    for recipe in recipes() {
        let object = clip(&recipe);
        let proved = index_of(&object, Trust::Proved).unwrap_or_else(|error| panic!("{recipe:?}: {error}"));
        assert_eq!(proved.facts().trust, Trust::Proved, "{recipe:?}");
        let frames = frames_of(&proved, &object);
        assert_eq!((frames.len() as i64, proved.facts().damaged), (recipe.frames, false), "{recipe:?}");
        for trust in [Trust::Predicted, Trust::Mapped] {
            let index = index_of(&object, trust).expect("a sound clip");
            assert!(index.facts().trust >= trust);
            let times = |index: &VideoIndex| (0..index.len()).map(|frame| index.pts(frame)).collect::<Vec<_>>();
            assert_eq!(times(&index), times(&proved), "{recipe:?} {trust:?}");
            assert!(frames_of(&index, &object) == frames, "{recipe:?} {trust:?}");
        }
        for frame in (0..proved.len()).rev() {
            let (_, alone) = read(&proved, &object, &[frame], false, true).remove(0);
            assert!(alone.expect("a frame") == frames[frame as usize], "{recipe:?}: {frame} alone");
        }
        assert!(proved.plan(&(0..proved.len()).collect::<Vec<_>>()).len() >= 5, "{recipe:?}: units");
    }
}

/// Promise: that a clip could not be proved is kept with its index, so that nobody tries again.
#[test]
fn what_cannot_be_had_is_known() {
    let object = clip(&MP4);
    let mut index = index_of(&object, Trust::Predicted).expect("a sound clip");
    assert!(index.answers(Trust::Predicted) && !index.answers(Trust::Mapped));
    index.kept.made_for = Trust::Proved;
    let kept = VideoIndex::from_bytes(&index.to_bytes().expect("an archive")).expect("an index");
    assert!(kept.answers(Trust::Proved) && kept.trust() == Trust::Predicted);
}

/// Promise: frames asked for in any order, repeated or beyond the end, are planned once each.
#[test]
fn plans_hold_each_frame_once() {
    let object = clip(&MP4);
    let index = index_of(&object, Trust::Predicted).expect("a sound clip");
    let clips = index.plan(&[33, 4, 33, 12, 5, 99, u64::MAX]);
    let frames: Vec<u64> = clips.iter().flat_map(|clip| clip.frames.clone()).collect();
    assert_eq!(frames, [4, 5, 12, 33]);
    for clip in &clips {
        assert!(clip.frames.iter().all(|frame| clip.unit.contains(frame)));
        assert!(clip.ranges.windows(2).all(|pair| pair[0].end() + (64 << 10) <= pair[1].start()));
    }
    let clip = &clips[0];
    assert!(index.package(clip, &[]).is_none(), "without its bytes there is no package");
}

/// An MP4 whose payload is followed by a gibibyte that nobody points at, and which is not there.
struct Long {
    head: Vec<u8>,
    tail: Vec<u8>,
    read: u64,
}

const GAP: u64 = 1 << 30;

impl Input for Long {
    fn bytes(&self) -> u64 {
        self.head.len() as u64 + GAP + self.tail.len() as u64
    }

    fn read(&mut self, range: ByteRange, into: &mut Vec<u8>) -> Result<(), Gone> {
        self.read += range.len();
        let (head, tail) = (self.head.len() as u64, self.head.len() as u64 + GAP);
        into.extend((range.start()..range.end()).map(|at| match at {
            at if at < head => self.head[at as usize],
            at if at >= tail => self.tail[(at - tail) as usize],
            _ => 0,
        }));
        Ok(())
    }
}

fn boxes(object: &[u8]) -> Vec<([u8; 4], Vec<u8>)> {
    let (mut found, mut rest) = (Vec::new(), object);
    while let Some(size) = rest.first_chunk::<4>() {
        let (own, behind) = rest.split_at(u32::from_be_bytes(*size) as usize);
        found.push((own[4..8].try_into().expect("four letters"), own.to_vec()));
        rest = behind;
    }
    found
}

/// Promise: the index of a long MP4 costs about its header, wherever that lies, and a frame costs its unit.
#[test]
fn a_long_mp4_is_listed_by_its_header() {
    let mut long = Recipe { frames: 2000, ..MP4 };
    long.size = (64, 48);
    let object = clip(&long);
    let mut parts = boxes(&object);
    let payload = parts.iter().position(|(kind, _)| kind == b"mdat").expect("a payload");
    let size = parts[payload].1.len() as u64 + GAP;
    parts[payload].1[..4].copy_from_slice(&(size as u32).to_be_bytes());
    let index = parts.iter().position(|(kind, _)| kind == b"moov").expect("an index");
    assert!(payload < index, "the muxer writes it last");
    let join = |parts: &[([u8; 4], Vec<u8>)]| parts.iter().flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<u8>>();
    let behind = Long { head: join(&parts[..=payload]), tail: join(&parts[payload + 1..]), read: 0 };
    // In front, the chunks lie that much further on.
    let mut header = parts[index].1.clone();
    let moved = header.len() as u32;
    let table = memchr::memmem::find(&header, b"stco").expect("chunk offsets") + 8;
    let count = u32::from_be_bytes(header[table..table + 4].try_into().expect("four bytes")) as usize;
    for entry in header[table + 4..table + 4 + 4 * count].as_chunks_mut::<4>().0 {
        *entry = (u32::from_be_bytes(*entry) + moved).to_be_bytes();
    }
    let head = [join(&parts[..payload - 1]), header, join(&parts[payload - 1..=payload])].concat();
    let before = Long { head, tail: Vec::new(), read: 0 };
    for mut input in [behind, before] {
        let index = make(&mut input, Trust::Predicted, &Limits::default()).expect("a sound clip");
        assert_eq!((index.len(), index.facts().trust), (2000, Trust::Predicted));
        assert!(input.read < 2 * u64::from(moved) + (300 << 10), "{} bytes read, the header has {moved}", input.read);
        let bytes: u64 = index.plan(&[1000])[0].ranges.iter().map(|range| range.len()).sum();
        assert!(bytes < object.len() as u64 / 50, "{bytes} of {}", object.len());
    }
}

/// Promise: what an index says of a clip that is another by now is found out, never passed on.
#[test]
fn a_wrong_index_differs() {
    let object = clip(&MP4);
    let other = clip(&Recipe { size: (64, 96), ..MP4 });
    let index = index_of(&object, Trust::Mapped).expect("a sound clip");
    let mut wrong = index.clone();
    wrong.kept.rows[7].hash ^= 1;
    assert_eq!(read(&wrong, &object, &[7], false, false)[0].1, Err(FrameError::Differs));
    let mut wrong = index.clone();
    wrong.kept.rows[7].nth = 1;
    assert_eq!(read(&wrong, &object, &[7], false, false)[0].1, Err(FrameError::Differs));
    let mut predicted = index_of(&object, Trust::Predicted).expect("a sound clip");
    predicted.kept.sizes[0] = (64, 96);
    assert_eq!(read(&predicted, &object, &[3], false, false)[0].1, Err(FrameError::Differs));
    // A start that is none, in an index that never saw its packets.
    let mut predicted = index_of(&object, Trust::Predicted).expect("a sound clip");
    assert!(predicted.kept.is_listed);
    for row in &mut predicted.kept.rows[22..28] {
        row.start = row.tag.min(21);
    }
    assert_eq!(read(&predicted, &object, &[25], false, false)[0].1, Err(FrameError::Differs));
    let long = vec![0; object.len().max(other.len())];
    assert!(read(&index, &long, &[3], false, false)[0].1.is_err());
}

/// Promise: an input that fails is said to have failed, wherever it does; nothing is said of the clip.
#[test]
fn a_failing_input_is_no_verdict() {
    struct Fails(Memory, u64);
    impl Input for Fails {
        fn bytes(&self) -> u64 {
            self.0.bytes()
        }
        fn read(&mut self, range: ByteRange, into: &mut Vec<u8>) -> Result<(), Gone> {
            self.1 = self.1.checked_sub(1).ok_or(Gone)?;
            self.0.read(range, into)
        }
    }
    let object = clip(&Recipe { frames: 400, ..MP4 });
    let mut failed = 0;
    for reads in 0..60 {
        for trust in [Trust::Predicted, Trust::Proved] {
            match make(&mut Fails(Memory::new(object.clone()), reads), trust, &Limits::default()) {
                Err(error) => {
                    assert_eq!(error, VideoError::Gone(Gone));
                    failed += 1;
                }
                Ok(index) => assert_eq!(index.len(), 400),
            }
        }
    }
    assert!(failed > 10, "{failed}");
}

/// Promise: other containers, files that only name others, and too large pictures are refused.
#[test]
fn what_is_not_ours_is_refused() {
    let unsupported = |object: &[u8]| {
        let error = index_of(object, Trust::Proved).expect_err("refused");
        assert!(matches!(error, VideoError::Unsupported(_) | VideoError::Undecodable(_)), "{error}");
        error
    };
    let list = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n";
    unsupported(list);
    unsupported(b"ffconcat version 1.0\nfile /etc/passwd\n");
    unsupported(b"");
    unsupported(&[0; 5000]);
    if let Some(object) = encode(&Recipe { container: "nut", ..MP4 }) {
        assert!(matches!(unsupported(&object), VideoError::Unsupported(_)));
    }
    let object = clip(&MP4);
    for trust in [Trust::Predicted, Trust::Proved] {
        let small = Limits { pixels_max: 96 * 64 - 1 };
        assert!(make(&mut Memory::new(object.clone()), trust, &small).is_err(), "{trust:?}");
        let enough = Limits { pixels_max: 96 * 64 };
        assert!(make(&mut Memory::new(object.clone()), trust, &enough).is_ok(), "{trust:?}");
    }
}

/// xorshift64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides.max(1)
    }

    fn damage(&mut self, bytes: &mut Vec<u8>) {
        let at = self.roll(bytes.len());
        match self.roll(4) {
            0 => bytes.truncate(at),
            1 => {
                for _ in 0..=self.roll(8) {
                    let at = self.roll(bytes.len());
                    bytes[at] ^= 1 << self.roll(8);
                }
            }
            2 => {
                let end = (at + 1 + self.roll(40)).min(bytes.len());
                bytes[at..end].fill(if self.roll(2) == 0 { 0 } else { 0xff });
            }
            _ => {
                let new: Vec<u8> = (0..=self.roll(12)).map(|_| self.roll(256) as u8).collect();
                bytes.splice(at..at, new);
            }
        }
    }
}

/// Promise: a damaged clip is refused, or has an index whose frames are answered, each once; nothing else happens. An index that says it
/// is proved gives every frame that it has.
#[test]
fn damage_is_answered() {
    let seed = 20_261_130;
    let mut dice = Dice(seed);
    let copies = if std::env::var_os("FRAMECACHE_SOAK").is_some() { 100 } else { 6 };
    let (mut refused, mut answered) = (0, 0);
    for recipe in recipes() {
        let sound = clip(&Recipe { frames: 25, ..recipe });
        for number in 0..copies {
            let mut object = sound.clone();
            dice.damage(&mut object);
            let trust = [Trust::Predicted, Trust::Mapped, Trust::Proved][number % 3];
            let Ok(index) = index_of(&object, trust) else {
                refused += 1;
                continue;
            };
            let all: Vec<u64> = (0..index.len()).collect();
            for keep in [true, false] {
                for (frame, got) in read(&index, &object, &all, keep, false) {
                    answered += 1;
                    let is_proved = index.facts().trust == Trust::Proved;
                    assert!(!is_proved || !keep || got.is_ok(), "{recipe:?} {number}: {frame} {got:?}");
                }
            }
        }
    }
    println!("seed {seed}: {refused} refused, {answered} frames answered");
    assert!(answered > 300);
}

/// Promise: what a header claims is not believed before it is seen: sizes, counts and pictures that are not there, and one packet that
/// all samples point at.
#[test]
fn lying_headers_are_answered() {
    let sound = clip(&Recipe { codec: "mjpeg", b_frames: 0, ..MP4 });
    let (mut refused, mut made) = (0, 0);
    for kind in [b"stsz", b"stts", b"stco", b"stsc", b"stsd", b"mdhd", b"elst", b"tkhd", b"mvhd", b"esds"] {
        let Some(at) = memchr::memmem::find(&sound, kind) else { continue };
        for field in (4..40).step_by(4) {
            for value in [0u32, 1, 0x7fff_ffff, 0xffff_ffff, 0x0001_0000, 0xffff] {
                let mut object = sound.clone();
                object[at + field..at + field + 4].copy_from_slice(&value.to_be_bytes());
                for trust in [Trust::Predicted, Trust::Proved] {
                    match index_of(&object, trust) {
                        Ok(index) => {
                            made += 1;
                            drop(read(&index, &object, &[0, index.len() / 2, index.len() - 1], false, false));
                        }
                        Err(_) => refused += 1,
                    }
                }
            }
        }
    }
    println!("{refused} refused, {made} made");
    assert!(refused > 20 && made > 20);
    // Two hundred samples, each of them the whole payload.
    let table = memchr::memmem::find(&sound, b"stsz").expect("sizes");
    let chunks = memchr::memmem::find(&sound, b"stsc").expect("chunks");
    let mut object = sound.clone();
    object.resize(sound.len() + (8 << 20), 0);
    object[table + 8..table + 12].copy_from_slice(&(8u32 << 20).to_be_bytes());
    object[chunks + 16..chunks + 20].copy_from_slice(&1u32.to_be_bytes());
    let mut input = Memory::new(object);
    let _ = make(&mut input, Trust::Predicted, &Limits::default());
    assert!(input.read < 200 << 20, "{} bytes read", input.read);
}

/// Promise: an archive that was damaged is nothing, or an index that holds together: planning and packaging it is safe.
#[test]
fn damaged_archives_are_safe() {
    let object = clip(&Recipe { container: "mpegts", codec: "mpeg2video", ..MP4 });
    let index = index_of(&object, Trust::Mapped).expect("a sound clip");
    let archive = index.to_bytes().expect("an archive");
    assert_eq!(VideoIndex::from_bytes(&archive).expect("sound").kept, index.kept);
    let mut dice = Dice(7);
    let mut read_back = 0;
    for _ in 0..4000 {
        let mut bytes = archive.clone();
        dice.damage(&mut bytes);
        let Some(index) = VideoIndex::from_bytes(&bytes) else { continue };
        read_back += 1;
        let frames: Vec<u64> = (0..index.len()).collect();
        for clip in index.plan(&frames) {
            let end = |range: &ByteRange| range.end() <= index.kept.object_bytes;
            assert!(clip.ranges.iter().all(end));
            if index.kept.object_bytes == object.len() as u64 {
                let part = |range: &ByteRange| {
                    (*range, bytes::Bytes::copy_from_slice(&object[range.start() as usize..range.end() as usize]))
                };
                let parts: Vec<_> = clip.ranges.iter().map(part).collect();
                drop(index.package(&clip, &parts));
            }
        }
        for frame in frames {
            let _ = (index.seconds(frame), index.duration(frame), index.size(frame), index.played_at(index.seconds(frame)));
        }
    }
    println!("{read_back} of 4000 read back");
}

/// Promise: a package that was damaged is refused, or decoded within its bounds.
#[test]
fn damaged_packages_are_safe() {
    let object = clip(&MP4);
    let index = index_of(&object, Trust::Mapped).expect("a sound clip");
    let clip = index.plan(&[3, 5, 8]).remove(0);
    let part = |range: &ByteRange| (*range, bytes::Bytes::copy_from_slice(&object[range.start() as usize..range.end() as usize]));
    let parts: Vec<_> = clip.ranges.iter().map(part).collect();
    let package = index.package(&clip, &parts).expect("the bytes are there");
    let mut dice = Dice(9);
    for _ in 0..400 {
        let mut bytes = package.clone();
        dice.damage(&mut bytes);
        let mut answers = 0;
        let end = decode(&bytes, false, &Limits::default(), &mut |_, _| {
            answers += 1;
            Ok(())
        });
        assert!(end.is_err() || answers <= 64, "{answers}");
    }
}

/// Promise: a receiver that wants no more is asked no more.
#[test]
fn a_receiver_may_stop() {
    let object = clip(&MP4);
    let index = index_of(&object, Trust::Predicted).expect("a sound clip");
    let clip = index.plan(&[1, 2, 3]).remove(0);
    let part = |range: &ByteRange| (*range, bytes::Bytes::copy_from_slice(&object[range.start() as usize..range.end() as usize]));
    let parts: Vec<_> = clip.ranges.iter().map(part).collect();
    let package = index.package(&clip, &parts).expect("the bytes are there");
    let mut calls = 0;
    let end = decode(&package, false, &Limits::default(), &mut |_, _| {
        calls += 1;
        Err(Stop)
    });
    assert_eq!((end, calls), (Err(DecodeEnd::Stopped), 1));
}
