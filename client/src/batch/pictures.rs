//! A finished batch: who holds it reads, and nobody writes.

use std::ops::Range;

use super::Block;
use crate::frame::TensorHead;
use crate::zeroed::Zeroed;

/// The pictures of a batch. Slots that did not arrive are zero in the block and have no head.
#[derive(Debug)]
pub struct Pictures {
    pub(super) block: Option<Block>,
    pub(super) slots: Vec<Filled>,
}

/// A slot's picture, if it arrived, and its pixels, if they are outside the block.
type Filled = (Option<TensorHead>, Option<Zeroed>);

impl Pictures {
    /// Number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no slot.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Shape and origin of the picture in slot `index`, if it arrived.
    pub fn head(&self, index: usize) -> Option<&TensorHead> {
        self.slots.get(index)?.0.as_ref()
    }

    /// Pixels of slot `index`, if it arrived: height x width x channels numbers, of the type that its head names.
    pub fn pixels(&self, index: usize) -> Option<&[u8]> {
        match self.slots.get(index)? {
            (None, _) => None,
            (Some(_), Some(own)) => Some(own.bytes()),
            (Some(_), None) => {
                let block = self.block.as_ref()?;
                block.memory.bytes().get(index * block.slot_bytes..)?.get(..block.slot_bytes)
            }
        }
    }

    /// Shape and memory of slot `index`, for whoever hands it on. A slot without a picture has the block's shape, zeroed; `None`
    /// if there is no block.
    pub fn slot_mut(&mut self, index: usize) -> Option<([u32; 3], &mut [u8])> {
        match self.slots.get_mut(index)? {
            (Some(head), Some(own)) => Some((head.shape, own.bytes_mut())),
            _ => {
                let block = self.block.as_mut()?;
                let (shape, at) = (block.shape, index * block.slot_bytes);
                Some((shape, block.memory.bytes_mut().get_mut(at..at + block.slot_bytes)?))
            }
        }
    }

    /// Leaves out the slots for which `keep` says no. The others move up, inside the block, and keep their order.
    pub fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        let mut to = 0;
        for from in (0..self.slots.len()).filter(|&index| keep(index)) {
            if let Some(block) = self.block.as_mut().filter(|_| from != to) {
                let bytes = block.slot_bytes;
                block.memory.bytes_mut().copy_within(from * bytes..(from + 1) * bytes, to * bytes);
            }
            self.slots.swap(from, to);
            to += 1;
        }
        self.slots.truncate(to);
    }

    /// All slots as one array of `[len, height, width, channels]`, if every picture that arrived has one shape.
    pub fn block(&self) -> Option<([u32; 3], &[u8])> {
        let block = self.block.as_ref().filter(|_| self.slots.iter().all(|(_, own)| own.is_none()))?;
        Some((block.shape, &block.memory.bytes()[..self.slots.len() * block.slot_bytes]))
    }

    /// The slots from one to another as one array of `[slots.len(), height, width, channels]`, if every picture of theirs that arrived has
    /// the block's shape; for whoever hands the memory on. `None` for slots that are not there, too.
    pub fn part_mut(&mut self, slots: Range<usize>) -> Option<([u32; 3], &mut [u8])> {
        let found = self.slots.get(slots.clone())?;
        let block = self.block.as_mut().filter(|_| found.iter().all(|(_, own)| own.is_none()))?;
        let bytes = slots.start * block.slot_bytes..slots.end * block.slot_bytes;
        Some((block.shape, block.memory.bytes_mut().get_mut(bytes)?))
    }

    /// The shapes that arrived in those slots, each once, in their order.
    pub fn shapes(&self, slots: Range<usize>) -> Vec<[u32; 3]> {
        let mut shapes: Vec<[u32; 3]> = Vec::new();
        let slots = self.slots.get(slots).unwrap_or_default();
        for shape in slots.iter().filter_map(|(head, _)| head.as_ref()).map(|head| head.shape) {
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        shapes
    }
}
