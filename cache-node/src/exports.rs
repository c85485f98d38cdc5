//! Which number of which room is which metric: the one place that knows both.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::budget::{Budget, Level, LevelUsage};
use crate::cache::{CacheStats, FoyerStore, Store};
use crate::cluster::{Cluster, ClusterStats, Refusal};
use crate::decode::{DecodeStats, EngineStats, Engines, WorkerPool};
use crate::origin::{OriginSnapshot, S3Origin};
use crate::read::{ReadStats, Reader};
use crate::serve::Service;
use crate::serve::admin::{Readiness, Ready};
use crate::telemetry::Registry;

/// The rooms of a node.
pub(crate) struct Rooms {
    pub(crate) readiness: Readiness,
    pub(crate) service: Arc<Service>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) store: Arc<FoyerStore>,
    pub(crate) pool: Arc<WorkerPool>,
    /// Both engines, where there is a GPU.
    pub(crate) engines: Option<Arc<Engines>>,
    /// Whether one is wanted.
    pub(crate) wants_gpu: bool,
    pub(crate) budget: Arc<Budget>,
    pub(crate) origin: Arc<S3Origin>,
}

/// Registers every metric that rooms keep.
pub(crate) fn register(registry: &Registry, rooms: Rooms) {
    let Rooms { readiness, service, reader, store, pool, engines, wants_gpu, budget, origin } = rooms;
    node(registry, readiness, &budget);
    requests(registry, service);
    levels(registry, budget);
    cache(registry, store);
    fills(registry, reader);
    origins(registry, origin);
    decoders(registry, pool);
    if wants_gpu {
        gpu(registry, engines);
    }
}

/// The GPU's; where one is wanted and there is none, that alone.
fn gpu(registry: &Registry, engines: Option<Arc<Engines>>) {
    let is_on = engines.is_some();
    registry.collect("framecache_gpu_on", &[], move || f64::from(is_on));
    let Some(engines) = engines else { return };
    let each = |name: &'static str, series: fn(&EngineStats) -> Vec<(&'static str, &'static str, u64)>| {
        let engines = engines.clone();
        registry.collect_each(name, move |out| {
            for (label, value, number) in series(&engines.stats()) {
                out.series(&[(label, value)], number as f64);
            }
        });
    };
    each("framecache_gpu_units_total", |s| vec![("kind", "video", s.videos), ("kind", "picture", s.pictures)]);
    each("framecache_gpu_fallbacks_total", |s| s.fallbacks.iter().map(|(why, number)| ("reason", *why, *number)).collect());
    each("framecache_gpu_worker_deaths_total", |s| {
        vec![("judged", "yes", s.gpu.deaths_judged), ("judged", "no", s.gpu.deaths_lost)]
    });
    let workers = engines.clone();
    registry.collect("framecache_gpu_workers_started_total", &[], move || engines.stats().gpu.started as f64);
    registry.collect("framecache_gpu_inside", &[], move || workers.stats().gpu.inside as f64);
}

fn node(registry: &Registry, readiness: Readiness, budget: &Budget) {
    let other = readiness.clone();
    registry.collect("framecache_ready", &[], move || f64::from(readiness.now() == Ready::Yes));
    registry.collect("framecache_draining", &[], move || f64::from(other.now() == Ready::Draining));
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let limit = budget.total() as f64;
    registry.collect("framecache_build_info", &[("version", env!("CARGO_PKG_VERSION"))], || 1.0);
    registry.collect("framecache_start_time_seconds", &[], move || started);
    registry.collect("framecache_memory_limit_bytes", &[], move || limit);
    registry.collect("framecache_memory_resident_bytes", &[], resident_bytes);
    let fixed: Vec<(&'static str, u64)> = budget.fixed().to_vec();
    registry.collect_each("framecache_budget_fixed_bytes", move |out| {
        fixed.iter().for_each(|(line, bytes)| out.series(&[("line", line)], *bytes as f64));
    });
}

/// Resident memory of this process (proc(5), `statm`: pages, second field).
fn resident_bytes() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<f64>().ok());
    pages.map_or(0.0, |pages| pages * 4096.0)
}

