//! Every metric there is: the one table behind `/metrics`, the status page and `docs/METRICS.md`.
//!
//! A name is `framecache_<what>_<unit>`, with `_total` behind what only grows. Label values come from small sets, never from
//! what a user sends.

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub labels: &'static [&'static str],
    /// Under which heading it is shown.
    pub room: &'static str,
    pub help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Count,
    Bytes,
    Seconds,
    /// Seconds since 1970.
    Time,
    /// One or zero.
    Flag,
}

const fn row(
    room: &'static str,
    name: &'static str,
    kind: Kind,
    unit: Unit,
    labels: &'static [&'static str],
    help: &'static str,
) -> Row {
    Row { name, kind, unit, labels, room, help }
}

use Kind::{Counter, Gauge, Histogram};
use Unit::{Bytes, Count, Flag, Seconds, Time};

/// All metrics, in the order in which they are shown.
#[rustfmt::skip]
pub const METRICS: &[Row] = &[
    row("node", "framecache_build_info", Gauge, Flag, &["version"], "Always 1; the label says what runs."),
    row("node", "framecache_start_time_seconds", Gauge, Time, &[], "When the node started."),
    row("node", "framecache_ready", Gauge, Flag, &[], "1 while /ready answers 200."),
    row("node", "framecache_draining", Gauge, Flag, &[], "1 once the node is leaving."),
    row("node", "framecache_memory_limit_bytes", Gauge, Bytes, &[], "node.memory_limit."),
    row("node", "framecache_memory_resident_bytes", Gauge, Bytes, &[], "Resident memory of the node's own process."),

    row("requests", "framecache_requests_total", Counter, Count, &["verb", "outcome"], "Requests answered, by verb and outcome (ok, busy, not_found, denied, changed, timeout, error)."),
    row("requests", "framecache_request_seconds", Histogram, Seconds, &["verb"], "From header parsed to last byte written."),
    row("requests", "framecache_busy_refusal_seconds", Histogram, Seconds, &[], "From header parsed to Busy written."),
    row("requests", "framecache_sent_bytes_total", Counter, Bytes, &["verb"], "Payload bytes written to clients and nodes."),
    row("requests", "framecache_connections", Gauge, Count, &[], "Open QUIC connections."),
    row("requests", "framecache_streams", Gauge, Count, &[], "Requests under way."),

    row("budget", "framecache_budget_limit_bytes", Gauge, Bytes, &["level"], "Most that one verb level may reserve: its floor and all that is shared."),
    row("budget", "framecache_budget_floor_bytes", Gauge, Bytes, &["level"], "What no other level can take."),
    row("budget", "framecache_budget_in_use_bytes", Gauge, Bytes, &["level"], "Reserved now."),
    row("budget", "framecache_budget_waiting", Gauge, Count, &["level"], "Requests that wait for memory."),
    row("budget", "framecache_budget_refused_total", Counter, Count, &["level"], "Reservations refused, busy or too large."),
    row("budget", "framecache_budget_shared_free_bytes", Gauge, Bytes, &[], "What every level may still take above its floor."),
    row("budget", "framecache_budget_fixed_bytes", Gauge, Bytes, &["line"], "Spent for as long as the node runs, by the key that sets it, or a word."),

    row("cache", "framecache_cache_hits_total", Counter, Count, &["tier"], "Look-ups answered, by tier (ram, disk)."),
    row("cache", "framecache_cache_misses_total", Counter, Count, &[], "Look-ups that found nothing in any tier."),
    row("cache", "framecache_cache_bytes", Gauge, Bytes, &["tier"], "Bytes held, by tier (ram_raw, ram_decoded, disk)."),
    row("cache", "framecache_cache_capacity_bytes", Gauge, Bytes, &[], "Bytes that the disk tier may hold; 0 without one."),
    row("cache", "framecache_cache_inserts_total", Counter, Count, &[], "Entries taken in."),
    row("cache", "framecache_cache_admitted_total", Counter, Count, &[], "Entries that admission sent to disk."),
    row("cache", "framecache_cache_evictions_total", Counter, Count, &[], "Entries that left the disk for others."),
    row("cache", "framecache_cache_drops_total", Counter, Count, &["reason"], "Admitted entries that did not reach the disk (queue, large, write)."),
    row("cache", "framecache_cache_corrupt_total", Counter, Count, &[], "Disk entries whose checksum or identity was wrong: never served, filled again."),
    row("cache", "framecache_cache_read_errors_total", Counter, Count, &[], "Disk reads that failed."),
    row("cache", "framecache_cache_disk_on", Gauge, Flag, &[], "1 while the disk tier takes and gives entries."),
    row("cache", "framecache_cache_disk_off_total", Counter, Count, &[], "Times the disk tier was switched off."),
    row("cache", "framecache_cache_disk_queued_bytes", Gauge, Bytes, &[], "Bytes that wait to be written."),
    row("cache", "framecache_cache_disk_written_bytes_total", Counter, Bytes, &[], "Written to the disk tier."),
    row("cache", "framecache_fills_total", Counter, Count, &[], "Pages filled from the origin."),
    row("cache", "framecache_units_total", Counter, Count, &[], "Decode units begun."),
    row("cache", "framecache_flight_waits_total", Counter, Count, &[], "Requests that waited for another's fill rather than starting one."),
    row("cache", "framecache_changed_total", Counter, Count, &[], "Reads that met a replaced object."),

    row("cluster", "framecache_cluster_nodes", Gauge, Count, &["state"], "Nodes that this one knows, by state (joining, serving, leaving, gone)."),
    row("cluster", "framecache_cluster_unproved", Gauge, Count, &[], "Nodes that gossip tells of and whose certificate has not proved their name."),
    row("cluster", "framecache_cluster_silent", Gauge, Count, &[], "Nodes that this one cannot hear."),
    row("cluster", "framecache_cluster_datagrams_total", Counter, Count, &["lane"], "Datagrams taken, by lane (gossip, liveness)."),
    row("cluster", "framecache_cluster_datagrams_refused_total", Counter, Count, &["reason"], "Datagrams dropped, by reason: forged, replayed, of another key or form."),
    row("cluster", "framecache_cluster_refutations_total", Counter, Count, &[], "Times that others held this node for gone and it said that it is not."),
    row("cluster", "framecache_cluster_losses_total", Counter, Count, &[], "Times that this node held another for gone."),
    row("cluster", "framecache_cluster_views_total", Counter, Count, &[], "Views published."),
    row("cluster", "framecache_cluster_gossip_restarts_total", Counter, Count, &[], "Times that gossip failed on what was said and began anew."),
    row("cluster", "framecache_peeks_total", Counter, Count, &[], "Times that another node was asked whether it holds something."),
    row("cluster", "framecache_peek_hits_total", Counter, Count, &[], "Times that it did: pages and frames that needed no origin and no decoder."),
    row("cluster", "framecache_forwards_total", Counter, Count, &[], "Pages, ranges, frames and heads from the node that serves their key."),
    row("cluster", "framecache_forwards_lost_total", Counter, Count, &[], "Times that node could not be reached, so that this one saw to it itself."),
    row("cluster", "framecache_units_elsewhere_total", Counter, Count, &[], "Decode units that another node decoded."),
    row("cache", "framecache_video_indexes_total", Counter, Count, &[], "Indexes of videos that were made."),
    row("cache", "framecache_video_indexes_differed_total", Counter, Count, &[], "Indexes that a decode found wrong, made anew."),

    row("origin", "framecache_origin_requests_total", Counter, Count, &[], "Requests sent to origins, retries and hedges included."),
    row("origin", "framecache_origin_in_flight", Gauge, Count, &[], "Origin requests under way."),
    row("origin", "framecache_origin_read_bytes_total", Counter, Bytes, &[], "Body bytes received from origins."),
    row("origin", "framecache_origin_retries_total", Counter, Count, &[], "Requests repeated after a failure."),
    row("origin", "framecache_origin_retries_refused_total", Counter, Count, &[], "Repeats that the retry budget refused."),
    row("origin", "framecache_origin_hedges_total", Counter, Count, &[], "Second requests beside a slow first one."),
    row("origin", "framecache_origin_hedges_won_total", Counter, Count, &[], "Second requests that answered first."),
    row("origin", "framecache_origin_throttled_total", Counter, Count, &[], "Answers that asked us to slow down."),
    row("origin", "framecache_origin_errors_total", Counter, Count, &["kind"], "Calls that failed, by kind."),

    row("decode", "framecache_decode_jobs_total", Counter, Count, &[], "Jobs that workers ended."),
    row("decode", "framecache_decode_output_bytes_total", Counter, Bytes, &[], "Pixels received from workers."),
    row("decode", "framecache_decode_cpu_seconds_total", Counter, Seconds, &[], "CPU time of workers on jobs."),
    row("decode", "framecache_decode_workers", Gauge, Count, &[], "Worker processes."),
    row("decode", "framecache_decode_inside", Gauge, Count, &[], "Jobs that wait or run."),
    row("decode", "framecache_decode_busy_total", Counter, Count, &[], "Jobs refused because they would have waited too long."),
    row("decode", "framecache_decode_worker_deaths_total", Counter, Count, &["judged"], "Workers that ended without being asked; judged: by their input's fault."),
    row("decode", "framecache_decode_workers_started_total", Counter, Count, &[], "Workers started."),
    row("decode", "framecache_decode_workers_recycled_total", Counter, Count, &[], "Workers replaced on purpose."),
    row("decode", "framecache_decode_quarantined", Gauge, Count, &[], "Units that killed two workers and are refused."),
    row("decode", "framecache_gpu_on", Gauge, Flag, &[], "1 while a GPU decodes, 0 where one is wanted and there is none; absent where none is wanted."),
    row("decode", "framecache_gpu_inside", Gauge, Count, &[], "Jobs that wait for the GPU's workers or run."),
    row("decode", "framecache_gpu_units_total", Counter, Count, &["kind"], "Units that the GPU decoded (video, picture)."),
    row("decode", "framecache_gpu_fallbacks_total", Counter, Count, &["reason"], "Units that the CPU decoded though there is a GPU, by reason: before a try (not_offered, inexact, unproved, damaged, rests, sooner), or after one (refused, failed, busy)."),
    row("decode", "framecache_gpu_worker_deaths_total", Counter, Count, &["judged"], "The GPU's workers that ended without being asked; judged: by their input's fault."),
    row("decode", "framecache_gpu_workers_started_total", Counter, Count, &[], "The GPU's workers started."),
];

