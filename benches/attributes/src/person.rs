//! Other users: threads that have changed their ids.
//!
//! On Linux, ids of users and groups belong to threads, and a thread that is no longer root has no
//! capabilities. So no process has to be started, and no account is needed: the ids are unassigned.

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

#[derive(Clone, Copy)]
pub struct Person {
    pub uid: u32,
    pub gid: u32,
    /// Beside `gid`.
    pub groups: &'static [u32],
}

pub const ANN: Person = Person { uid: 60_001, gid: 60_001, groups: &[] };
pub const BOB: Person = Person { uid: 60_002, gid: 60_002, groups: &[] };
pub const CAT: Person = Person { uid: 60_003, gid: 60_003, groups: &[CREW] };
/// A group that only CAT is in, beside her own.
pub const CREW: u32 = 60_100;

impl Person {
    fn assume(self) -> Result<(), Errno> {
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)
    }

    /// The answer to the question if this person asks it.
    pub fn run_as<T: Send>(self, question: impl FnOnce() -> T + Send) -> T {
        let answer = std::thread::scope(|scope| {
            let asked = scope.spawn(move || {
                self.assume().expect("root may take any id");
                question()
            });
            asked.join()
        });
        answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
