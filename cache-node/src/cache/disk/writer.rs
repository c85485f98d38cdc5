//! The one writer: takes queued entries in order, hands them to foyer in paced batches, and looks whether they arrived.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{HANG, Job, Shared, count, entry};
use crate::cache::admission::DataSet;
use crate::cache::ram::Held;

/// Runs until the queue is closed.
pub(super) async fn run(shared: Arc<Shared>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    while let Some(job) = jobs.recv().await {
        let mut batch = Batch::default();
        let mut next = Some(job);
        while let Some(job) = next {
            match job {
                Job::Write { name, serial, bytes, held } => batch.write(&shared, Ticket { name, serial, bytes, held }).await,
                Job::Barrier(done) => batch.barriers.push(done),
            }
            next = if batch.bytes < shared.engine.batch_bytes() { jobs.try_recv().ok() } else { None };
        }
        batch.land(&shared).await;
        for done in batch.barriers {
            let _ = done.send(());
        }
    }
}

struct Ticket {
    name: u128,
    serial: u64,
    bytes: u64,
    held: Arc<Held>,
}

/// What was handed to foyer since the last wait.
#[derive(Default)]
struct Batch {
    bytes: usize,
    /// Each with the names and disk bytes of its chunks, those that have landed already included.
    tickets: Vec<(Ticket, Vec<(u128, u64)>)>,
    barriers: Vec<oneshot::Sender<()>>,
}

impl Batch {
    /// Hands one entry over, chunk by chunk; a long one waits in between.
    async fn write(&mut self, shared: &Shared, ticket: Ticket) {
        if !shared.is_on() {
            count(&shared.counters.dropped_write);
            return shared.settle(ticket.name, ticket.serial, ticket.bytes);
        }
        if !shared.is_current(ticket.name, ticket.serial) {
            count(&shared.counters.superseded);
            return shared.settle(ticket.name, ticket.serial, ticket.bytes);
        }
        let Some(chunks) = entry::pack(&ticket.held.key, &ticket.held.entry, shared.engine.chunk_bytes()) else {
            count(&shared.counters.dropped_large);
            return shared.settle(ticket.name, ticket.serial, ticket.bytes);
        };
        let mut names = Vec::with_capacity(chunks.len());
        for (at, chunk) in chunks.into_iter().enumerate() {
            if self.bytes >= shared.engine.batch_bytes() && !self.wait(shared).await {
                break;
            }
            let name = if at == 0 { ticket.name } else { entry::name(&ticket.held.key, at as u16) };
            let bytes = shared.engine.put(name, chunk);
            self.bytes += bytes as usize;
            names.push((name, bytes));
        }
        self.tickets.push((ticket, names));
    }

    async fn wait(&mut self, shared: &Shared) -> bool {
        self.bytes = 0;
        let done = timeout(HANG, shared.engine.wait()).await.is_ok();
        if !done {
            shared.switch_off("a write hangs for 5 s");
        }
        done
    }

    /// Waits for the batch and accounts for every entry of it.
    async fn land(&mut self, shared: &Shared) {
        if self.tickets.is_empty() {
            return;
        }
        let done = self.wait(shared).await;
        let (mut there, mut missing) = (0u64, 0u64);
        for (ticket, names) in self.tickets.drain(..) {
            let set = DataSet::of(ticket.held.key.id());
            if done && names.iter().all(|(name, _)| shared.engine.contains(*name)) {
                there += 1;
                shared.wrote(1, names.iter().map(|(_, bytes)| bytes).sum());
                let mut admission = shared.admission.lock();
                names.iter().for_each(|(name, bytes)| admission.stored(set, *name as u64, *bytes));
            } else if shared.is_current(ticket.name, ticket.serial) {
                missing += 1;
                count(&shared.counters.dropped_write);
            } else {
                count(&shared.counters.superseded);
            }
            shared.settle(ticket.name, ticket.serial, ticket.bytes);
        }
        if missing > 0 && shared.is_on() {
            judge(shared, there, missing).await;
        }
    }
}

/// foyer only logs a failed write. A lone missing entry may have been removed meanwhile; a failed probe, or a batch of which half
/// is missing, is the disk.
async fn judge(shared: &Shared, there: u64, missing: u64) {
    let folder = shared.folder.clone();
    let probe = timeout(HANG, tokio::task::spawn_blocking(move || folder.probe())).await;
    match probe {
        Err(_) => shared.switch_off("a write hangs for 5 s"),
        Ok(Ok(Err(error))) => shared.switch_off(&format!("a write failed: {error}")),
        _ if missing > there => shared.switch_off("writes fail"),
        _ => tracing::warn!(missing, "entries did not reach the disk"),
    }
}
