//! Decoded pictures and frames: what is wanted, and how it is put into requests.

use std::collections::HashMap;

use super::known::Chosen;
use super::{Call, Client, Tries};
use crate::batch::Batch;
use crate::error::{Error, ErrorKind};
use crate::frame::{Layout, TensorHead};
use crate::object::{ObjectId, Version};
use crate::spec::{DecodeSpec, ImageSpec, VideoSpec};
use crate::wire::{BODY_BYTES_MAX, FrameAsk, FramesBody, Via};

/// Pictures of one request. Fewer than the protocol allows, so that a request stays small against the windows and several of
/// them overlap.
const REQUEST_ITEMS: usize = 256;

/// Bytes of one request's pictures, by [`ask_bytes`]: half of what a body may have. The longest address takes some 7 KiB of it, so
/// that each picture fits into a request.
const REQUEST_BYTES: usize = BODY_BYTES_MAX / 2;

/// How one picture of a batch ended: its version, or why there is none.
pub type Outcome = Result<Version, Error>;

/// One picture that is still wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) index: usize,
    pub(super) tries: Tries,
}

impl Want {
    /// Its try, as the wire has it.
    pub(super) fn attempt(&self) -> u16 {
        u16::try_from(self.tries.attempt).unwrap_or(u16::MAX)
    }
}

impl Client {
    /// Decodes `ids` by `spec` into `batch`, slot by slot in the same order. One bad picture costs one slot.
    ///
    /// # Errors
    /// Per slot: `NotFound`, `Denied`, `Undecodable`, `Unsupported`, `TooLarge`, `Changed`; and what could not be had before the
    /// deadline: `Busy`, `Timeout`, `Unavailable`. `Invalid` for a picture that does not fit an `out` buffer.
    pub async fn images(&self, ids: &[ObjectId], spec: &ImageSpec, batch: &Batch, call: &Call) -> Vec<Outcome> {
        let spec = spec.clone().into();
        let slot = |(at, id)| Slot { id, spec: &spec, version: "", batch, at, converted: false };
        let slots: Vec<Slot<'_>> = ids.iter().enumerate().map(slot).collect();
        self.slots(&slots, vec![None; slots.len()], call, self.deadline(call)).await
    }

    /// Frames of the animation `id` as it was found to be, by index from 0, each made as `spec` says; slot by slot in the same order.
    ///
    /// # Errors
    /// As [`Client::images`]; `OutOfRange` for a frame that is not there, `Changed` where the animation was replaced.
    pub async fn frames(
        &self,
        (id, version): (&ObjectId, &Version),
        frames: &[u64],
        spec: &ImageSpec,
        batch: &Batch,
        call: &Call,
    ) -> Vec<Outcome> {
        let wanted = |(at, &frame)| Framed { id, version, frame, batch, at, transport: call.transport };
        let wanted: Vec<Framed<'_>> = frames.iter().enumerate().map(wanted).collect();
        self.framed(&wanted, spec, call).await
    }

    /// Decodes frames of videos and animations, each into its slot.
    pub(super) async fn framed(&self, wanted: &[Framed<'_>], spec: &ImageSpec, call: &Call) -> Vec<Outcome> {
        let deadline = self.deadline(call);
        let planes = ImageSpec { layout: Layout::Planes, ..spec.clone() };
        let is_converted = |framed: &Framed<'_>| framed.transport == Transport::Yuv420 && spec.is_rgb_as_stored();
        let spec_of = |framed: &Framed<'_>, converted| {
            VideoSpec::at(framed.frame, if converted { planes.clone() } else { spec.clone() }).into()
        };
        let specs: Vec<DecodeSpec> = wanted.iter().map(|framed| spec_of(framed, is_converted(framed))).collect();
        let slots: Vec<Slot<'_>> =
            wanted.iter().zip(&specs).map(|(framed, spec)| framed.slot(spec, is_converted(framed))).collect();
        let made = self.slots(&slots, vec![None; slots.len()], call, deadline).await;
        let has_none = |slot: &Slot<'_>, made: &Outcome| {
            slot.converted && made.as_ref().is_err_and(|error| error.kind == ErrorKind::Unsupported)
        };
        if !slots.iter().zip(&made).any(|(slot, made)| has_none(slot, made)) {
            return made;
        }
        // What has no such planes is asked for once more, as it is otherwise.
        let again = |(slot, made): (&Slot<'_>, Outcome)| {
            if !has_none(slot, &made) {
                return Some(made);
            }
            slot.batch.reopen(slot.at);
            None
        };
        let known = slots.iter().zip(made).map(again).collect();
        let specs: Vec<DecodeSpec> = wanted.iter().map(|framed| spec_of(framed, false)).collect();
        let slots: Vec<Slot<'_>> = wanted.iter().zip(&specs).map(|(framed, spec)| framed.slot(spec, false)).collect();
        self.slots(&slots, known, call, deadline).await
    }
}

