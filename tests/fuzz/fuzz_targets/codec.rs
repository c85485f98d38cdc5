//! Any bytes, read as every message: refused or read, never a panic, never more memory than the bytes justify.
//!
//! `cargo +nightly fuzz run codec` in `tests/fuzz`.
#![no_main]

use framecache::TensorHead;
use framecache::wire::codec::{PREFIX_BYTES, decode, length};
use framecache::wire::*;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    if let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() {
        let _ = length::<Header>(*prefix);
    }
    match kind % 18 {
        0 => drop(decode::<Header>(bytes)),
        1 => drop(decode::<ReadBody>(bytes)),
        2 => drop(decode::<FramesBody>(bytes)),
        3 => drop(decode::<DecodeBody>(bytes)),
        4 => drop(decode::<PeekBody>(bytes)),
        5 => drop(decode::<ObjectsBody>(bytes)),
        6 => drop(decode::<ListBody>(bytes)),
        7 => drop(decode::<IndexBody>(bytes)),
        8 => drop(decode::<ViewBody>(bytes)),
        9 => drop(decode::<PlanBody>(bytes)),
        10 => drop(decode::<KeepBody>(bytes)),
        11 => drop(decode::<ExplainBody>(bytes)),
        12 => drop(decode::<AuthBody>(bytes)),
        13 => {
            if let Ok(Some(tensor)) = decode::<ItemHead>(bytes).map(|item| item.tensor) {
                drop(TensorHead::try_from(tensor));
            }
        }
        14 => drop(decode::<ViewPayload>(bytes)),
        15 => drop(decode::<ListPayload>(bytes)),
        16 => drop(decode::<StatPayload>(bytes)),
        _ => drop(decode::<ExplainPayload>(bytes)),
    }
});
