//! Golden bytes: no release changes what is on the wire unseen.

use super::codec::{Message, decode, encode};
use super::*;

/// Every message with every field set to something that is not its default.
fn lines() -> Vec<(String, Vec<u8>)> {
    let trace = Trace { trace_id: *b"0123456789abcdef", span_id: *b"01234567", flags: 1 };
    let header = Header {
        verb: 2,
        class: 1,
        deadline_ms_left: 30_000,
        trace,
        caller: "train-7".into(),
        on_behalf_of: "team".into(),
        version: "\"9a0364b9e99bb480dd25e1f0284c8555\"".into(),
        ext: vec![(1, b"one".to_vec()), (9, vec![])],
    };
    let uri = || "s3://bucket/a/b.jpg".to_owned();
    let ask = FrameAsk { index: 3, attempt: 1, spec: 0, uri: uri(), version: "\"v\"".into() };
    let tensor = TensorItem { shape: [224, 224, 3], dtype: 0, layout: 0, orientation: 6, source: [500, 375], pts_seconds: 1.5 };
    let item = ItemHead {
        index: 3,
        attempt: 1,
        status: 0,
        last: true,
        payload_bytes: 150_528,
        offset: 7,
        size: 97_000,
        version: "\"v\"".into(),
        retry_after_ms: 20,
        message: "why".into(),
        tensor: Some(tensor),
        ext: vec![(2, vec![255])],
    };
    let row = NodeRow {
        id: "node-0".into(),
        quic: "10.0.0.1:4433".into(),
        weight: 200,
        held_weight: 300,
        incarnation: 5,
        version: 6,
        state: 1,
        ramp: 64,
        settled: true,
        roles: vec!["cache".into()],
        ext: vec![(3, b"three".to_vec())],
    };
    vec![
        line(&header),
        line(&ReadBody { uri: uri(), start: 1 << 20, length: 65_536 }),
        line(&FramesBody { specs: vec!["image?short=256&crop=224".into()], items: vec![ask] }),
        line(&DecodeBody { uri: uri(), unit: 250, specs: vec!["image".into()] }),
        line(&PeekBody { uri: uri(), index: 4, spec: "image".into() }),
        line(&ObjectsBody { uris: vec![uri()], spec: "image".into() }),
        line(&ListBody { prefix: "s3://bucket/a".into(), after: "a/a.jpg".into(), limit: 1000 }),
        line(&IndexBody { uri: uri(), kind: "tar".into(), start: 1, count: 2 }),
        line(&ViewBody { known: 77 }),
        line(&PlanBody { loader: 8, uris: vec![uri()], spec: "image".into() }),
        line(&KeepBody { uri: uri(), action: 1 }),
        line(&ExplainBody { uri: uri(), spec: "image".into() }),
        line(&AuthBody { token: "token".into() }),
        line(&item),
        line(&ViewPayload { view_id: 9, nodes: vec![row] }),
        line(&ListPayload { rows: vec![ListRow { key: "a/b.jpg".into(), size: 1, version: "\"v\"".into() }], more: true }),
        line(&StatPayload { format: "jpeg".into(), width: 500, height: 375, orientation: 6, decode_bytes: 562_500 }),
        line(&ExplainPayload { lines: vec![("owner".into(), "node-0".into())] }),
        line(&video()),
        line(&IndexPayload { total: 9, hash: 5, trust: 2, bytes: b"index".to_vec() }),
        line(&SelectedPayload {
            frames: vec![FrameRow { frame: 3, pts_seconds: 0.125, duration_seconds: 0.04, starts: true }],
            total: 7,
        }),
    ]
}

fn video() -> VideoFacts {
    VideoFacts {
        codec: "h264".into(),
        pix_fmt: "yuv420p".into(),
        width: 1920,
        height: 1080,
        rotation: -90,
        frames: 300,
        header_frames: Some(301),
        average_fps: (30_000, 1001),
        time_base: (1, 90_000),
        begin_seconds: 0.5,
        end_seconds: 10.51,
        duration_seconds: 10.01,
        size: 1 << 33,
        keyframes: 4,
        matrix: 1,
        range: 0,
        primaries: 9,
        transfer: 16,
        trust: 2,
        damaged: true,
        pts_synthesized: true,
        ext: vec![(1, b"one".to_vec())],
    }
}

fn line<T>(message: &T) -> (String, Vec<u8>)
where
    T: Message
        + PartialEq
        + std::fmt::Debug
        + for<'a> rkyv::Serialize<
            rkyv::api::high::HighSerializer<rkyv::util::AlignedVec, rkyv::ser::allocator::ArenaHandle<'a>, rkyv::rancor::Error>,
        >,
    T::Archived: for<'a> rkyv::bytecheck::CheckBytes<rkyv::api::high::HighValidator<'a, rkyv::rancor::Error>>
        + rkyv::Deserialize<T, rkyv::api::high::HighDeserializer<rkyv::rancor::Error>>,
{
    let bytes = encode(message).expect("encode");
    assert_eq!(&decode::<T>(&bytes[4..]).expect("decode"), message);
    (T::NAME.replace(' ', "-"), bytes)
}

/// Promise: the bytes of every message are those of the file. It may change only alone, with the reason.
#[test]
fn messages_are_golden() {
    let golden = include_str!("../../../tests/golden/wire.txt");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let made: String = lines().iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
    assert!(golden == made, "the wire changed; the new bytes would be:\n{made}");
}
