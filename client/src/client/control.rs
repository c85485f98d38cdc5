//! What is not bytes or pixels: the view, listings, facts, explanations.

use tokio::time::Instant;

use super::known::Chosen;
use super::{Call, Client, Tries};
use crate::ask::Reply;
use crate::error::{Error, ErrorKind};
use crate::object::{ObjectId, RouteKey, Version, unescaped};
use crate::pool::Target;
use crate::spec::{ImageSpec, VideoSpec};
use crate::wire::{
    ExplainBody, ExplainPayload, ItemHead, ListBody, ListPayload, ListRow, NodeRow, ObjectsBody, StatPayload, Verb, VideoFacts,
    codec, ext,
};

/// One page of a listing.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Objects, in key order.
    pub rows: Vec<ObjectRow>,
    /// What to pass as `after` for the next page; `None` after the last.
    pub next: Option<String>,
}

/// One object of a listing.
#[derive(Clone, Debug)]
pub struct ObjectRow {
    /// Its address.
    pub id: ObjectId,
    /// Bytes.
    pub size: u64,
    /// Version.
    pub version: String,
}

/// What is known of an object without its bytes.
#[derive(Clone, Debug)]
pub struct ObjectFacts {
    /// Version.
    pub version: Version,
    /// Bytes.
    pub size: u64,
    /// Format and size of the picture, if it is one.
    pub media: StatPayload,
    /// Pillow's `Image.mode` of it; empty if it is no picture.
    pub mode: String,
    /// Frames or pages, where the first bytes tell.
    pub frames: Option<u32>,
    /// What is known of the video, if it is one.
    pub video: Option<VideoFacts>,
    /// Why it is no picture and no video, if it is none.
    pub refused: Option<Error>,
}

/// What a request for facts says of the stream that they are to be of.
pub(super) fn stat_spec(stream: Option<u32>) -> String {
    stream.map_or(String::new(), |_| VideoSpec::at(0, ImageSpec::of_stream(stream)).to_string())
}

/// What [`ext::REFUSED`] says.
fn refusal(said: &[u8]) -> Option<Error> {
    let (status, words) = said.split_first_chunk()?;
    let words = &words[..words.len().min(ext::REFUSED_BYTES_MAX)];
    let message = String::from_utf8_lossy(words).into_owned();
    Error::from_item(&ItemHead { status: u16::from_le_bytes(*status), message, ..ItemHead::default() })
}

impl ObjectFacts {
    /// Itself, if it speaks of that stream: a node of an older release speaks of the best one.
    pub(super) fn of_stream(self, id: &ObjectId, stream: u32) -> Result<Self, Error> {
        match self.video.as_ref().and_then(VideoFacts::stream) == Some(stream) {
            true => Ok(self),
            false => {
                Err(Error::new(ErrorKind::Unsupported, format!("no stream {stream}: not a video, or an older node")).about(id))
            }
        }
    }

    /// From an item of a reply to `Stat`.
    pub(super) async fn receive(item: &ItemHead, reply: &mut Reply) -> Result<Self, Error> {
        if let Some(error) = Error::from_item(item) {
            return Err(error);
        }
        let version = Version::new(&item.version).map_err(|e| protocol(e.to_string()))?;
        let mode = item.addition(ext::MODE).map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        let frames = item.addition(ext::FRAMES).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let video = item.addition(ext::VIDEO).map(codec::decode).transpose().map_err(|e| protocol(e.to_string()))?;
        let refused = item.addition(ext::REFUSED).and_then(refusal);
        Ok(Self { version, size: item.size, media: reply.message(item).await?, mode, frames, video, refused })
    }
}

impl Client {
    /// The cluster's nodes, as the node that was asked knows them.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`; `Invalid` if the trust is wrong.
    pub async fn nodes(&self, call: &Call) -> Result<Vec<NodeRow>, Error> {
        let deadline = self.deadline(call);
        // No key: every node answers alike.
        let mut tries = Tries::new(RouteKey(0));
        loop {
            match self.fetch(call, deadline).await {
                Ok(known) => return Ok(known.topology.view().rows().cloned().collect()),
                Err(error) => tries.failed(self, error, None, deadline).await?,
            }
        }
    }

