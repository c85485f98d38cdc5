//! The buffer of a batch: pixels are received straight into it.
//!
//! While all pictures have one shape their slots lie in one block, so that the batch is one array without a copy; a picture of
//! another shape gets a block of its own. A slot is written by one attempt at a time, and a slot whose writer did not finish is
//! zeroed again, so that no reader ever sees half a picture. A writer gives its slot up to another attempt that has the picture whole.

mod pictures;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::{Error, ErrorKind};
use crate::frame::{Dtype, TensorHead};
use crate::zeroed::Zeroed;

pub use pictures::Pictures;

/// Memory of somebody else's, such as an `out=` array.
///
/// # Safety
/// `pointer` is valid for writes of `bytes` bytes, and nothing else reads or writes them, until the [`Batch`] is dropped.
#[derive(Debug)]
pub struct External {
    /// First byte.
    pub pointer: *mut u8,
    /// Number of bytes.
    pub bytes: usize,
}

// SAFETY: whoever makes one promises exclusive use (see `External`), which may move between threads.
unsafe impl Send for External {}
// SAFETY: all access goes through `Batch`, whose lock hands out disjoint slots.
unsafe impl Sync for External {}

/// Slots for the pictures of one batch.
#[derive(Debug)]
pub struct Batch {
    state: Mutex<State>,
    /// Bytes that the block may take before pictures get blocks of their own.
    block_bytes_max: u64,
    /// A slot was claimed, or settled, or has become free.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    block: Option<Block>,
    slots: Vec<Slot>,
}

/// One block for all slots of one shape.
#[derive(Debug)]
struct Block {
    shape: [u32; 3],
    slot_bytes: usize,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Own(Zeroed),
    External(External),
}

impl Memory {
    fn pointer(&mut self) -> *mut u8 {
        match self {
            Memory::Own(memory) => memory.pointer(),
            Memory::External(external) => external.pointer,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Own(memory) => memory.bytes(),
            // SAFETY: valid for `bytes` bytes as long as the batch lives (see `External`).
            Memory::External(external) => unsafe { std::slice::from_raw_parts(external.pointer, external.bytes) },
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Own(memory) => memory.bytes_mut(),
            // SAFETY: as in `bytes`; `self` is exclusive.
            Memory::External(external) => unsafe { std::slice::from_raw_parts_mut(external.pointer, external.bytes) },
        }
    }
}

#[derive(Debug, Default)]
struct Slot {
    writing: bool,
    head: Option<TensorHead>,
    /// Pixels outside the block.
    own: Option<Zeroed>,
    /// The caller is told what came of it: whatever comes now is too late.
    settled: bool,
    /// Another attempt has the picture whole: who is writing it gives it up.
    claimed: bool,
}

impl Slot {
    fn is_over(&self) -> bool {
        self.head.is_some() || self.settled
    }
}

impl Batch {
    /// A batch of `count` slots. `block_bytes_max` bounds the block that is made on the guess that all pictures have the first
    /// one's shape; past it each picture gets a block of its own.
    pub fn new(count: usize, block_bytes_max: u64) -> Self {
        let slots = (0..count).map(|_| Slot::default()).collect();
        Self { state: Mutex::new(State { block: None, slots }), block_bytes_max, changed: Notify::new() }
    }

    /// A batch of `count` slots that all have `shape`, of bytes, in one block that is there from the start.
    ///
    /// # Errors
    /// `TooLarge` if this machine has not as much memory.
    pub fn fixed(count: usize, shape: [u32; 3]) -> Result<Self, Error> {
        Self::fixed_of(count, shape, Dtype::U8)
    }

    /// The same of numbers of that type.
    ///
    /// # Errors
    /// As [`Batch::fixed`].
    pub fn fixed_of(count: usize, shape: [u32; 3], dtype: Dtype) -> Result<Self, Error> {
        let slot_bytes = slot_bytes(shape, dtype);
        let memory = slot_bytes.checked_mul(count).and_then(Zeroed::new);
        let memory = Memory::Own(memory.ok_or_else(|| no_memory(count, shape))?);
        let batch = Self::new(count, 0);
        batch.state.lock().block = Some(Block { shape, slot_bytes, memory });
        Ok(batch)
    }

    /// A batch in memory of the caller's, of `count` slots that all have `shape`, of bytes.
    ///
    /// # Errors
    /// `Invalid` if the memory is not exactly `count` times the shape.
    ///
    /// # Safety
    /// As [`External`] says.
    pub unsafe fn external(count: usize, shape: [u32; 3], external: External) -> Result<Self, Error> {
        // SAFETY: by this function's own condition.
        unsafe { Self::external_of(count, shape, Dtype::U8, external) }
    }

