//! Pages: how raw bytes are named and cut.

use bytes::Bytes;
use framecache::{ByteRange, ObjectId, Page};

use super::{Body, Entry, EntryKey, Head};

/// The key of a page. A member's bytes are its archive's: they have the archive's pages.
pub fn key(id: &ObjectId, page: Page) -> EntryKey {
    EntryKey::Page { object: id.object(), page }
}

/// The entry of a page from its bytes; `None` if they are not the whole page of an object of that size.
///
/// The bytes are held as they are: hand in a buffer of their own, not a slice of a larger one, which would stay in memory.
pub fn entry(head: Head, page: Page, bytes: Bytes) -> Option<Entry> {
    (bytes.len() as u64 == page.range().clamp(head.size).len()).then_some(Entry { head, body: Body::Raw(bytes) })
}

/// The part of `range` that lies on `page`, without a copy; `None` if the entry is no page or ends before it.
pub fn slice(entry: &Entry, page: Page, range: ByteRange) -> Option<Bytes> {
    let Body::Raw(bytes) = &entry.body else { return None };
    let part = page.range().intersect(range);
    if part.is_empty() {
        return Some(Bytes::new());
    }
    let start = usize::try_from(part.start() - page.range().start()).ok()?;
    let end = usize::try_from(part.end() - page.range().start()).ok()?;
    (end <= bytes.len()).then(|| bytes.slice(start..end))
}

#[cfg(test)]
mod tests {
    use framecache::Version;
    use framecache::object::PAGE_BYTES;

    use super::*;

    /// Promise: a page is whole or is not taken, and gives exactly the bytes of a range that lie on it.
    #[test]
    fn pages_are_whole_and_sliced_exactly() {
        let head = Head { version: Version::new("v").expect("version"), size: PAGE_BYTES + 10, fetched_unix_ms: 0 };
        assert!(entry(head.clone(), Page::new(0), Bytes::from(vec![1; 10])).is_none());
        let last = entry(head, Page::new(1), Bytes::from((0..10).collect::<Vec<u8>>())).expect("page");
        let range = |start, end| ByteRange::new(start, end).expect("range");
        assert_eq!(slice(&last, Page::new(1), range(5, PAGE_BYTES + 3)).as_deref(), Some(&[0, 1, 2][..]));
        assert_eq!(slice(&last, Page::new(1), range(PAGE_BYTES + 8, PAGE_BYTES + 10)).as_deref(), Some(&[8, 9][..]));
        assert_eq!(slice(&last, Page::new(1), range(PAGE_BYTES + 8, PAGE_BYTES + 11)), None);
        assert_eq!(slice(&last, Page::new(1), range(0, 5)).as_deref(), Some(&[][..]));
    }
}
