//! The tier's folder: whose it is, how it is cut into blocks, and that its space is there.
//!
//! ```text
//! framecache.cache   whose folder this is: format, identity, bytes of a block
//! lock               held while a process has the tier open
//! blocks/            foyer's files, one per block, reserved in full
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;

use super::{CacheError, CacheSettings, OpenError, census};

/// An open folder; cloning shares the lock.
#[derive(Clone)]
pub(super) struct Folder {
    path: PathBuf,
    block_bytes: u64,
    blocks: u64,
    /// Let go of at the close, not with the last clone: foyer's tasks never end by themselves.
    lock: Arc<Mutex<Option<File>>>,
    /// Entries that recovery will not find, by what is left of their index; and blocks that were cut.
    damaged: u64,
}

impl Folder {
    /// Claims the folder, cuts it and reserves its space.
    pub(super) fn open(settings: &CacheSettings) -> Result<Self, OpenError> {
        let path = settings.dir.clone().unwrap_or_default();
        let least = BLOCKS_MIN * block_bytes_for(0);
        if settings.disk < least {
            return Err(OpenError::Refused(CacheError::TooSmall { bytes: settings.disk, least }));
        }
        let off = |what: &str, error: io::Error| OpenError::Off(format!("{what} in {}: {error}", path.display()));
        fs::create_dir_all(&path).map_err(|e| off("make the folder", e))?;
        let foreign = foreign_file(&path).map_err(|e| off("read the folder", e))?;
        if let Some(found) = foreign {
            let dir = path.display().to_string();
            return Err(OpenError::Refused(CacheError::Foreign { dir, found }));
        }
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join("lock"))
            .map_err(|e| off("make the lock", e))?;
        if lock.try_lock().is_err() {
            return Err(OpenError::Refused(CacheError::InUse { dir: path.display().to_string() }));
        }
        let block_bytes = settle_marker(&path, settings.disk).map_err(|e| off("write the marker", e))?;
        let lock = Arc::new(Mutex::new(Some(lock)));
        let mut folder = Self { path: path.clone(), block_bytes, blocks: settings.disk / block_bytes, lock, damaged: 0 };
        // Before the space is reserved, which makes cut blocks whole again.
        folder.damaged = census::lost_entries(&folder.block_dir(), BLOCK_PREFIX, block_bytes);
        folder.raise_file_limit().map_err(|e| off("open files", e))?;
        folder.reserve().map_err(|e| off("reserve space", e))?;
        folder.probe().map_err(|e| off("write", e))?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn block_dir(&self) -> PathBuf {
        self.path.join("blocks")
    }

    pub(super) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Entries that were lost while the cache was closed.
    pub(super) fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Lets another process have the folder.
    pub(super) fn unlock(&self) {
        self.lock.lock().take();
    }

    pub(super) fn capacity(&self) -> u64 {
        self.blocks * self.block_bytes
    }

    /// Writes one page past the page cache: whether the disk takes writes, and if not, why.
    pub(super) fn probe(&self) -> io::Result<()> {
        #[repr(align(4096))]
        struct PageBuffer([u8; 4096]);
        let path = self.path.join("probe");
        let open = |flags| OpenOptions::new().create(true).truncate(false).write(true).custom_flags(flags).open(&path);
        let file = open(libc::O_DIRECT).or_else(|_| open(0))?;
        file.write_all_at(&PageBuffer([0; 4096]).0, 0)?;
        file.sync_data()?;
        fs::remove_file(&path)
    }

    /// One file per block, each reserved in full; what a larger tier left behind is removed.
    fn reserve(&self) -> io::Result<()> {
        let dir = self.block_dir();
        fs::create_dir_all(&dir)?;
        let mut ours = 0;
        for file in fs::read_dir(&dir)? {
            let file = file?;
            let index = file.file_name().to_str().and_then(|name| name.strip_prefix(BLOCK_PREFIX)?.parse::<u64>().ok());
            match index {
                Some(index) if index < self.blocks => ours += (file.metadata()?.blocks() * 512).min(self.block_bytes),
                _ => fs::remove_file(file.path())?,
            }
        }
        let free = statvfs(&dir)?;
        let free = free.blocks_available() as u64 * free.fragment_size() as u64;
        let need = self.capacity().saturating_sub(ours) + self.capacity() / 20;
        if need > free {
            let text = format!("cache.disk needs {need} more bytes (5 % stay free), the file system has {free}");
            return Err(io::Error::new(ErrorKind::StorageFull, text));
        }
        (0..self.blocks).try_for_each(|index| reserve_block(&dir, index, self.block_bytes))
    }

    /// foyer keeps a descriptor per block open.
    fn raise_file_limit(&self) -> io::Result<()> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let need = self.blocks + FILES_SPARE;
        if soft >= need {
            return Ok(());
        }
        if hard < need {
            return Err(io::Error::other(format!("{need} are needed, the limit (nofile) is {hard}")));
        }
        Ok(setrlimit(Resource::RLIMIT_NOFILE, need.max(soft), hard)?)
    }
}

