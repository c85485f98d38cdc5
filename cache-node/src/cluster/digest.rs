//! How much a gossip message would unpack to, before it is unpacked.
//!
//! A message is `magic 2 | version 1 | type 1`, then by type a digest, a delta or both. A digest is `count 2` and that many
//! `id length 2 | id | generation 8 | address family 1 | address 4 or 16 | port 2 | heartbeat 8 | versions 16`; a delta is a run of
//! blocks `type 1 | length 2 | bytes` that ends with type 0. A block unpacks to at most 64 KiB.

/// Nodes in one digest: those that a view may hold, and as many of their former lives.
const NODES_MAX: u16 = 2 * framecache::view::NODES_MAX as u16;

/// Blocks of one delta, 16 MiB unpacked. Chitchat packs 16 KiB into each, and a delta that fills its 64 KiB of packed bytes with
/// rows, which shrink to a third, has a dozen.
const BLOCKS_MAX: usize = 256;

const SYN: u8 = 0;
const SYN_ACK: u8 = 1;
const ACK: u8 = 2;
const BAD_CLUSTER: u8 = 3;

/// Whether `message` is built as above and unpacks to a bounded size.
pub(super) fn is_bounded(message: &[u8]) -> bool {
    let Some(([_, _, _, kind], rest)) = message.split_first_chunk::<4>() else { return false };
    match *kind {
        SYN => after_digest(rest).is_some(),
        SYN_ACK => after_digest(rest).and_then(blocks).is_some(),
        ACK => blocks(rest).is_some(),
        BAD_CLUSTER => true,
        _ => false,
    }
}

fn after_digest(bytes: &[u8]) -> Option<&[u8]> {
    let (count, mut rest) = bytes.split_first_chunk()?;
    let count = u16::from_le_bytes(*count);
    if count > NODES_MAX {
        return None;
    }
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk()?;
        let after = after.get(usize::from(u16::from_le_bytes(*length)) + 8..)?;
        let (family, after) = after.split_first()?;
        let address = match family {
            4 => 4,
            6 => 16,
            _ => return None,
        };
        rest = after.get(address + 2 + 8 + 16..)?;
    }
    Some(rest)
}

fn blocks(mut bytes: &[u8]) -> Option<()> {
    for _ in 0..=BLOCKS_MAX {
        let (kind, rest) = bytes.split_first()?;
        if *kind == 0 {
            return Some(());
        }
        let (length, rest) = rest.split_first_chunk()?;
        bytes = rest.get(usize::from(u16::from_le_bytes(*length))..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syn_ack(nodes: u16, blocks: usize) -> Vec<u8> {
        let node = [&[1, 0, b'n'][..], &[0; 8], &[4, 127, 0, 0, 1, 0, 0], &[0; 24]].concat();
        let nodes = [&nodes.to_le_bytes()[..], &node.repeat(nodes.into())].concat();
        [&[83, 176, 0, SYN_ACK][..], &nodes, &[2, 1, 0, 9].repeat(blocks), &[0]].concat()
    }

    /// Promise: a message that would unpack without bound is refused before; cut anywhere, it is refused too.
    #[test]
    fn sizes_are_bounded() {
        for (nodes, blocks, fits) in
            [(0, 0, true), (3, 2, true), (NODES_MAX, BLOCKS_MAX, true), (NODES_MAX + 1, 0, false), (0, BLOCKS_MAX + 1, false)]
        {
            assert_eq!(is_bounded(&syn_ack(nodes, blocks)), fits, "{nodes} nodes, {blocks} blocks");
        }
        let good = syn_ack(3, 2);
        assert!((0..good.len()).all(|at| !is_bounded(&good[..at])));
        assert!(!is_bounded(&[83, 176, 0, 9]));
    }
}
