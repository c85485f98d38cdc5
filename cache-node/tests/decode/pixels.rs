//! Which pixels come out, and which refusals.

use std::path::PathBuf;

use framecache::Tensor;
use framecache_node::decode::{DecodeError, Decoder, Format, InProcess, Limits, PoolSettings, probe};
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64;

use super::{Answer, PICTURE, ask, ask_one, deadline, job, object, settings, start};

/// Promise: committed pictures give Pillow's bytes, plain and resized, with their orientation; what Pillow refuses is undecodable.
#[tokio::test]
async fn vectors_are_pillows() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/jpeg");
    let expected = std::fs::read_to_string(folder.join("expected.txt")).expect("expected.txt");
    let pool = start(settings()).await;
    let mut files = 0;
    for line in expected.lines().filter(|line| !line.starts_with('#')) {
        files += 1;
        let fields: Vec<&str> = line.split(' ').collect();
        let bytes = std::fs::read(folder.join(fields[0])).expect("vector");
        let answer = ask(&pool, fields[0], bytes, &["image", "image?size=41x29&filter=bicubic"]).await;
        let &[_, width, height, orientation, plain, resized] = &fields[..] else {
            assert!(matches!(answer, Err(DecodeError::Undecodable { format: Format::Jpeg, .. })), "{line}: {answer:?}");
            continue;
        };
        let tensors: Vec<_> = answer.expect(line).into_iter().map(|tensor| tensor.expect(line)).collect();
        let head = tensors[0].head;
        assert_eq!(head.source, (width.parse().expect("width"), height.parse().expect("height")), "{line}");
        assert_eq!((head.shape, head.orientation), ([head.source.1, head.source.0, 3], orientation.parse().expect("1 to 8")));
        assert_eq!(tensors[1].head.shape, [29, 41, 3]);
        for (tensor, want) in tensors.iter().zip([plain, resized]) {
            assert_eq!(tensor.data.len() as u64, tensor.head.bytes());
            assert_eq!(format!("{:016x}", xxh3_64(&tensor.data)), want, "{line}");
        }
    }
    assert_eq!(files, 8);
    pool.close().await;
}

