//! FFmpeg's input: our own, in windows, since each read of it is a round trip.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use ffmpeg_next::ffi;
use framecache::ByteRange;

use super::super::{Gone, Input};

/// Windows over an input, and the place where FFmpeg reads next.
pub(in super::super) struct Reader<'a> {
    input: &'a mut dyn Input,
    bytes: u64,
    at: u64,
    windows: Vec<Window>,
    /// One past the last fetched byte.
    fetched: u64,
    window_bytes: u64,
    /// Parts that are not read: zeros stand for them. Rising, apart.
    hollow: Vec<ByteRange>,
    gone: bool,
}

/// Bytes that are held.
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn behind(&self, at: u64) -> Option<&[u8]> {
        self.bytes.get(usize::try_from(at.checked_sub(self.start)?).ok()?..).filter(|rest| !rest.is_empty())
    }
}

/// Windows that are held, the last used first: interleaved streams are read in two places by turns, and packets are looked up where
/// they were just read.
const WINDOWS: usize = 4;

/// The first read at a new place: a header is often no longer, and a place in a table of contents always.
const WINDOW_BYTES_MIN: u64 = 64 << 10;

/// Reading on doubles the window up to this.
const WINDOW_BYTES_MAX: u64 = 8 << 20;

impl<'a> Reader<'a> {
    pub(in super::super) fn new(input: &'a mut dyn Input) -> Self {
        let bytes = input.bytes();
        Self {
            input,
            bytes,
            at: 0,
            windows: Vec::new(),
            fetched: u64::MAX,
            window_bytes: WINDOW_BYTES_MIN,
            hollow: Vec::new(),
            gone: false,
        }
    }

    /// From now on these parts are not read. Rising, apart.
    pub(in super::super) fn hollow(&mut self, parts: Vec<ByteRange>) {
        self.hollow = parts;
    }

    pub(in super::super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the input failed: what FFmpeg says then says nothing of the clip.
    pub(in super::super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// The bytes of `range` as far as there are any, over what is held where it is held; zeros where hollow.
    pub(in super::super) fn peek(&mut self, range: ByteRange, out: &mut Vec<u8>) -> Result<(), Gone> {
        let range = range.clamp(self.bytes);
        out.clear();
        let mut at = range.start();
        while at < range.end() {
            let wanted = usize::try_from(range.end() - at).map_err(|_| Gone)?;
            let taken = match self.some(at)? {
                Some(bytes) => {
                    let bytes = &bytes[..bytes.len().min(wanted)];
                    out.extend_from_slice(bytes);
                    bytes.len()
                }
                None => {
                    let zeros = self.hollow_bytes(at).min(wanted as u64) as usize;
                    out.resize(out.len() + zeros, 0);
                    zeros
                }
            };
            at += taken as u64;
        }
        Ok(())
    }

    /// Bytes from `at` on, which lies within the object: some of them, not none; nothing where it is hollow.
    fn some(&mut self, at: u64) -> Result<Option<&[u8]>, Gone> {
        if let Some(held) = self.windows.iter().position(|window| window.behind(at).is_some()) {
            self.windows[..=held].rotate_right(1);
        } else if self.hollow_bytes(at) > 0 {
            return Ok(None);
        } else {
            self.fetch(at)?;
        }
        Ok(self.windows[0].behind(at))
    }

    /// Bytes from `at` on that are hollow.
    fn hollow_bytes(&self, at: u64) -> u64 {
        let part = self.hollow.partition_point(|part| part.end() <= at);
        self.hollow.get(part).filter(|part| part.start() <= at).map_or(0, |part| part.end() - at)
    }

    fn fetch(&mut self, at: u64) -> Result<(), Gone> {
        let goes_on = at == self.fetched;
        self.window_bytes = if goes_on { (2 * self.window_bytes).min(WINDOW_BYTES_MAX) } else { WINDOW_BYTES_MIN };
        let next_hollow =
            self.hollow.get(self.hollow.partition_point(|part| part.end() <= at)).map_or(u64::MAX, |part| part.start());
        let end = at.saturating_add(self.window_bytes).min(self.bytes).min(next_hollow);
        let mut bytes =
            if self.windows.len() == WINDOWS { self.windows.pop().map_or(Vec::new(), |old| old.bytes) } else { Vec::new() };
        bytes.clear();
        let range = ByteRange::new(at, end).ok_or(Gone)?;
        let read = if self.gone { Err(Gone) } else { self.input.read(range, &mut bytes) };
        if read.is_err() || bytes.len() as u64 != range.len() || bytes.is_empty() {
            self.gone = true;
            return Err(Gone);
        }
        self.fetched = end;
        self.windows.insert(0, Window { start: at, bytes });
        Ok(())
    }

    /// Into FFmpeg's buffer; how many bytes, none at the end. What is not filled stays as it is: FFmpeg goes back to it.
    fn read(&mut self, into: &mut [MaybeUninit<u8>]) -> Result<usize, Gone> {
        if self.at >= self.bytes {
            return Ok(0);
        }
        let taken = match self.some(self.at)? {
            Some(bytes) => {
                let taken = bytes.len().min(into.len());
                into[..taken].write_copy_of_slice(&bytes[..taken]);
                taken
            }
            None => {
                let rest = self.hollow_bytes(self.at).min(self.bytes - self.at);
                let taken = rest.min(into.len() as u64) as usize;
                into[..taken].fill(MaybeUninit::new(0));
                taken
            }
        };
        self.at += taken as u64;
        Ok(taken)
    }
}

/// FFmpeg's face of a reader.
pub(super) struct Io<'a> {
    pub(super) context: *mut ffi::AVIOContext,
    reader: *mut Reader<'a>,
}

/// FFmpeg's own buffer in front: what small reads of a demuxer cost a call for.
const BUFFER_BYTES: c_int = 32 << 10;

impl<'a> Io<'a> {
    pub(super) fn new(reader: Reader<'a>) -> Option<Self> {
        let reader = Box::into_raw(Box::new(reader));
        // SAFETY: allocates; the context takes the buffer over, and hands `reader` to the two functions as long as it lives.
        let context = unsafe {
            let buffer = ffi::av_malloc(BUFFER_BYTES as usize).cast();
            ffi::avio_alloc_context(buffer, BUFFER_BYTES, 0, reader.cast(), Some(read), None, Some(seek))
        };
        // On failure this frees the reader; the buffer of a context that could not be had is lost, with a process out of memory.
        let io = Self { context, reader };
        (!context.is_null()).then_some(io)
    }