    /// One page of the objects whose address begins with `prefix` (`s3://bucket/` and any beginning of a key, escaped as in an
    /// address). Keys that no address can name are left out, so that a page may be short, or empty, and still have a `next`.
    ///
    /// # Errors
    /// `NotConfigured`, `Denied`, `Invalid`; `Busy`, `Timeout`, `Unavailable`.
    pub async fn list(&self, prefix: &str, after: Option<&str>, limit: u32, call: &Call) -> Result<Listing, Error> {
        let parts = prefix.strip_prefix("s3://").and_then(|rest| rest.split_once('/'));
        let (bucket, beginning) =
            parts.ok_or_else(|| Error::new(ErrorKind::Invalid, format!("{prefix:?} is no prefix: want s3://bucket/")))?;
        let any = ObjectId::new(bucket, "-").map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))?;
        let prefix = format!("s3://{bucket}/{}", unescaped(beginning));
        let body = &ListBody { prefix, after: after.unwrap_or("").into(), limit };
        let deadline = self.deadline(call);
        let ask = |chosen: Chosen| async move {
            let page: ListPayload = self.ask(&chosen, Verb::List, body, "", call, deadline).await?.control().await?;
            check_order(&page, &body.after).map_err(|error| error.from_node(chosen.link.name(), 1))?;
            Ok(page)
        };
        let page = self.until_answered(RouteKey::object(&any), call, deadline, ask).await?;
        let next = page.rows.last().filter(|_| page.more).map(|row| row.key.clone());
        let row =
            |row: ListRow| Some(ObjectRow { id: ObjectId::new(bucket, &row.key).ok()?, size: row.size, version: row.version });
        Ok(Listing { rows: page.rows.into_iter().filter_map(row).collect(), next })
    }

    /// Version, size and media facts of an object.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub async fn stat(&self, id: &ObjectId, call: &Call) -> Result<ObjectFacts, Error> {
        self.stat_by(id, None, call, self.deadline(call)).await
    }

    /// The same of one stream of a video's container, by its index there.
    ///
    /// # Errors
    /// As [`Client::stat`]; `Unsupported`, naming those that there are, where it is none of its video streams.
    pub async fn stat_stream(&self, id: &ObjectId, stream: u32, call: &Call) -> Result<ObjectFacts, Error> {
        self.stat_by(id, Some(stream), call, self.deadline(call)).await?.of_stream(id, stream)
    }

    pub(super) async fn stat_by(
        &self,
        id: &ObjectId,
        stream: Option<u32>,
        call: &Call,
        deadline: Instant,
    ) -> Result<ObjectFacts, Error> {
        let body = &ObjectsBody { uris: vec![id.to_string()], spec: stat_spec(stream) };
        let ask = |chosen: Chosen| async move {
            let mut reply = self.ask(&chosen, Verb::Stat, body, "", call, deadline).await?;
            let item = reply.next().await?.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the reply is empty"))?;
            ObjectFacts::receive(&item, &mut reply).await.map_err(|error| error.from_node(chosen.link.name(), 1))
        };
        self.until_answered(RouteKey::picture(id), call, deadline, ask).await.map_err(|error| error.about(id))
    }

    /// Who owns an object, where it is cached and why, as lines of name and value. `spec` empty: its raw bytes.
    ///
    /// # Errors
    /// As [`Client::read`]; a missing object is a line, not an error.
    pub async fn explain(&self, id: &ObjectId, spec: &str, call: &Call) -> Result<Vec<(String, String)>, Error> {
        let body = &ExplainBody { uri: id.to_string(), spec: spec.into() };
        let deadline = self.deadline(call);
        let ask = |chosen: Chosen| async move {
            let said: ExplainPayload = self.ask(&chosen, Verb::Explain, body, "", call, deadline).await?.control().await?;
            Ok(said.lines)
        };
        self.until_answered(RouteKey::picture(id), call, deadline, ask).await.map_err(|error| error.about(id))
    }

    /// A node about itself, as lines of name and value.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`, `Denied`.
    pub async fn node_status(&self, node: &NodeRow, call: &Call) -> Result<Vec<(String, String)>, Error> {
        let chosen = Chosen::only(self.inner.pool.link(&Target::node(&node.id, &node.quic))?);
        let body = ExplainBody { uri: String::new(), spec: String::new() };
        let deadline = self.deadline(call);
        let payload: ExplainPayload = self.ask(&chosen, Verb::Explain, &body, "", call, deadline).await?.control().await?;
        Ok(payload.lines)
    }
}

/// Keys ascend, and go on after the page before. A listing would else go round for ever, or end short without a word.
fn check_order(page: &ListPayload, after: &str) -> Result<(), Error> {
    if page.more && page.rows.is_empty() {
        return Err(protocol("a page of a listing is empty, and not the last"));
    }
    let mut last = after;
    for row in &page.rows {
        if row.key.as_str() <= last {
            return Err(protocol(format!("a listing goes from {last:?} to {:?}", row.key)));
        }
        last = &row.key;
    }
    Ok(())
}

fn protocol(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a cluster of which no node answers yet is asked again by every verb, until the deadline.
    #[tokio::test]
    async fn no_node_yet_is_asked_again() {
        // A port that nothing can be sent to: it fails at once.
        let mut config = crate::ClientConfig::new("127.0.0.1:0");
        config.tls.ca = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ca.pem").into());
        let client = Client::new(config).expect("client");
        let call = Call { timeout: Some(std::time::Duration::from_millis(500)), ..Call::default() };
        let id = ObjectId::new("abc", "k").expect("id");
        let errors = [
            client.stat(&id, &call).await.map(drop).expect_err("stat"),
            client.list("s3://abc/", None, 1, &call).await.map(drop).expect_err("list"),
            client.explain(&id, "", &call).await.map(drop).expect_err("explain"),
            client.nodes(&call).await.map(drop).expect_err("nodes"),
            client.read(&id, 0, None, &call).await.map(drop).expect_err("read"),
        ];
        for error in errors {
            assert!(error.kind == ErrorKind::Unavailable && error.attempt > 1, "{error:?}");
        }
    }

    /// Promise: no node can make a listing endless, or cut it unseen.
    #[test]
    fn a_listing_goes_forward() {
        let page = |keys: &[&str], more| {
            let row = |key: &&str| ListRow { key: (*key).into(), size: 1, version: "v".into() };
            ListPayload { rows: keys.iter().map(row).collect(), more }
        };
        for (keys, more, after) in [(&["a", "b"][..], true, ""), (&["b"], false, "a"), (&[], false, "a"), (&[], false, "")] {
            assert!(check_order(&page(keys, more), after).is_ok(), "{keys:?} after {after:?}");
        }
        for (keys, more, after) in
            [(&["a"][..], true, "a"), (&["a"], false, "b"), (&["b", "a"], true, ""), (&["a", "a"], false, ""), (&[], true, "")]
        {
            let error = check_order(&page(keys, more), after).expect_err("goes back");
            assert_eq!(error.kind, ErrorKind::Protocol, "{keys:?} after {after:?}");
        }
    }
}
