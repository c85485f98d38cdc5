//! The status page: metrics, arranged for a person, or as JSON for a script. No number here is from anywhere else.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::{AdminInfo, Ready};
use crate::config::Size;
use crate::telemetry::{Family, Labels, Snapshot, Unit, Value};

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--soft:#888;--good:#2a8a4a;--bad:#c0392b}\
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;padding:0 1.5rem;max-width:76rem}\
h1{font-size:1.3rem;margin:0}h2{font-size:.8rem;letter-spacing:.08em;text-transform:uppercase;color:var(--soft);margin:0 0 .4rem}\
header{display:flex;gap:1rem;align-items:baseline;flex-wrap:wrap;margin-bottom:1.5rem}\
.ready{color:var(--good);font-weight:600}.not{color:var(--bad);font-weight:600}.soft{color:var(--soft)}\
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(22rem,1fr));gap:1.25rem}\
section{border:1px solid var(--line);border-radius:.6rem;padding:.9rem 1rem;overflow-x:auto}\
table{border-collapse:collapse;width:100%}td,th{padding:.12rem 0;text-align:left;font-weight:400;vertical-align:top}\
tr.name th{padding-top:.5rem}td{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
th.series{padding-left:1rem;color:var(--soft)}tr.zero td{color:var(--soft)}";

/// The page.
pub(super) fn html(info: &AdminInfo, ready: &Ready, families: &[Family]) -> String {
    let mut page = String::with_capacity(16 << 10);
    let (node, version) = (escaped(&info.node_id), escaped(info.version));
    let class = if *ready == Ready::Yes { "ready" } else { "not" };
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <meta http-equiv=refresh content=5><title>{node} - framecache</title><style>{STYLE}</style>\
         <header><h1>{node}</h1><span class={class}>{ready}</span><span class=soft>framecache-node {version}</span>\
         <span class=soft>every number is a metric: <a href=/metrics>metrics</a>, <a href=\"/status?format=json\">json</a></span>\
         </header><main>"
    );
    let mut room = "";
    for family in families {
        if family.row.room != room {
            page += if room.is_empty() { "" } else { "</table></section>" };
            room = family.row.room;
            let _ = write!(page, "<section><h2>{room}</h2><table>");
        }
        put_family(&mut page, family);
    }
    page += if room.is_empty() { "</main></html>" } else { "</table></section></main></html>" };
    page
}

fn put_family(page: &mut String, family: &Family) {
    let (name, help) = (family.row.name.trim_start_matches("framecache_"), escaped(family.row.help));
    if !family.row.labels.is_empty() {
        let _ = write!(page, "<tr class=name title=\"{help}\"><th>{name}<td></tr>");
    }
    for (labels, value) in &family.series {
        let zero = if is_zero(value) { " class=zero" } else { "" };
        let head = match family.row.labels.is_empty() {
            true => format!("<th title=\"{help}\">{name}"),
            false => format!("<th class=series>{}", escaped(&values(labels))),
        };
        let _ = write!(page, "<tr{zero}>{head}<td title=\"{}\">{}</tr>", exact(value), escaped(&shown(family.row.unit, value)));
    }
}

/// The same as JSON: `metrics.<name>` is a list of `{labels, value}`; of a histogram `{labels, count, sum, p50, p99}` in seconds.
pub(super) fn json(info: &AdminInfo, ready: &Ready, families: &[Family]) -> serde_json::Value {
    let metrics: serde_json::Map<_, _> = families
        .iter()
        .map(|family| {
            let series = family.series.iter().map(|(labels, value)| series(labels, value)).collect();
            (family.row.name.to_string(), serde_json::Value::Array(series))
        })
        .collect();
    let waiting: &[&str] = if let Ready::Waiting(names) = ready { names } else { &[] };
    json!({
        "node": info.node_id,
        "version": info.version,
        "ready": *ready == Ready::Yes,
        "draining": *ready == Ready::Draining,
        "waiting": waiting,
        "metrics": metrics,
    })
}