/// How frames of a video travel, where they are wanted as RGB of their own size. The pixels are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// As RGB, three bytes a pixel.
    #[default]
    Rgb,
    /// As planes of 4:2:0, which the nodes keep too: one and a half bytes a pixel, made into RGB here. It pays where the network or the
    /// cluster's memory is the bound and this process has CPU time to spare. Frames of other formats travel as RGB.
    Yuv420,
}

/// One frame that is wanted, and where it goes.
#[derive(Clone, Copy)]
pub(super) struct Framed<'a> {
    pub(super) id: &'a ObjectId,
    pub(super) version: &'a Version,
    pub(super) frame: u64,
    pub(super) batch: &'a Batch,
    /// Its slot in that batch.
    pub(super) at: usize,
    pub(super) transport: Transport,
}

impl<'a> Framed<'a> {
    fn slot(&self, spec: &'a DecodeSpec, converted: bool) -> Slot<'a> {
        let Self { id, version, batch, at, .. } = *self;
        Slot { id, spec, version: version.as_str(), batch, at, converted }
    }
}

/// What one slot is to hold, and where it lies.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    pub(super) id: &'a ObjectId,
    pub(super) spec: &'a DecodeSpec,
    /// Of this version; empty: the current one.
    pub(super) version: &'a str,
    pub(super) batch: &'a Batch,
    /// Its place in that batch.
    pub(super) at: usize,
    /// Whether it comes as planes, and is to hold RGB.
    pub(super) converted: bool,
}

impl<'a> Slot<'a> {
    /// Where it comes among what is asked for together: frames of a video by their order in it, since those that stand side by side there
    /// are decoded in one go; all else as it is given.
    pub(super) fn order(&self) -> Option<(&'a ObjectId, &'a str, u64)> {
        match self.spec {
            DecodeSpec::Video(video) => Some((self.id, self.version, video.frames.first().copied().unwrap_or(0))),
            DecodeSpec::Image(_) => None,
        }
    }
}

/// Pictures by the node that each asks next, in requests of bounded length.
#[derive(Default)]
pub(super) struct Groups {
    pub(super) made: Vec<(Chosen, Vec<Want>)>,
    /// Each node's group that may still grow: its place, and its bytes so far.
    open: HashMap<(u64, Via), (usize, usize)>,
}

impl Groups {
    pub(super) fn add(&mut self, chosen: Chosen, want: Want, bytes: usize) {
        let node = (chosen.link.number(), chosen.via);
        match self.open.get_mut(&node) {
            Some((place, sum)) if self.made[*place].1.len() < REQUEST_ITEMS && *sum + bytes <= REQUEST_BYTES => {
                *sum += bytes;
                let (chosen, wants) = &mut self.made[*place];
                chosen.load += 1;
                wants.push(want);
            }
            _ => {
                self.open.insert(node, (self.made.len(), bytes));
                self.made.push((chosen, vec![want]));
            }
        }
    }
}

/// Bytes that a slot takes in a request, or more: an escape at most doubles a key, a version and a spec of one frame have at most 256 each,
/// and the rest are fields of fixed length.
pub(super) fn ask_bytes(id: &ObjectId) -> usize {
    2 * id.key().len() + id.bucket().len() + id.member().map_or(0, str::len) + 64 + 2 * 256
}

