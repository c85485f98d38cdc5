//! The memory that node and worker share, and the worker's own buffer.
//!
//! The node never maps it: it writes and reads by system call, so that no concurrent change, and no trick with the file's size, can
//! fault the node, and each rendition is copied out exactly once, into memory that no worker sees. The worker maps it.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use memmap2::{MmapMut, MmapOptions};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::uio::pwrite;
use nix::unistd::ftruncate;

/// The shared file, from the node's side.
pub(super) struct SharedMemory {
    file: OwnedFd,
    bytes: u64,
}

impl SharedMemory {
    /// An empty one. It can grow and never shrink, and nobody can forbid either any more.
    pub(super) fn create() -> io::Result<Self> {
        let file = memfd_create(c"framecache-decode", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL))?;
        Ok(Self { file, bytes: 0 })
    }

    /// The file, to hand to a worker.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Grows to at least `bytes`, in whole pages: of a page that is cut by the end no hole is made. Gives the size.
    pub(super) fn grow(&mut self, bytes: u64) -> io::Result<u64> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        if bytes > self.bytes {
            ftruncate(&self.file, i64::try_from(bytes).map_err(io::Error::other)?)?;
            self.bytes = bytes;
        }
        Ok(self.bytes)
    }

    /// Puts `bytes` at `offset`, within the size.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            done += pwrite(&self.file, &bytes[done..], offset as i64 + done as i64)?;
        }
        Ok(())
    }

    /// Copies `length` bytes out, once.
    pub(super) fn read(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        let mut out: Vec<u8> = Vec::with_capacity(length);
        while out.len() < length {
            let (wanted, at) = (length - out.len(), offset + out.len() as u64);
            let start = out.spare_capacity_mut().as_mut_ptr().cast::<c_void>();
            // SAFETY: `start` is room for `wanted` bytes that this vector owns and nobody has read yet.
            let got = unsafe { libc::pread(self.file.as_raw_fd(), start, wanted, at as i64) };
            match usize::try_from(got) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                // SAFETY: the kernel wrote that many bytes there.
                Ok(got) => unsafe { out.set_len(out.len() + got) },
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(out.into())
    }

    /// Gives everything from `kept` on back to the system; the size stays.
    pub(super) fn trim(&self, kept: u64) -> io::Result<()> {
        if self.bytes <= kept {
            return Ok(());
        }
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        Ok(fallocate(&self.file, hole, kept as i64, (self.bytes - kept) as i64)?)
    }
}

/// The kernel's.
const PAGE_BYTES: u64 = 4096;

/// The shared file, from the worker's side: mapped, and mapped anew when it grew.
#[derive(Default)]
pub(super) struct Mapping(Option<MmapMut>);

impl Mapping {
    /// All `bytes` of it.
    pub(super) fn of(&mut self, file: BorrowedFd<'_>, bytes: u64) -> Option<&mut [u8]> {
        let bytes = usize::try_from(bytes).ok()?;
        if self.0.as_ref().is_none_or(|map| map.len() < bytes) {
            self.0 = None;
            // SAFETY: the file cannot shrink (sealed), and the parent writes only what this side has asked for.
            self.0 = Some(unsafe { MmapOptions::new().len(bytes).map_mut(file.as_raw_fd()) }.ok()?);
        }
        self.0.as_deref_mut()?.get_mut(..bytes)
    }

    /// Takes a large one out of the address space, so that the next job's limit is its own.
    pub(super) fn trim(&mut self, kept: u64) {
        self.0.take_if(|map| map.len() as u64 > kept);
    }
}

/// The worker's sample buffer, kept between jobs. A mapping of its own, so that a refusal is an answer and not an abort, and a
/// large one goes back to the system.
#[derive(Default)]
pub(super) struct Samples(Option<MmapMut>);

impl Samples {
    /// `bytes` of it, of any content; nothing where the limit is reached.
    pub(super) fn of(&mut self, bytes: u64) -> Option<&mut [u8]> {
        let bytes = usize::try_from(bytes).ok()?;
        if self.0.as_ref().is_none_or(|map| map.len() < bytes) {
            self.0 = None;
            self.0 = Some(MmapMut::map_anon(bytes.max(SAMPLES_MIN)).ok()?);
        }
        self.0.as_deref_mut()?.get_mut(..bytes)
    }

    /// Gives a large one back.
    pub(super) fn trim(&mut self, kept: u64) {
        self.0.take_if(|map| map.len() as u64 > kept);
    }
}

/// Pictures of about this size follow one another: mapping anew for each slightly larger one would fault every page again.
const SAMPLES_MIN: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: what is written is read, growth keeps it, a hole gives memory back, and nobody can shrink the file.
    #[test]
    fn shared_memory_grows_and_never_shrinks() {
        let mut memory = SharedMemory::create().expect("memfd");
        assert_eq!(memory.grow(8192).expect("grow"), 8192);
        memory.write(0, b"picture").expect("write");
        assert_eq!(memory.grow(1 << 20).expect("grow"), 1 << 20);
        assert_eq!(memory.grow(1).expect("no shrink"), 1 << 20);
        assert_eq!(memory.read(0, 7).expect("read"), &b"picture"[..]);
        assert!(memory.read((1 << 20) - 3, 4).is_err());
        assert!(ftruncate(memory.file(), 10).is_err(), "sealed");
        assert_eq!(memory.grow((1 << 20) + 64).expect("grow"), (1 << 20) + 4096);
        memory.write(0, &vec![1; (1 << 20) + 64]).expect("write");
        memory.trim(4096).expect("trim");
        assert_eq!(memory.read(4096, 4).expect("read"), &[0; 4][..]);
        assert_eq!(nix::sys::stat::fstat(memory.file()).expect("stat").st_blocks, 4096 / 512, "all but what is kept");
        let mut mapping = Mapping::default();
        mapping.of(memory.file(), 8192).expect("map")[5000] = 9;
        assert_eq!(memory.read(5000, 1).expect("read"), &[9][..]);
    }
}