fn series(labels: &Labels, value: &Value) -> serde_json::Value {
    let labels: serde_json::Map<_, _> = labels.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
    match value {
        Value::Number(number) => json!({ "labels": labels, "value": number }),
        Value::Histogram(snapshot) => json!({
            "labels": labels,
            "count": snapshot.count(),
            "sum": snapshot.sum().as_secs_f64(),
            "p50": snapshot.quantile(0.5).map(|duration| duration.as_secs_f64()),
            "p99": snapshot.quantile(0.99).map(|duration| duration.as_secs_f64()),
        }),
    }
}

fn values(labels: &Labels) -> String {
    labels.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" · ")
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Number(number) => *number == 0.0,
        Value::Histogram(snapshot) => snapshot.count() == 0,
    }
}

/// The value as `/metrics` has it, for the one who points at it.
fn exact(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Histogram(snapshot) => format!("{} in {} s", snapshot.count(), snapshot.sum().as_secs_f64()),
    }
}

fn shown(unit: Unit, value: &Value) -> String {
    let number = match value {
        Value::Number(number) => *number,
        Value::Histogram(snapshot) => return quantiles(snapshot),
    };
    match unit {
        Unit::Bytes if number >= 0.0 => Size(number as u64).to_string(),
        Unit::Flag => if number == 0.0 { "no" } else { "yes" }.into(),
        Unit::Seconds => span(Duration::try_from_secs_f64(number).unwrap_or_default()),
        Unit::Time => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            format!("{} ago", span(Duration::try_from_secs_f64(now - number).unwrap_or_default()))
        }
        _ => grouped(number),
    }
}

fn quantiles(snapshot: &Snapshot) -> String {
    match (snapshot.quantile(0.5), snapshot.quantile(0.99)) {
        (Some(half), Some(most)) => {
            format!("{} × p50 {} p99 {}", grouped(snapshot.count() as f64), span(half), span(most))
        }
        _ => "0".into(),
    }
}

/// A duration to three digits or so, in the unit that fits.
fn span(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        _ if seconds < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ if seconds < 120.0 => format!("{seconds:.1} s"),
        _ if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        _ if seconds < 172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} d", seconds / 86_400.0),
    }
}

/// A whole number with its thousands apart, or two digits behind the point.
fn grouped(number: f64) -> String {
    if number.fract() != 0.0 || number.abs() > 1e15 {
        return format!("{number:.2}");
    }
    let digits = (number.abs() as u64).to_string();
    let mut text = if number < 0.0 { String::from("-") } else { String::new() };
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Registry;

    fn info() -> AdminInfo {
        AdminInfo { node_id: "<node>".into(), version: "1" }
    }

    /// A label that somebody else chose stays text.
    #[test]
    fn labels_stay_text() {
        let registry = Registry::new();
        registry.collect("framecache_build_info", &[("version", "<script>alert('x')</script>")], || 1.0);
        let page = html(&info(), &Ready::Yes, &registry.families());
        assert!(!page.contains("<script") && !page.contains("<node>"), "{page}");
        assert!(page.contains("&lt;script&gt;") && page.contains("&lt;node&gt;"));
    }

    /// Numbers are shown in the unit that fits.
    #[test]
    fn numbers_are_readable() {
        let number = |unit, value| shown(unit, &Value::Number(value));
        assert_eq!(number(Unit::Bytes, 3.0 * 1024.0 * 1024.0), "3MiB");
        assert_eq!(number(Unit::Count, 1_234_567.0), "1\u{202f}234\u{202f}567");
        assert_eq!(number(Unit::Count, -12.0), "-12");
        assert_eq!(number(Unit::Count, 0.5), "0.50");
        assert_eq!(number(Unit::Flag, 1.0), "yes");
        let spans =
            [(12e-6, "12 µs"), (0.25, "250.0 ms"), (61.0, "61.0 s"), (600.0, "10 min"), (9000.0, "2.5 h"), (2e5, "2.3 d")];
        for (seconds, text) in spans {
            assert_eq!(number(Unit::Seconds, seconds), text);
        }
    }
}
