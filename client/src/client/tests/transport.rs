//! Frames that travel as planes: what is made of them, and what becomes of those that have none.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::batch::Batch;
use crate::client::Transport;
use crate::error::ErrorKind;
use crate::fake::{Authority, FakeNode, Item, script};
use crate::frame::{Dtype, Layout, TensorHead};
use crate::pixels::yuv::{self, Format, Matrix, Range};
use crate::view::View;
use crate::wire::codec;
use crate::wire::{FrameAsk, FramesBody, ItemHead, Status};
use crate::{Call, Client, ClientConfig, DecodeSpec, Error, ImageSpec, ObjectId, Version};

const SIZE: (u32, u32) = (5, 3);
const FORMAT: Format = Format { bits: 8, shift: (1, 1), matrix: Matrix::Bt709, range: Range::Full };

/// Planes of 4:2:0, 15 samples of luma and 6 of each chroma.
fn planes(frame: u64) -> Vec<u8> {
    (0..15 + 2 * 6).map(|at| (frame * 40 + at * 9) as u8).collect()
}

fn rgb(frame: u64) -> Vec<u8> {
    let mut out = vec![0; 45];
    yuv::rgb(&FORMAT.packed(&planes(frame), 5, 3).expect("planes"), &mut out).expect("planes");
    out
}

/// What a node that gives those planes says of a frame: of an odd one as if they were of another format, or of none that is known.
fn answered(ask: &FrameAsk, spec: &DecodeSpec) -> Item {
    let frame = spec.frame().expect("one frame");
    let head = ItemHead { index: ask.index, attempt: ask.attempt, last: true, version: "v".into(), ..ItemHead::default() };
    let look = TensorHead {
        shape: [3, 5, 3],
        dtype: Dtype::U8,
        layout: Layout::Hwc,
        source: SIZE,
        orientation: 1,
        pts_seconds: 0.5,
        format: None,
    };
    if spec.image().layout != Layout::Planes {
        return (head.with_tensor(&look), rgb(frame));
    }
    let format = match frame {
        1 => Some(Format { shift: (1, 0), ..FORMAT }),
        3 => None,
        5 => return (ItemHead { status: Status::Unsupported as u16, ..head }, Vec::new()),
        _ => Some(FORMAT),
    };
    let look = TensorHead { shape: [1, 1, 27], layout: Layout::Planes, format, ..look };
    (head.with_tensor(&look), planes(frame))
}

/// The frames, by that transport and spec; how often each was asked for, by its spec.
async fn asked(frames: &[u64], spec: &str, transport: Transport) -> (Vec<Result<Vec<u8>, Error>>, Vec<String>) {
    let (authority, view, asked) = (Authority::new(), Arc::new(Mutex::new(View::default())), Arc::new(Mutex::new(Vec::new())));
    let heard = asked.clone();
    let answer = script(move |_, body| {
        let body: FramesBody = codec::decode(&body).expect("body");
        let specs: Vec<DecodeSpec> = body.specs.iter().map(|spec| spec.parse().expect("spec")).collect();
        heard.lock().extend(body.items.iter().map(|ask| body.specs[usize::from(ask.spec)].clone()));
        let items = body.items.iter().map(|ask| answered(ask, &specs[usize::from(ask.spec)])).collect();
        async move { items }
    });
    let node = FakeNode::start(&authority, "a", &["a", "127.0.0.1"], view.clone(), answer).await;
    view.lock().merge(node.row.clone()).expect("merge");
    let config = ClientConfig { tls: authority.trust(), ..ClientConfig::new(&node.row.quic) };
    let client = Client::new(config).expect("client");
    let (id, version) = (ObjectId::new("abc", "v.mp4").expect("id"), Version::new("v").expect("version"));
    let spec: ImageSpec = spec.parse().expect("spec");
    let batch = Batch::fixed(frames.len(), [3, 5, 3]).expect("batch");
    let call = Call { transport, ..Call::default() };
    let outcomes = client.frames((&id, &version), frames, &spec, &batch, &call).await;
    let pictures = batch.finish();
    let pixels = |index: usize| pictures.pixels(index).map(<[u8]>::to_vec).unwrap_or_default();
    let outcomes = outcomes.into_iter().enumerate().map(|(index, outcome)| outcome.map(|_| pixels(index))).collect();
    let asked = asked.lock().clone();
    (outcomes, asked)
}

/// Promise: planes become the RGB that the node would have sent; where they are of another format, or it does not say of which, or has
/// none, the frame is asked for as RGB, once, and those that came are not.
#[tokio::test]
async fn planes_become_rgb_here() {
    let frames = [0, 1, 2, 3, 4, 5, 2];
    let (made, asked) = asked(&frames, "image?damaged=keep", Transport::Yuv420).await;
    for (frame, made) in frames.iter().zip(&made) {
        assert_eq!(made.as_ref().ok(), Some(&rgb(*frame)), "frame {frame}");
    }
    let (planes, others): (Vec<&String>, Vec<&String>) = asked.iter().partition(|spec| spec.contains("layout=planes"));
    assert_eq!(planes.len(), frames.len());
    assert_eq!(others, [1, 3, 5].map(|frame| format!("video?frames={frame}&damaged=keep")).iter().collect::<Vec<_>>());
}

/// Promise: what is made in the cluster, and all that is asked for by the usual transport, never travels as planes.
#[tokio::test]
async fn only_whole_frames_travel_as_planes() {
    for (spec, transport) in [("image", Transport::Rgb), ("image?size=5x3", Transport::Yuv420)] {
        let (made, asked) = asked(&[2], spec, transport).await;
        assert_eq!(made[0].as_ref().map_err(|error| error.kind.clone()), Ok::<_, ErrorKind>(&rgb(2)));
        assert!(asked.len() == 1 && !asked[0].contains("planes"), "{asked:?}");
    }
}
