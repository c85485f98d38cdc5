//! Clips of many videos before nodes that are played.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::batch::Batch;
use crate::client::{Clip, ClipSlots, FoundClip, Outcome};
use crate::error::ErrorKind;
use crate::fake::{Authority, FakeNode, Item, refusal, script};
use crate::spec::{SpecError, Timeline};
use crate::view::View;
use crate::wire::codec::{self, PREFIX_BYTES};
use crate::wire::{
    FrameAsk, FrameRow, FramesBody, Header, IndexBody, IndexKind, ItemHead, ObjectsBody, SelectedPayload, StatPayload, Status,
    TensorItem, Verb, VideoFacts, ext,
};
use crate::{Client, ClientConfig, ImageSpec, ObjectId, Selector};

/// Every video has so many frames, eight a second.
const FRAMES: u64 = 60;

fn seconds(frame: u64) -> f64 {
    frame as f64 / 8.0
}

/// A frame's only pixel: of which video it is, and which frame.
fn pixel(uri: &str, frame: u64) -> [u8; 3] {
    let video = uri.rsplit('/').next().and_then(|name| name[1..].parse().ok()).expect("a video's number");
    [video, frame as u8, 7]
}

fn archive(encoded: &[u8]) -> Vec<u8> {
    encoded[PREFIX_BYTES..].to_vec()
}

fn stat(index: usize, uri: &str) -> Item {
    let of = |format: &str, ext| {
        let payload = StatPayload { format: format.into(), width: 8, height: 4, orientation: 1, decode_bytes: 0 };
        let head = ItemHead { index: index as u32, last: true, version: "v".into(), ext, ..ItemHead::default() };
        (head, archive(&codec::encode(&payload).expect("facts")))
    };
    match uri.rsplit('/').next().map(|name| name.as_bytes()[0]) {
        Some(b'v') => {
            let facts = VideoFacts { frames: FRAMES, average_fps: (8, 1), time_base: (1, 8), ..VideoFacts::default() };
            of("video", vec![(ext::VIDEO, archive(&codec::encode(&facts).expect("facts")))])
        }
        Some(b'g') => of("gif", Vec::new()),
        Some(b't') => of("", Vec::new()),
        _ => {
            let (head, payload) = refusal(Status::NotFound).remove(0);
            (ItemHead { index: index as u32, ..head }, payload)
        }
    }
}

fn index(body: &IndexBody) -> Vec<Item> {
    let Ok(IndexKind::Selected { frames: selector, .. }) = body.kind.parse() else { return refusal(Status::Malformed) };
    let pts: Vec<i64> = (0..FRAMES as i64).collect();
    let Ok(frames) = selector.resolve(&Timeline { pts: &pts, time_base: (1, 8), end: FRAMES as i64 }) else {
        return refusal(Status::OutOfRange);
    };
    let row = |frame| FrameRow { frame, pts_seconds: seconds(frame), duration_seconds: 0.125, starts: frame == 0 };
    let said = SelectedPayload { frames: frames.into_iter().map(row).collect(), total: FRAMES };
    let head = ItemHead { last: true, version: "v".into(), ..ItemHead::default() };
    vec![(head, archive(&codec::encode(&said).expect("rows")))]
}

/// Frames 50 and 51 of every video are wrong ones: another time, another version.
fn frame(ask: &FrameAsk, specs: &[String]) -> Item {
    let spec: crate::VideoSpec = specs[ask.spec as usize].parse().expect("spec");
    let frame = spec.frames[0];
    let shown = if frame == 50 { 51 } else { frame };
    let pts_seconds = if ask.uri.contains("/v") { seconds(shown) } else { 0.0 };
    let tensor = Some(TensorItem { shape: [1, 1, 3], dtype: 0, layout: 0, orientation: 1, source: [8, 4], pts_seconds });
    let version = if frame == 51 { "w".into() } else { ask.version.clone() };
    let head = ItemHead { index: ask.index, attempt: ask.attempt, last: true, version, tensor, ..ItemHead::default() };
    (head, pixel(&ask.uri, shown).to_vec())
}

fn answer(header: &Header, body: &[u8]) -> Vec<Item> {
    match Verb::from_number(header.verb) {
        Some(Verb::Stat) => {
            let body: ObjectsBody = codec::decode(body).expect("body");
            body.uris.iter().enumerate().map(|(place, uri)| stat(place, uri)).collect()
        }
        Some(Verb::Index) => index(&codec::decode(body).expect("body")),
        Some(Verb::Frames) => {
            let body: FramesBody = codec::decode(body).expect("body");
            assert!(body.items.iter().all(|ask| ask.version == "v"), "frames are of the version that was found");
            body.items.iter().map(|ask| frame(ask, &body.specs)).collect()
        }
        _ => refusal(Status::UnknownVerb),
    }
}

