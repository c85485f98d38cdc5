//! The S3 face over a folder: GetObject, HeadObject, ListObjectsV2, ListBuckets, HeadBucket. All else is `NotImplemented`.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use hyper::HeaderMap;
use hyper::header::{CONTENT_RANGE, ETAG, HeaderName, HeaderValue};
use s3s::dto::{
    Bucket, CommonPrefix, ETag, ETagCondition, EncodingType, GetObjectInput, GetObjectOutput, HeadBucketInput, HeadBucketOutput,
    HeadObjectInput, HeadObjectOutput, IfMatch, IfNoneMatch, ListBucketsInput, ListBucketsOutput, ListObjectsV2Input,
    ListObjectsV2Output, Object as ListedObject, Range as AskedRange,
};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};
use tokio::task::spawn_blocking;

use super::folder::{Facts, Object};
use super::walk::Walk;
use super::{FolderOrigin, Shared, body};

#[async_trait::async_trait]
impl S3 for FolderOrigin {
    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let GetObjectInput { bucket, key, if_match, if_none_match, range, .. } = req.input;
        self.shared.count_get(&key);
        let opened = self.blocking(bucket, move |shared| {
            let object = shared.object(&key, if_match.as_ref(), if_none_match.as_ref())?;
            let span = span(range, object.facts.size)?;
            // With the opening, so that a small object costs one visit to the blocking pool.
            let first = body::read(&object.file, &object.facts, span.start, span.end).map_err(S3Error::internal_error)?;
            Ok((object, span, first))
        });
        let (Object { file, facts }, span, first) = opened.await?;
        let of = facts.clone();
        Ok(S3Response::new(GetObjectOutput {
            accept_ranges: Some("bytes".into()),
            content_length: Some((span.end - span.start) as i64),
            content_range: range.is_some().then(|| format!("bytes {}-{}/{}", span.start, span.end - 1, facts.size)),
            e_tag: Some(ETag::Strong(facts.etag)),
            last_modified: Some(facts.modified.into()),
            body: Some(body::stream(file, of, span, first)),
            ..Default::default()
        }))
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let HeadObjectInput { bucket, key, if_match, if_none_match, .. } = req.input;
        self.shared.heads.fetch_add(1, Relaxed);
        let opened =
            self.blocking(bucket, move |shared| Ok(shared.object(&key, if_match.as_ref(), if_none_match.as_ref())?.facts));
        let facts = opened.await?;
        Ok(S3Response::new(HeadObjectOutput {
            accept_ranges: Some("bytes".into()),
            content_length: Some(facts.size as i64),
            e_tag: Some(ETag::Strong(facts.etag)),
            last_modified: Some(facts.modified.into()),
            ..Default::default()
        }))
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.shared.lists.fetch_add(1, Relaxed);
        let input = req.input;
        self.blocking(input.bucket.clone(), move |shared| shared.list(input)).await.map(S3Response::new)
    }

    async fn list_buckets(&self, _req: S3Request<ListBucketsInput>) -> S3Result<S3Response<ListBucketsOutput>> {
        let bucket = Bucket { name: Some(self.shared.bucket.clone()), ..Default::default() };
        Ok(S3Response::new(ListBucketsOutput { buckets: Some(vec![bucket]), ..Default::default() }))
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.blocking(req.input.bucket, |_| Ok(S3Response::new(HeadBucketOutput::default()))).await
    }
}

impl FolderOrigin {
    /// Files are asked where waiting is allowed.
    async fn blocking<T: Send + 'static>(
        &self,
        bucket: String,
        work: impl FnOnce(&Shared) -> S3Result<T> + Send + 'static,
    ) -> S3Result<T> {
        if bucket != self.shared.bucket {
            return Err(S3ErrorCode::NoSuchBucket.into());
        }
        let shared = self.shared.clone();
        spawn_blocking(move || work(&shared)).await.map_err(S3Error::internal_error)?
    }
}

impl Shared {
    /// The object, if it is there and the conditions hold (RFC 9110, section 13.2.2: If-Match before If-None-Match).
    fn object(&self, key: &str, if_match: Option<&IfMatch>, if_none_match: Option<&IfNoneMatch>) -> S3Result<Object> {
        let object = self.folder.object(key).map_err(S3Error::internal_error)?.ok_or(S3ErrorCode::NoSuchKey)?;
        let etag = ETag::Strong(object.facts.etag.clone());
        // If-Match compares strongly, If-None-Match weakly (section 13.1).
        let matches = match if_match {
            None | Some(ETagCondition::Any) => true,
            Some(ETagCondition::ETag(wanted)) => wanted.strong_cmp(&etag),
        };
        if !matches {
            return Err(S3ErrorCode::PreconditionFailed.into());
        }
        let unchanged = match if_none_match {
            None => false,
            Some(ETagCondition::Any) => true,
            Some(ETagCondition::ETag(held)) => held.weak_cmp(&etag),
        };
        if unchanged {
            return Err(with_header(S3ErrorCode::NotModified, ETAG, &format!("\"{}\"", object.facts.etag)));
        }
        Ok(object)
    }

