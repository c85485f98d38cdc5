//! NPY, numpy's file of one array: format version 1.0 of NEP 1 (`numpy.lib.format`).

use std::io::{self, Write};

use crate::frame::Dtype;

/// The array data begins at a multiple of this, in bytes (NEP 1, "Format Specification: Version 1.0").
const ALIGN: usize = 64;

/// Everything before the pixels of an array.
pub fn header(shape: &[usize], dtype: Dtype) -> Vec<u8> {
    let descr = match dtype {
        Dtype::U8 => "|u1",
        Dtype::U16 => "<u2",
    };
    let sides: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}{comma}), }}", sides.join(", "));
    const PREFIX: &[u8] = b"\x93NUMPY\x01\x00";
    let unpadded = PREFIX.len() + 2 + text.len() + 1;
    text.push_str(&" ".repeat(unpadded.next_multiple_of(ALIGN) - unpadded));
    text.push('\n');
    // At most four sides of a picture: far below what two bytes hold.
    let length = text.len() as u16;
    [PREFIX, &length.to_le_bytes(), text.as_bytes()].concat()
}

/// Writes an array.
pub fn write(to: &mut dyn Write, shape: &[usize], dtype: Dtype, data: &[u8]) -> io::Result<()> {
    to.write_all(&header(shape, dtype))?;
    to.write_all(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the bytes are those that numpy 2 writes with `numpy.save`.
    #[test]
    fn bytes_are_numpys() {
        let mut file = Vec::new();
        write(&mut file, &[1, 2, 3], Dtype::U8, &[1, 2, 3, 4, 5, 6]).expect("write");
        let text = b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2, 3), }";
        assert_eq!(&file[..text.len()], text);
        assert_eq!((file.len(), file[127], &file[128..]), (134, b'\n', &[1, 2, 3, 4, 5, 6][..]));
        assert!(file[text.len()..127].iter().all(|&b| b == b' '));
        assert!(header(&[7], Dtype::U8).windows(4).any(|part| part == b"(7,)"));
        assert!(header(&[7], Dtype::U16).windows(14).any(|part| part == b"'descr': '<u2'"));
    }
}
