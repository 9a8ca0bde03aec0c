//! Stores that speak S3, by the crate `object_store`.
//!
//! That crate is asynchronous. Its runtime has one thread and stays in here: callers wait for each request. It repeats
//! nothing itself, because only the caller knows what a repeated request may find.

use crate::credentials::ProfileFile;
use crate::location::Location;
use crate::store::{Listed, Store, StoreError, Version};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    RetryConfig, UpdateVersion,
};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// The longest time for a connection; and for a request without content, and between two pieces of an answer.
const TIMEOUTS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// What is put may take as long as at this speed, in bytes a second: several share a slow line.
const SPEED_MIN: u64 = 8 << 10;

/// Objects below a prefix of a bucket.
pub struct S3Store {
    url: String,
    prefix: Path,
    client: AmazonS3,
    runtime: Runtime,
}

fn failed(error: &Error) -> StoreError {
    // The innermost error says what happened; those around it repeat it.
    let mut text = error.to_string().replace(['\n', '\r'], " ");
    if text.len() > 400 {
        text = text.chars().take(400).collect();
    }
    StoreError::Failed(text)
}

fn other_error(text: String) -> Error {
    Error::Generic { store: "S3", source: text.into() }
}

fn late(limit: Duration) -> Error {
    other_error(format!("no answer within {} s", limit.as_secs()))
}

/// The answer of a request without content, or the begin of one.
async fn in_time<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(TIMEOUTS.1, request).await.unwrap_or_else(|_| Err(late(TIMEOUTS.1)))
}

/// The next piece of an answer. However long the answer is, a line that sends nothing is dead.
async fn next_in_time<T>(
    pieces: &mut (impl Stream<Item = Result<T, Error>> + Unpin),
) -> Result<Option<T>, Error> {
    let next = tokio::time::timeout(TIMEOUTS.1, pieces.next()).await;
    next.map_err(|_| late(TIMEOUTS.1))?.transpose()
}

impl S3Store {
    /// A client for `s3://BUCKET/PREFIX`. Credentials are those that other tools use: variables, a profile, or the
    /// metadata service of the machine.
    ///
    /// # Errors
    /// If they, or the settings, cannot be used.
    pub fn open(location: &Location) -> Result<S3Store, StoreError> {
        let path = location.url.strip_prefix("s3://").unwrap_or(&location.url);
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        // A program that uses another provider of its own has installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = ClientOptions::new().with_timeout_disabled().with_connect_timeout(TIMEOUTS.0);
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
        if let Some(file) = ProfileFile::of_this_user() {
            builder = builder.with_credentials(Arc::new(file));
        }
        let setting = |name: &str, variables: &[&str]| {
            let given = location.settings.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
            let variable = || {
                variables.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
            };
            given.or_else(variable)
        };
        let endpoint = setting("endpoint", &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
        let is_plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let client = client.with_allow_http(is_plain);
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        // The hash of what is put costs both sides more than all else. TLS guards the line as well.
        // The variable is that of other programs, which say it the other way round.
        let variable = std::env::var("AWS_UNSIGNED_PAYLOAD").unwrap_or_default().to_ascii_lowercase();
        let is_signed = match (setting("payload", &[]).as_deref(), variable.as_str()) {
            (Some("signed"), _) | (None, "false" | "0") => true,
            (Some("unsigned"), _) | (None, "true" | "1") => false,
            (Some(other), _) => {
                let text = format!("payload={other}: expected signed or unsigned");
                return Err(StoreError::Failed(text));
            }
            (None, _) => is_plain,
        };
        builder = builder.with_unsigned_payload(!is_signed);
        let region = setting("region", &["AWS_REGION", "AWS_DEFAULT_REGION"]);
        builder = builder.with_region(region.unwrap_or_else(|| "us-east-1".into()));
        let retry = RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() };
        let client =
            builder.with_client_options(client).with_retry(retry).build().map_err(|error| failed(&error))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("s3")
            .enable_all()
            .build();
        let runtime =
            runtime.map_err(|error| StoreError::Failed(format!("no thread for requests: {error}")))?;
        Ok(S3Store { url: location.url.clone(), prefix: Path::from(prefix), client, runtime })
    }

    fn path(&self, key: &str) -> Path {
        Path::from_iter(self.prefix.parts().chain(Path::from(key).parts()))
    }

    /// The name below the prefix.
    fn key(&self, path: &Path) -> Option<String> {
        let own = self.prefix.as_ref().len();
        let skip = if own == 0 { 0 } else { own + 1 };
        path.as_ref().get(skip..).map(str::to_owned)
    }

    /// Waits for a request that carries so many bytes.
    fn wait<T>(&self, bytes: u64, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let limit = TIMEOUTS.1 + Duration::from_secs(bytes / SPEED_MIN);
        self.runtime.block_on(async {
            tokio::time::timeout(limit, request).await.unwrap_or_else(|_| Err(late(limit)))
        })
    }

    fn put(&self, key: &str, body: Bytes, mode: PutMode) -> Result<Version, Error> {
        let (path, len) = (self.path(key), body.len() as u64);
        let result =
            self.wait(len, self.client.put_opts(&path, PutPayload::from(body), PutOptions::from(mode)))?;
        let no_tag = || other_error("the store sent no ETag".into());
        Ok(Version(result.e_tag.ok_or_else(no_tag)?))
    }
}

impl Store for S3Store {
    fn url(&self) -> &str {
        &self.url
    }

