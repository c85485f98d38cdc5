//! What a command writes to. A file appears under its name only when it is whole; what is no file, such as a device or a pipe, is
//! written to as it stands.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::interrupt::Unfinished;

/// Where the bytes go.
pub(super) enum Output {
    Standard(io::Stdout),
    /// What is there already, and is no regular file.
    Standing {
        file: File,
        path: PathBuf,
    },
    /// A regular file: written beside `place`, and renamed to it.
    File {
        writer: BufWriter<File>,
        unfinished: Unfinished,
        place: PathBuf,
    },
}

impl Output {
    /// `None` is standard output too, but not bytes onto a terminal.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        match path {
            None if io::stdout().is_terminal() => {
                Err(Failure::usage("not writing bytes to a terminal: want -o FILE, or -o - to do it"))
            }
            None => Ok(Self::Standard(io::stdout())),
            Some(path) if path == Path::new("-") => Ok(Self::Standard(io::stdout())),
            Some(path) => Self::at(path).map_err(|error| Failure::write(path, &error)),
        }
    }

    fn at(path: &Path) -> io::Result<Self> {
        let Some(place) = replaceable(path)? else {
            // A regular file here is one that is open already (`-o /dev/stdout >> log`): its other bytes are not ours.
            let append = fs::metadata(path)?.is_file();
            let file = File::options().write(true).append(append).open(path)?;
            return Ok(Self::Standing { file, path: path.to_owned() });
        };
        let mut name = place.as_os_str().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let (unfinished, file) = Unfinished::create(PathBuf::from(name))?;
        Ok(Self::File { writer: BufWriter::new(file), unfinished, place })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Standard(stdout) => stdout.write_all(bytes).map_err(|error| Failure::write(Path::new("-"), &error)),
            Self::Standing { file, path } => file.write_all(bytes).map_err(|error| Failure::write(path, &error)),
            Self::File { writer, place, .. } => writer.write_all(bytes).map_err(|error| Failure::write(place, &error)),
        }
    }

    pub(super) fn done(self) -> Result<(), Failure> {
        match self {
            Self::Standard(mut stdout) => stdout.flush().map_err(|error| Failure::write(Path::new("-"), &error)),
            Self::Standing { .. } => Ok(()),
            Self::File { mut writer, unfinished, place } => {
                let done = writer.flush().and_then(|()| fs::rename(unfinished.path(), &place));
                done.map_err(|error| Failure::write(&place, &error))
            }
        }
    }
}

/// Writes text to standard output.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| Failure::write(Path::new("-"), &error))
}

/// The place of the regular file that `path` leads to, or would: links are followed, so that they stay links. `None` if something
/// else is there, or a file that only its descriptor names.
fn replaceable(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
                // Links of /proc (proc(5), `fd`) name an open file, whatever text they show.
                if fs::canonicalize(folder)?.starts_with("/proc") {
                    return Ok(None);
                }
                path = folder.join(fs::read_link(&path)?);
            }
            Ok(found) if !found.is_file() => return Ok(None),
            Ok(_) => return Ok(Some(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(path)),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// As many as the kernel follows (path_resolution(7)).
const LINKS_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, symlink};

    fn put(path: &Path, bytes: &[u8]) {
        let mut output = Output::open(Some(path)).expect("open");
        output.write(bytes).expect("write");
        output.done().expect("done");
    }

    /// Promise: nothing half written is left under the file's name, nor beside it.
    #[test]
    fn outputs_are_whole_or_absent() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a");
        let mut output = Output::open(Some(&path)).expect("open");
        output.write(b"half").expect("write");
        drop(output);
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 0);
        put(&path, b"whole");
        put(&path, b"again");
        assert_eq!(fs::read(&path).expect("read"), b"again");
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 1);
    }

    /// Promise: a link stays a link, wherever it leads; what it leads to is written.
    #[test]
    fn links_are_followed() {
        let folder = tempfile::tempdir().expect("folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("sub")).expect("folder");
        fs::write(at("old"), b"old").expect("write");
        for (link, to) in [("sub/near", "../old"), ("far", "sub/near"), ("dangling", "sub/new"), ("loop", "loop")] {
            symlink(to, at(link)).expect("link");
        }
        put(&at("far"), b"1");
        put(&at("dangling"), b"2");
        assert_eq!((fs::read(at("old")).expect("read"), fs::read(at("sub/new")).expect("read")), (b"1".to_vec(), b"2".to_vec()));
        assert!(["sub/near", "far", "dangling"].iter().all(|name| at(name).is_symlink()));
        assert!(Output::open(Some(&at("loop"))).is_err() && Output::open(Some(&at("sub"))).is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 5);
    }

    /// Promise: what is no regular file is written to and stays what it is; a file that is open elsewhere keeps its bytes.
    #[test]
    fn what_is_no_file_is_not_replaced() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("fifo");
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("name");
        // SAFETY: a name that ends in NUL.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let reader = std::thread::spawn({
            let path = path.clone();
            move || fs::read(path).expect("read")
        });
        put(&path, b"through");
        assert_eq!(reader.join().expect("reader"), b"through");
        assert!(fs::metadata(&path).expect("there").file_type().is_fifo());
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 1);

        let log = folder.path().join("log");
        fs::write(&log, b"before ").expect("write");
        let open = File::options().append(true).open(&log).expect("open");
        put(Path::new(&format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open))), b"after");
        assert_eq!(fs::read(&log).expect("read"), b"before after");
    }
}
