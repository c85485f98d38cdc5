//! The other nodes over QUIC: [`Peers`] by the client's own peers, and the members of the moment.

use std::sync::Arc;

use async_trait::async_trait;
use framecache::peer::Peers as Links;
use framecache::wire::NodeRow;
use framecache::{ByteRange, DecodeSpec, Error, Lent, ObjectId, RouteKey, Version};
use tokio::time::Instant;

use super::{Members, Peers, Piece};

/// The other nodes of a cluster.
#[derive(Debug)]
pub struct Linked {
    links: Arc<Links>,
    members: Arc<Members>,
}

impl Linked {
    /// The others among `members`, asked by `links`.
    pub fn new(links: Arc<Links>, members: Arc<Members>) -> Self {
        Self { links, members }
    }

    fn is_other(&self, row: &NodeRow) -> bool {
        row.id != self.members.id()
    }
}

#[async_trait]
impl Peers for Linked {
    fn server(&self, key: RouteKey) -> Option<NodeRow> {
        let topology = self.members.topology();
        // Whoever was lost a moment ago may be so for longer; its callers come here for the same reason.
        topology.server(key).filter(|row| self.is_other(row) && !self.links.is_doubtful(row)).cloned()
    }

    fn doubt(&self, key: RouteKey) {
        let topology = self.members.topology();
        if let Some(row) = topology.server(key).filter(|row| self.is_other(row)) {
            self.links.doubt(row);
        }
    }

    fn holders(&self, key: RouteKey) -> Vec<NodeRow> {
        let topology = self.members.topology();
        let holders = topology.holders(key, self.members.id());
        holders.into_iter().filter(|row| !self.links.is_doubtful(row)).cloned().collect()
    }

    fn decoders(&self) -> Vec<NodeRow> {
        let topology = self.members.topology();
        let others = topology.view().decoders().filter(|row| self.is_other(row));
        others.filter(|row| !self.links.is_doubtful(row)).cloned().collect()
    }

    async fn peek(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        piece: Piece<'_>,
        version: Option<&Version>,
        most: u64,
        deadline: Instant,
    ) -> Result<Option<Lent>, Error> {
        let (index, spec) = match piece {
            Piece::Page(page) => (page.index(), String::new()),
            Piece::Frame(spec) => (0, spec.to_string()),
        };
        self.links.peek(node, id, index, &spec, version, most, deadline).await
    }

    async fn read(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        range: ByteRange,
        version: Option<&Version>,
        caller: &str,
        deadline: Instant,
    ) -> Result<Lent, Error> {
        self.links.read(node, id, range, version, caller, deadline).await
    }

    async fn frame(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        spec: &DecodeSpec,
        version: Option<&Version>,
        most: u64,
        caller: &str,
        deadline: Instant,
    ) -> Result<Lent, Error> {
        self.links.frame(node, id, spec, version, most, caller, deadline).await
    }

    async fn decode(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        version: &Version,
        specs: &[DecodeSpec],
        most: u64,
        caller: &str,
        deadline: Instant,
    ) -> Result<Vec<Result<Lent, Error>>, Error> {
        self.links.decode(node, id, version, specs, most, caller, deadline).await
    }

    async fn index(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        version: &Version,
        proved: bool,
        stream: Option<u32>,
        caller: &str,
        deadline: Instant,
    ) -> Result<bytes::Bytes, Error> {
        self.links.index(node, id, version, proved, stream, caller, deadline).await
    }
}