    /// The same of numbers of that type.
    ///
    /// # Errors
    /// As [`Batch::external`].
    ///
    /// # Safety
    /// As [`External`] says.
    pub unsafe fn external_of(count: usize, shape: [u32; 3], dtype: Dtype, external: External) -> Result<Self, Error> {
        let slot_bytes = slot_bytes(shape, dtype);
        if slot_bytes.checked_mul(count) != Some(external.bytes) {
            let message = format!("out has {} bytes, want {count} x {shape:?}", external.bytes);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let batch = Self::new(count, 0);
        batch.state.lock().block = Some(Block { shape, slot_bytes, memory: Memory::External(external) });
        Ok(batch)
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.state.lock().slots.len()
    }

    /// Whether there is no slot.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether slot `index` is being written, or nothing is written into it any more.
    pub(crate) fn is_taken(&self, index: usize) -> bool {
        self.state.lock().slots.get(index).is_some_and(|slot| slot.writing || slot.is_over())
    }

    /// Whether slot `index` holds its picture, or has none for good.
    pub(crate) fn is_over(&self, index: usize) -> bool {
        self.state.lock().slots.get(index).is_some_and(Slot::is_over)
    }

    /// The caller is told what came of slot `index`: it stays as it is, and what is being written into it is cleared.
    pub(crate) fn settle(&self, index: usize) {
        if let Some(slot) = self.state.lock().slots.get_mut(index) {
            slot.settled = true;
            if slot.writing {
                self.changed.notify_waiters();
            }
        }
    }

    /// Slot `index` had no picture in one way, and is asked for in another.
    pub(crate) fn reopen(&self, index: usize) {
        if let Some(slot) = self.state.lock().slots.get_mut(index) {
            slot.settled = false;
        }
    }

    /// Ends as soon as whoever is writing slot `index` is to give it up.
    pub(crate) async fn unwanted(&self, index: usize) {
        self.until(index, |slot| slot.claimed || slot.settled).await;
    }

    /// The place of slot `index` for a picture that is whole, as soon as its writer has given it up; `None` where another was first.
    pub(crate) async fn claim(&self, index: usize, head: TensorHead) -> Result<Option<Place<'_>>, Error> {
        self.mark(index, true);
        self.until(index, |slot| !slot.writing).await;
        self.mark(index, false);
        if self.is_over(index) { Ok(None) } else { self.place(index, head).map(Some) }
    }

    fn mark(&self, index: usize, claimed: bool) {
        if let Some(slot) = self.state.lock().slots.get_mut(index) {
            slot.claimed = claimed;
        }
        self.changed.notify_waiters();
    }

    async fn until(&self, index: usize, holds: impl Fn(&Slot) -> bool) {
        loop {
            // Made before the question, so that no change is missed.
            let changed = self.changed.notified();
            if self.state.lock().slots.get(index).is_none_or(&holds) {
                return;
            }
            changed.await;
        }
    }

    /// The place for the picture of slot `index`. One writer a slot.
    pub(crate) fn place(&self, index: usize, head: TensorHead) -> Result<Place<'_>, Error> {
        let bytes = usize::try_from(head.bytes()).map_err(|_| protocol("picture larger than memory"))?;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let count = state.slots.len();
        let slot = state.slots.get_mut(index).ok_or_else(|| protocol("no such slot"))?;
        if slot.writing || slot.is_over() {
            return Err(protocol("slot answered twice"));
        }
        if state.block.is_none() && head.bytes().saturating_mul(count as u64) <= self.block_bytes_max {
            let memory = Memory::Own(Zeroed::new(bytes * count).ok_or_else(|| no_memory(count, head.shape))?);
            state.block = Some(Block { shape: head.shape, slot_bytes: bytes, memory });
        }
        let pointer = match &mut state.block {
            // SAFETY: `index < count`, and the block has `count * slot_bytes` bytes.
            Some(block) if block.shape == head.shape && block.slot_bytes == bytes => unsafe {
                block.memory.pointer().add(index * block.slot_bytes)
            },
            Some(Block { memory: Memory::External(_), shape, .. }) => {
                let message = format!("picture has shape {:?}, but out has {shape:?}", head.shape);
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            _ => slot.own.insert(Zeroed::new(bytes).ok_or_else(|| no_memory(1, head.shape))?).pointer(),
        };
        slot.writing = true;
        Ok(Place { batch: self, index, head, pointer, bytes, done: false })
    }

    /// What slot `index` holds, if its picture arrived.
    pub fn head(&self, index: usize) -> Option<TensorHead> {
        self.state.lock().slots.get(index)?.head
    }

