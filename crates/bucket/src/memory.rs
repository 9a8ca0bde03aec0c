//! A store in memory for tests, with the faults of real ones.

use crate::store::{Listed, Store, StoreError, Version};
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
}

/// Decides by the number of the request (from 0), its kind and its object.
pub type Fates = Box<dyn FnMut(u64, Request, &str) -> Fate + Send>;

#[derive(Default)]
struct Objects {
    /// Content, and a number that never comes again.
    objects: BTreeMap<String, (Vec<u8>, u64)>,
    next_version: u64,
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
        let objects = Arc::new(Mutex::new(Objects { objects, next_version }));
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

    fn carry_out<T>(
        &self,
        kind: Request,
        key: &str,
        carry_out: impl FnOnce(&mut Objects) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let fate = {
            let mut fates = self.fates.lock();
            let number = fates.0;
            fates.0 += 1;
            fates.1.as_mut().map_or(Fate::Succeeds, |fates| fates(number, kind, key))
        };
        let broken = || StoreError::Failed("broken off".into());
        match fate {
            Fate::Succeeds => carry_out(&mut self.objects.lock()),
            Fate::Fails => Err(broken()),
            Fate::SeemsToFail => {
                let _ = carry_out(&mut self.objects.lock());
                Err(broken())
            }
        }
    }
}

fn version(number: u64) -> Version {
    Version(format!("\"{number:032x}\""))
}

impl Objects {
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

    fn create(&self, key: &str, body: &[u8]) -> Result<(), StoreError> {
        let obeys = self.ignores != Some(Ignored::Absence);
        self.carry_out(Request::Create, key, |all| match obeys && all.objects.contains_key(key) {
            true => Err(StoreError::Exists),
            false => {
                all.put(key, body);
                Ok(())
            }
        })
    }

    fn swap(&self, key: &str, body: &[u8], expected: Option<&Version>) -> Result<Version, StoreError> {
        self.carry_out(Request::Swap, key, |all| {
            let present = all.objects.get(key).map(|(_, number)| version(*number));
            let is_right = match self.ignores {
                Some(Ignored::Version) if expected.is_some() => true,
                Some(Ignored::Absence) if expected.is_none() => true,
                _ => present.as_ref() == expected,
            };
            if is_right { Ok(all.put(key, body)) } else { Err(StoreError::Changed) }
        })
    }

    fn get(&self, key: &str, limit: usize) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        self.carry_out(Request::Get, key, |all| match all.objects.get(key) {
            Some((body, _)) if body.len() > limit => Err(StoreError::Failed("too large".into())),
            found => Ok(found.map(|(body, number)| (body.clone(), version(*number)))),
        })
    }

    fn find(&self, key: &str) -> Result<Option<Version>, StoreError> {
        self.carry_out(Request::Get, key, |all| Ok(all.objects.get(key).map(|(_, number)| version(*number))))
    }

    fn read(&self, key: &str, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.carry_out(Request::Get, key, |all| {
            let (body, _) = all.objects.get(key).ok_or(StoreError::Missing)?;
            let from = usize::try_from(offset).ok().and_then(|at| body.get(at..)?.get(..buf.len()));
            buf.copy_from_slice(from.ok_or_else(|| StoreError::Failed("the object ends before".into()))?);
            Ok(())
        })
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, StoreError> {
        self.carry_out(Request::List, prefix, |all| {
            let found = all.objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
            Ok(found.map(|(key, (body, _))| Listed { key: key.clone(), len: body.len() as u64 }).collect())
        })
    }

    fn delete(&self, keys: &[String]) -> Result<(), StoreError> {
        self.carry_out(Request::Delete, keys.first().map_or("", String::as_str), |all| {
            keys.iter().for_each(|key| drop(all.objects.remove(key)));
            Ok(())
        })
    }
}
