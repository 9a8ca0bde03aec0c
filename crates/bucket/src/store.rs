//! Objects by name: what a device needs of a store.
//!
//! A store keeps objects that are put whole and read in ranges. Two of its promises carry the commit:
//!
//! * [`create`](Store::create) makes an object only if there is none of that name. Of several clients that try, one succeeds.
//! * [`swap`](Store::swap) replaces an object only if it still is the version that the caller has seen.
//!
//! A request that fails may have been carried out nevertheless, or may still be. Callers must be right in both cases.

use bytes::Bytes;
use std::fmt;

/// One version of an object, as the store tells versions apart (an ETag, for instance). It never comes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub String);

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// There is an object of that name already.
    Exists,
    /// The object is not the expected version any more.
    Changed,
    /// There is no object of that name.
    Missing,
    /// What was put may be lost, and no later request shows whether it is: a sync failed. Never repeated.
    Unsynced(String),
    /// It did not answer for as long as it was waited for, and is asked for nothing any more.
    GivenUp(String),
    /// Anything else: the store could not be reached, refused, or broke off. The text is for administrators.
    Failed(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Exists => f.write_str("an object of that name exists"),
            StoreError::Changed => f.write_str("another client has replaced the object"),
            StoreError::Missing => f.write_str("no such object"),
            StoreError::Failed(text) | StoreError::Unsynced(text) | StoreError::GivenUp(text) => {
                f.write_str(text)
            }
        }
    }
}

impl std::error::Error for StoreError {}

/// A name and its size in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The object's name below the store's prefix.
    pub key: String,
    /// In bytes.
    pub len: u64,
}

/// Objects below one prefix. All methods may be called from any thread. Reads and lists show what was put before.
pub trait Store: Send + Sync {
    /// The URL of the prefix, without credentials.
    fn url(&self) -> &str;

    /// Makes an object. It is durable on return.
    ///
    /// # Errors
    /// `Exists`; `Failed` or `Unsynced`: then it may exist all the same.
    fn create(&self, key: &str, body: &Bytes) -> Result<(), StoreError>;

    /// Replaces the version `expected` of an object, or makes the object if `expected` is `None`. It is durable on
    /// return.
    ///
    /// # Errors
    /// `Changed` if it is another version, does not exist, or exists although `expected` is `None`. After `Failed`
    /// and `Unsynced` it may have been replaced all the same.
    fn swap(&self, key: &str, body: &[u8], expected: Option<&Version>) -> Result<Version, StoreError>;

    /// An object and its version; `None` if there is none. An object of more than `limit` bytes is `Failed`.
    ///
    /// # Errors
    /// `Failed`.
    fn get(&self, key: &str, limit: usize) -> Result<Option<(Vec<u8>, Version)>, StoreError>;

    /// The version of an object, without its content; `None` if there is none.
    ///
    /// # Errors
    /// `Failed`.
    fn find(&self, key: &str) -> Result<Option<Version>, StoreError>;

    /// Fills `buf` from `offset` in the object.
    ///
    /// # Errors
    /// `Missing`, or `Failed`, also if the object ends before.
    fn read(&self, key: &str, offset: u64, buf: &mut [u8]) -> Result<(), StoreError>;

    /// All objects whose names begin with `prefix` and come after `after`, in order of their names.
    ///
    /// # Errors
    /// `Failed`.
    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, StoreError>;

    /// What is one level below a prefix that ends in a slash, in any order: objects, and prefixes of others, which end in a slash.
    ///
    /// # Errors
    /// `Failed`.
    fn list_children(&self, prefix: &str) -> Result<Vec<String>, StoreError>;

    /// Removes objects. One that does not exist counts as removed.
    ///
    /// # Errors
    /// `Failed`; some may have been removed.
    fn delete(&self, keys: &[String]) -> Result<(), StoreError>;
}