/// Promise: every picture of the corpus has the corpus's bytes, plain and resized, and every sampled frame of an animation; or it is
/// refused as there, with an error that is the picture's own.
#[tokio::test]
async fn corpus_is_pillows() {
    let Ok(corpus) = std::env::var("FRAMECACHE_CORPUS") else { return println!("corpus: not given, committed vectors only") };
    let images = PathBuf::from(&corpus).join("images");
    let manifest = std::fs::read_to_string(images.join("manifest.jsonl")).expect("the named corpus is there");
    let pool = start(settings()).await;
    let (mut files, mut sound, mut resized, mut frames) = (0, 0, 0, 0);
    for line in manifest.lines() {
        let entry: serde_json::Value = serde_json::from_str(line).expect("manifest line");
        let (name, kind, expect) =
            (entry["file"].as_str().expect("file"), entry["kind"].as_str().expect("kind"), &entry["expect"]);
        let bytes = std::fs::read(images.join(name)).expect("corpus file");
        let answer = ask_one(&pool, name, bytes.clone()).await;
        files += 1;
        if expect["ok"] != true {
            let refused = answer.expect_err(name);
            assert!(refused.is_permanent(), "{name}: {refused}");
            assert_eq!(kind == "bomb", matches!(refused, DecodeError::TooLarge { .. }), "{name}: {refused}");
            continue;
        }
        let tensor = answer.expect(name);
        sound += 1;
        assert_eq!(u64::from(tensor.head.orientation), expect["exif_orientation"].as_u64().unwrap_or(1), "{name}");
        assert_eq!(sha256(&tensor.data), expect["rgb_sha256"].as_str().expect("rgb_sha256"), "{name}");
        let probed = probe(&bytes, bytes.len() as u64, &Limits::default()).expect(name);
        assert!(probed.mode == expect["mode"], "{name}: probed {}, is {}", probed.mode, expect["mode"]);
        for want in expect["resized"].as_array().into_iter().flatten() {
            let spec = format!("image?short={}&filter={}", want["short_side"], want["filter"].as_str().expect("filter"));
            let tensor = ask(&pool, name, bytes.clone(), &[&spec]).await.expect(name).remove(0).expect(name);
            assert_eq!(sha256(&tensor.data), want["rgb_sha256"].as_str().expect("rgb_sha256"), "{name} {spec}");
            resized += 1;
        }
        // Of a JPEG the first picture is all there is, of MPO too.
        let animated = expect["frame_samples"].as_array().filter(|_| !kind.starts_with("jpeg-"));
        let wants: Vec<_> = animated.into_iter().flatten().collect();
        let specs: Vec<String> = wants.iter().map(|want| format!("video?frames={}", want["index"])).collect();
        let mut together: Vec<&str> = specs.iter().map(String::as_str).collect();
        together.push("video?frames=1000");
        let together = if wants.is_empty() { vec![] } else { ask(&pool, name, bytes.clone(), &together).await.expect(name) };
        for (place, want) in wants.iter().enumerate() {
            let frame = want["index"].as_u64().expect("index");
            let alone =
                ask_frame(&pool, name, bytes.clone(), frame).await.unwrap_or_else(|error| panic!("{name} {frame}: {error}"));
            for tensor in [&alone, together[place].as_ref().expect(name)] {
                assert_eq!(sha256(&tensor.data), want["rgb_sha256"].as_str().expect("rgb_sha256"), "{name}, frame {frame}");
            }
            frames += 1;
        }
        let count = expect["frames"].as_u64().unwrap_or(1);
        if let Some(absent) = together.get(wants.len()) {
            assert!(
                matches!(absent, Err(DecodeError::NoFrame { count: found }) if u64::from(*found) == count),
                "{name}: {absent:?}"
            );
        }
    }
    println!("corpus: {files} files from {corpus}, {sound} decode, {resized} resized, {frames} frames of animations");
    assert_eq!((files, sound), (120, 96));
    assert!(resized >= 60 && frames >= 35, "{resized} resized renditions, {frames} frames");
    assert_eq!(pool.stats().deaths_judged + pool.stats().deaths_lost, 0);
    pool.close().await;
}

async fn ask_frame(pool: &impl Decoder, key: &str, bytes: Vec<u8>, frame: u64) -> Result<Tensor, DecodeError> {
    let job = job(key, object(bytes.clone()), bytes.len() as u64, &[&format!("video?frames={frame}")]);
    pool.decode(job, deadline()).await.and_then(|mut answers| answers.remove(0))
}

/// Promise: what is no picture of a format that is decoded never reaches a worker; nor does a frame that is not there, or too far in.
#[tokio::test]
async fn frames_are_bounded() {
    let pool = start(settings()).await;
    let png = png(b"\0\0\0\x04\0\0\0\x02\x08\0\0\0\0", &[]);
    for frame in [1, i64::MAX as u64] {
        let error = ask_frame(&pool, "still", png.clone(), frame).await.expect_err("no such frame");
        assert!(matches!(error, DecodeError::NoFrame { count: 1 }) && error.is_permanent(), "{error}");
    }
    let many = [(*b"acTL", vec![0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0])];
    let animation = png_with(b"\0\0\0\x04\0\0\0\x02\x08\0\0\0\0", &many);
    let error = ask_frame(&pool, "far", animation, 100_000).await.expect_err("too far in");
    assert!(matches!(error, DecodeError::Unsupported { format: Format::Png, .. }), "{error}");
    assert_eq!(pool.stats().jobs, 0);
    pool.close().await;
}

/// Eight frames, 16 x 16.
fn moving() -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = gif::Encoder::new(&mut file, 16, 16, &[0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255]).expect("gif");
    for frame in 0..8u8 {
        let indices: Vec<u8> = (0..=255).map(|n| (n / (frame + 3) + frame) % 4).collect();
        encoder.write_frame(&gif::Frame::from_indexed_pixels(16, 16, indices, None)).expect("frame");
    }
    drop(encoder);
    file
}

