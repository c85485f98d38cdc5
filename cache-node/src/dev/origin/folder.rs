//! Keys to files, and never past the folder: the kernel resolves each path beneath the folder's descriptor (openat2,
//! RESOLVE_BENEATH), so that no `..`, absolute link or race can lead out of it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode;

pub(super) struct Folder {
    root: OwnedFd,
}

/// An open object and the facts of its descriptor.
pub(super) struct Object {
    pub(super) file: File,
    pub(super) facts: Facts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) size: u64,
    /// The etag without quotes.
    pub(super) etag: String,
    pub(super) modified: SystemTime,
}

/// What an entry of a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Folder,
    /// A file, or a link that may lead to one.
    File,
    Unknown,
}

impl Folder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let root = File::options().read(true).open(path)?;
        if !root.metadata()?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, format!("{} is not a folder", path.display())));
        }
        Ok(Self { root: root.into() })
    }

    /// The regular file that `key` names; `None` for everything else, and for what we may not read.
    pub(super) fn object(&self, key: &str) -> io::Result<Option<Object>> {
        if !is_legal(key) {
            return Ok(None);
        }
        // Without O_NONBLOCK, opening a FIFO waits for its writer.
        match self.open_beneath(key, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY) {
            Ok(fd) => {
                let file = File::from(fd);
                let meta = file.metadata()?;
                let facts = Facts::of(&meta);
                Ok(meta.is_file().then_some(Object { file, facts }))
            }
            Err(error) if says_absent(error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The entries of a folder inside (`""` for the root), unsorted; none if it is gone.
    pub(super) fn entries(&self, path: &str) -> io::Result<Vec<(String, Kind)>> {
        let path = if path.is_empty() { "." } else { path };
        // Links to folders are not followed here, so that a loop of them is no endless listing.
        let fd = match self.open_beneath(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW) {
            Ok(fd) => fd,
            Err(error) if says_absent(error) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut folder = Dir::from_fd(fd)?;
        let mut entries = Vec::new();
        for entry in folder.iter() {
            let entry = entry?;
            // A name that is not UTF-8 cannot be a key.
            let Ok(name) = entry.file_name().to_str() else { continue };
            let kind = match entry.file_type() {
                Some(Type::Directory) => Kind::Folder,
                Some(Type::File | Type::Symlink) => Kind::File,
                Some(_) => continue,
                None => Kind::Unknown,
            };
            if name != "." && name != ".." {
                entries.push((name.to_owned(), kind));
            }
        }
        Ok(entries)
    }

    /// Whether `path` is a folder, for file systems whose listings do not say.
    pub(super) fn is_folder(&self, path: &str) -> bool {
        self.open_beneath(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW).is_ok()
    }

    fn open_beneath(&self, path: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlag::O_CLOEXEC;
        let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        match retry(|| openat2(self.root.as_fd(), path, how)) {
            // Older kernels, and sandboxes that do not know openat2.
            Err(Errno::ENOSYS | Errno::EPERM) => self.open_stepwise(path, flags),
            opened => opened,
        }
    }

    /// The same without openat2: step by step, following no link at all.
    fn open_stepwise(&self, path: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
        let step = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let (parents, name) = path.rsplit_once('/').map_or((None, path), |(parents, name)| (Some(parents), name));
        let mut folder: Option<OwnedFd> = None;
        for parent in parents.into_iter().flat_map(|parents| parents.split('/')) {
            let at = folder.as_ref().map_or(self.root.as_fd(), |fd| fd.as_fd());
            folder = Some(retry(|| openat(at, parent, step, Mode::empty()))?);
        }
        let at = folder.as_ref().map_or(self.root.as_fd(), |fd| fd.as_fd());
        retry(|| openat(at, name, flags | OFlag::O_NOFOLLOW, Mode::empty()))
    }
}

impl Facts {
    /// An error if `file` is not what it was: rewritten in place, its bytes would belong to no etag.
    pub(super) fn still_of(&self, file: &File) -> io::Result<()> {
        match Self::of(&file.metadata()?) == *self {
            true => Ok(()),
            false => Err(io::Error::other("file was rewritten while it was read")),
        }
    }

    fn of(meta: &std::fs::Metadata) -> Self {
        let (seconds, nanos) = (meta.mtime(), meta.mtime_nsec());
        let etag = format!("{:x}-{:x}-{:x}", meta.ino(), meta.size(), i128::from(seconds) * 1_000_000_000 + i128::from(nanos));
        let since = Duration::new(seconds.max(0).unsigned_abs(), nanos.clamp(0, 999_999_999) as u32);
        Self { size: meta.size(), etag, modified: SystemTime::UNIX_EPOCH + since }
    }
}

/// A key is a relative path of plain names. `a//b`, `./a` and `a/` are other keys than `a/b` and `a`, and no file has them.
fn is_legal(key: &str) -> bool {
    !key.contains('\0') && key.split('/').all(|name| !matches!(name, "" | "." | ".."))
}

/// What makes a key absent: nothing there, not a folder on the way, a link that leads out or round in circles, a name too long, no
/// right to read, or something that is no file.
fn says_absent(error: Errno) -> bool {
    use Errno::{EACCES, ELOOP, ENAMETOOLONG, ENODEV, ENOENT, ENOTDIR, ENXIO, EXDEV};
    matches!(error, ENOENT | ENOTDIR | EXDEV | ELOOP | ENAMETOOLONG | EACCES | ENXIO | ENODEV)
}

/// EINTR is a signal, EAGAIN a rename elsewhere that made the kernel's check unsure: ask again, a bounded number of times.
fn retry(open: impl Fn() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    let mut result = open();
    for _ in 0..32 {
        match result {
            Err(Errno::EINTR | Errno::EAGAIN) => result = open(),
            _ => break,
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Promise: no key leads out of the folder, by either way of opening; what lies inside opens.
    #[test]
    fn keys_stay_inside() {
        let outer = tempfile::tempdir().expect("folder");
        let root = outer.path().join("bucket");
        std::fs::create_dir_all(root.join("sub")).expect("sub");
        std::fs::write(outer.path().join("secret"), b"secret").expect("secret");
        std::fs::write(root.join("sub/a.jpg"), b"inside").expect("file");
        symlink("../secret", root.join("relative")).expect("link");
        symlink("/etc/passwd", root.join("absolute")).expect("link");
        symlink("..", root.join("up")).expect("link");
        symlink("sub/a.jpg", root.join("within")).expect("link");
        symlink("loop", root.join("loop")).expect("link");
        nix::unistd::mkfifo(&root.join("fifo"), Mode::S_IRWXU).expect("fifo");
        let folder = Folder::open(&root).expect("open");
        let long = "x".repeat(300);
        #[rustfmt::skip]
        let outside = [
            "../secret", "sub/../../secret", "/etc/passwd", "relative", "absolute", "up/secret", "up/bucket/sub/a.jpg", "loop", "fifo",
            "sub", "sub/", "./sub/a.jpg", "sub//a.jpg", "sub/./a.jpg", "sub/a.jpg/", "sub/a.jpg/x", "", ".", "..", "sub/a.jpg\0", &long,
        ];
        for key in outside {
            assert!(folder.object(key).expect("no fault").is_none(), "{key:?}");
        }
        for key in ["sub/a.jpg", "within"] {
            assert_eq!(folder.object(key).expect("no fault").expect("object").facts.size, 6, "{key}");
        }
        for key in ["relative", "absolute", "up/secret", "within"] {
            assert!(folder.open_stepwise(key, OFlag::O_RDONLY).is_err(), "{key}");
        }
        assert!(folder.open_stepwise("sub/a.jpg", OFlag::O_RDONLY).is_ok());
    }

    /// Promise: a file that is replaced has another etag.
    #[test]
    fn etag_names_the_bytes() {
        let root = tempfile::tempdir().expect("folder");
        let path = root.path().join("a");
        std::fs::write(&path, b"one").expect("write");
        let folder = Folder::open(root.path()).expect("open");
        let etag = || folder.object("a").expect("no fault").expect("object").facts.etag;
        let first = etag();
        assert_eq!(first, etag());
        std::fs::write(root.path().join("b"), b"two").expect("write");
        std::fs::rename(root.path().join("b"), &path).expect("rename");
        assert_ne!(first, etag());
    }
}
