//! What is logged, and in which form: `telemetry.log` read once.

use tracing_subscriber::EnvFilter;

/// Words that stand for a level.
const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];

/// Lines of the log: which, and how.
#[derive(Debug)]
pub struct LogSetting {
    /// One JSON object a line rather than text.
    pub json: bool,
    pub filter: EnvFilter,
}

impl LogSetting {
    /// Reads `info`, `json,info` or `info,framecache_node=debug`; the error says what to write instead.
    ///
    /// A bare word that is no level is refused: the filter would take it for a target and log that one in full.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (json, filter) = match text.strip_prefix("json") {
            Some(rest) if rest.is_empty() || rest.starts_with(',') => (true, rest.trim_start_matches(',')),
            _ => (false, text),
        };
        let filter = if filter.is_empty() { "info" } else { filter };
        // What a library tells its own developers; `foyer_storage=info` brings it back.
        let filter = &format!("foyer=warn,foyer_storage=warn,foyer_memory=warn,{filter}");
        let bad = filter.split(',').map(str::trim).find(|item| !item.contains('=') && !LEVELS.contains(item));
        match (bad, EnvFilter::try_new(filter)) {
            (None, Ok(filter)) => Ok(Self { json, filter }),
            _ => Err("write a level (off, error, warn, info, debug, trace) or target=level, separated by commas".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is meant is logged, and what is misspelt is refused rather than logged in full.
    #[test]
    fn settings_are_levels_and_targets() {
        let cases = [
            ("info", Some(false)),
            ("json", Some(true)),
            ("json,debug", Some(true)),
            ("warn,framecache_node=debug,quinn=off", Some(false)),
            ("", Some(false)),
            ("jsn,info", None),
            ("json5,info", None),
            ("info,framecache_node", None),
            ("info,framecache_node=loud", None),
        ];
        for (text, json) in cases {
            assert_eq!(LogSetting::parse(text).ok().map(|setting| setting.json), json, "{text:?}");
        }
    }
}