/// Pages of 16 x 16, but for the second.
fn pages() -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    let mut encoder = tiff::encoder::TiffEncoder::new(&mut file).expect("tiff");
    for side in [16, 9, 16] {
        let pixels: Vec<u8> = (0..side * side * 3).map(|n| (n * 7 + side) as u8).collect();
        encoder.write_image::<tiff::encoder::colortype::RGB8>(side, side, &pixels).expect("page");
    }
    file.into_inner()
}

/// Promise: frames that are asked for together have the answers that they have alone: before a break and behind it, beside one that is not
/// there, one of another size, and one that cannot be made.
#[tokio::test]
async fn frames_fail_alone() {
    let pool = start(settings()).await;
    let (moving, pages) = (moving(), pages());
    for (name, bytes, good) in [
        ("whole", &moving[..], 4),
        ("cut", &moving[..moving.len() / 2], 3),
        ("stump", &moving[..40], 0),
        ("pages", &pages[..], 2),
    ] {
        let mut specs: Vec<String> = [0, 1, 2, 7, 8].iter().map(|frame| format!("video?frames={frame}&size=9x9")).collect();
        specs.push("video?frames=2&box=0,0,99,99".into());
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        let together = ask(&pool, name, bytes.to_vec(), &specs).await;
        let mut given = 0;
        for (place, spec) in specs.iter().enumerate() {
            let alone = ask(&pool, &format!("{name}-{place}"), bytes.to_vec(), &[spec]).await;
            let told = |answers: &Answer, place: usize| match answers {
                Ok(answers) => answers[place].as_ref().map(|tensor| tensor.data.clone()).map_err(ToString::to_string),
                Err(error) => Err(error.to_string()),
            };
            assert_eq!(told(&together, place), told(&alone, 0), "{name}, {spec}");
            given += u32::from(told(&alone, 0).is_ok());
        }
        assert_eq!(given, good, "{name}");
    }
    pool.close().await;
}

/// Promise: bombs of every format are refused from their headers, and at once: no worker hears of them.
#[tokio::test]
async fn bombs_meet_no_worker() {
    let pool = start(PoolSettings { whole_bytes_max: 0, ..settings() }).await;
    let short = |value: u16| value.to_le_bytes();
    let wide = |value: u32| value.to_le_bytes();
    let webp = [b"RIFF\xff\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0".as_slice(), &[0xff; 6], &[0; 300]].concat();
    let gif =
        [b"GIF89a".as_slice(), &short(9), &short(9), &[0, 0, 0, b','], &[0; 4], &short(u16::MAX), &short(u16::MAX), &[0; 300]]
            .concat();
    let bmp = [b"BM".as_slice(), &[0; 12], &wide(40), &wide(1 << 20), &wide(1 << 20), &[1, 0, 24, 0], &[0; 300]].concat();
    let field = |tag: u16, value: u32| [&short(tag)[..], &short(4), &wide(1), &wide(value)].concat();
    let tiff = [b"II*\0\x08\0\0\0\x02\0".as_slice(), &field(256, 1 << 20), &field(257, 1 << 20), &[0; 300]].concat();
    let bombs = [
        ("png", png(b"\0\x0f\xff\xff\0\x0f\xff\xff\x08\x02\0\0\0", &[0; 300])),
        ("webp", webp),
        ("gif", gif),
        ("bmp", bmp),
        ("tiff", tiff),
    ];
    for (name, bytes) in bombs {
        let error = ask_one(&pool, name, bytes).await.expect_err("refused");
        assert!(matches!(error, DecodeError::TooLarge { limit: 178_956_970, .. }), "{name}: {error}");
    }
    assert_eq!((pool.stats().jobs, pool.stats().started), (0, 1));
    pool.close().await;
}

