//! Style is a test with a kind message: floors, sizes, words.

use std::fs;
use std::path::{Path, PathBuf};

/// Longest file. Past it there is a second noun in it, which deserves a file of its own.
const LINES_MAX: usize = 500;

/// Longest line: the formatter's 130 for code, and a little more for what it cannot break.
const COLUMNS_MAX: usize = 140;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("workspace").to_owned()
}

fn sources(folder: &Path, ends: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("folder") {
            let path = entry.expect("entry").path();
            let name = path.file_name().expect("name").to_string_lossy().into_owned();
            if path.is_dir() && !matches!(name.as_str(), "target" | ".venv" | ".build" | ".git") {
                folders.push(path);
            } else if ends.iter().any(|end| name.ends_with(end)) {
                let text = fs::read_to_string(&path).expect("text");
                found.push((path, text));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no source in {}", folder.display());
    found
}

fn rust() -> Vec<(PathBuf, String)> {
    let root = root();
    ["client", "cache-node", "bench", "tests"].iter().flat_map(|folder| sources(&root.join(folder), &[".rs"])).collect()
}

fn complain(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// Promise: a file is read on a few screens, and no line runs off one.
#[test]
fn files_and_lines_are_short() {
    let mut faults = Vec::new();
    for (path, text) in rust() {
        let count = text.lines().count();
        if count > LINES_MAX {
            faults.push(format!("{}: {count} lines, at most {LINES_MAX}: look for the second noun", path.display()));
        }
        for (number, line) in text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS_MAX) {
            if !line.contains("http") && !line.trim_start().starts_with("//!") && !line.contains('"') {
                faults.push(format!("{}:{}: longer than {COLUMNS_MAX} columns", path.display(), number + 1));
            }
        }
    }
    complain(faults);
}

/// Promise: rooms are found by their nouns.
#[test]
fn no_room_is_called_utils() {
    let faults = rust()
        .into_iter()
        .filter(|(path, _)| {
            let stem = path.file_stem().expect("stem").to_string_lossy();
            ["util", "utils", "common", "helper", "helpers", "manager", "misc"].contains(&&*stem)
        })
        .map(|(path, _)| format!("{}: name it for a word of docs/GLOSSARY.md", path.display()))
        .collect();
    complain(faults);
}

/// What each room of the node may call: floors, from the ground up. A room sees its own parts and the floors below.
const FLOORS: &[(&str, &[&str])] = &[
    ("auth", &[]),
    ("budget", &["config"]),
    ("config", &["telemetry", "auth"]),
    ("identity", &[]),
    ("telemetry", &[]),
    ("origin", &["config", "telemetry", "budget"]),
    ("cache", &["config", "telemetry", "budget"]),
    ("decode", &["config", "telemetry", "budget"]),
    ("cluster", &["config", "telemetry"]),
    ("read", &["origin", "cache", "decode", "cluster", "budget", "telemetry", "auth"]),
    ("serve", &["read", "cache", "origin", "decode", "cluster", "config", "telemetry", "auth", "identity", "budget"]),
    ("exports", &["read", "cache", "origin", "decode", "cluster", "serve", "budget", "telemetry"]),
];

/// Promise: calls go down only; origin, cache, decode and cluster never see each other.
#[test]
fn floors_hold() {
    let node = root().join("cache-node/src");
    let rooms: Vec<&str> = FLOORS.iter().map(|(room, _)| *room).collect();
    let mut faults = Vec::new();
    for (path, text) in sources(&node, &[".rs"]) {
        let relative = path.strip_prefix(&node).expect("inside").with_extension("");
        let room = relative.components().next().expect("room").as_os_str().to_string_lossy().into_owned();
        let Some((_, below)) = FLOORS.iter().find(|(name, _)| *name == room) else { continue };
        for (number, line) in text.lines().enumerate() {
            for other in &rooms {
                let calls = line.contains(&format!("crate::{other}::")) && !line.trim_start().starts_with("//");
                if calls && *other != room && !below.contains(other) {
                    faults.push(format!(
                        "{}:{}: {room} calls {other}; if they must talk, the conversation belongs in read",
                        path.display(),
                        number + 1
                    ));
                }
            }
        }
    }
    complain(faults);
}

/// Promise: the client's policy and language touch no clock, socket or runtime.
#[test]
fn language_is_pure() {
    let client = root().join("client/src");
    let pure = [
        "object.rs",
        "spec.rs",
        "frame.rs",
        "view.rs",
        "ring.rs",
        "topology.rs",
        "route.rs",
        "health.rs",
        "hedge.rs",
        "hot.rs",
        "wire/codec.rs",
    ];
    let mut faults = Vec::new();
    for name in pure {
        let text = fs::read_to_string(client.join(name)).expect(name);
        for word in ["tokio", "quinn", "std::net", "Instant", "SystemTime"] {
            if text.contains(word) {
                faults.push(format!("client/src/{name} speaks of {word}: keep it in client.rs, pool.rs or wire/stream.rs"));
            }
        }
    }
    complain(faults);
}

/// Promise: what is written is finished, and speaks of the project alone.
#[test]
fn nothing_is_left_open() {
    let open = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!("), concat!("FIX", "ME")];
    let mut faults = Vec::new();
    for (path, text) in rust() {
        for word in open {
            if text.contains(word) {
                faults.push(format!(
                    "{}: holds {word}: finish it, or write down in docs/STATUS.md what is missing",
                    path.display()
                ));
            }
        }
    }
    complain(faults);
}

/// Promise: the client's default tree is light: no media, S3 or server dependency comes with it.
#[test]
fn client_is_light() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let tree = std::process::Command::new(cargo)
        .args(["tree", "--package", "framecache", "--edges", "normal", "--prefix", "none", "--locked"])
        .current_dir(root())
        .output()
        .expect("cargo tree");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).expect("text");
    assert!(tree.contains("quinn "), "the tree is not the client's:\n{tree}");
    let heavy = [
        "aws-sdk",
        "aws-config",
        "aws-smithy",
        "image ",
        "turbojpeg",
        "foyer",
        "s3s",
        "axum",
        "hyper ",
        "clap ",
        "opentelemetry",
        "ffmpeg",
    ];
    let faults = tree.lines().filter(|line| heavy.iter().any(|name| line.starts_with(name))).map(str::to_owned).collect();
    complain(faults);
}
