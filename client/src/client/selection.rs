//! Which frames of a video a selection comes to: its owner has the index.

use tokio::time::Instant;

use super::known::Chosen;
use super::{Call, Client};
use crate::error::{Error, ErrorKind};
use crate::object::{ObjectId, RouteKey, Version};
use crate::spec::Selector;
use crate::wire::{FrameRow, IndexBody, IndexKind, SelectedPayload, Verb};

/// The frames that a selection comes to in one version of a video.
#[derive(Clone, Debug, PartialEq)]
pub struct Selected {
    /// The video's version.
    pub version: Version,
    /// The frames, in the order in which they are wanted; as often as they are.
    pub frames: Vec<FrameRow>,
    /// Frames of the whole video.
    pub total: u64,
}

impl Client {
    /// Finds the frames of a video, of its best stream or of `stream`, that `selector` means: their indices, when they are shown, and for
    /// how long. `version` pins the version; without it the current one is asked. The frames themselves are [`Client::frames`]', by these
    /// indices and that version.
    ///
    /// # Errors
    /// `OutOfRange` for a frame or a time that the video does not have, with what would be right; `Unsupported` for what is no video; and
    /// otherwise as [`Client::stat`].
    pub async fn select(
        &self,
        id: &ObjectId,
        version: Option<&Version>,
        selector: &Selector,
        stream: Option<u32>,
        call: &Call,
    ) -> Result<Selected, Error> {
        self.select_by((id, version), selector, stream, call, self.deadline(call)).await
    }

    pub(super) async fn select_by(
        &self,
        (id, version): (&ObjectId, Option<&Version>),
        selector: &Selector,
        stream: Option<u32>,
        call: &Call,
        deadline: Instant,
    ) -> Result<Selected, Error> {
        let kind = IndexKind::Selected { frames: selector.clone(), stream }.to_string();
        let body = &IndexBody { uri: id.to_string(), kind, start: 0, count: 0 };
        let pin = version.map_or("", Version::as_str);
        let ask = |chosen: Chosen| async move {
            let mut reply = self.ask(&chosen, Verb::Index, body, pin, call, deadline).await?;
            let item = reply.next().await?.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the reply is empty"))?;
            if let Some(error) = Error::from_item(&item) {
                return Err(error.from_node(chosen.link.name(), 1));
            }
            let found = Version::new(&item.version).map_err(|e| protocol(&e.to_string()));
            let answer: SelectedPayload = reply.message(&item).await?;
            let checked = found.and_then(|found| check(&answer, selector).map(|()| found));
            let version = checked.map_err(|error| error.from_node(chosen.link.name(), 1))?;
            Ok(Selected { version, frames: answer.frames, total: answer.total })
        };
        self.until_answered(RouteKey::picture(id), call, deadline, ask).await.map_err(|error| error.about(id))
    }
}

/// As many as are wanted, and those that are, where the request itself says which.
fn check(answer: &SelectedPayload, selector: &Selector) -> Result<(), Error> {
    let found = answer.frames.len();
    let is_right = match selector {
        Selector::Frames(frames) => {
            let is = |(row, &frame): (&FrameRow, &i64)| match u64::try_from(frame) {
                Ok(frame) => row.frame == frame,
                Err(_) => answer.total - row.frame == frame.unsigned_abs(),
            };
            frames.len() == found && answer.frames.iter().zip(frames).all(is)
        }
        Selector::At(times) => times.len() == found,
        Selector::Uniform(count) => *count as usize == found,
        Selector::Range { .. } => answer.frames.is_sorted_by_key(|row| row.frame),
    };
    if is_right { Ok(()) } else { Err(protocol("frames that the selection does not mean")) }
}