impl Row {
    /// The row of that name.
    pub fn find(name: &str) -> Option<&'static Row> {
        METRICS.iter().find(|row| row.name == name)
    }

    /// This metric's row of the table in `docs/METRICS.md`.
    pub fn line(&self) -> String {
        let labels: Vec<_> = self.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "–".into() } else { labels.join(", ") };
        format!("| `{}` | {} | {labels} | {} |", self.name, self.kind.name(), self.help)
    }
}

impl Kind {
    /// The kind as Prometheus' text format writes it.
    pub fn name(self) -> &'static str {
        match self {
            Counter => "counter",
            Gauge => "gauge",
            Histogram => "histogram",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names follow the rule that the docs state, and none stands twice.
    #[test]
    fn names_follow_the_rule() {
        for (at, row) in METRICS.iter().enumerate() {
            let name = row.name;
            let legal = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(name.starts_with("framecache_") && legal(name), "{name}");
            assert!(METRICS[at + 1..].iter().all(|other| other.name != name), "{name} stands twice");
            assert_eq!(row.kind == Counter, name.ends_with("_total"), "{name}: `_total` is for counters");
            let base = name.trim_end_matches("_total");
            assert_eq!(row.unit == Bytes, base.ends_with("_bytes"), "{name}: unit");
            assert_eq!(matches!(row.unit, Seconds | Time), base.ends_with("_seconds"), "{name}: unit");
            assert!(row.labels.iter().all(|label| legal(label) && *label != "le"), "{name}: labels");
            assert!(row.help.ends_with('.'), "{name}: help is a sentence");
            assert!(row.kind != Histogram || row.unit == Seconds, "{name}: histograms hold durations");
        }
    }

    /// The docs' table is this table, row by row.
    #[test]
    fn the_docs_list_every_metric() {
        let docs = include_str!("../../../docs/METRICS.md");
        let lines: Vec<_> = docs.lines().filter(|line| line.starts_with("| `framecache_")).collect();
        let wanted: Vec<_> = METRICS.iter().map(Row::line).collect();
        assert!(lines == wanted, "the table of docs/METRICS.md should be:\n{}", wanted.join("\n"));
    }
}