/// A PNG of this header and this compressed data.
fn png(header: &[u8; 13], data: &[u8]) -> Vec<u8> {
    png_with(header, &[(*b"IDAT", data.to_vec())])
}

fn png_with(header: &[u8; 13], chunks: &[([u8; 4], Vec<u8>)]) -> Vec<u8> {
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let all = [(*b"IHDR", header.to_vec())].into_iter().chain(chunks.iter().cloned()).chain([(*b"IDAT", vec![])]);
    for (name, body) in all {
        let named = [&name[..], &body].concat();
        out.extend((body.len() as u32).to_be_bytes());
        out.extend(&named);
        out.extend(crc32fast::hash(&named).to_be_bytes());
    }
    out
}

/// Promise: a picture read in windows has the bytes of the same picture read whole, and no byte is read twice but its header.
#[tokio::test]
async fn windows_change_nothing() {
    let whole = start(settings()).await;
    let windows = start(PoolSettings { whole_bytes_max: 0, window_bytes: 50, ..settings() }).await;
    for name in ["baseline420", "progressive", "gray", "cmyk", "restart", "truncated", "noeoi"] {
        let path = format!("{}/tests/golden/jpeg/{name}.jpg", env!("CARGO_MANIFEST_DIR"));
        let mut bytes = std::fs::read(path).expect("vector");
        // A comment between scans, where there are several, is passed over across windows.
        let scans: Vec<usize> = (0..bytes.len() - 1).filter(|&at| bytes[at..at + 2] == [0xff, 0xda]).collect();
        if let Some(&second) = scans.get(1) {
            bytes.splice(second..second, [&[0xff, 0xfe, 1, 0][..], &[7; 254]].concat());
        }
        let object = object(bytes.clone());
        let size = bytes.len() as u64;
        let in_windows = windows_answer(&windows, name, object.clone(), size).await;
        assert_eq!(in_windows, ask_one(&whole, name, bytes).await.map_err(|error| error.to_string()), "{name}");
        let read = object.read.load(std::sync::atomic::Ordering::Relaxed);
        assert!(read > size && read <= 3 * size, "{name}: {read} bytes of {size} read");
    }
    assert_eq!(windows.stats().deaths_judged, 0);
    whole.close().await;
    windows.close().await;
}

async fn windows_answer(
    pool: &framecache_node::decode::WorkerPool,
    name: &str,
    source: std::sync::Arc<super::Object>,
    size: u64,
) -> Result<framecache::Tensor, String> {
    let answer = pool.decode(job(name, source, size, &["image"]), deadline()).await;
    answer.and_then(|mut answers| answers.remove(0)).map_err(|error| error.to_string())
}

/// Promise: what is not decoded is refused with what it is, whatever its name; none of it reaches a worker.
#[tokio::test]
async fn other_content_is_named() {
    let pool = start(settings()).await;
    for (bytes, want) in [
        (&b""[..], "undecodable (unknown): empty"),
        (b"<html><body>403</body></html>", "undecodable (unknown): not a picture: looks like HTML"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "unsupported (heic): heic is not decoded by this release"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "undecodable (png): truncated in the header"),
        (b"\xff\xd8\xff", "undecodable (jpeg): truncated in the header"),
    ] {
        let error = ask_one(&pool, "a.jpg", bytes).await.expect_err("refused");
        assert_eq!(error.to_string(), want);
        assert!(error.is_permanent());
    }
    assert_eq!(pool.stats().jobs, 0);
    pool.close().await;
}

/// Promise: a bomb is refused from its header: no worker hears of it, and a few bytes of it are read.
#[tokio::test]
async fn bomb_meets_no_worker() {
    let mut bomb = PICTURE.to_vec();
    let frame = bomb.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("frame header");
    bomb[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xdc, 0xff, 0xdc]);
    let pool = start(PoolSettings { whole_bytes_max: 0, ..settings() }).await;
    let error = ask_one(&pool, "bomb", bomb).await.expect_err("refused");
    assert!(matches!(error, DecodeError::TooLarge { width: 65_500, height: 65_500, limit: 178_956_970 }), "{error}");
    let stats = pool.stats();
    assert_eq!((stats.jobs, stats.started), (0, 1));
    pool.close().await;
}