fn protocol(message: &str) -> Error {
    Error::new(ErrorKind::Protocol, message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::ClientConfig;
    use crate::fake::{Authority, FakeNode, Script, refusal, script};
    use crate::view::View;
    use crate::wire::codec::{self, PREFIX_BYTES};
    use crate::wire::{ItemHead, Status};

    async fn asked(script: Script, text: &str) -> (Result<Selected, Error>, FakeNode) {
        let (authority, view) = (Authority::new(), Arc::new(Mutex::new(View::default())));
        let node = FakeNode::start(&authority, "a", &["a", "127.0.0.1"], view.clone(), script).await;
        view.lock().merge(node.row.clone()).expect("merge");
        let config = ClientConfig { tls: authority.trust(), ..ClientConfig::new(&node.row.quic) };
        let client = Client::new(config).expect("client");
        let (id, version) = (ObjectId::new("abc", "v.mp4").expect("id"), Version::new("\"v\"").expect("version"));
        let found = client.select(&id, Some(&version), &text.parse().expect("selector"), None, &Call::default()).await;
        (found, node)
    }

    fn rows(frames: &[u64], total: u64) -> SelectedPayload {
        let row = |&frame: &u64| FrameRow { frame, pts_seconds: frame as f64 / 8.0, duration_seconds: 0.125, starts: frame == 0 };
        SelectedPayload { frames: frames.iter().map(row).collect(), total }
    }

    /// Promise: the owner is asked what a selection comes to, of the pinned version; a node that is busy is asked again.
    #[tokio::test]
    async fn the_owner_is_asked() {
        let refusals = Arc::new(Mutex::new(1));
        let answer = script(move |_, body| {
            let busy = std::mem::take(&mut *refusals.lock()) > 0;
            async move {
                let body: IndexBody = codec::decode(&body).expect("body");
                assert_eq!((&*body.uri, &*body.kind, body.start, body.count), ("s3://abc/v.mp4", "video?at=0.5,0.125", 0, 0));
                if busy {
                    return refusal(Status::Busy);
                }
                let archive = codec::encode(&rows(&[4, 1], 9)).expect("encode").split_off(PREFIX_BYTES);
                vec![(ItemHead { last: true, version: "\"v\"".into(), ..ItemHead::default() }, archive)]
            }
        });
        let (found, node) = asked(answer, "video?at=0.50,0.125").await;
        let found = found.expect("frames");
        assert_eq!((found.version.as_str(), found.total, found.frames), ("\"v\"", 9, rows(&[4, 1], 9).frames));
        let asked = node.asked.lock();
        assert_eq!(asked.len(), 2);
        assert!(asked.iter().all(|header| (header.verb, &*header.version) == (Verb::Index as u16, "\"v\"")));
    }

    /// Promise: what the video does not have is said once, and not asked for elsewhere.
    #[tokio::test]
    async fn outside_is_final() {
        let (found, node) = asked(script(|_, _| async { refusal(Status::OutOfRange) }), "video?at=99").await;
        let error = found.expect_err("outside");
        assert_eq!(error.kind, ErrorKind::OutOfRange);
        assert_eq!(node.asked.lock().len(), 1);
    }

    /// Promise: frames that the selection cannot mean are a broken node's, and are not handed on.
    #[test]
    fn answers_are_of_the_selection() {
        let of = |text: &str, frames: &[u64], total| check(&rows(frames, total), &text.parse().expect("selector")).is_ok();
        assert!(of("video?frames=3,-1,0", &[3, 8, 0], 9));
        assert!(!of("video?frames=3,-1,0", &[3, 7, 0], 9));
        assert!(!of("video?frames=3,-1,0", &[3, 8], 9));
        assert!(!of("video?frames=-9223372036854775808", &[0], 9));
        assert!(of("video?at=1,1", &[3, 3], 9) && !of("video?at=1,1", &[3], 9));
        assert!(of("video?uniform=2", &[0, 8], 9) && !of("video?uniform=2", &[0], 9));
        assert!(of("video", &[0, 1, 1], 2) && of("video", &[], 2) && !of("video", &[1, 0], 2));
    }
}