    /// The reader, while FFmpeg is not running.
    pub(super) fn reader(&mut self) -> &mut Reader<'a> {
        // SAFETY: it lives as long as this does, and FFmpeg touches it only within calls, which need `&mut` of what holds this.
        unsafe { &mut *self.reader }
    }
}

impl Drop for Io<'_> {
    fn drop(&mut self) {
        // SAFETY: the buffer may be another one by now, which is the context's to name; each is freed once, the reader last.
        unsafe {
            if !self.context.is_null() {
                ffi::av_freep((&raw mut (*self.context).buffer).cast());
                ffi::avio_context_free(&raw mut self.context);
            }
            drop(Box::from_raw(self.reader));
        }
    }
}

/// SAFETY: `opaque` is the live reader that the context was made with, and `into` has room for `room` bytes.
unsafe extern "C" fn read(opaque: *mut c_void, into: *mut u8, room: c_int) -> c_int {
    // The reader's lifetime is over only after the context's.
    let reader: *mut Reader<'static> = opaque.cast();
    let room = usize::try_from(room).unwrap_or(0);
    // SAFETY: by this function's own condition; what FFmpeg has not initialised is not read.
    let (reader, into) = unsafe { (&mut *reader, std::slice::from_raw_parts_mut(into.cast::<MaybeUninit<u8>>(), room)) };
    match reader.read(into) {
        Ok(0) => ffi::AVERROR_EOF,
        Ok(bytes) => bytes as c_int,
        Err(Gone) => ffi::AVERROR_EXIT,
    }
}

/// SAFETY: `opaque` is the live reader that the context was made with.
unsafe extern "C" fn seek(opaque: *mut c_void, offset: i64, whence: c_int) -> i64 {
    let reader: *mut Reader<'static> = opaque.cast();
    // SAFETY: by this function's own condition.
    let reader = unsafe { &mut *reader };
    if whence & ffi::AVSEEK_SIZE != 0 {
        return i64::try_from(reader.bytes).unwrap_or(i64::MAX);
    }
    let base = match whence & !ffi::AVSEEK_FORCE {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => reader.at,
        libc::SEEK_END => reader.bytes,
        _ => return ffi::AVERROR(libc::EINVAL).into(),
    };
    match base.checked_add_signed(offset) {
        Some(at) => {
            reader.at = at;
            i64::try_from(at).unwrap_or(i64::MAX)
        }
        None => ffi::AVERROR(libc::EINVAL).into(),
    }
}
