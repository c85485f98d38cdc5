//! Policy: is this reply an answer to what was asked? Nothing of a body is read before these headers agree.

use framecache::{ByteRange, Version};

/// What a GET asked for. `range` is not empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) range: ByteRange,
    pub(crate) pin: Option<&'a Version>,
}

/// The headers of a successful reply that decide.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headers {
    pub(crate) etag: Option<String>,
    pub(crate) content_range: Option<String>,
    pub(crate) content_length: Option<i64>,
    pub(crate) content_encoding: Option<String>,
}

/// What the body has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) version: Version,
    pub(crate) size: u64,
    pub(crate) range: ByteRange,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The reply answers; the body has to be this.
    Promised(Promise),
    /// A whole object where a range was asked, which fits if the object really ends there: the size is to be confirmed, since a
    /// server that cuts a body short says the same.
    Whole(Promise),
    /// Another version than the pinned one.
    Changed(Version),
    /// No answer to what was asked.
    Corrupt(&'static str),
}

/// HTTP ranges: RFC 9110, sections 14.4 (Content-Range) and 15.3.7 (206). An etag is compared byte for byte, weak or strong.
pub(crate) fn judge(asked: Asked<'_>, headers: &Headers) -> Verdict {
    if headers.content_encoding.as_deref().is_some_and(|encoding| !encoding.split(',').all(is_plain)) {
        return Verdict::Corrupt("body is content-encoded");
    }
    let Some(version) = headers.etag.as_deref().and_then(|etag| Version::new(etag).ok()) else {
        return Verdict::Corrupt("reply has no legal etag");
    };
    if asked.pin.is_some_and(|pin| *pin != version) {
        return Verdict::Changed(version);
    }
    let length = headers.content_length.map(u64::try_from);
    match (&headers.content_range, length) {
        (_, Some(Err(_))) => Verdict::Corrupt("content length is negative"),
        (None, None) => Verdict::Corrupt("reply states no size"),
        (None, Some(Ok(size))) => {
            let whole = ByteRange::at(0, size);
            let fits = asked.range.start() == 0 && asked.range.end() >= size;
            match whole {
                Some(range) if fits => Verdict::Whole(Promise { version, size, range }),
                _ => Verdict::Corrupt("range was ignored"),
            }
        }
        (Some(text), length) => {
            let Some((range, size)) = parse_content_range(text) else {
                return Verdict::Corrupt("content range is not legal");
            };
            if range != asked.range.clamp(size) {
                Verdict::Corrupt("content range is not what was asked")
            } else if length.is_some_and(|length| length != Ok(range.len())) {
                Verdict::Corrupt("content length differs from content range")
            } else {
                Verdict::Promised(Promise { version, size, range })
            }
        }
    }
}

/// `aws-chunked` describes an upload; some stores give it back with the object, whose bytes are plain.
fn is_plain(encoding: &str) -> bool {
    matches!(encoding.trim().to_ascii_lowercase().as_str(), "" | "identity" | "aws-chunked")
}

/// `bytes first-last/size`, last inclusive; a size of `*` is no size.
fn parse_content_range(text: &str) -> Option<(ByteRange, u64)> {
    let (range, size) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.trim().split_once('-')?;
    let number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u64>().ok()).flatten();
    let (first, last, size) = (number(first)?, number(last)?, number(size)?);
    (last < size).then_some(())?;
    Some((ByteRange::new(first, last + 1)?, size)).filter(|(range, _)| !range.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end).expect("range")
    }

    fn headers(etag: &str, content_range: &str, length: i64) -> Headers {
        let text = |s: &str| (!s.is_empty()).then(|| s.to_owned());
        Headers {
            etag: text(etag),
            content_range: text(content_range),
            content_length: (length >= 0).then_some(length),
            content_encoding: None,
        }
    }

    /// Promise: only a reply that states exactly the range asked for, of the pinned version, unencoded, lets its body through.
    #[test]
    fn replies_are_judged() {
        let a = Version::new("\"a\"").expect("version");
        let promise = |start, end, size| Promise { version: a.clone(), size, range: range(start, end) };
        let no = Verdict::Corrupt;
        let (illegal, other) = ("content range is not legal", "content range is not what was asked");
        let (ignored, differs) = ("range was ignored", "content length differs from content range");
        let huge = "bytes 0-18446744073709551615/18446744073709551615";
        let (a_, inner) = ("\"a\"", range(10, 20));
        let table = [
            ("exact", inner, headers(a_, "bytes 10-19/100", 10), Verdict::Promised(promise(10, 20, 100))),
            ("no length", inner, headers(a_, "bytes 10-19/100", -1), Verdict::Promised(promise(10, 20, 100))),
            ("clamped", range(90, 200), headers(a_, "bytes 90-99/100", 10), Verdict::Promised(promise(90, 100, 100))),
            ("whole", range(0, 100), headers(a_, "", 100), Verdict::Whole(promise(0, 100, 100))),
            ("whole, more asked", range(0, 500), headers(a_, "", 100), Verdict::Whole(promise(0, 100, 100))),
            ("ignored, longer", range(0, 99), headers(a_, "", 100), no(ignored)),
            ("ignored, inside", range(5, 200), headers(a_, "", 100), no(ignored)),
            ("short range", inner, headers(a_, "bytes 10-18/100", 9), no(other)),
            ("shifted", inner, headers(a_, "bytes 11-20/100", 10), no(other)),
            ("short length", inner, headers(a_, "bytes 10-19/100", 9), no(differs)),
            ("long length", inner, headers(a_, "bytes 10-19/100", 11), no(differs)),
            ("no size", inner, headers(a_, "bytes 10-19/*", 10), no(illegal)),
            ("past own size", inner, headers(a_, "bytes 10-19/15", 10), no(illegal)),
            ("sign", inner, headers(a_, "bytes +10-19/100", 10), no(illegal)),
            ("huge", inner, headers(a_, huge, 10), no(illegal)),
            ("no etag", inner, headers("", "bytes 10-19/100", 10), no("reply has no legal etag")),
            ("nothing", inner, headers(a_, "", -1), no("reply states no size")),
        ];
        for (name, asked, headers, want) in table {
            assert_eq!(judge(Asked { range: asked, pin: None }, &headers), want, "{name}");
            assert_eq!(judge(Asked { range: asked, pin: Some(&a) }, &headers), want, "{name}, pinned");
        }
    }

    /// Promise: another etag than the pinned one is a change, also if it differs in strength alone.
    #[test]
    fn etags_are_literal() {
        let weak = Version::new("W/\"a\"").expect("version");
        let reply = headers("\"a\"", "bytes 0-0/1", 1);
        let verdict = judge(Asked { range: range(0, 1), pin: Some(&weak) }, &reply);
        assert_eq!(verdict, Verdict::Changed(Version::new("\"a\"").expect("version")));
    }

    /// Promise: an encoded body is refused before a byte of it is read.
    #[test]
    fn encodings_are_refused() {
        for (encoding, plain) in
            [("gzip", false), ("identity", true), ("aws-chunked", true), ("aws-chunked, gzip", false), ("", true)]
        {
            let reply = Headers { content_encoding: Some(encoding.into()), ..headers("\"a\"", "bytes 0-0/1", 1) };
            let verdict = judge(Asked { range: range(0, 1), pin: None }, &reply);
            assert_eq!(matches!(verdict, Verdict::Promised(_)), plain, "{encoding}");
        }
    }
}