    fn create(&self, key: &str, body: &Bytes) -> Result<(), StoreError> {
        self.put(key, body.clone(), PutMode::Create).map(drop).map_err(|error| match error {
            Error::AlreadyExists { .. } | Error::Precondition { .. } => StoreError::Exists,
            error => failed(&error),
        })
    }

    fn swap(&self, key: &str, body: &[u8], expected: Option<&Version>) -> Result<Version, StoreError> {
        let mode = match expected {
            None => PutMode::Create,
            Some(Version(tag)) => PutMode::Update(UpdateVersion { e_tag: Some(tag.clone()), version: None }),
        };
        self.put(key, Bytes::copy_from_slice(body), mode).map_err(|error| match (error, expected) {
            (Error::AlreadyExists { .. } | Error::Precondition { .. }, None) => StoreError::Changed,
            (Error::Precondition { .. } | Error::NotFound { .. }, Some(_)) => StoreError::Changed,
            // Another request for the object is under way.
            (error, _) => failed(&error),
        })
    }

    fn get(&self, key: &str, limit: usize) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        let path = self.path(key);
        let get = async {
            let found = in_time(self.client.get(&path)).await?;
            if usize::try_from(found.meta.size).map_or(true, |len| len > limit) {
                return Err(other_error(format!("{key} has more than {limit} bytes")));
            }
            let (len, tag) = (found.meta.size, found.meta.e_tag.clone());
            let mut body = Vec::new();
            let mut pieces = found.into_stream();
            while let Some(piece) = next_in_time(&mut pieces).await? {
                body.extend_from_slice(&piece);
            }
            match body.len() as u64 == len {
                true => Ok((body, tag)),
                false => Err(other_error(format!("{} bytes were sent of {len}", body.len()))),
            }
        };
        match self.runtime.block_on(get) {
            Ok((body, Some(tag))) => Ok(Some((body, Version(tag)))),
            Ok((_, None)) => Err(StoreError::Failed("the store sent no ETag".into())),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    fn find(&self, key: &str) -> Result<Option<Version>, StoreError> {
        match self.wait(0, self.client.head(&self.path(key))) {
            Ok(meta) => {
                let tag = meta.e_tag.ok_or_else(|| StoreError::Failed("the store sent no ETag".into()))?;
                Ok(Some(Version(tag)))
            }
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    fn read(&self, key: &str, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        let end = offset.saturating_add(buf.len() as u64);
        let path = self.path(key);
        let options = GetOptions { range: Some(GetRange::Bounded(offset..end)), ..GetOptions::default() };
        let get = async {
            let found = in_time(self.client.get_opts(&path, options)).await?;
            let mut body = found.into_stream();
            let mut at = 0usize;
            while let Some(piece) = next_in_time(&mut body).await? {
                let room = buf.get_mut(at..at.saturating_add(piece.len()));
                let too_long = || other_error("more was sent than was asked for".into());
                room.ok_or_else(too_long)?.copy_from_slice(&piece);
                at += piece.len();
            }
            Ok(at)
        };
        match self.runtime.block_on(get) {
            Ok(len) if len as u64 == end - offset => Ok(()),
            Ok(len) => {
                Err(StoreError::Failed(format!("{len} bytes were sent of {} at {offset}", end - offset)))
            }
            Err(Error::NotFound { .. }) => Err(StoreError::Missing),
            Err(error) => Err(failed(&error)),
        }
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, StoreError> {
        let path = self.path(prefix);
        let mut pages = match after {
            "" => self.client.list(Some(&path)),
            after => self.client.list_with_offset(Some(&path), &self.path(after)),
        };
        let list = async {
            let mut found = Vec::new();
            while let Some(meta) = next_in_time(&mut pages).await? {
                found.push(meta);
            }
            Ok(found)
        };
        let found = self.runtime.block_on(list).map_err(|error| failed(&error))?;
        let listed = found.into_iter().filter_map(|meta| {
            let key = self.key(&meta.location)?;
            (key.starts_with(prefix) && key.as_str() > after).then_some(Listed { key, len: meta.size })
        });
        let mut listed: Vec<Listed> = listed.collect();
        listed.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(listed)
    }

    fn list_children(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let path = self.path(prefix);
        let found = self.client.list_with_delimiter(Some(&path));
        // Some pages, one after the other.
        let found = self.wait(4 << 20, found).map_err(|error| failed(&error))?;
        let dirs = found.common_prefixes.iter().filter_map(|dir| Some(format!("{}/", self.key(dir)?)));
        Ok(dirs.chain(found.objects.iter().filter_map(|meta| self.key(&meta.location))).collect())
    }

    fn delete(&self, keys: &[String]) -> Result<(), StoreError> {
        let paths: Vec<_> = keys.iter().map(|key| Ok(self.path(key))).collect();
        let mut deleted = self.client.delete_stream(stream::iter(paths).boxed());
        let delete = async {
            let mut first = None;
            loop {
                let outcome =
                    tokio::time::timeout(TIMEOUTS.1, deleted.next()).await.map_err(|_| late(TIMEOUTS.1))?;
                match outcome {
                    None => return first.map_or(Ok(()), Err),
                    Some(Ok(_) | Err(Error::NotFound { .. })) => {}
                    Some(Err(error)) => drop(first.get_or_insert(error)),
                }
            }
        };
        self.runtime.block_on(delete).map_err(|error| failed(&error))
    }
}
