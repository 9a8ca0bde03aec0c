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
use crate::proto::{IoctlOut, Request};
use crate::reply::Reply;
use crate::session::Call;
use terrane_posix::{Attr, Cred, Errno, Ino, RENAME_EXCHANGE, RENAME_WHITEOUT, SetAttr, mode};

const ENOENT: Errno = Errno(libc::ENOENT);
const EEXIST: Errno = Errno(libc::EEXIST);
const O_EXCL: u32 = libc::O_EXCL.cast_unsigned();

/// Whether carrying out the request twice undoes it. Then nothing shows whether it was done once.
pub(super) fn is_self_inverse(request: &Request<'_>) -> bool {
    matches!(request, Request::Rename { flags, .. } if flags & RENAME_EXCHANGE != 0)
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

    /// Whether a rename with RENAME_WHITEOUT has been done: its whiteout exists. A second run would move the
    /// whiteout over the file that it moved.
    pub(super) fn has_left_whiteout(&self, call: &Call<'_>) -> bool {
        let Request::Rename { name, flags, .. } = *call.request else { return false };
        if flags & RENAME_WHITEOUT == 0 {
            return false;
        }
        self.fs.lookup(self.ino(call.header.nodeid), name).is_ok_and(|there| {
            self.fs.forget(there.ino, 1);
            is_kind(&there, mode::S_IFCHR) && there.rdev == 0
        })
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
