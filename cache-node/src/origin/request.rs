//! One request over `aws-sdk-s3`, without any of its retries: the first byte, then the body, and what went wrong in our own words.

use std::error::Error;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::EncodingType;
use bytes::{Bytes, BytesMut};
use framecache::{ObjectId, Version};
use tokio::time::timeout;

use super::reply::{Asked, Headers, Promise};
use super::retry::{Failure, classify};
use super::{Listed, Listing, ObjectFacts};

/// A reply whose headers are here and whose body is still on the wire.
pub(crate) struct Reply {
    pub(crate) headers: Headers,
    body: ByteStream,
}

/// GET of a range, pinned by If-Match where a version is given (RFC 9110, section 13.1.1).
pub(crate) async fn get(client: &Client, id: &ObjectId, asked: Asked<'_>) -> Result<Reply, Failure> {
    // Last byte inclusive; header values beyond i64 are refused by some stores, and no object is that large.
    let (first, last) = (asked.range.start(), asked.range.end().min(i64::MAX as u64) - 1);
    let sent = client
        .get_object()
        .bucket(id.bucket())
        .key(id.key())
        .range(format!("bytes={first}-{last}"))
        .set_if_match(asked.pin.map(|pin| pin.as_str().to_owned()))
        .send();
    let output = sent.await.map_err(failure)?;
    let headers = Headers {
        etag: output.e_tag,
        content_range: output.content_range,
        content_length: output.content_length,
        content_encoding: output.content_encoding,
    };
    Ok(Reply { headers, body: output.body })
}

/// HEAD: version and size.
pub(crate) async fn head(client: &Client, id: &ObjectId, pin: Option<&Version>) -> Result<ObjectFacts, Failure> {
    let sent = client.head_object().bucket(id.bucket()).key(id.key()).set_if_match(pin.map(|pin| pin.as_str().to_owned())).send();
    let output = sent.await.map_err(failure)?;
    let version = output.e_tag.as_deref().and_then(|etag| Version::new(etag).ok());
    let size = output.content_length.and_then(|length| u64::try_from(length).ok());
    match (version, size) {
        (Some(version), Some(size)) => Ok(ObjectFacts { version, size }),
        _ => Err(Failure::Mangled("head reply has no etag or no length".into())),
    }
}

/// One page of keys. `after` is a key, not the origin's token, so that a listing can be taken up by another node.
pub(crate) async fn list(
    client: &Client,
    bucket: &str,
    prefix: &str,
    after: Option<&str>,
    limit: i32,
) -> Result<Listing, Failure> {
    // Keys may hold characters that XML cannot: the origin is asked to percent-encode them.
    let sent = client
        .list_objects_v2()
        .bucket(bucket)
        .prefix(prefix)
        .set_start_after(after.map(str::to_owned))
        .max_keys(limit)
        .encoding_type(EncodingType::Url)
        .send();
    let output = sent.await.map_err(failure)?;
    let encoded = output.encoding_type == Some(EncodingType::Url);
    let mangled = |why: &str| Failure::Mangled(format!("listing {why}"));
    let mut objects: Vec<Listed> = Vec::with_capacity(output.contents().len().min(1000));
    for object in output.contents() {
        let key = object.key().ok_or_else(|| mangled("has an object without key"))?;
        let key = if encoded { decode(key).ok_or_else(|| mangled("has a key with a bad escape"))? } else { key.to_owned() };
        let version = object.e_tag().and_then(|etag| Version::new(etag).ok());
        let version = version.ok_or_else(|| mangled("has an object without etag"))?;
        let size = object.size().and_then(|size| u64::try_from(size).ok());
        let size = size.ok_or_else(|| mangled("has an object without size"))?;
        let last = objects.last().map(|object| object.key.as_str()).or(after);
        if !key.starts_with(prefix) || last.is_some_and(|last| key.as_str() <= last) {
            return Err(mangled("is not sorted after its start"));
        }
        objects.push(Listed { key, size, version });
    }
    if objects.len() > limit as usize {
        return Err(mangled("is longer than asked"));
    }
    let next = match (output.is_truncated(), objects.last()) {
        (Some(true), Some(last)) => Some(last.key.clone()),
        (Some(true), None) => return Err(mangled("goes on but is empty")),
        _ => None,
    };
    Ok(Listing { objects, next })
}