/// Two nodes, and a client of theirs.
async fn cluster() -> ([FakeNode; 2], Client) {
    let (authority, view) = (Authority::new(), Arc::new(Mutex::new(View::default())));
    let plays = || script(|header, body| async move { answer(&header, &body) });
    let a = FakeNode::start(&authority, "a", &["a"], view.clone(), plays()).await;
    let b = FakeNode::start(&authority, "b", &["b", "127.0.0.1"], view.clone(), plays()).await;
    for node in [&a, &b] {
        view.lock().merge(node.row.clone()).expect("merge");
    }
    let mut config = ClientConfig::new(&b.row.quic);
    config.tls = authority.trust();
    ([a, b], Client::new(config).expect("client"))
}

fn asked(nodes: &[FakeNode; 2], verb: Verb) -> usize {
    nodes.iter().map(|node| node.asked.lock().iter().filter(|header| header.verb == verb as u16).count()).sum()
}

fn clip(name: &str, selector: &str) -> Clip {
    let frames: Result<Selector, SpecError> = selector.parse();
    Clip { id: ObjectId::new("abc", name).expect("id"), frames: frames.expect("selector") }
}

/// Receives all clips into one batch; the pixels, and how their frames ended.
async fn received(client: &Client, found: &[FoundClip]) -> (Vec<[u8; 3]>, Vec<Vec<Outcome>>) {
    let spec: ImageSpec = "image?size=1x1".parse().expect("spec");
    let count = found.iter().map(|clip| clip.rows.len()).sum();
    let batch = Batch::fixed(count, [1, 1, 3]).expect("batch");
    let mut first = 0;
    let slots = found.iter().map(|clip| {
        let slots = ClipSlots { clip, batch: &batch, first };
        first += clip.rows.len();
        slots
    });
    let slots: Vec<ClipSlots<'_>> = slots.collect();
    let outcomes = client.clips(&slots, &spec, &Default::default()).await;
    let pictures = batch.finish();
    let (_, block) = pictures.block().expect("block");
    (block.chunks_exact(3).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(), outcomes)
}

/// Promise: many clips cost one request to each owner for what their videos are and one for their frames, and one for each video's times;
/// frames come in the order of the request, whatever that is, each at its time.
#[tokio::test]
async fn many_clips_are_few_requests() {
    let (nodes, client) = cluster().await;
    let mut clips = Vec::new();
    for video in 0..20 {
        clips.push(clip(&format!("v{video}"), "video?frames=40,-60,3,3,-1"));
        clips.push(clip(&format!("v{video}"), "video?frames=5"));
    }
    clips.push(clip("v3", "video?uniform=3"));
    clips.push(clip("v3", "video?from=1&to=2&fps=2"));
    let found = client.find_clips(&clips, None, &Default::default()).await;
    let found: Vec<FoundClip> = found.into_iter().collect::<Result<_, _>>().expect("found");
    assert_eq!((asked(&nodes, Verb::Stat), asked(&nodes, Verb::Index)), (2, 20 + 2));
    let frames = |clip: &FoundClip| clip.rows.iter().map(|row| row.frame).collect::<Vec<_>>();
    assert_eq!(frames(&found[0]), [40, 0, 3, 3, 59]);
    assert_eq!((frames(&found[40]), frames(&found[41])), (vec![0, 29, 59], vec![8, 12]));
    assert!(
        found
            .iter()
            .flat_map(|clip| &clip.rows)
            .all(|row| (row.pts_seconds, row.duration_seconds) == (seconds(row.frame), 0.125))
    );

    let (pixels, outcomes) = received(&client, &found).await;
    assert!(outcomes.iter().flatten().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(outcomes.iter().map(Vec::len).collect::<Vec<_>>(), found.iter().map(|clip| clip.rows.len()).collect::<Vec<_>>());
    let want = found.iter().flat_map(|clip| clip.rows.iter().map(|row| pixel(&clip.id.to_string(), row.frame)));
    assert_eq!(pixels, want.collect::<Vec<_>>());
    assert_eq!(asked(&nodes, Verb::Frames), 2);
}

/// Promise: what is wrong with one clip costs that one: an index that is not there is told with those that are, before anything is asked of
/// the index; so are what is missing and what is no video.
#[tokio::test]
async fn a_wrong_clip_costs_itself() {
    let (nodes, client) = cluster().await;
    let clips = [
        clip("v0", "video?frames=59,60"),
        clip("v1", "video?frames=-61"),
        clip("x2", "video?frames=0"),
        clip("t3", "video?frames=0"),
        clip("v4", "video?at=7.5"),
        clip("v5", "video?frames=59"),
        clip("g6", "video?frames=2,1"),
        clip("g7", "video?uniform=2"),
        clip("g8", "video?frames=-1"),
    ];
    let found = client.find_clips(&clips, None, &Default::default()).await;
    let kinds: Vec<_> = found.iter().map(|found| found.as_ref().err().map(|error| error.kind.clone())).collect();
    use ErrorKind::{Invalid, NotFound, OutOfRange, Undecodable, Unsupported};
    let want = [OutOfRange, OutOfRange, NotFound, Undecodable, OutOfRange].map(Some);
    assert_eq!((&kinds[..5], &kinds[5..]), (&want[..], &[None, None, Some(Unsupported), Some(Invalid)][..]));
    let error = found[0].as_ref().expect_err("outside");
    assert!(error.message.contains("frame 60 of 60: want -60 to 59"), "{error}");
    assert_eq!(error.uri.as_deref(), Some("s3://abc/v0"));
    assert_eq!(asked(&nodes, Verb::Index), 2);

    let good: Vec<FoundClip> = found.into_iter().flatten().collect();
    let (pixels, outcomes) = received(&client, &good).await;
    assert!(outcomes.iter().flatten().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(pixels, [[5, 59, 7], [6, 2, 7], [6, 1, 7]]);
}

/// Promise: a frame that comes with another time than the index says, or of another version, is no frame of the clip.
#[tokio::test]
async fn another_frame_is_changed() {
    let (_nodes, client) = cluster().await;
    let found = client.find_clips(&[clip("v0", "video?frames=49,50,51,52")], None, &Default::default()).await;
    let found: Vec<FoundClip> = found.into_iter().collect::<Result<_, _>>().expect("found");
    let (_, outcomes) = received(&client, &found).await;
    let kinds: Vec<_> = outcomes[0].iter().map(|outcome| outcome.as_ref().err().map(|error| error.kind.clone())).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::Changed), Some(ErrorKind::Changed), None]);
}

