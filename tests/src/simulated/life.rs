//! One life of a node: the real doors and the real links to its peers, around a [`World`]'s reader, store and budget.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use framecache::tls::{self, TlsFiles};
use framecache::{Peers as Links, View};
use framecache_node::auth::Policy;
use framecache_node::cluster::{Linked, Members};
use framecache_node::identity::Identity;
use framecache_node::serve::quic::{accept, server_config};
use framecache_node::serve::{RequestMetrics, Service, ServiceParts};
use framecache_node::telemetry::Registry;
use rustls::pki_types::CertificateDer;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::door::{Door, INNER_PORT};
use super::host::Host;
use super::{Bug, NODES_MAX, PORT, name};
use crate::dice::Dice;
use crate::memory::World;

/// Memory of a node's links to its peers, as nodes have it.
const LINK_BYTES: u64 = 16 << 20;

/// Memory of requests.
const REQUEST_BYTES: u64 = 8 << 20;

/// How long an end may take: the longest deadline of a request, and some seconds for the work that it began last.
const END_MAX: Duration = Duration::from_secs(40);

/// Certificates of all stories of this process: names and addresses are the same in each.
pub(super) static TRUST: LazyLock<Trust> = LazyLock::new(Trust::make);

/// See [`TRUST`].
pub(super) struct Trust {
    roots: Arc<[CertificateDer<'static>]>,
    /// Of each node that there may be.
    nodes: Vec<Identity>,
    /// One that is good for the name of every node: a faulty door's.
    any: Identity,
    /// The authority's own file.
    _folder: TempDir,
}

impl Trust {
    fn make() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let ca = folder.path().join("ca.pem");
        let identity = |names: &[String]| Identity::signed(names, &ca).expect("identity");
        let nodes = (0..NODES_MAX).map(|index| identity(&[name(index), node_ip(index).to_string()])).collect();
        let any = identity(&(0..NODES_MAX).map(name).collect::<Vec<_>>());
        let roots = tls::certificates(&ca).expect("the authority's certificate").into();
        Self { roots, nodes, any, _folder: folder }
    }

    /// What a client trusts.
    pub(super) fn client(&self) -> TlsFiles {
        TlsFiles { roots: Some(self.roots.clone()), ..TlsFiles::default() }
    }

    /// What a faulty door shows and trusts.
    pub(super) fn door(&self) -> TlsFiles {
        TlsFiles { roots: Some(self.roots.clone()), ..self.any.peer_tls() }
    }
}

/// See the module.
pub(super) struct Life {
    pub(super) world: World,
    pub(super) members: Arc<Members>,
    service: Arc<Service>,
    links: Arc<Links>,
    endpoint: quinn::Endpoint,
    door: Option<Door>,
    stop: CancellationToken,
}

impl Life {
    /// Node `index` begins on `host`, before the origin of `before`, and knows `view`.
    pub(super) fn begin(
        host: Arc<Host>,
        index: usize,
        before: &World,
        view: &View,
        bug: Option<Bug>,
        mut dice: Dice,
    ) -> Arc<Self> {
        let identity = &TRUST.nodes[index];
        let server = server_config(identity.server_tls().expect("tls")).expect("suites");
        let members = Arc::new(Members::new(&name(index), view.clone()));
        let own = TlsFiles { roots: Some(TRUST.roots.clone()), ..identity.peer_tls() };
        let links = Links::on(host.clone(), &name(index), own, LINK_BYTES);
        let links = Arc::new(links.expect("links"));
        let world = before.among(Arc::new(Linked::new(links.clone(), members.clone())), dice.fork());
        let service = Service::new(ServiceParts {
            reader: world.reader.clone(),
            policy: Policy::AllowAll,
            members: members.clone(),
            about: Box::new(Vec::new),
            metrics: RequestMetrics::new(&Registry::new()),
            request_bytes: REQUEST_BYTES,
        });
        let bug = bug.filter(|bug| bug.is_of_a_node());
        let port = if bug.is_some() { INNER_PORT } else { PORT };
        let endpoint = host.listen(port, Some(server.clone())).expect("its port");
        let stop = CancellationToken::new();
        world.tasks.spawn(accept(endpoint.clone(), server.clone(), service.clone(), stop.clone()));
        service.open_door();
        let door = bug.map(|bug| Door::open(bug, &host, server.clone(), dice.fork()));
        Arc::new(Self { world, members, service, links, endpoint, door, stop })
    }

    /// From now on new requests are sent on.
    pub(super) fn leave(&self) {
        self.service.leave();
    }

    /// Ends, as `Node::stop` does, with `drain` for what runs. Panics if anything is left over: a task, a stream, a byte of memory.
    pub(super) async fn end(&self, drain: Duration) {
        self.service.leave();
        self.service.drain(Instant::now() + drain).await;
        self.stop.cancel();
        self.links.close().await;
        if let Some(door) = &self.door {
            door.close();
        }
        self.endpoint.close(framecache::wire::code::LEAVING.into(), b"node ends");
        let idle = async {
            self.endpoint.wait_idle().await;
            // What nobody waits for any more is worked on until its deadline.
            while self.service.open() != (0, 0) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(END_MAX, idle)
            .await
            .unwrap_or_else(|_| panic!("connections and streams are left over: {:?}", self.service.open()));
        self.world.end().await;
    }
}

/// The address of node `index`.
pub(super) fn node_ip(index: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, index as u8 + 1])
}

/// The address of a client.
pub(super) fn client_ip(client: usize) -> IpAddr {
    IpAddr::from([10, 0, 1, client as u8 + 1])
}
