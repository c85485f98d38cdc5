//! Turning a picture as its orientation says (EXIF 2.32 and TIFF 6.0, tag 274).

/// Width and height after the turn.
pub(super) fn turned_size((width, height): (usize, usize), orientation: u8) -> (usize, usize) {
    if (5..=8).contains(&orientation) { (height, width) } else { (width, height) }
}

/// Writes `from`, of that width and height with `pixel` bytes a pixel, to `out` of the same length: 2 mirrored, 3 half a turn, 4 upside
/// down, 5 transposed, 6 a quarter to the right, 7 transversed, 8 a quarter to the left, anything else as it is.
pub(super) fn turn(from: &[u8], (width, height): (usize, usize), pixel: usize, orientation: u8, out: &mut [u8]) {
    let (out_width, _) = turned_size((width, height), orientation);
    for (number, to) in out.chunks_exact_mut(pixel).enumerate() {
        let (x, y) = (number % out_width, number / out_width);
        let (from_x, from_y) = match orientation {
            2 => (width - 1 - x, y),
            3 => (width - 1 - x, height - 1 - y),
            4 => (x, height - 1 - y),
            5 => (y, x),
            6 => (y, height - 1 - x),
            7 => (width - 1 - y, height - 1 - x),
            8 => (width - 1 - y, x),
            _ => (x, y),
        };
        to.copy_from_slice(&from[(from_y * width + from_x) * pixel..][..pixel]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the eight orientations are those of the standard: where the first row and column of the stored picture come to lie.
    #[test]
    fn eight_ways_to_hold_a_camera() {
        // a b c
        // d e f
        let stored = b"abcdef";
        for (orientation, size, want) in [
            (1, (3, 2), b"abcdef"),
            (2, (3, 2), b"cbafed"),
            (3, (3, 2), b"fedcba"),
            (4, (3, 2), b"defabc"),
            (5, (2, 3), b"adbecf"),
            (6, (2, 3), b"daebfc"),
            (7, (2, 3), b"fcebda"),
            (8, (2, 3), b"cfbead"),
        ] {
            let mut out = [0; 6];
            turn(stored, (3, 2), 1, orientation, &mut out);
            assert_eq!((turned_size((3, 2), orientation), &out), (size, want), "{orientation}");
        }
    }
}
