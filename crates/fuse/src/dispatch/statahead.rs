//! Which callers list a directory only for its names.
//!
//! The kernel asks for attributes along with the first names of every directory, because it cannot know
//! whether the caller will want them. For `find -name` or a shell's glob that reads one dnode per name in
//! vain. For `ls -l` it saves one request per name. So a caller's first listing is answered with names alone.
//! If the caller then looks up a file that it was shown, its next listings come with attributes. From time to
//! time names alone are tried again, because a lookup that attributes made unnecessary is never seen.
//!
//! Lookups of directories do not count: every caller that walks a tree enters them.

use parking_lot::Mutex;
use terrane_wire::IdMap;

const SHARDS: usize = 16;
/// Callers remembered in a shard. When it is full, all are forgotten and learned again.
const CALLERS_MAX: usize = 256;
/// Listings with attributes between two trials with names alone.
const TRIAL_EVERY: u32 = 256;

#[derive(Debug, Default)]
struct Caller {
    /// The directory that was last listed with names alone.
    last_dir: u64,
    /// The caller looked up a file that it was shown.
    wants_attrs: bool,
    /// Listings with attributes since the last trial.
    listings_since_trial: u32,
}

/// Callers that list directories, by the thread id that requests carry.
#[derive(Debug, Default)]
pub(super) struct Statahead([Mutex<IdMap<u32, Caller>>; SHARDS]);

impl Statahead {
    fn shard(&self, caller: u32) -> Option<&Mutex<IdMap<u32, Caller>>> {
        self.0.get(usize::try_from(caller).unwrap_or(0) % SHARDS)
    }

    /// Records that a caller begins to list a directory. Returns whether to send attributes.
    pub fn begin_listing(&self, caller: u32, dir: u64) -> bool {
        let Some(shard) = self.shard(caller) else { return true };
        let mut callers = shard.lock();
        if callers.len() >= CALLERS_MAX && !callers.contains_key(&caller) {
            callers.clear();
        }
        let caller = callers.entry(caller).or_default();
        if caller.wants_attrs && caller.listings_since_trial < TRIAL_EVERY {
            caller.listings_since_trial += 1;
            return true;
        }
        *caller = Caller { last_dir: dir, wants_attrs: false, listings_since_trial: 0 };
        false
    }

    /// Records that a caller looked up something that is not a directory.
    pub fn note_lookup(&self, caller: u32, dir: u64) {
        let Some(shard) = self.shard(caller) else { return };
        if let Some(caller) = shard.lock().get_mut(&caller)
            && caller.last_dir == dir
        {
            caller.wants_attrs = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_sent_after_a_lookup_in_the_last_listing() {
        let statahead = Statahead::default();
        assert!(!statahead.begin_listing(7, 100), "names at first");
        assert!(!statahead.begin_listing(7, 101));
        statahead.note_lookup(7, 100);
        assert!(!statahead.begin_listing(7, 102), "another directory than it was shown last");
        statahead.note_lookup(8, 102);
        assert!(!statahead.begin_listing(7, 103), "another caller");
        statahead.note_lookup(7, 103);
        for dir in 0..u64::from(TRIAL_EVERY) {
            assert!(statahead.begin_listing(7, 200 + dir));
        }
        assert!(!statahead.begin_listing(7, 900), "a trial");
        assert!(!statahead.begin_listing(7, 901), "nobody looked");
    }

    #[test]
    fn callers_are_not_remembered_without_bound() {
        let statahead = Statahead::default();
        for caller in 0..100_000 {
            statahead.begin_listing(caller, 1);
        }
        let held: usize = statahead.0.iter().map(|shard| shard.lock().len()).sum();
        assert!(held <= SHARDS * CALLERS_MAX);
    }
}
