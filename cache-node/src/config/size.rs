//! Bytes as people write them.

use std::fmt;

/// A number of bytes that prints in the largest binary unit that divides it to at most one decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Binary units are powers of 1,024, decimal ones of 1,000, as ISO/IEC 80000-13 has them: `8GB` is 8,000,000,000.
const UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

impl Size {
    /// Reads `8GiB`, `1.5 GiB`, `8GB` or a bare number of bytes; `None` if it is none of these or passes 2^63.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (number, unit) =
            UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?.trim_end(), *bytes))).unwrap_or((text, 1));
        let bytes = match number.split_once('.') {
            None => whole(number)?.checked_mul(unit)?,
            // Exact, where a float would round: the fraction has at most nine digits.
            Some((whole_part, fraction)) if (1..=9).contains(&fraction.len()) => {
                let parts = u128::from(whole(fraction)?) * u128::from(unit) / 10u128.pow(fraction.len() as u32);
                whole(whole_part)?.checked_mul(unit)?.checked_add(u64::try_from(parts).ok()?)?
            }
            Some(_) => return None,
        };
        (bytes <= i64::MAX as u64).then_some(Self(bytes))
    }
}

/// Digits alone: no sign, no underscore, no blank.
fn whole(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, bytes) = UNITS[..4].iter().find(|(_, bytes)| self.0 >= *bytes).unwrap_or(&("B", 1));
        if self.0.is_multiple_of(*bytes) {
            write!(out, "{}{unit}", self.0 / bytes)
        } else {
            write!(out, "{:.1}{unit}", self.0 as f64 / *bytes as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A size means the same to us as to the person who wrote it, or nothing.
    #[test]
    fn sizes_are_read_exactly() {
        let cases: &[(&str, Option<u64>)] = &[
            ("8GiB", Some(8 << 30)),
            ("512 MiB", Some(512 << 20)),
            (" 1.5GiB ", Some(3 << 29)),
            ("8GB", Some(8_000_000_000)),
            ("10kB", Some(10_000)),
            ("4096", Some(4096)),
            ("7B", Some(7)),
            ("0", Some(0)),
            ("0.1KiB", Some(102)),
            ("", None),
            ("GiB", None),
            ("-1GiB", None),
            ("+1GiB", None),
            ("8G", None),
            ("8Gib", None),
            ("1e9", None),
            ("1_000", None),
            ("1.GiB", None),
            (".5GiB", None),
            ("1.1234567890GiB", None),
            ("8388608TiB", None),
            ("99999999999999999999", None),
            ("8 GiB GiB", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(Size::parse(text).map(|size| size.0), *bytes, "{text:?}");
        }
    }

    /// Printed sizes are short, and read back where they are exact.
    #[test]
    fn sizes_print_in_the_largest_unit() {
        for (bytes, text) in [(0, "0B"), (1023, "1023B"), (8 << 30, "8GiB"), (3 << 29, "1.5GiB"), (1 << 20, "1MiB")] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
