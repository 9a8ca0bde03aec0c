//! A store in memory for tests, with the faults of real ones.

use crate::store::{Listed, Store, StoreError, Version};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A request, for the decision whether it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// [`Store::create`].
    Create,
    /// [`Store::swap`].
    Swap,
    /// [`Store::get`], [`Store::find`] and [`Store::read`].
    Get,
    /// [`Store::list`].
    List,
    /// [`Store::delete`].
    Delete,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is carried out.
    Succeeds,
    /// It is not carried out, and fails.
    Fails,
    /// It is carried out, and seems to fail.
    SeemsToFail,
    /// It seems to fail, and is carried out after so many other requests of all clients, also when its own client has ended.
    /// Requests that read fail.
    IsLate(u64),
}

/// Decides by the number of the request (from 0), its kind and its object.
pub type Fates = Box<dyn FnMut(u64, Request, &str) -> Fate + Send>;

#[derive(Default)]
struct Objects {
    /// Content, and a number that never comes again.
    objects: BTreeMap<String, (Vec<u8>, u64)>,
    next_version: u64,
    /// Requests of all clients.
    asked: u64,
    /// Those that are late, by when they are carried out.
    late: BTreeMap<(u64, u64), Change>,
}

/// A request that changes something.
#[derive(Clone)]
enum Change {
    Create(String, Bytes),
    Swap(String, Vec<u8>, Option<Version>),
    Delete(Vec<String>),
}

/// A condition that a store takes and does not obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// That there is no object of the name.
    Absence,
    /// That the object is the expected version.
    Version,
}

/// Objects in memory. Clients of the same objects have fates of their own.
pub struct MemoryStore {
    objects: Arc<Mutex<Objects>>,
    ignores: Option<Ignored>,
    fates: Mutex<(u64, Option<Fates>)>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore { objects: Arc::default(), ignores: None, fates: Mutex::new((0, None)) }
    }
}

impl MemoryStore {
    /// Another client of the same objects. `fates`: of its requests.
    pub fn client(&self, fates: Option<Fates>) -> MemoryStore {
        MemoryStore {
            objects: Arc::clone(&self.objects),
            ignores: self.ignores,
            fates: Mutex::new((0, fates)),
        }
    }

    /// A store that breaks a promise.
    pub fn that_ignores(condition: Ignored) -> MemoryStore {
        MemoryStore { ignores: Some(condition), ..MemoryStore::default() }
    }

    /// The objects as they are now, for another store that begins with them.
    pub fn copy(&self) -> MemoryStore {
        let objects = self.objects.lock();
        let (objects, next_version) = (objects.objects.clone(), objects.next_version);
        let objects = Arc::new(Mutex::new(Objects { objects, next_version, ..Objects::default() }));
        MemoryStore { objects, ignores: None, fates: Mutex::new((0, None)) }
    }

    /// Changes an object behind the store's back; `None` removes it.
    pub fn tamper(&self, key: &str, change: impl FnOnce(&mut Option<Vec<u8>>)) {
        let mut objects = self.objects.lock();
        let mut content = objects.objects.remove(key).map(|(content, _)| content);
        change(&mut content);
        objects.next_version += 1;
        let version = objects.next_version;
        if let Some(content) = content {
            objects.objects.insert(key.to_owned(), (content, version));
        }
    }

    /// The fate of the next request. What is late and due is carried out before.
    fn fate(&self, kind: Request, key: &str) -> Fate {
        self.objects.lock().begin(self.ignores);
        let mut fates = self.fates.lock();
        let number = fates.0;
        fates.0 += 1;
        fates.1.as_mut().map_or(Fate::Succeeds, |fates| fates(number, kind, key))
    }

    fn look<T>(
        &self,
        kind: Request,
        key: &str,
        look: impl FnOnce(&Objects) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self.fate(kind, key) {
            Fate::Succeeds => look(&self.objects.lock()),
            _ => Err(broken_off()),
        }
    }

    fn change(&self, kind: Request, key: &str, change: Change) -> Result<Version, StoreError> {
        let fate = self.fate(kind, key);
        let mut all = self.objects.lock();
        match fate {
            Fate::Succeeds => all.apply(&change, self.ignores),
            Fate::Fails => Err(broken_off()),
            Fate::SeemsToFail => {
                let _ = all.apply(&change, self.ignores);
                Err(broken_off())
            }
            Fate::IsLate(requests) => {
                let due = (all.asked.saturating_add(requests), all.asked);
                all.late.insert(due, change);
                Err(broken_off())
            }
        }
    }
}

