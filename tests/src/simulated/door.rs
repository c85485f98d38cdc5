//! A faulty door: stands at a node's address with the node's certificate, and passes on what is asked of it and answered, wrong in one
//! way. So nodes and clients have bugs without a line in them that could have one.

use std::sync::Arc;

use bytes::Bytes;
use framecache::quic::{self, Windows};
use framecache::tls;
use framecache::wire::codec::{self, PREFIX_BYTES};
use framecache::wire::{Header, ItemHead, Verb, ext};
use parking_lot::Mutex;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::task::AbortHandle;

use super::Bug;
use super::host::Host;
use super::life::TRUST;
use crate::dice::Dice;
use crate::wire::{End, items};

/// Where the node itself listens, behind its door.
pub(super) const INNER_PORT: u16 = 4434;

/// Longest request that is passed on: a header and a body are shorter.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// See the module.
pub(super) struct Door {
    outer: Endpoint,
    inner: Endpoint,
    accepting: AbortHandle,
}

/// What all streams of a door share.
struct Fault {
    bug: Bug,
    dice: Mutex<Dice>,
    /// The first view that it passed on.
    view: Mutex<Option<Vec<u8>>>,
}

impl Door {
    /// Opens it on `host`.
    pub(super) fn open(bug: Bug, host: &Arc<Host>, server: quinn::ServerConfig, dice: Dice) -> Self {
        let outer = host.listen(super::PORT, Some(server)).expect("its port");
        let inner = host.listen(0, None).expect("a port");
        let fault = Arc::new(Fault { bug, dice: Mutex::new(dice), view: Mutex::default() });
        let (from, to, host) = (outer.clone(), inner.clone(), host.clone());
        let accepting = tokio::spawn(async move {
            while let Some(incoming) = from.accept().await {
                let (to, host, fault) = (to.clone(), host.clone(), fault.clone());
                tokio::spawn(async move {
                    // Either side may be gone.
                    let Ok(connection) = incoming.await else { return };
                    let ip = host.ip();
                    let mut config = tls::client(&TRUST.door(), &ip.to_string()).expect("tls");
                    config.transport_config(Arc::new(quic::transport(Windows::client(16 << 20), Some(quic::KEEP_ALIVE))));
                    let connecting = to.connect_with(config, (ip, INNER_PORT).into(), &ip.to_string());
                    let Ok(node) = connecting.expect("an address").await else { return };
                    loop {
                        // Whichever side ends ends the other.
                        let (send, recv) = tokio::select! {
                            biased;
                            _ = node.closed() => break connection.close(0u32.into(), b""),
                            stream = connection.accept_bi() => match stream {
                                Ok(stream) => stream,
                                Err(_) => break node.close(0u32.into(), b""),
                            },
                        };
                        tokio::spawn(pass(fault.clone(), node.clone(), send, recv));
                    }
                });
            }
        });
        Self { outer, inner, accepting: accepting.abort_handle() }
    }

    pub(super) fn close(&self) {
        self.accepting.abort();
        self.outer.close(0u32.into(), b"");
        self.inner.close(0u32.into(), b"");
    }
}

/// One request there, and its reply back, whole; nothing if either side is gone.
async fn pass(fault: Arc<Fault>, node: Connection, mut back: SendStream, mut from: RecvStream) -> Option<()> {
    let request = from.read_to_end(REQUEST_BYTES_MAX).await.ok()?;
    let length = PREFIX_BYTES + codec::length::<Header>(request.first_chunk().copied()?).ok()?;
    let mut header: Header = codec::decode(request.get(PREFIX_BYTES..length)?).ok()?;
    let pin = header.version.clone();
    if fault.bug == Bug::PinForgotten {
        header.version = String::new();
    }
    let (mut there, mut reply) = node.open_bi().await.ok()?;
    there.write_all(&codec::encode(&header).ok()?).await.ok()?;
    there.write_all(&request[length..]).await.ok()?;
    there.finish().ok()?;
    let (mut items, end) = items(&mut reply).await;
    if end != End::Finished {
        return back.reset(0u32.into()).ok();
    }
    fault.strike(Verb::from_number(header.verb)?, &pin, &mut items);
    for (head, payload) in items {
        back.write_all(&codec::encode(&head).ok()?).await.ok()?;
        back.write_chunk(Bytes::from(payload)).await.ok()?;
    }
    if fault.bug == Bug::StreamLeftOpen && fault.dice.lock().chance(5) {
        // Until its connection ends, for ever.
        std::future::pending::<()>().await;
    }
    back.finish().ok()
}

impl Fault {
    /// Makes the reply wrong, if it is its turn.
    fn strike(&self, verb: Verb, pin: &str, items: &mut [(ItemHead, Vec<u8>)]) {
        let carries = matches!(verb, Verb::Read | Verb::Frames | Verb::Peek);
        match self.bug {
            Bug::BitFlipped if carries && self.dice.lock().chance(3) => {
                let payload = items.iter_mut().map(|(_, payload)| payload).rfind(|payload| !payload.is_empty());
                if let Some(byte) = payload.and_then(|payload| payload.last_mut()) {
                    *byte ^= 1;
                }
            }
            Bug::AnotherItem if verb == Verb::Frames => {
                let places: Vec<usize> = (0..items.len()).filter(|&at| !items[at].1.is_empty()).collect();
                if let [first, second, ..] = places[..] {
                    let (index, attempt) = (items[first].0.index, items[first].0.attempt);
                    (items[first].0.index, items[first].0.attempt) = (items[second].0.index, items[second].0.attempt);
                    (items[second].0.index, items[second].0.attempt) = (index, attempt);
                }
            }
            Bug::PinForgotten if carries && !pin.is_empty() => {
                items.iter_mut().filter(|(head, _)| !head.version.is_empty()).for_each(|(head, _)| head.version = pin.into());
            }
            Bug::NewsWithheld => {
                items.iter_mut().for_each(|(head, _)| head.ext.retain(|(number, _)| *number != ext::VIEW_DELTA));
                if let (Verb::View, [(head, payload)]) = (verb, items) {
                    let first = self.view.lock().get_or_insert_with(|| payload.clone()).clone();
                    head.payload_bytes = u32::try_from(first.len()).expect("a view is short");
                    *payload = first;
                }
            }
            _ => {}
        }
    }
}
