//! Zeroed memory for pixels, of which little stays behind when it is dropped.
//!
//! An allocator keeps large blocks that were freed for the next one: with glibc up to 64 MiB a thread, seen as a trainer's process
//! that stays as large as its largest batch. Keeping is also what makes the next batch cheap. So blocks of common size are the
//! allocator's, and what would be too much to keep is mapped, and goes back to the system at once.

use std::ptr::{self, NonNull};

/// From this size on memory is mapped. A process that reads has 45 MiB of its own; with one block below this size kept by the
/// allocator it is under 64 MiB. Measured, CPU-seconds per GB filled: kept memory zeroed again 0.06, mapped anew 0.62, mapped with
/// large pages 0.28; so not less than need be.
const MAPPED_BYTES_MIN: usize = 16 << 20;

/// Memory that nobody shares, zero at first.
#[derive(Debug)]
pub(crate) enum Zeroed {
    Heap(Box<[u8]>),
    Mapped(Mapping),
}

/// A private anonymous mapping.
#[derive(Debug)]
pub(crate) struct Mapping {
    pointer: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is memory like any other, owned by this value alone.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Mapping {}

impl Zeroed {
    /// `bytes` zeros; at most `isize::MAX`.
    pub(crate) fn new(bytes: usize) -> Self {
        let mapping = if bytes < MAPPED_BYTES_MIN { None } else { Mapping::new(bytes) };
        mapping.map_or_else(|| Self::Heap(vec![0; bytes].into_boxed_slice()), Self::Mapped)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(memory) => memory,
            // SAFETY: mapped for that many bytes until dropped.
            Self::Mapped(mapping) => unsafe { std::slice::from_raw_parts(mapping.pointer.as_ptr(), mapping.bytes) },
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(memory) => memory,
            // SAFETY: mapped for that many bytes until dropped; `self` is exclusive.
            Self::Mapped(mapping) => unsafe { std::slice::from_raw_parts_mut(mapping.pointer.as_ptr(), mapping.bytes) },
        }
    }

    /// First byte, for writers of disjoint parts.
    pub(crate) fn pointer(&mut self) -> *mut u8 {
        match self {
            Self::Heap(memory) => memory.as_mut_ptr(),
            Self::Mapped(mapping) => mapping.pointer.as_ptr(),
        }
    }
}

impl Mapping {
    /// `None` if the system refuses; the allocator then says so in its way.
    fn new(bytes: usize) -> Option<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place of the system's choice touches nothing that exists.
        let pointer = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        let pointer = NonNull::new(pointer.cast::<u8>()).filter(|_| pointer != libc::MAP_FAILED)?;
        // SAFETY: the mapping made above. Advice alone: half the cost where the system has large pages.
        unsafe { libc::madvise(pointer.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        Some(Self { pointer, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, not yet unmapped, and nobody has the memory any more.
        unsafe { libc::munmap(self.pointer.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: memory of any size is zero at first, whole, and writable.
    #[test]
    fn memory_is_zero_and_whole() {
        for bytes in [0, 1, MAPPED_BYTES_MIN - 1, MAPPED_BYTES_MIN, MAPPED_BYTES_MIN + 5] {
            let mut memory = Zeroed::new(bytes);
            assert!(memory.bytes().len() == bytes && memory.bytes().iter().all(|&b| b == 0));
            assert_eq!(matches!(memory, Zeroed::Mapped(_)), bytes >= MAPPED_BYTES_MIN);
            memory.bytes_mut().fill(7);
            assert!(memory.bytes().iter().all(|&b| b == 7) && memory.pointer().cast_const() == memory.bytes().as_ptr());
        }
    }
}