fn requests(registry: &Registry, service: Arc<Service>) {
    let other = service.clone();
    registry.collect("framecache_connections", &[], move || service.open().0 as f64);
    registry.collect("framecache_streams", &[], move || other.open().1 as f64);
}

fn levels(registry: &Registry, budget: Arc<Budget>) {
    let shared = budget.clone();
    registry.collect("framecache_budget_shared_free_bytes", &[], move || shared.shared_free() as f64);
    type Field = fn(&LevelUsage) -> u64;
    let fields: [(&'static str, Field); 5] = [
        ("framecache_budget_limit_bytes", |level| level.most),
        ("framecache_budget_floor_bytes", |level| level.floor),
        ("framecache_budget_in_use_bytes", |level| level.in_use),
        ("framecache_budget_waiting", |level| level.waiting),
        ("framecache_budget_refused_total", |level| level.refused),
    ];
    for (name, field) in fields {
        let budget = budget.clone();
        registry.collect_each(name, move |out| {
            for (level, usage) in Level::ALL.iter().zip(budget.usage()) {
                out.series(&[("level", level.name())], field(&usage) as f64);
            }
        });
    }
}

fn cache(registry: &Registry, store: Arc<FoyerStore>) {
    let each = |name: &'static str, series: fn(&CacheStats) -> Vec<(&'static str, &'static str, u64)>| {
        let store = store.clone();
        registry.collect_each(name, move |out| {
            for (label, value, number) in series(&store.stats()) {
                out.series(&[(label, value)], number as f64);
            }
        });
    };
    each("framecache_cache_hits_total", |s| vec![("tier", "ram", s.hits_ram), ("tier", "disk", s.hits_disk)]);
    each("framecache_cache_bytes", |s| {
        let (raw, decoded) = (s.ram_raw_bytes, s.ram_decoded_bytes);
        vec![("tier", "ram_raw", raw), ("tier", "ram_decoded", decoded), ("tier", "disk", s.disk_held_bytes)]
    });
    each("framecache_cache_drops_total", |s| {
        vec![("reason", "queue", s.dropped_queue), ("reason", "large", s.dropped_large), ("reason", "write", s.dropped_write)]
    });
    let one = |name: &'static str, number: fn(&CacheStats) -> u64| {
        let store = store.clone();
        registry.collect(name, &[], move || number(&store.stats()) as f64);
    };
    one("framecache_cache_misses_total", |s| s.misses);
    one("framecache_cache_capacity_bytes", |s| s.disk_capacity_bytes);
    one("framecache_cache_inserts_total", |s| s.inserts);
    one("framecache_cache_admitted_total", |s| s.admitted);
    one("framecache_cache_evictions_total", |s| s.evicted_disk);
    one("framecache_cache_corrupt_total", |s| s.corrupt);
    one("framecache_cache_read_errors_total", |s| s.read_errors);
    one("framecache_cache_disk_written_bytes_total", |s| s.flushed_bytes);
    one("framecache_cache_disk_queued_bytes", |s| s.disk_queued_bytes);
    one("framecache_cache_disk_on", |s| u64::from(s.disk_capacity_bytes > 0 && s.disk_off.is_none()));
    one("framecache_cache_disk_off_total", |s| s.disk_switched_off);
}

fn fills(registry: &Registry, reader: Arc<Reader>) {
    let one = |name: &'static str, number: fn(&ReadStats) -> u64| {
        let reader = reader.clone();
        registry.collect(name, &[], move || number(&reader.stats()) as f64);
    };
    one("framecache_fills_total", |s| s.fills);
    one("framecache_units_total", |s| s.units);
    one("framecache_flight_waits_total", |s| s.joined);
    one("framecache_changed_total", |s| s.changed);
    one("framecache_peeks_total", |s| s.peeks);
    one("framecache_peek_hits_total", |s| s.peeked);
    one("framecache_forwards_total", |s| s.forwards);
    one("framecache_forwards_lost_total", |s| s.lost_servers);
    one("framecache_units_elsewhere_total", |s| s.decoded_there);
    one("framecache_video_indexes_total", |s| s.indexes);
    one("framecache_video_indexes_differed_total", |s| s.indexes_differed);
}

