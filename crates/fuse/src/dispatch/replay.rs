//! Requests that the kernel resends after a take-over.
//!
//! A server dies with requests that it carried out and did not answer, and its memory of them dies with it.
//! What it had committed is stored; what it had not committed is lost. So a resent request finds one of two
//! states. Either it was not done, and is carried out like any other; or it finds its own result. The kernel
//! holds a directory's lock until a change of it is answered, so no other request can have produced that
//! result. A name that a CREATE finds is its own; a name that an UNLINK does not find was removed by it. The
//! same holds for a file's extended attributes.
//!
//! One doubt remains: the kernel may cache a name as missing whose removal was lost in the crash. So what an
//! exclusive request finds must look as if the request had just made it. Otherwise the request is refused as
//! usual.
//!
//! Invariant: nothing here changes the file system except a truncation that the caller asked for.

use super::{Answer, Dispatch, O_TRUNC, cred_of};
use crate::entry_words::SET_ENTRY_WORDS;
use crate::handover::{NamedBefore, UnknownRename};
use crate::proto::{self, IoctlOut, Request};
use crate::reply::Reply;
use crate::session::Call;
use terrane_posix::{Attr, Cred, Errno, Ino, RENAME_EXCHANGE, RENAME_WHITEOUT, SetAttr, mode};

const ENOENT: Errno = Errno(libc::ENOENT);
const EEXIST: Errno = Errno(libc::EEXIST);
const O_EXCL: u32 = libc::O_EXCL.cast_unsigned();

/// Whether a second run of the request does something else than the first, and finds nothing that shows it: an exchange undoes
/// itself, and a rename that leaves a whiteout may move that.
fn is_noted(request: &Request<'_>) -> bool {
    matches!(request, Request::Rename { flags, .. } if flags & (RENAME_EXCHANGE | RENAME_WHITEOUT) != 0)
}

/// The id of a request, however often it is sent.
fn id_of(call: &Call<'_>) -> u64 {
    call.header.unique & !proto::UNIQUE_RESENT
}

impl Dispatch {
    /// The first answer of a resent request, where carrying it out again gives `errno`.
    pub(super) fn answer_repeated(&self, call: &Call<'_>, errno: Errno, reply: &mut Reply) -> Answer {
        let dir = self.ino(call.header.nodeid);
        let cred = cred_of(call);
        match (errno, *call.request) {
            (EEXIST, Request::Create { name, create }) => {
                let exclusive = create.flags & O_EXCL != 0;
                let found = self.find_own_result(dir, name, |attr| {
                    is_kind(attr, mode::S_IFREG) && (!exclusive || is_untouched(attr, &cred))
                })?;
                let found = if create.flags & O_TRUNC != 0 && found.size > 0 {
                    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
                    self.fs.setattr(found.ino, &cut, &cred)?
                } else {
                    found
                };
                self.put_created(name, found, reply)
            }
            (EEXIST, Request::Mknod { name, mode: bits, rdev, .. }) => {
                let same =
                    |attr: &Attr| is_kind(attr, bits) && attr.rdev == rdev && is_untouched(attr, &cred);
                self.put_entry(name, self.find_own_result(dir, name, same)?, reply)
            }
            (EEXIST, Request::Mkdir { name, .. }) => {
                let same =
                    |attr: &Attr| is_kind(attr, mode::S_IFDIR) && attr.size == 2 && attr.uid == cred.uid;
                self.put_entry(name, self.find_own_result(dir, name, same)?, reply)
            }
            (EEXIST, Request::Symlink { name, target }) => {
                let same = |attr: &Attr| self.fs.readlink(attr.ino).is_ok_and(|there| there == target);
                self.put_entry(name, self.find_own_result(dir, name, same)?, reply)
            }
            (EEXIST, Request::Link { nodeid, name }) => {
                let ino = self.ino(nodeid);
                self.put_entry(name, self.find_own_result(dir, name, |attr| attr.ino == ino)?, reply)
            }
            (EEXIST, Request::Setxattr(set)) => {
                let mut there = Vec::new();
                self.fs.getxattr(dir, set.name, &mut there)?;
                if there == set.value { Ok(()) } else { Err(EEXIST) }
            }
            (Errno::ENODATA, Request::Removexattr { .. }) => Ok(()),
            (Errno::ENODATA, Request::Ioctl { ioctl, .. }) if ioctl.cmd == SET_ENTRY_WORDS => {
                reply.mark_outdated(call.header.nodeid);
                reply.bytes(&IoctlOut { result: 0, flags: 0, in_iovs: 0, out_iovs: 0 }.encode());
                Ok(())
            }
            (ENOENT, Request::Unlink { .. } | Request::Rmdir { .. }) => Ok(()),
            (ENOENT, Request::Rename { new_dir, new_name, .. }) => {
                let there = self.fs.lookup(self.ino(new_dir), new_name)?;
                // The kernel did not do this lookup, so it is not counted.
                self.fs.forget(there.ino, 1);
                Ok(())
            }
            _ => Err(errno),
        }
    }

