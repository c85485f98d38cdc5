//! Zeroed memory for pixels, of which little stays behind when it is dropped.
//!
//! An allocator keeps large blocks that were freed for the next one: with glibc up to 64 MiB a thread, seen as a trainer's process
//! that stays as large as its largest batch. Keeping is also what makes the next batch cheap. So blocks of common size are the
//! allocator's, and what would be too much to keep is mapped, and goes back to the system at once.

use std::alloc::{self, Layout};
use std::ptr::{self, NonNull};

/// From this size on memory is mapped. A process that reads has 45 MiB of its own; with one block below this size kept by the
/// allocator it is under 64 MiB. Measured, CPU-seconds per GB filled: kept memory zeroed again 0.06, mapped anew 0.62, mapped with
/// large pages 0.28; so not less than need be.
const MAPPED_BYTES_MIN: usize = 16 << 20;

/// Start of a block on the heap: what the allocator gives unasked. For a stricter one Rust asks glibc for other memory, which it gives
/// back less readily: 85 MiB in place of 59 for the process that the limit above speaks of.
const ALIGN: usize = 16;

/// Memory that nobody shares, zero at first. A raw pointer rather than a box: writers of disjoint parts go through
/// [`Zeroed::pointer`] at the same time, which a box's claim to be the only way to its bytes would forbid.
#[derive(Debug)]
pub(crate) struct Zeroed {
    pointer: NonNull<u8>,
    bytes: usize,
    mapped: bool,
}

// SAFETY: the memory is owned by this value alone.
unsafe impl Send for Zeroed {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Zeroed {}

impl Zeroed {
    /// `bytes` zeros; `None` if neither the system nor the allocator has as much.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        match bytes {
            0 => Some(Self { pointer: NonNull::dangling(), bytes, mapped: false }),
            MAPPED_BYTES_MIN.. => Self::mapped(bytes).or_else(|| Self::heap(bytes)),
            _ => Self::heap(bytes),
        }
    }

    fn mapped(bytes: usize) -> Option<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place of the system's choice touches nothing that exists.
        let pointer = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        let pointer = NonNull::new(pointer.cast::<u8>()).filter(|_| pointer != libc::MAP_FAILED)?;
        // SAFETY: the mapping made above. Advice alone: half the cost where the system has large pages.
        unsafe { libc::madvise(pointer.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        Some(Self { pointer, bytes, mapped: true })
    }

    fn heap(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, ALIGN).ok()?;
        // SAFETY: `bytes` is not zero (see `new`).
        let pointer = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        Some(Self { pointer, bytes, mapped: false })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: that many bytes are this value's until it is dropped.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }

    /// First byte, for writers of disjoint parts.
    pub(crate) fn pointer(&mut self) -> *mut u8 {
        self.pointer.as_ptr()
    }
}

impl Drop for Zeroed {
    fn drop(&mut self) {
        match self.mapped {
            // SAFETY: mapped by `mapped`, and nobody has the memory any more.
            true => unsafe {
                libc::munmap(self.pointer.as_ptr().cast(), self.bytes);
            },
            false if self.bytes == 0 => {}
            // SAFETY: allocated by `heap` with this size and alignment, and nobody has the memory any more.
            false => unsafe { alloc::dealloc(self.pointer.as_ptr(), Layout::from_size_align_unchecked(self.bytes, ALIGN)) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: memory of any size is zero at first, whole, and writable.
    #[test]
    fn memory_is_zero_and_whole() {
        for bytes in [0, 1, MAPPED_BYTES_MIN - 1, MAPPED_BYTES_MIN, MAPPED_BYTES_MIN + 5] {
            let mut memory = Zeroed::new(bytes).expect("memory");
            assert!(memory.bytes().len() == bytes && memory.bytes().iter().all(|&b| b == 0));
            assert_eq!(memory.mapped, bytes >= MAPPED_BYTES_MIN);
            memory.bytes_mut().fill(7);
            assert!(memory.bytes().iter().all(|&b| b == 7) && memory.pointer().cast_const() == memory.bytes().as_ptr());
        }
    }

    /// Promise: memory that nobody has is an answer, not the end of the process.
    #[test]
    fn absurd_sizes_are_refused() {
        for bytes in [isize::MAX as usize - 15, isize::MAX as usize, usize::MAX] {
            assert!(Zeroed::new(bytes).is_none(), "{bytes}");
        }
    }
}
