//! File and environment become one table of values whose form is right, and each value remembers where it was written.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::keys::{self, BUCKET, Key, Kind};
use super::{ConfigError, Size};

/// Most buckets, and most entries of a list: more is a generated file gone wrong.
pub(super) const ENTRIES_MAX: usize = 256;

/// What was written, by whom.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) tables: toml::Table,
    /// `table.name` or `bucket[n].name` to `file:line` or the variable.
    places: BTreeMap<String, String>,
}

impl Source {
    /// The file's text, overlaid by the environment. Checks names and forms; meanings are `lift`'s.
    pub(super) fn read(file: &str, text: &str, env: impl Iterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let mut source = Self::default();
        source.read_file(if file.is_empty() { "config" } else { file }, text)?;
        source.read_env(env)?;
        Ok(source)
    }

    /// Where this key was written, else its name.
    pub(super) fn place(&self, path: &str) -> String {
        self.places.get(path).cloned().unwrap_or_else(|| "config".into())
    }

    /// Whether somebody wrote this key.
    pub(super) fn is_set(&self, path: &str) -> bool {
        self.places.contains_key(path)
    }

    fn read_file(&mut self, file: &str, text: &str) -> Result<(), ConfigError> {
        let place = |at: usize| format!("{file}:{}", text[..at.min(text.len())].matches('\n').count() + 1);
        let document = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            place: place(error.span().map_or(0, |span| span.start)),
            message: error.message().to_string(),
        })?;
        for (name, value) in document.get_ref() {
            let (table, line) = (name.get_ref().as_ref(), place(name.span().start));
            if !keys::is_table(table) {
                let fix = keys::advice_table(table);
                return Err(ConfigError::Unknown { place: line, what: "table", name: table.into(), fix });
            }
            match (table == BUCKET, value.get_ref()) {
                (false, DeValue::Table(entries)) => self.read_table(table, table, entries, &place)?,
                (true, DeValue::Array(buckets)) if buckets.len() <= ENTRIES_MAX => {
                    for (index, bucket) in buckets.iter().enumerate() {
                        let DeValue::Table(entries) = bucket.get_ref() else {
                            return Err(wrong_shape(place(bucket.span().start), table, "write `[[bucket]]` above its keys"));
                        };
                        self.bucket(index);
                        self.read_table(table, &format!("{BUCKET}[{index}]"), entries, &place)?;
                    }
                }
                (true, DeValue::Array(_)) => return Err(wrong_shape(line, table, "give at most 256 buckets")),
                (true, _) => return Err(wrong_shape(line, table, "write `[[bucket]]` above its keys")),
                (false, _) => return Err(wrong_shape(line, table, &format!("write `[{table}]` above its keys"))),
            }
        }
        Ok(())
    }

    /// The keys of one table; `path` differs from `table` for buckets.
    fn read_table(
        &mut self,
        table: &str,
        path: &str,
        entries: &DeTable<'_>,
        place: &impl Fn(usize) -> String,
    ) -> Result<(), ConfigError> {
        for (name, value) in entries {
            let line = place(name.span().start);
            let name = name.get_ref().as_ref();
            let Some(key) = keys::find(table, name) else {
                let fix = keys::advice(table, name);
                return Err(ConfigError::Unknown { place: line, what: "key", name: format!("{table}.{name}"), fix });
            };
            self.put(path, key, plain(value.get_ref()), line)?;
        }
        Ok(())
    }

    fn read_env(&mut self, env: impl Iterator<Item = (String, String)>) -> Result<(), ConfigError> {
        let mut found = Vec::new();
        for (variable, text) in env {
            // Without `__` it is not ours: Kubernetes sets FRAMECACHE_PORT and the like for a service of that name, and the
            // client has its own variables.
            let Some((table, rest)) = variable.strip_prefix("FRAMECACHE_").and_then(|rest| rest.split_once("__")) else {
                continue;
            };
            let (index, name) = match rest.split_once("__") {
                Some((index, name)) if table == "BUCKET" => match index.parse::<usize>() {
                    Ok(index) => (index, name),
                    Err(_) => return Err(unknown_variable(&variable)),
                },
                _ => (0, rest),
            };
            let (table, name) = (table.to_lowercase(), name.to_lowercase());
            let key = keys::find(&table, &name).ok_or_else(|| unknown_variable(&variable))?;
            found.push((index, variable, key, text));
        }
        found.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        for (index, variable, key, text) in found {
            let path = if key.table == BUCKET {
                if !self.bucket(index) {
                    let fix = "number buckets from 0 without gaps, at most 256".to_string();
                    return Err(ConfigError::Unknown { place: "environment".into(), what: "variable", name: variable, fix });
                }
                format!("{BUCKET}[{index}]")
            } else {
                key.table.to_string()
            };
            if self.places.get(&format!("{path}.{}", key.name)).is_some_and(|place| place.starts_with("FRAMECACHE_")) {
                let problem = format!("of the first bucket is set by two variables, `{variable}` is one");
                return Err(ConfigError::Conflict { key: BUCKET, problem, fix: "delete one of them".into() });
            }
            self.put(&path, key, spoken(key.kind, &text), variable)?;
        }
        Ok(())
    }

    fn put(&mut self, path: &str, key: &Key, value: Value, place: String) -> Result<(), ConfigError> {
        let got = shown(&value);
        let value = match form(key.kind, value) {
            Ok(value) => value,
            Err(fix) => return Err(ConfigError::Value { place, key: format!("{path}.{}", key.name), got, fix }),
        };
        self.places.insert(format!("{path}.{}", key.name), place);
        if let Some(table) = self.table(path) {
            table.insert(key.name.into(), value);
        }
        Ok(())
    }

    fn table(&mut self, path: &str) -> Option<&mut toml::Table> {
        match path.strip_prefix("bucket[").and_then(|rest| rest.strip_suffix(']')) {
            None => self.tables.entry(path).or_insert_with(|| Value::Table(toml::Table::new())).as_table_mut(),
            Some(index) => self.tables.get_mut(BUCKET)?.as_array_mut()?.get_mut(index.parse::<usize>().ok()?)?.as_table_mut(),
        }
    }

    /// Makes sure that the bucket of this index exists; false if it would leave a gap.
    fn bucket(&mut self, index: usize) -> bool {
        let entry = self.tables.entry(BUCKET).or_insert_with(|| Value::Array(Vec::new()));
        let Some(buckets) = entry.as_array_mut() else { return false };
        if index == buckets.len() && index < ENTRIES_MAX {
            buckets.push(Value::Table(toml::Table::new()));
        }
        index < buckets.len()
    }
}