    /// Notes what the names of a rename mean before it begins, for a successor.
    pub(super) fn note_rename(&self, call: &Call<'_>) {
        if let (Request::Rename { name, new_dir, new_name, .. }, true, Some(notes)) =
            (*call.request, is_noted(call.request), &self.rename_notes)
            // Without both answers the rename fails as well.
            && let (Ok(source), Ok(target)) =
                (self.ino_at(self.ino(call.header.nodeid), name), self.ino_at(self.ino(new_dir), new_name))
        {
            notes.note(id_of(call), NamedBefore { source, target });
        }
    }

    /// The kernel has the answer.
    pub(super) fn forget_rename(&self, call: &Call<'_>) {
        if let (true, Some(notes)) = (is_noted(call.request), &self.rename_notes) {
            notes.forget(id_of(call));
        }
    }

    /// Whether a predecessor has carried out a rename that is resent. The kernel holds the locks of both directories until it has the
    /// answer. So the names mean what they meant before, or what the rename made of them.
    ///
    /// `EIO`: that is unknown.
    pub(super) fn is_noted_rename_done(&self, call: &Call<'_>) -> Result<bool, Errno> {
        let Request::Rename { name, new_dir, new_name, flags } = *call.request else { return Ok(false) };
        if !is_noted(call.request) || !self.fs.may_be_carried_out() {
            return Ok(false);
        }
        let found = self.rename_notes.as_ref().ok_or(UnknownRename).and_then(|notes| notes.find(id_of(call)));
        let Ok(found) = found else {
            log::warn!(
                "fuse: rename resent after a take-over, answered with EIO: it may have been done already"
            );
            return Err(Errno(libc::EIO));
        };
        // Two names of one inode: POSIX requires that nothing happens.
        let Some(before) = found.filter(|before| before.source != before.target) else { return Ok(false) };
        let source_is_moved = self.ino_at(self.ino(new_dir), new_name)? == before.source;
        let is_exchange = flags & RENAME_EXCHANGE != 0;
        Ok(source_is_moved
            && (!is_exchange || self.ino_at(self.ino(call.header.nodeid), name)? == before.target))
    }

    /// The inode that a name means. 0: there is none.
    fn ino_at(&self, dir: Ino, name: &[u8]) -> Result<Ino, Errno> {
        match self.fs.lookup(dir, name) {
            Ok(there) => {
                // The kernel did not do this lookup, so it is not counted.
                self.fs.forget(there.ino, 1);
                Ok(there.ino)
            }
            Err(ENOENT) => Ok(0),
            Err(errno) => Err(errno),
        }
    }

    /// Looks up the name and counts that as a lookup by the kernel, if it is what the request would have
    /// made.
    fn find_own_result(
        &self,
        dir: Ino,
        name: &[u8],
        is_it: impl FnOnce(&Attr) -> bool,
    ) -> Result<Attr, Errno> {
        let attr = self.fs.lookup(dir, name)?;
        if is_it(&attr) {
            return Ok(attr);
        }
        self.fs.forget(attr.ino, 1);
        Err(EEXIST)
    }
}

fn is_kind(attr: &Attr, bits: u32) -> bool {
    attr.mode & mode::S_IFMT == bits & mode::S_IFMT
}

/// Whether the file looks like one that this caller has just made.
fn is_untouched(attr: &Attr, cred: &Cred) -> bool {
    attr.size == 0 && attr.nlink == 1 && attr.uid == cred.uid
}

#[cfg(test)]
pub(in crate::dispatch) mod tests;