impl Reply {
    /// The body, if it is exactly what was promised. Memory is taken once, for the promised length, never for more.
    pub(crate) async fn body(self, promise: &Promise, idle: Duration) -> Result<Bytes, Failure> {
        let length = promise.range.len() as usize;
        let mut stream = self.body;
        // Copied into memory of its own size: a chunk kept as it came would hold the whole read buffer behind it.
        let mut body = BytesMut::with_capacity(length);
        loop {
            let received = body.len();
            match timeout(idle, stream.try_next()).await {
                Err(_) => return Err(Failure::Silent("rest of the body")),
                Ok(Err(_)) => return Err(Failure::Broken(format!("body broke off at {received} of {length} bytes"))),
                Ok(Ok(Some(chunk))) if chunk.len() > length - received => {
                    return Err(Failure::Mangled(format!("body is longer than {length} bytes")));
                }
                Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
                Ok(Ok(None)) if received < length => {
                    return Err(Failure::Mangled(format!("body ends at {received} of {length} bytes")));
                }
                Ok(Ok(None)) => return Ok(body.freeze()),
            }
        }
    }
}

/// What a failed call means. Of the SDK's own texts nothing is kept: they may show requests.
fn failure<E>(error: SdkError<E, HttpResponse>) -> Failure
where
    E: ProvideErrorMetadata + Error + 'static,
{
    if let SdkError::ServiceError(service) = &error {
        let response = service.raw();
        let header = |name| response.headers().get(name);
        let retry_after = header("retry-after").and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let region = header("x-amz-bucket-region").filter(|text| is_region(text)).map(str::to_owned);
        let code = service.err().code().filter(|code| is_word(code));
        return match classify(response.status().as_u16(), code, retry_after, region) {
            Failure::Replaced(None) => Failure::Replaced(header("etag").and_then(|etag| Version::new(etag).ok())),
            other => other,
        };
    }
    match error {
        SdkError::TimeoutError(_) => Failure::Silent("connection"),
        SdkError::ResponseError(_) => Failure::Mangled("reply cannot be read".into()),
        other if mentions_credentials(&other) => Failure::Broken(NO_CREDENTIALS.into()),
        SdkError::DispatchFailure(lost) if lost.is_timeout() => Failure::Silent("connection"),
        SdkError::DispatchFailure(_) => Failure::Broken("connection failed".into()),
        _ => Failure::Broken("request could not be sent".into()),
    }
}

/// Kept as a fault that passes: those of an instance or a web identity may be late.
const NO_CREDENTIALS: &str = "the node found no credentials: set them in its environment, or the bucket's \
                              `credentials = \"anonymous\"`";

fn is_word(text: &str) -> bool {
    text.len() <= 64 && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

fn is_region(text: &str) -> bool {
    text.len() <= 64 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// The SDK reports missing credentials as a failed dispatch; only the texts of its causes tell.
fn mentions_credentials(error: &(dyn Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |&cause| cause.source());
    causes.take(8).any(|cause| cause.to_string().contains("credential"))
}

/// Percent-decoding as S3 encodes keys in listings: `+` is a space.
fn decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                (high * 16 + low) as u8
            }
            plain => plain,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: an escaped key reads as what it escapes, and a broken escape is no key.
    #[test]
    fn keys_are_decoded() {
        for (text, want) in [
            ("a/b.jpg", Some("a/b.jpg")),
            ("a+b%2Bc%20d", Some("a b+c d")),
            ("%C3%BC", Some("ü")),
            ("%", None),
            ("%zz", None),
            ("%ff", None),
        ] {
            assert_eq!(decode(text).as_deref(), want, "{text}");
        }
    }
}
