//! S3 as what a client falls back on: one ranged GET a piece, of one version.

use aws_sdk_s3::Client;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::get_object::GetObjectError;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::error::{Error, ErrorKind};
use crate::fallback::{Origin, PIECE_BYTES, Part};
use crate::object::{ByteRange, ObjectId, Version};

/// An S3-compatible store, by a client of the SDK that has its region, endpoint, credentials and retries.
///
/// ```no_run
/// # fn example(s3: aws_sdk_s3::Client) -> Result<(), framecache::Error> {
/// use std::sync::Arc;
/// use framecache::fallback::Fallback;
/// use framecache::{Client, ClientConfig, origin::S3};
///
/// let mut config = ClientConfig::new("cache:4433");
/// config.fallback = Some(Fallback { origin: Arc::new(S3::new(s3)), bytes_per_second: 50 << 20 });
/// let client = Client::new(config)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct S3(Client);

impl S3 {
    /// Over a client of the SDK.
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    async fn get(&self, id: &ObjectId, range: ByteRange, version: Option<&Version>) -> Result<Part, Error> {
        if id.member().is_some() {
            return Err(Error::new(ErrorKind::Unsupported, "members of archives are read by the cluster alone"));
        }
        if range.is_empty() || range.len() > PIECE_BYTES {
            return Err(Error::new(ErrorKind::Invalid, format!("want 1 to {PIECE_BYTES} bytes of the origin at once")));
        }
        let request = self.0.get_object().bucket(id.bucket()).key(id.key());
        let request = request.range(format!("bytes={}-{}", range.start(), range.end() - 1));
        let request = request.set_if_match(version.map(|version| version.as_str().to_owned()));
        let reply = match request.send().await {
            Ok(reply) => reply,
            Err(error) => return self.refused(id, range, version, error).await,
        };
        let (size, offset) = content_range(reply.content_range()).ok_or_else(|| protocol("the origin names no range"))?;
        let found = Version::new(reply.e_tag().unwrap_or_default()).map_err(|error| protocol(error.to_string()))?;
        let want = range.clamp(size).len();
        let length = reply.content_length().and_then(|length| u64::try_from(length).ok());
        if offset != range.start() || length != Some(want) {
            return Err(protocol("the origin gave another range"));
        }
        let mut body = reply.body;
        let mut bytes = Vec::with_capacity(want as usize);
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|error| Error::new(ErrorKind::Unavailable, format!("the origin broke off: {error}")))?;
            if (bytes.len() + chunk.len()) as u64 > want {
                return Err(protocol("the origin gave more than was asked for"));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Part { bytes: bytes.into(), size, version: found })
    }

    async fn refused(
        &self,
        id: &ObjectId,
        range: ByteRange,
        version: Option<&Version>,
        error: SdkError<GetObjectError>,
    ) -> Result<Part, Error> {
        let status = error.raw_response().map(|reply| reply.status().as_u16());
        let kind = match status {
            Some(404) => ErrorKind::NotFound,
            Some(401 | 403) => ErrorKind::Denied,
            Some(412) => ErrorKind::Changed,
            // RFC 9110, 15.5.17. An object of no bytes has no range.
            Some(416) if range.start() == 0 => return self.empty(id, version).await,
            Some(416) => ErrorKind::OutOfRange,
            _ => ErrorKind::Unavailable,
        };
        let status = status.map_or("no answer".into(), |status| format!("status {status}"));
        Err(Error::new(kind, format!("the origin: {status}, {}", error.code().unwrap_or("no code"))))
    }

    async fn empty(&self, id: &ObjectId, version: Option<&Version>) -> Result<Part, Error> {
        let request = self.0.head_object().bucket(id.bucket()).key(id.key());
        let request = request.set_if_match(version.map(|version| version.as_str().to_owned()));
        let head = request.send().await;
        let head = head
            .map_err(|error| Error::new(ErrorKind::Unavailable, format!("the origin: {}", error.code().unwrap_or("no code"))))?;
        if head.content_length() != Some(0) {
            return Err(Error::new(ErrorKind::Unavailable, "the origin refuses the range of an object that has bytes"));
        }
        let version = Version::new(head.e_tag().unwrap_or_default()).map_err(|error| protocol(error.to_string()))?;
        Ok(Part { bytes: Default::default(), size: 0, version })
    }
}

impl Origin for S3 {
    fn read<'a>(
        &'a self,
        id: &'a ObjectId,
        range: ByteRange,
        version: Option<&'a Version>,
    ) -> BoxFuture<'a, Result<Part, Error>> {
        self.get(id, range, version).boxed()
    }
}

/// RFC 9110, 14.4: the whole object's bytes, and the first byte's place.
fn content_range(value: Option<&str>) -> Option<(u64, u64)> {
    let (range, size) = value?.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((size.parse().ok()?, start.parse().ok()?))
}

fn protocol(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a range's header is read as it is written, and nothing is guessed.
    #[test]
    fn ranges_are_read() {
        assert_eq!(content_range(Some("bytes 5-9/70")), Some((70, 5)));
        for bad in [None, Some(""), Some("bytes */70"), Some("bytes 5-9/*"), Some("items 5-9/70")] {
            assert_eq!(content_range(bad), None, "{bad:?}");
        }
    }
}
