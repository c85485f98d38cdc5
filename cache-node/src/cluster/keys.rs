//! The keys of the cluster: who has one may take part in gossip and liveness.
//!
//! The file holds one key a line, in hex or base64, at least 32 bytes: the first signs, all are accepted. So a key is changed
//! without a gap: the new one is added at the end on every node, then moved to the top on every node, then the old one is
//! deleted. The file is looked at every few seconds; one that cannot be used changes nothing and is warned about once.
//!
//! What is sealed with is derived from a key by HKDF (RFC 5869), for each purpose and cluster name apart, so that a datagram of
//! one socket, or of another cluster with the same key, is a foreign one.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM_SIV, LessSafeKey, UnboundKey};
use aws_lc_rs::hkdf;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

/// Keys in one file: a rotation needs two, a careful one three.
const KEYS_MAX: usize = 16;

/// Bytes of a key: as many as AES-256 takes, and no essay.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 32..=256;

/// Longest key file: all keys in hex, and room for comments.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Bytes of a key's name on the wire.
pub(super) const KEY_ID_BYTES: usize = 8;

/// How to make a key, for whoever has none.
const HOW: &str = "make one with `openssl rand -hex 32`, the same file on every node";

/// The keys, or where they lie.
#[derive(Clone)]
pub struct Keys(Source);

#[derive(Clone)]
enum Source {
    /// Not given by an operator: for loopback alone.
    Memory(Arc<Vec<Secret>>),
    File(PathBuf),
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(Vec<u8>);

/// Why there are no usable keys. Correct the file that the message names.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file cannot be read.
    #[error("read `cluster.keys` {}: {source}; name a file that this user may read", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A line is no key. It is not repeated: it may be most of one.
    #[error("`cluster.keys` line {line}: {fault}; {HOW}")]
    Line { line: usize, fault: &'static str },
    /// No key at all.
    #[error("`cluster.keys` holds no key; {HOW}")]
    Empty,
    /// More than a rotation needs.
    #[error("`cluster.keys` holds more than {KEYS_MAX} keys; delete the old ones")]
    TooMany,
    /// The machine gives no random bytes.
    #[error("no random bytes from the system; see that /dev/urandom can be read")]
    Random,
}

impl Keys {
    /// The operator's file: read at start, and again when it changes.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    /// A key that nobody else knows: for nodes of one process, on loopback.
    pub fn random() -> Result<Self, KeysError> {
        let mut secret = vec![0; *KEY_BYTES.start()];
        aws_lc_rs::rand::fill(&mut secret).map_err(|_| KeysError::Random)?;
        Ok(Self(Source::Memory(Arc::new(vec![Secret(secret)]))))
    }

    /// A key that everybody knows: for processes of one machine that were given none. Whoever may send on loopback may take part;
    /// rows still count by certificate only.
    pub fn loopback() -> Self {
        Self(Source::Memory(Arc::new(vec![Secret(b"framecache on loopback, not a secret".to_vec())])))
    }

    /// Whether an operator gave them: needed beyond loopback.
    pub(super) fn are_given(&self) -> bool {
        matches!(self.0, Source::File(_))
    }

    /// The keys as they are now, the signing one first.
    pub(super) fn read(&self) -> Result<Vec<Secret>, KeysError> {
        match &self.0 {
            Source::Memory(secrets) => Ok(secrets.to_vec()),
            Source::File(path) => {
                let mut text = String::new();
                std::fs::File::open(path)
                    .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
                    .map_err(|source| KeysError::Read { path: path.clone(), source })?;
                parse(&text)
            }
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Memory(_) => out.write_str("Keys(in memory)"),
            Source::File(path) => write!(out, "Keys({})", path.display()),
        }
    }
}

/// The keys of a file's text. Blank lines, and what follows a `#` at the beginning of a line, are passed over.
fn parse(text: &str) -> Result<Vec<Secret>, KeysError> {
    let mut secrets: Vec<Secret> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |fault| KeysError::Line { line: number + 1, fault };
        let bytes = hex(line).or_else(|| STANDARD.decode(line).ok()).or_else(|| STANDARD_NO_PAD.decode(line).ok());
        let bytes = bytes.ok_or_else(|| wrong("neither hex nor base64"))?;
        if !KEY_BYTES.contains(&bytes.len()) {
            return Err(wrong("a key has 32 to 256 bytes"));
        }
        if secrets.len() == KEYS_MAX {
            return Err(KeysError::TooMany);
        }
        secrets.push(Secret(bytes));
    }
    if secrets.is_empty() { Err(KeysError::Empty) } else { Ok(secrets) }
}