fn reserve_block(dir: &Path, index: u64, bytes: u64) -> io::Result<()> {
    let path = dir.join(format!("{BLOCK_PREFIX}{index:08}"));
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    let held = file.metadata()?;
    if held.len() == bytes && held.blocks() * 512 >= bytes {
        return Ok(());
    }
    match nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, bytes as i64) {
        // A file system that cannot reserve: the check of the free space stands alone.
        Ok(()) | Err(nix::errno::Errno::EOPNOTSUPP) => file.set_len(bytes),
        Err(error) => Err(error.into()),
    }
}

/// A file that the cache did not make, in a folder that does not carry its marker.
fn foreign_file(path: &Path) -> io::Result<Option<String>> {
    match fs::read(path.join(MARKER)) {
        Ok(text) if text.starts_with(MARKER_TEXT.as_bytes()) => return Ok(None),
        Ok(_) => return Ok(Some(MARKER.into())),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Err(_) => {}
    }
    for file in fs::read_dir(path)? {
        let name = file?.file_name().to_string_lossy().into_owned();
        // A process that died between lock and marker leaves the lock; ext4 has its own folder.
        if name != "lock" && name != "lost+found" {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Bytes of a block: the marker's if they still suit, so that a tier may grow and shrink without losing what it holds.
fn settle_marker(path: &Path, disk: u64) -> io::Result<u64> {
    let marker = path.join(MARKER);
    let text = fs::read_to_string(&marker).unwrap_or_default();
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let suits = |bytes: &u64| {
        bytes.is_multiple_of(4096)
            && *bytes >= block_bytes_for(0)
            && *bytes <= block_bytes_for(u64::MAX)
            && disk / bytes >= BLOCKS_MIN
    };
    if let Some(bytes) = line("block_bytes").filter(suits)
        && line("format") == Some(FORMAT)
    {
        return Ok(bytes);
    }
    let bytes = block_bytes_for(disk);
    if !text.is_empty() {
        tracing::warn!(folder = %path.display(), "cache folder has another shape: what it held is dropped");
    }
    match fs::remove_dir_all(path.join("blocks")) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let identity = xxhash_rust::xxh3::xxh3_64(format!("{:?} {}", std::time::SystemTime::now(), std::process::id()).as_bytes());
    let next = path.join("framecache.cache.new");
    let mut file = File::create(&next)?;
    writeln!(file, "{MARKER_TEXT}\nformat {FORMAT}\nidentity {identity:016x}\nblock_bytes {bytes}")?;
    file.sync_all()?;
    fs::rename(next, marker)?;
    Ok(bytes)
}

/// A block holds a whole number of pages with their headers, so that none is lost behind them. Smaller entries leave half of one
/// free at each block's end, and a block and a half are never full: the sum of both is least at this size. Sources:
/// `docs/decisions`, foyer's block engine.
fn block_bytes_for(disk: u64) -> u64 {
    let page = (1 << 20) + 4096;
    let best = (u128::from(disk) * u128::from(ENTRY_BYTES) / 3).isqrt() as u64;
    (best / page).clamp(1, 63) * page + 4096
}

/// Bytes of a small entry, between thumbnails of 60 KB and training pictures of 150 KB.
const ENTRY_BYTES: u64 = 96 << 10;

const MARKER: &str = "framecache.cache";
const MARKER_TEXT: &str = "framecache cache";

/// Of the folder, not of entries: moves when foyer's own format or the cut into blocks does.
const FORMAT: u64 = 1;

/// foyer's name for its files; [`Folder::reserve`] makes them before foyer opens them.
const BLOCK_PREFIX: &str = "foyer-storage-direct-fs-";

/// With fewer blocks the ones that are open, clean or in reclaim are too large a share.
const BLOCKS_MIN: u64 = 32;

/// Descriptors for everything else in the process.
const FILES_SPARE: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a block is a whole number of pages, at most 64 MiB, and what it costs at its end and in waiting is under 4 % of a disk
    /// of 256 MiB, under 1 % from 8 GiB on.
    #[test]
    fn blocks_fit_pages() {
        for (disk, pages) in [(0, 1), (256 << 20, 2), (2 << 30, 7), (32 << 30, 31), (1 << 45, 63)] {
            let bytes = block_bytes_for(disk);
            assert_eq!((bytes - 4096) % ((1 << 20) + 4096), 0);
            assert_eq!((bytes - 4096) / ((1 << 20) + 4096), pages, "{disk}");
            assert!(bytes <= 64 << 20 && bytes.is_multiple_of(4096));
            let lost = ENTRY_BYTES as f64 / 2.0 / bytes as f64 + 1.5 * bytes as f64 / disk as f64;
            assert!(disk < 256 << 20 || lost < 0.04, "{disk}: {lost}");
            assert!(disk < 8 << 30 || lost < 0.01, "{disk}: {lost}");
        }
    }
}