/// The request for `wants`, each spec in it once.
pub(super) fn body(slots: &[Slot<'_>], wants: &[Want]) -> FramesBody {
    let mut specs = Vec::new();
    let mut places = HashMap::new();
    let mut item = |want: &Want| {
        let Slot { id, spec, version, .. } = slots[want.index];
        let place = *places.entry(spec).or_insert_with(|| {
            specs.push(spec.to_string());
            specs.len() - 1
        });
        FrameAsk {
            index: want.index as u32,
            attempt: want.attempt(),
            spec: place as u16,
            uri: id.to_string(),
            version: version.to_owned(),
        }
    };
    let items = wants.iter().map(&mut item).collect();
    FramesBody { specs, items }
}

/// The head, if the spec can have made it.
pub(super) fn of_spec(head: TensorHead, spec: &ImageSpec) -> Result<TensorHead, Error> {
    let channels = match head.layout {
        Layout::Hwc => head.shape[2],
        Layout::Chw => head.shape[0],
        Layout::Planes => head.shape[0].max(head.shape[1]),
    };
    let made = (head.layout, head.dtype, channels) == (spec.layout, spec.dtype, spec.channels());
    match made && spec.fixed_shape().is_none_or(|shape| shape == head.shape) {
        true => Ok(head),
        false => Err(protocol(&format!("a picture of shape {:?}, which the spec does not give", head.shape))),
    }
}

fn protocol(message: &str) -> Error {
    Error::new(ErrorKind::Protocol, message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::frame::Dtype;
    use crate::object::VERSION_BYTES_MAX;
    use crate::pool::{Naming, Pool, Target};
    use crate::quic::Machine;
    use crate::wire::codec;

    /// Promise: whatever the addresses, each request can be sent, and each picture is in one.
    #[test]
    fn requests_fit_their_bound() {
        let longest = ObjectId::new("abc", &"!/".repeat(512)).and_then(|id| id.with_member(&"m".repeat(4096))).expect("legal");
        let ids: Vec<ObjectId> =
            (0..1000).map(|i| if i % 2 == 0 { longest.clone() } else { "s3://abc/k".parse().expect("id") }).collect();
        let all = "box=11111,22222,33333,44444&max_pixels=4294967295&multiple=33333&crop=65535&flip=h&filter=bilinear&mode=rgb\
            &alpha=over:ffffff&depth=scale&layout=chw&orientation=apply&truncated=pad&profile=fast";
        let version = "v".repeat(VERSION_BYTES_MAX);
        let image: ImageSpec = format!("image?{}", all.replace("&depth=scale", "")).parse().expect("spec");
        let specs: Vec<DecodeSpec> = (0..1000).map(|frame| VideoSpec::at(u64::MAX - frame, image.clone()).into()).collect();
        assert!(specs.iter().all(|spec| spec.to_string().len() <= 256));
        let batch = Batch::new(0, 0);
        let slot = |(id, spec)| Slot { id, spec, version: &version, batch: &batch, at: 0, converted: false };
        let slots: Vec<Slot<'_>> = ids.iter().zip(&specs).map(slot).collect();
        let pool = Pool::new(Default::default(), Naming::Id, 1 << 30, Arc::new(Machine));
        let link = pool.link(&Target::node("n", "a:1")).expect("link");
        let mut groups = Groups::default();
        for (index, slot) in slots.iter().enumerate() {
            let want = Want { index, tries: Tries::new(slot.spec.route(slot.id)) };
            groups.add(Chosen::only(link.clone()), want, ask_bytes(slot.id));
        }
        let mut asked = 0;
        for (chosen, wants) in groups.made {
            assert!(wants.len() <= REQUEST_ITEMS && chosen.load == wants.len());
            asked += wants.len();
            codec::encode(&body(&slots, &wants)).expect("within its bound");
        }
        assert_eq!(asked, ids.len());
    }

    /// Promise: pixels that the spec cannot have made are a broken node's, and are not handed on.
    #[test]
    fn pictures_are_of_the_spec() {
        let of = |shape, text: &str| {
            let layout = Layout::Hwc;
            let head =
                TensorHead { shape, dtype: Dtype::U8, layout, source: (1, 1), orientation: 1, pts_seconds: 0.0, format: None };
            of_spec(head, &text.parse().expect("spec")).map(drop).map_err(|error| error.kind)
        };
        for (shape, spec) in [([2, 4, 3], "image?size=4x2"), ([2, 4, 3], "image"), ([2, 4, 1], "image?mode=gray")] {
            assert_eq!(of(shape, spec), Ok(()), "{spec}");
        }
        for (shape, spec) in [
            ([4, 2, 3], "image?size=4x2"),
            ([2, 4, 1], "image"),
            ([2, 4, 3], "image?alpha=keep"),
            ([3, 2, 4], "image?layout=chw"),
        ] {
            assert_eq!(of(shape, spec), Err(ErrorKind::Protocol), "{spec}");
        }
    }
}