fn broken_off() -> StoreError {
    StoreError::Failed("broken off".into())
}

fn version(number: u64) -> Version {
    Version(format!("\"{number:032x}\""))
}

impl Objects {
    /// Counts a request, and carries out what is due.
    fn begin(&mut self, ignores: Option<Ignored>) {
        self.asked += 1;
        while let Some(first) = self.late.first_entry().filter(|first| first.key().0 <= self.asked) {
            let change = first.remove();
            // Nobody hears the answer.
            let _ = self.apply(&change, ignores);
        }
    }

    fn apply(&mut self, change: &Change, ignores: Option<Ignored>) -> Result<Version, StoreError> {
        match change {
            Change::Create(key, body) => {
                if ignores != Some(Ignored::Absence) && self.objects.contains_key(key) {
                    return Err(StoreError::Exists);
                }
                Ok(self.put(key, body))
            }
            Change::Swap(key, body, expected) => {
                let present = self.objects.get(key).map(|(_, number)| version(*number));
                let is_right = match ignores {
                    Some(Ignored::Version) if expected.is_some() => true,
                    Some(Ignored::Absence) if expected.is_none() => true,
                    _ => present == *expected,
                };
                if is_right { Ok(self.put(key, body)) } else { Err(StoreError::Changed) }
            }
            Change::Delete(keys) => {
                keys.iter().for_each(|key| drop(self.objects.remove(key)));
                Ok(version(0))
            }
        }
    }

    fn put(&mut self, key: &str, body: &[u8]) -> Version {
        self.next_version += 1;
        self.objects.insert(key.to_owned(), (body.to_vec(), self.next_version));
        version(self.next_version)
    }
}

impl Store for MemoryStore {
    fn url(&self) -> &str {
        "memory:"
    }

    fn create(&self, key: &str, body: &Bytes) -> Result<(), StoreError> {
        self.change(Request::Create, key, Change::Create(key.to_owned(), body.clone())).map(drop)
    }

    fn swap(&self, key: &str, body: &[u8], expected: Option<&Version>) -> Result<Version, StoreError> {
        self.change(Request::Swap, key, Change::Swap(key.to_owned(), body.to_vec(), expected.cloned()))
    }

    fn get(&self, key: &str, limit: usize) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        self.look(Request::Get, key, |all| match all.objects.get(key) {
            Some((body, _)) if body.len() > limit => Err(StoreError::Failed("too large".into())),
            found => Ok(found.map(|(body, number)| (body.clone(), version(*number)))),
        })
    }

    fn find(&self, key: &str) -> Result<Option<Version>, StoreError> {
        self.look(Request::Get, key, |all| Ok(all.objects.get(key).map(|(_, number)| version(*number))))
    }

    fn read(&self, key: &str, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.look(Request::Get, key, |all| {
            let (body, _) = all.objects.get(key).ok_or(StoreError::Missing)?;
            let from = usize::try_from(offset).ok().and_then(|at| body.get(at..)?.get(..buf.len()));
            buf.copy_from_slice(from.ok_or_else(|| StoreError::Failed("the object ends before".into()))?);
            Ok(())
        })
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, StoreError> {
        self.look(Request::List, prefix, |all| {
            let found = all.objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
            Ok(found.map(|(key, (body, _))| Listed { key: key.clone(), len: body.len() as u64 }).collect())
        })
    }

    fn list_children(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.look(Request::List, prefix, |all| {
            let below = all.objects.keys().filter_map(|key| key.strip_prefix(prefix));
            let child = |rest: &str| match rest.split_once('/') {
                Some((dir, _)) => format!("{prefix}{dir}/"),
                None => format!("{prefix}{rest}"),
            };
            let mut children: Vec<String> = below.map(child).collect();
            children.dedup();
            Ok(children)
        })
    }

    fn delete(&self, keys: &[String]) -> Result<(), StoreError> {
        let first = keys.first().map_or("", String::as_str);
        self.change(Request::Delete, first, Change::Delete(keys.to_vec())).map(drop)
    }
}