    fn list(&self, input: ListObjectsV2Input) -> S3Result<ListObjectsV2Output> {
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.clone().filter(|delimiter| !delimiter.is_empty());
        let after = match &input.continuation_token {
            Some(token) => decode_token(token).ok_or(S3ErrorCode::InvalidArgument)?,
            None => input.start_after.clone().unwrap_or_default(),
        };
        let limit = input.max_keys.unwrap_or(KEYS_MAX).clamp(0, KEYS_MAX) as usize;
        let url = input.encoding_type.as_ref().is_some_and(|kind| kind.as_str() == EncodingType::URL);
        let encode = |text: &str| if url { percent_encode(text) } else { text.to_owned() };

        let mut walk = Walk::new(&self.folder, &prefix, &after).map_err(S3Error::internal_error)?;
        let (mut contents, mut prefixes, mut last) = (Vec::new(), Vec::new(), None);
        let mut more = false;
        while limit > 0
            && let Some(key) = walk.next().map_err(S3Error::internal_error)?
        {
            let Some(object) = self.folder.object(&key).map_err(S3Error::internal_error)? else { continue };
            if contents.len() + prefixes.len() == limit {
                more = true;
                break;
            }
            let rest = &key[prefix.len()..];
            match delimiter.as_ref().and_then(|delimiter| Some(rest.find(delimiter.as_str())? + delimiter.len())) {
                Some(end) => {
                    let shared = &key[..prefix.len() + end];
                    prefixes.push(CommonPrefix { prefix: Some(encode(shared)) });
                    // After all keys that begin so; a later page goes on from there, too.
                    let end = format!("{shared}{}", char::MAX);
                    walk.skip_to(end.clone());
                    last = Some(end);
                }
                None => {
                    contents.push(listed(encode(&key), object.facts));
                    last = Some(key);
                }
            }
        }
        Ok(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(encode(&prefix)),
            delimiter: delimiter.as_deref().map(encode),
            max_keys: Some(limit as i32),
            key_count: Some((contents.len() + prefixes.len()) as i32),
            is_truncated: Some(more),
            next_continuation_token: last.filter(|_| more).map(|last| encode_token(&last)),
            continuation_token: input.continuation_token,
            start_after: input.start_after.as_deref().map(encode),
            encoding_type: input.encoding_type,
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            ..Default::default()
        })
    }
}

fn listed(key: String, facts: Facts) -> ListedObject {
    ListedObject {
        key: Some(key),
        size: Some(facts.size as i64),
        e_tag: Some(ETag::Strong(facts.etag)),
        last_modified: Some(facts.modified.into()),
        ..Default::default()
    }
}

/// The bytes to send; 416 with the size where the range holds none (RFC 9110, section 15.5.17).
fn span(range: Option<AskedRange>, size: u64) -> S3Result<Range<u64>> {
    let Some(range) = range else { return Ok(0..size) };
    let span = range.check(size).ok().filter(|span| !span.is_empty());
    span.ok_or_else(|| with_header(S3ErrorCode::InvalidRange, CONTENT_RANGE, &format!("bytes */{size}")))
}

fn with_header(code: S3ErrorCode, name: HeaderName, value: &str) -> S3Error {
    let mut error = S3Error::new(code);
    if let Ok(value) = HeaderValue::from_str(value) {
        error.set_headers(HeaderMap::from_iter([(name, value)]));
    }
    error
}

/// A token is the last key in hex, so that any key survives XML and URLs.
fn encode_token(key: &str) -> String {
    key.bytes().map(|b| format!("{b:02x}")).collect()
}

fn decode_token(token: &str) -> Option<String> {
    let digits: Vec<u32> = token.chars().map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    pairs.remainder().is_empty().then_some(())?;
    String::from_utf8(pairs.map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()).ok()
}

/// `encoding-type=url`: everything but letters, digits and `-._~/*` (as S3 does it).
fn percent_encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/*".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Most keys of one page (ListObjectsV2, MaxKeys).
const KEYS_MAX: i32 = 1000;