/// Promise: each clip may have a batch of its own, of its own shape.
#[tokio::test]
async fn clips_lie_where_they_are_told_to() {
    let (_nodes, client) = cluster().await;
    let clips = [clip("v1", "video?frames=9,8"), clip("v2", "video?frames=7")];
    let found = client.find_clips(&clips, None, &Default::default()).await;
    let found: Vec<FoundClip> = found.into_iter().collect::<Result<_, _>>().expect("found");
    let spec: ImageSpec = "image?size=1x1".parse().expect("spec");
    let batches = [Batch::fixed(3, [1, 1, 3]).expect("batch"), Batch::new(1, 1 << 20)];
    let slots = [
        ClipSlots { clip: &found[0], batch: &batches[0], first: 1 },
        ClipSlots { clip: &found[1], batch: &batches[1], first: 0 },
    ];
    let outcomes = client.clips(&slots, &spec, &Default::default()).await;
    assert!(outcomes.iter().flatten().all(Result::is_ok), "{outcomes:?}");
    let blocks: Vec<Vec<u8>> = batches.map(|batch| batch.finish().block().expect("block").1.to_vec()).into();
    assert_eq!(blocks, [vec![0, 0, 0, 1, 9, 7, 1, 8, 7], vec![2, 7, 7]]);
}

/// Promise: clips of one size are known to be before they come; planes are not.
#[test]
fn shapes_are_known_before() {
    let facts = |orientation| {
        let (_, payload) = stat(0, "s3://abc/v0");
        let media: StatPayload = codec::decode(&payload).expect("facts");
        let media = StatPayload { orientation, ..media };
        let version = crate::Version::new("v").expect("version");
        crate::client::ObjectFacts { version, size: 1, media, mode: String::new(), frames: None, video: None, refused: None }
    };
    let shape = |orientation, text: &str| facts(orientation).shape(&text.parse().expect("spec"));
    assert_eq!(shape(1, "image"), Some([4, 8, 3]));
    assert_eq!(shape(1, "image?short=2"), Some([2, 4, 3]));
    assert_eq!(shape(6, "image?short=2&orientation=apply&layout=chw"), Some([3, 4, 2]));
    assert_eq!(shape(1, "image?size=5x6"), Some([6, 5, 3]));
    assert_eq!(shape(1, "image?crop=9"), Some([9, 9, 3]), "whatever becomes of a frame that is smaller");
    let planes = ImageSpec { layout: crate::frame::Layout::Planes, ..ImageSpec::default() };
    assert_eq!(facts(1).shape(&planes), None);
}