    /// The finished batch: its pixels can be read, and nobody can write any more.
    pub fn finish(self) -> Pictures {
        let State { mut block, slots } = self.state.into_inner();
        // What the caller's memory held before is no picture either.
        if let Some(block) = block.as_mut().filter(|block| matches!(block.memory, Memory::External(_))) {
            for (index, _) in slots.iter().enumerate().filter(|(_, slot)| slot.head.is_none()) {
                block.memory.bytes_mut()[index * block.slot_bytes..(index + 1) * block.slot_bytes].fill(0);
            }
        }
        let slots = slots.into_iter().map(|slot| (slot.head, slot.own)).collect();
        Pictures { block, slots }
    }
}

/// One slot, being written. Dropped before [`Place::done`], or after the slot was settled, it is zeroed and free again.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    batch: &'a Batch,
    index: usize,
    head: TensorHead,
    pointer: *mut u8,
    bytes: usize,
    done: bool,
}

// SAFETY: a place is the only writer of its bytes (`writing`), and the batch it borrows outlives it.
unsafe impl Send for Place<'_> {}

impl Place<'_> {
    /// The slot's bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `place` made the range inside memory that lives as long as the batch; `writing` keeps other writers out, and
        // readers come only with `finish`, which needs the batch by value.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }

    /// The picture is whole.
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let kept = self.done && !self.batch.is_over(self.index);
        if !kept {
            self.bytes().fill(0);
        }
        let slot = &mut self.batch.state.lock().slots[self.index];
        slot.writing = false;
        match kept {
            true => slot.head = Some(self.head),
            false => slot.own = None,
        }
        if slot.claimed {
            self.batch.changed.notify_waiters();
        }
    }
}

/// Bytes of one slot; saturates, so that a hostile shape fails every bound.
fn slot_bytes(shape: [u32; 3], dtype: Dtype) -> usize {
    shape.iter().fold(dtype.bytes(), |product, &side| product.saturating_mul(side as usize))
}

fn no_memory(count: usize, shape: [u32; 3]) -> Error {
    Error::new(ErrorKind::TooLarge, format!("no memory for {count} pictures of {shape:?}"))
}