/// What the cluster room counts; registered once there is one.
pub(crate) fn cluster(registry: &Registry, cluster: Arc<Cluster>) {
    let one = |name: &'static str, number: fn(&ClusterStats) -> u64| {
        let cluster = cluster.clone();
        registry.collect(name, &[], move || number(&cluster.stats()) as f64);
    };
    let states = cluster.clone();
    registry.collect_each("framecache_cluster_nodes", move |out| {
        let nodes = states.stats().nodes;
        for (state, number) in ["joining", "serving", "leaving", "gone"].iter().zip(nodes) {
            out.series(&[("state", state)], number as f64);
        }
    });
    let datagrams = cluster.clone();
    registry.collect_each("framecache_cluster_datagrams_total", move |out| {
        for (lane, number) in ["gossip", "liveness"].iter().zip(datagrams.stats().datagrams) {
            out.series(&[("lane", lane)], number as f64);
        }
    });
    let refused = cluster.clone();
    registry.collect_each("framecache_cluster_datagrams_refused_total", move |out| {
        for (refusal, number) in Refusal::ALL.iter().zip(refused.stats().refused) {
            out.series(&[("reason", refusal.name())], number as f64);
        }
    });
    one("framecache_cluster_unproved", |s| s.unproved);
    one("framecache_cluster_silent", |s| s.silent);
    one("framecache_cluster_refutations_total", |s| s.refutations);
    one("framecache_cluster_losses_total", |s| s.losses);
    one("framecache_cluster_views_total", |s| s.views);
    one("framecache_cluster_gossip_restarts_total", |s| s.gossip_restarts);
}

fn origins(registry: &Registry, origin: Arc<S3Origin>) {
    let one = |name: &'static str, number: fn(&OriginSnapshot) -> u64| {
        let stats = origin.stats().clone();
        registry.collect(name, &[], move || number(&stats.snapshot()) as f64);
    };
    one("framecache_origin_requests_total", |s| s.requests);
    one("framecache_origin_retries_total", |s| s.retries);
    one("framecache_origin_retries_refused_total", |s| s.retries_refused);
    one("framecache_origin_hedges_total", |s| s.hedges);
    one("framecache_origin_hedges_won_total", |s| s.hedges_won);
    one("framecache_origin_throttled_total", |s| s.throttled);
    one("framecache_origin_read_bytes_total", |s| s.bytes);
    one("framecache_origin_in_flight", |s| s.in_flight);
    let stats = origin.stats().clone();
    registry.collect_each("framecache_origin_errors_total", move |out| {
        let s = stats.snapshot();
        for (kind, number) in [
            ("not_found", s.errors_not_found),
            ("denied", s.errors_denied),
            ("changed", s.errors_changed),
            ("busy", s.errors_busy),
            ("unavailable", s.errors_unavailable),
            ("corrupt", s.errors_corrupt),
            ("deadline", s.errors_deadline),
            ("redirect", s.errors_redirect),
            ("invalid", s.errors_invalid),
        ] {
            out.series(&[("kind", kind)], number as f64);
        }
    });
}

fn decoders(registry: &Registry, pool: Arc<WorkerPool>) {
    let one = |name: &'static str, number: fn(&DecodeStats) -> f64| {
        let pool = pool.clone();
        registry.collect(name, &[], move || number(&pool.stats()));
    };
    one("framecache_decode_jobs_total", |s| s.jobs as f64);
    one("framecache_decode_output_bytes_total", |s| s.bytes as f64);
    one("framecache_decode_cpu_seconds_total", |s| s.cpu_us as f64 / 1e6);
    one("framecache_decode_workers", |s| s.workers as f64);
    one("framecache_decode_inside", |s| s.inside as f64);
    one("framecache_decode_workers_started_total", |s| s.started as f64);
    one("framecache_decode_workers_recycled_total", |s| s.recycled as f64);
    one("framecache_decode_busy_total", |s| s.busy as f64);
    one("framecache_decode_quarantined", |s| s.quarantined as f64);
    registry.collect_each("framecache_decode_worker_deaths_total", move |out| {
        let s = pool.stats();
        out.series(&[("judged", "yes")], s.deaths_judged as f64);
        out.series(&[("judged", "no")], s.deaths_lost as f64);
    });
}
