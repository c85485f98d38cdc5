//! FFmpeg's names of the numbers by which ITU-T H.273 says what colours are meant.

/// FFmpeg's names of H.273's numbers, as far as there are any.
pub(crate) fn named(names: &[&'static str], number: u8) -> Option<&'static str> {
    names.get(usize::from(number)).copied().filter(|name| !name.is_empty())
}

pub(crate) const MATRICES: [&str; 11] =
    ["gbr", "bt709", "", "", "fcc", "bt470bg", "smpte170m", "smpte240m", "ycgco", "bt2020nc", "bt2020c"];

pub(crate) const RANGES: [&str; 2] = ["tv", "pc"];

pub(crate) const PRIMARIES: [&str; 13] =
    ["", "bt709", "", "", "bt470m", "bt470bg", "smpte170m", "smpte240m", "film", "bt2020", "smpte428", "smpte431", "smpte432"];

pub(crate) const TRANSFERS: [&str; 19] = [
    "",
    "bt709",
    "",
    "",
    "bt470m",
    "bt470bg",
    "smpte170m",
    "smpte240m",
    "linear",
    "log100",
    "log316",
    "iec61966-2-4",
    "bt1361e",
    "iec61966-2-1",
    "bt2020-10",
    "bt2020-12",
    "smpte2084",
    "smpte428",
    "arib-std-b67",
];