/// Those of `env` that are ours: `FRAMECACHE_`, and a `__` between table and key.
pub(super) fn variables(env: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<(String, String)>, ConfigError> {
    let is_ours = |name: &str| name.strip_prefix("FRAMECACHE_").is_some_and(|rest| rest.contains("__"));
    env.filter(|(name, _)| is_ours(&name.to_string_lossy()))
        .map(|(name, text)| match (name.into_string(), text.into_string()) {
            (Ok(name), Ok(text)) => Ok((name, text)),
            (Ok(name), Err(_)) => Err(ConfigError::NotText { name }),
            (Err(name), _) => Err(ConfigError::NotText { name: name.to_string_lossy().into() }),
        })
        .collect()
}

/// The value in the form of its kind, else what to write instead.
fn form(kind: Kind, value: Value) -> Result<Value, String> {
    let size = |value: &Value| match value {
        Value::String(text) => Size::parse(text).map(|size| size.0 as i64),
        Value::Integer(bytes) if *bytes >= 0 => Some(*bytes),
        _ => None,
    };
    match (kind, value) {
        (Kind::Text | Kind::Path, Value::String(text)) if !text.trim().is_empty() => Ok(Value::String(text)),
        (Kind::Text | Kind::Path, _) => Err("write a text in quotes, not empty".into()),
        (Kind::Address, Value::String(text)) if text.parse::<SocketAddr>().is_ok() => Ok(Value::String(text)),
        (Kind::Address, _) => Err("write an IP address and a port, such as \"127.0.0.1:4433\" or \"[::1]:4433\"".into()),
        (Kind::BytesOrOff, Value::String(text)) if text == "off" => Ok(Value::Integer(0)),
        (Kind::Bytes | Kind::BytesOrOff, value) => size(&value).map(Value::Integer).ok_or_else(|| {
            let off = if kind == Kind::BytesOrOff { ", or \"off\"" } else { "" };
            format!("write bytes as \"8GiB\" or \"512MiB\" (\"8GB\" is 8 x 10^9), or as a whole number{off}")
        }),
        (Kind::Count(least, most), Value::Integer(count)) if (least..=most).contains(&count) => Ok(Value::Integer(count)),
        (Kind::Count(least, most), _) => Err(format!("write a whole number from {least} to {most}")),
        (Kind::Number(most), Value::Integer(number)) if number > 0 && number <= i64::from(most) => {
            Ok(Value::Float(number as f64))
        }
        (Kind::Number(most), Value::Float(number)) if number > 0.0 && number <= f64::from(most) => Ok(Value::Float(number)),
        (Kind::Number(most), _) => Err(format!("write a number above 0, up to {most}")),
        (Kind::Flag, Value::Boolean(flag)) => Ok(Value::Boolean(flag)),
        (Kind::Flag, _) => Err("write true or false".into()),
        (Kind::Choice(choices), Value::String(text)) if choices.contains(&text.as_str()) => Ok(Value::String(text)),
        (Kind::Choice(choices), _) => Err(format!("write one of \"{}\"", choices.join("\", \""))),
        (Kind::Texts, Value::Array(list)) if list.len() <= ENTRIES_MAX && list.iter().all(is_filled) => Ok(Value::Array(list)),
        (Kind::Texts, _) => Err("write a list of at most 256 texts, such as [\"a\", \"b\"]".into()),
        (Kind::Choices(choices), Value::Array(list)) if is_selection(choices, &list) => Ok(Value::Array(list)),
        (Kind::Choices(choices), _) => Err(format!("write a list out of \"{}\", none twice", choices.join("\", \""))),
    }
}

fn is_filled(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.trim().is_empty())
}