/// Promise: a spec that cannot be made fails alone, its neighbours from the same decode do not.
#[tokio::test]
async fn one_spec_fails_alone() {
    let pool = start(settings()).await;
    let specs = ["image?crop=60", "image?short=32", "image?size=65535x65535", "image?crop=20"];
    let answers = ask(&pool, "a", PICTURE, &specs).await.expect("decode");
    assert!(matches!(answers[0], Err(DecodeError::Unsupported { .. })), "{:?}", answers[0]);
    assert!(matches!(answers[2], Err(DecodeError::TooLarge { width: 65_535, .. })), "{:?}", answers[2]);
    assert_eq!(answers[1].as_ref().expect("resize").head.shape, [32, 47, 3]);
    let (crop, whole) = (answers[3].as_ref().expect("crop"), ask_one(&pool, "a", PICTURE).await.expect("whole"));
    for y in 0..20 {
        let from = ((12 + y) * 67 + 24) * 3; // round(12.5) = 12, round(23.5) = 24
        assert!(crop.data[y * 60..][..60] == whole.data[from..][..60], "row {y}");
    }
    assert_eq!(pool.stats().jobs, 2);
    pool.close().await;
}

/// Promise: the budget is told the least that a decode takes, and a rendition that cannot be made costs nothing.
#[test]
fn cost_is_counted() {
    let probe = probe(PICTURE, PICTURE.len() as u64, &Limits::default()).expect("probe");
    assert_eq!((probe.width, probe.height, probe.channels, probe.decoded_bytes), (67, 45, 3, 67 * 45 * 3));
    let cost = |specs: &[&str]| probe.cost_bytes(&specs.iter().map(|text| text.parse().expect("spec")).collect::<Vec<_>>());
    let plain = cost(&["image"]);
    assert!(plain >= cost(&[]) + 67 * 45 * 3 && cost(&[]) >= probe.decoded_bytes + PICTURE.len() as u64);
    assert_eq!(cost(&["image", "image?crop=60"]), plain);
    assert!(cost(&["image", "image?size=100x100"]) >= plain + 30_000);
}

/// Promise: the CPU time that is reported is what the kernel counted, but for the messages between.
#[tokio::test]
async fn cpu_time_is_counted() {
    let pool = start(PoolSettings { workers: 1, ..settings() }).await;
    let big = ["image?size=800x800&filter=bicubic"];
    // The first job pays for the start of the process, which is nobody's job.
    ask(&pool, "a", PICTURE, &big).await.expect("decode");
    let kernel_us = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("schedstat");
        text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).expect("nanoseconds") / 1000
    };
    let (pid, before_us) = (pool.stats().pids[0], pool.stats().cpu_us);
    let kernel_before_us = kernel_us(pid);
    for _ in 0..50 {
        ask(&pool, "a", PICTURE, &big).await.expect("decode");
    }
    let (told_us, counted_us) = (pool.stats().cpu_us - before_us, kernel_us(pid) - kernel_before_us);
    assert!(told_us > counted_us / 2 && told_us <= counted_us, "{told_us} of {counted_us}");
    pool.close().await;
}

/// Promise: the decoder that other rooms test with gives the same answers.
#[tokio::test]
async fn in_process_is_the_same() {
    let (pool, here) = (start(settings()).await, InProcess::default());
    let specs = ["image", "image?short=32&crop=24", "image?crop=60"];
    for bytes in [PICTURE, &PICTURE[..600], b"<html>"] {
        let text = |answer| format!("{answer:?}");
        assert_eq!(text(ask(&pool, "a", bytes, &specs).await), text(ask(&here, "a", bytes, &specs).await));
    }
    pool.close().await;
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
