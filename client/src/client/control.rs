//! What is not bytes or pixels: the view, listings, facts, explanations.

use tokio::time::Instant;

use super::tries::Tries;
use super::{Call, Client, Target};
use crate::error::{Error, ErrorKind};
use crate::object::{ObjectId, RouteKey, Version};
use crate::pool::host_of;
use crate::view::View;
use crate::wire::{
    ExplainBody, ExplainPayload, ListBody, ListPayload, NodeRow, ObjectsBody, StatPayload, Verb, ViewBody, ViewPayload,
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
}

impl Client {
    /// The cluster's nodes, as the node that was asked knows them.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`; `Invalid` if the trust is wrong.
    pub async fn nodes(&self, call: &Call) -> Result<Vec<NodeRow>, Error> {
        self.doubt_topology();
        let topology = self.topology(call, self.deadline(call)).await?;
        Ok(topology.view.rows().cloned().collect())
    }

    /// One page of the objects whose address begins with `prefix` (`s3://bucket/` and any beginning of a key).
    ///
    /// # Errors
    /// `NotConfigured`, `Denied`, `Invalid`; `Busy`, `Timeout`, `Unavailable`.
    pub async fn list(&self, prefix: &str, after: Option<&str>, limit: u32, call: &Call) -> Result<Listing, Error> {
        let bucket = prefix.strip_prefix("s3://").and_then(|rest| rest.split_once('/')).map(|(bucket, _)| bucket);
        let bucket =
            bucket.ok_or_else(|| Error::new(ErrorKind::Invalid, format!("{prefix:?} is no prefix: want s3://bucket/")))?;
        let any = ObjectId::new(bucket, "-").map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))?;
        let body = ListBody { prefix: prefix.into(), after: after.unwrap_or("").into(), limit };
        let deadline = self.deadline(call);
        let mut tries = Tries::new(RouteKey::object(&any));
        let page: ListPayload = loop {
            let target = tries.target(self, call, deadline).await?;
            let page = async { self.ask(&target, Verb::List, &body, "", call, deadline).await?.control().await };
            match page.await {
                Ok(page) => break page,
                Err(error) => tries.failed(self, error, deadline).await?,
            }
        };
        let next = page.rows.last().filter(|_| page.more).map(|row| row.key.clone());
        let row = |row: crate::wire::ListRow| {
            let id = ObjectId::new(bucket, &row.key).map_err(|e| Error::new(ErrorKind::Protocol, e.to_string()))?;
            Ok(ObjectRow { id, size: row.size, version: row.version })
        };
        Ok(Listing { rows: page.rows.into_iter().map(row).collect::<Result<_, Error>>()?, next })
    }

    /// Version, size and media facts of an object.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub async fn stat(&self, id: &ObjectId, call: &Call) -> Result<ObjectFacts, Error> {
        let body = ObjectsBody { uris: vec![id.to_string()], spec: String::new() };
        let deadline = self.deadline(call);
        let mut tries = Tries::new(RouteKey::picture(id));
        loop {
            let target = tries.target(self, call, deadline).await?;
            let facts = async {
                let mut reply = self.ask(&target, Verb::Stat, &body, "", call, deadline).await?;
                let item = reply.next().await?.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the reply is empty"))?;
                if let Some(error) = Error::from_item(&item) {
                    return Err(error.from_node(&target.id, tries.attempt));
                }
                let version = Version::new(&item.version).map_err(|e| Error::new(ErrorKind::Protocol, e.to_string()))?;
                Ok(ObjectFacts { version, size: item.size, media: reply.message(&item).await? })
            };
            match facts.await {
                Ok(facts) => return Ok(facts),
                Err(error) => tries.failed(self, error, deadline).await.map_err(|e| e.about(id))?,
            }
        }
    }

    /// Who owns an object, where it is cached and why, as lines of name and value. `spec` empty: its raw bytes.
    ///
    /// # Errors
    /// As [`Client::read`]; a missing object is a line, not an error.
    pub async fn explain(&self, id: &ObjectId, spec: &str, call: &Call) -> Result<Vec<(String, String)>, Error> {
        let deadline = self.deadline(call);
        let tries = Tries::new(RouteKey::picture(id));
        let target = tries.target(self, call, deadline).await?;
        let body = ExplainBody { uri: id.to_string(), spec: spec.into() };
        let payload: ExplainPayload = self.ask(&target, Verb::Explain, &body, "", call, deadline).await?.control().await?;
        Ok(payload.lines)
    }

    /// A node about itself, as lines of name and value.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`, `Denied`.
    pub async fn node_status(&self, node: &NodeRow, call: &Call) -> Result<Vec<(String, String)>, Error> {
        let target = Target { id: node.id.clone(), address: node.quic.clone() };
        let body = ExplainBody { uri: String::new(), spec: String::new() };
        let deadline = self.deadline(call);
        let payload: ExplainPayload = self.ask(&target, Verb::Explain, &body, "", call, deadline).await?.control().await?;
        Ok(payload.lines)
    }

    /// The view that the node at `seed` has.
    pub(super) async fn view_from(&self, seed: &str, call: &Call, deadline: Instant) -> Result<View, Error> {
        let target = Target { id: seed.to_owned(), address: seed.to_owned() };
        let mut reply = self.ask(&target, Verb::View, &ViewBody { known: 0 }, "", call, deadline).await?;
        let payload: ViewPayload = reply.control().await?;
        let mut view = View::default();
        for mut row in payload.nodes {
            if let Some(port) = row.quic.strip_prefix("0.0.0.0:").or_else(|| row.quic.strip_prefix("[::]:")) {
                let host = host_of(seed);
                row.quic = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
            }
            view.merge(row).map_err(|error| Error::new(ErrorKind::Protocol, error.to_string()))?;
        }
        Ok(view)
    }
}