fn is_selection(choices: &[&str], list: &[Value]) -> bool {
    let known = |value: &Value| value.as_str().is_some_and(|text| choices.contains(&text));
    !list.is_empty() && list.iter().all(known) && list.iter().enumerate().all(|(at, value)| !list[..at].contains(value))
}

/// A value of the file without its spans.
fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            // Past 2^63 no key has a meaning; as text it is refused, and quoted, by its kind.
            Err(_) => Value::String(number.as_str().into()),
        },
        DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Datetime(time) => Value::Datetime(*time),
        DeValue::Array(list) => Value::Array(list.iter().map(|value| plain(value.get_ref())).collect()),
        DeValue::Table(table) => {
            Value::Table(table.iter().map(|(name, value)| (name.get_ref().to_string(), plain(value.get_ref()))).collect())
        }
    }
}

/// A variable's text as a value of that kind; what does not fit stays a text, and is refused as such.
fn spoken(kind: Kind, text: &str) -> Value {
    let text = text.trim();
    let fitting = match kind {
        Kind::Count(..) => text.parse().ok().map(Value::Integer),
        Kind::Number(_) => text.parse().ok().map(Value::Float),
        Kind::Flag => text.parse().ok().map(Value::Boolean),
        Kind::Texts | Kind::Choices(_) => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Some(Value::Array(items.map(|item| Value::String(item.into())).collect()))
        }
        _ => None,
    };
    fitting.unwrap_or_else(|| Value::String(text.into()))
}

/// The value for a message: at most 60 characters on one line.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => format!("{text:?}"),
        value => value.to_string().replace('\n', " "),
    };
    if text.chars().count() <= 60 { text } else { text.chars().take(57).chain("...".chars()).collect() }
}

fn wrong_shape(place: String, table: &str, fix: &str) -> ConfigError {
    ConfigError::Value { place, key: table.into(), got: "not a table of keys".into(), fix: fix.into() }
}

fn unknown_variable(variable: &str) -> ConfigError {
    let lower = variable.to_lowercase();
    let (table, name) = lower.trim_start_matches("framecache_").split_once("__").unwrap_or_default();
    let fix = if keys::is_table(table) { keys::advice(table, name) } else { keys::advice_table(table) };
    ConfigError::Unknown { place: "environment".into(), what: "variable", name: variable.into(), fix }
}