/// The bytes of an even number of hex digits, else `None`.
fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// What a key is used for; each has keys of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Purpose {
    Gossip = 1,
    Liveness = 2,
}

/// The keys of one purpose, ready to seal with.
pub(super) struct Keychain(Vec<(KeyId, LessSafeKey)>);

pub(super) type KeyId = [u8; KEY_ID_BYTES];

impl Keychain {
    /// Derives the keys of `purpose` in the cluster of that name.
    pub(super) fn derive(secrets: &[Secret], purpose: Purpose, cluster: &str) -> Self {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"framecache cluster 1");
        let derived = secrets.iter().filter_map(|secret| {
            let key = salt.extract(&secret.0);
            // One byte, then the rest: no two purposes and names give the same text.
            let (purpose, cluster) = ([purpose as u8], cluster.as_bytes());
            let mut id = [0; 32];
            key.expand(&[b"id", &purpose, cluster], hkdf::HKDF_SHA256).ok()?.fill(&mut id).ok()?;
            let sealing = UnboundKey::from(key.expand(&[b"key", &purpose, cluster], &AES_256_GCM_SIV).ok()?);
            let id = id.first_chunk().copied()?;
            Some((id, LessSafeKey::new(sealing)))
        });
        Self(derived.collect())
    }

    /// The key that signs.
    pub(super) fn first(&self) -> Option<&(KeyId, LessSafeKey)> {
        self.0.first()
    }

    /// The key of that name.
    pub(super) fn find(&self, id: KeyId) -> Option<&LessSafeKey> {
        self.0.iter().find(|(known, _)| *known == id).map(|(_, key)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a key file is hex or base64 with comments; what is no key is refused by its line, and never repeated.
    #[test]
    fn key_files_are_read_or_refused_by_line() {
        let (hex, base64) = ("ab".repeat(32), STANDARD.encode([7; 32]));
        let secrets = parse(&format!("# first\n{hex}\n\n  {base64}\n{}\n", base64.trim_end_matches('='))).expect("keys");
        assert!(secrets == [Secret(vec![0xab; 32]), Secret(vec![7; 32]), Secret(vec![7; 32])]);
        let many = format!("{hex}\n").repeat(KEYS_MAX + 1);
        let cases = [
            ("", "no key"),
            ("# only\n", "no key"),
            ("secret!", "line 1"),
            ("abcd", "32 to 256"),
            (&format!("{hex}\nzz"), "line 2"),
            (&many, "more than 16"),
        ];
        for (text, part) in cases {
            let said = parse(text).err().expect(text).to_string();
            assert!(said.contains(part) && !said.contains("secret"), "{text:?}: {said}");
        }
    }

    /// Promise: purposes and clusters do not share keys.
    #[test]
    fn keys_differ_by_purpose_and_cluster() {
        let secrets = [Secret(vec![1; 32])];
        let id = |purpose, cluster| Keychain::derive(&secrets, purpose, cluster).first().expect("key").0;
        assert_eq!(id(Purpose::Gossip, "a"), id(Purpose::Gossip, "a"));
        assert_ne!(id(Purpose::Gossip, "a"), id(Purpose::Liveness, "a"));
        assert_ne!(id(Purpose::Gossip, "a"), id(Purpose::Gossip, "b"));
    }
}