fn protocol(message: &str) -> Error {
    Error::new(ErrorKind::Protocol, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Layout;

    fn head(height: u32, width: u32) -> TensorHead {
        TensorHead {
            shape: [height, width, 3],
            dtype: Dtype::U8,
            layout: Layout::Hwc,
            source: (9, 9),
            orientation: 1,
            pts_seconds: 0.0,
            format: None,
        }
    }

    fn fill(batch: &Batch, index: usize, head: TensorHead, value: u8) {
        let mut place = batch.place(index, head).expect("place");
        place.bytes().fill(value);
        place.done();
    }

    /// Promise: equal shapes are one array without a copy; a picture of another shape does not disturb the others.
    #[test]
    fn equal_shapes_are_one_block() {
        let batch = Batch::new(2, 1 << 20);
        fill(&batch, 1, head(2, 2), 7);
        fill(&batch, 0, head(2, 2), 5);
        let pictures = batch.finish();
        let (shape, block) = pictures.block().expect("block");
        assert_eq!((shape, &block[..12], &block[12..]), ([2, 2, 3], &[5; 12][..], &[7; 12][..]));

        let batch = Batch::new(2, 1 << 20);
        fill(&batch, 0, head(2, 2), 5);
        fill(&batch, 1, head(1, 3), 9);
        let pictures = batch.finish();
        assert!(pictures.block().is_none());
        assert_eq!(pictures.shapes(0..2), [[2, 2, 3], [1, 3, 3]]);
        assert!(pictures.shapes(1..2) == [[1, 3, 3]] && pictures.shapes(1..3).is_empty());
        assert_eq!(pictures.pixels(1), Some(&[9; 9][..]));
    }

    /// Promise: a writer that did not finish leaves zeros and a free slot; a slot is never written twice at once.
    #[test]
    fn losers_leave_nothing() {
        let batch = Batch::new(1, 1 << 20);
        let mut place = batch.place(0, head(1, 1)).expect("place");
        assert!(batch.place(0, head(1, 1)).is_err() && batch.is_taken(0));
        place.bytes().fill(255);
        drop(place);
        assert!(batch.head(0).is_none() && !batch.is_taken(0));
        fill(&batch, 0, head(1, 1), 3);
        assert!(batch.place(0, head(1, 1)).is_err());
        assert_eq!(batch.finish().pixels(0), Some(&[3; 3][..]));

        let batch = Batch::new(1, 1 << 20);
        let mut place = batch.place(0, head(1, 1)).expect("place");
        place.bytes().fill(255);
        drop(place);
        assert_eq!(batch.finish().block().map(|(_, block)| block.to_vec()), Some(vec![0; 3]));
    }

    /// Promise: whoever has a picture whole gets its slot from who is writing it, and nothing of that one's is left.
    #[tokio::test]
    async fn slots_are_given_up_to_whole_pictures() {
        let batch = Batch::fixed(1, [1, 1, 3]).expect("batch");
        let mut place = batch.place(0, head(1, 1)).expect("place");
        place.bytes()[..2].fill(255);
        let writer = async {
            batch.unwanted(0).await;
            drop(place);
        };
        let winner = async {
            let mut place = batch.claim(0, head(1, 1)).await.expect("place").expect("first");
            assert_eq!(place.bytes(), [0; 3]);
            place.bytes().fill(3);
            place.done();
        };
        tokio::join!(writer, winner);
        assert!(batch.claim(0, head(1, 1)).await.expect("settled").is_none());
        assert_eq!(batch.finish().pixels(0), Some(&[3; 3][..]));
    }

    /// Promise: a slot of which the caller was told that it failed stays empty, whoever was writing it.
    #[test]
    fn settled_slots_stay_as_they_are() {
        let batch = Batch::fixed(2, [1, 1, 3]).expect("batch");
        let mut place = batch.place(0, head(1, 1)).expect("place");
        place.bytes().fill(255);
        batch.settle(0);
        place.done();
        assert!(batch.head(0).is_none() && batch.is_taken(0) && batch.place(0, head(1, 1)).is_err());
        fill(&batch, 1, head(1, 1), 3);
        batch.settle(1);
        let pictures = batch.finish();
        assert_eq!(pictures.block().map(|(_, block)| block.to_vec()), Some(vec![0, 0, 0, 3, 3, 3]));
    }

    /// Promise: memory of the caller's is used only if it fits exactly, and only for pictures of its shape.
    #[test]
    fn external_memory_must_fit() {
        let mut memory = [1u8; 24];
        let external = |bytes| External { pointer: memory.as_ptr() as *mut u8, bytes };
        // SAFETY: refused before use.
        assert!(unsafe { Batch::external(2, [2, 2, 3], external(23)) }.is_err());
        let pointer = memory.as_mut_ptr();
        // SAFETY: `memory` outlives the batch and is not touched meanwhile.
        let batch = unsafe { Batch::external(2, [2, 2, 3], External { pointer, bytes: 24 }) }.expect("batch");
        assert!(batch.place(0, head(1, 3)).is_err());
        fill(&batch, 1, head(2, 2), 8);
        drop(batch);
        assert_eq!(memory[12..], [8; 12]);
    }

    /// Promise: a slot without a picture reads as zeros, whatever the caller's memory held before.
    #[test]
    fn missing_slots_are_zero() {
        let mut memory = [1u8; 24];
        let pointer = memory.as_mut_ptr();
        // SAFETY: `memory` outlives the batch and is not touched meanwhile.
        let batch = unsafe { Batch::external(2, [2, 2, 3], External { pointer, bytes: 24 }) }.expect("batch");
        fill(&batch, 1, head(2, 2), 8);
        let mut pictures = batch.finish();
        assert_eq!(pictures.pixels(0), None);
        assert_eq!(pictures.slot_mut(0).map(|(shape, pixels)| (shape, pixels.to_vec())), Some(([2, 2, 3], vec![0; 12])));
    }

    /// Promise: a batch that no memory can hold is refused, and the process lives.
    #[test]
    fn absurd_batches_are_refused() {
        for (count, side) in [(1 << 20, 60_000), (usize::MAX, 1), (1, u32::MAX)] {
            assert_eq!(Batch::fixed(count, [side, side, 3]).map_err(|error| error.kind).err(), Some(ErrorKind::TooLarge));
        }
    }

    /// Promise: slots that are left out close up without losing or mixing a picture, in and outside the block.
    #[test]
    fn left_out_slots_close_up() {
        let batch = Batch::fixed(4, [1, 1, 3]).expect("batch");
        [0, 2, 3].into_iter().for_each(|index| fill(&batch, index, head(1, 1), index as u8));
        let mut pictures = batch.finish();
        pictures.retain(|index| index != 1);
        assert_eq!(pictures.block().map(|(_, block)| block.to_vec()), Some(vec![0, 0, 0, 2, 2, 2, 3, 3, 3]));
        assert_eq!(pictures.part_mut(0..3).map(|(_, block)| block.len()), Some(9));
        assert_eq!(pictures.part_mut(1..2).map(|(_, part)| part.to_vec()), Some(vec![2; 3]));
        assert!(pictures.part_mut(2..4).is_none());

        let batch = Batch::new(3, 1 << 20);
        fill(&batch, 1, head(1, 1), 1);
        fill(&batch, 2, head(2, 2), 2);
        let mut pictures = batch.finish();
        pictures.retain(|index| index != 0);
        assert_eq!((pictures.pixels(0), pictures.pixels(1)), (Some(&[1; 3][..]), Some(&[2; 12][..])));
    }
}
