//! Hostile pictures: what Pillow writes, damaged so that the same seed damages it the same way.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the test environment's Pillow writes.
pub fn pillow(what: &str) -> tempfile::TempDir {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("workspace");
    let python = std::env::var_os("PYO3_PYTHON").map_or_else(|| root.join(".venv/bin/python"), PathBuf::from);
    let made = tempfile::tempdir().expect("folder");
    let output = Command::new(python).arg(root.join("cache-node/tests/pillow.py")).arg(what).arg(made.path()).output();
    let output = output.expect("python of the test environment");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    made
}

/// Small pictures of every format: Pillow's, and the corpus's where one is named.
pub fn originals() -> Vec<(String, Vec<u8>)> {
    let made = pillow("make");
    let mut folders = vec![made.path().to_owned()];
    folders.extend(std::env::var("FRAMECACHE_CORPUS").map(|corpus| Path::new(&corpus).join("images")));
    let mut found = Vec::new();
    for folder in folders {
        let mut paths: Vec<_> = std::fs::read_dir(folder).expect("folder").map(|entry| entry.expect("entry").path()).collect();
        paths.sort();
        let files = paths.into_iter().map(|path| {
            let bytes = std::fs::read(&path).expect("file");
            (path.file_name().expect("name").to_string_lossy().into_owned(), bytes)
        });
        found.extend(files.filter(|(name, bytes)| !name.ends_with("jsonl") && (1..=30 << 10).contains(&bytes.len())));
    }
    found
}

/// Up to nine bytes changed, most of them near the start, where sizes and offsets stand; sometimes cut.
pub fn mutant(bytes: &[u8], mut seed: u64) -> Vec<u8> {
    let mut roll = |sides: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 20) as usize % sides.max(1)
    };
    let mut out = bytes.to_vec();
    for _ in 0..=roll(9) {
        let near = if roll(2) == 0 { 200 } else { out.len() };
        let at = roll(near.min(out.len()));
        out[at] = [0, 0xff, 0x80, 1, roll(256) as u8, out[at] ^ 1 << roll(8)][roll(6)];
    }
    if roll(10) == 0 {
        out.truncate(roll(bytes.len()));
    }
    out
}
