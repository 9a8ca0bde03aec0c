//! Requests that are asked again after a take-over.
//!
//! A server dies with requests that it carried out and did not answer, and its memory of them dies with it. What it had
//! committed is there; what it had not is gone. So a request that is asked again either finds the world as it was
//! before, and is carried out like any other, or finds its own work. The kernel holds a directory locked until a change of
//! it is answered, so nobody else can have done that work: a name that a CREATE finds is its own, a name that an UNLINK does
//! not find is gone because of it. So it is with a file's extended attributes.
//!
//! One doubt remains: the kernel may believe a name missing whose removal was lost in the crash. So what an exclusive
//! request finds must look as if it had just made it, and otherwise it is refused as always.
//!
//! Invariant: nothing here changes the file system except a truncation that the caller asked for.

use super::{Answer, Dispatch, O_TRUNC, cred_of};
use crate::proto::Request;
use crate::reply::Reply;
use crate::session::Call;
use terrane_posix::{Attr, Cred, Errno, Ino, RENAME_EXCHANGE, RENAME_WHITEOUT, SetAttr, mode};

const ENOENT: Errno = Errno(libc::ENOENT);
const EEXIST: Errno = Errno(libc::EEXIST);
const O_EXCL: u32 = libc::O_EXCL.cast_unsigned();

/// To do such a thing twice undoes it, and nothing shows whether it was done once.
pub(super) fn undoes_itself(request: &Request<'_>) -> bool {
    matches!(request, Request::Rename { flags, .. } if flags & RENAME_EXCHANGE != 0)
}

impl Dispatch {
    /// What a resent request would have been answered the first time, where carrying it out again gives `errno`.
    pub(super) fn answer_again(&self, call: &Call<'_>, errno: Errno, reply: &mut Reply) -> Answer {
        let dir = self.ino(call.header.nodeid);
        let cred = cred_of(call);
        match (errno, *call.request) {
            (EEXIST, Request::Create { name, create }) => {
                let exclusive = create.flags & O_EXCL != 0;
                let found = self.found(dir, name, |attr| {
                    is_kind(attr, mode::S_IFREG) && (!exclusive || is_untouched(attr, &cred))
                })?;
                let found = if create.flags & O_TRUNC != 0 && found.size > 0 {
                    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
                    self.fs.setattr(found.ino, &cut, &cred)?
                } else {
                    found
                };
                self.opened(name, found, reply)
            }
            (EEXIST, Request::Mknod { name, mode: bits, rdev, .. }) => {
                let same =
                    |attr: &Attr| is_kind(attr, bits) && attr.rdev == rdev && is_untouched(attr, &cred);
                self.entry(name, self.found(dir, name, same)?, reply)
            }
            (EEXIST, Request::Mkdir { name, .. }) => {
                let same =
                    |attr: &Attr| is_kind(attr, mode::S_IFDIR) && attr.size == 2 && attr.uid == cred.uid;
                self.entry(name, self.found(dir, name, same)?, reply)
            }
            (EEXIST, Request::Symlink { name, target }) => {
                let same = |attr: &Attr| self.fs.readlink(attr.ino).is_ok_and(|there| there == target);
                self.entry(name, self.found(dir, name, same)?, reply)
            }
            (EEXIST, Request::Link { nodeid, name }) => {
                let ino = self.ino(nodeid);
                self.entry(name, self.found(dir, name, |attr| attr.ino == ino)?, reply)
            }
            (EEXIST, Request::Setxattr(set)) => {
                let mut there = Vec::new();
                self.fs.getxattr(dir, set.name, &mut there)?;
                if there == set.value { Ok(()) } else { Err(EEXIST) }
            }
            (Errno::ENODATA, Request::Removexattr { .. }) => Ok(()),
            (ENOENT, Request::Unlink { .. } | Request::Rmdir { .. }) => Ok(()),
            (ENOENT, Request::Rename { new_dir, new_name, .. }) => {
                let there = self.fs.lookup(self.ino(new_dir), new_name)?;
                // It was only looked at: the kernel is not told of it.
                self.fs.forget(there.ino, 1);
                Ok(())
            }
            _ => Err(errno),
        }
    }

    /// A rename that was to leave a whiteout has been done: there is one. Done again it would move that over what it has moved.
    pub(super) fn left_whiteout(&self, call: &Call<'_>) -> bool {
        let Request::Rename { name, flags, .. } = *call.request else { return false };
        if flags & RENAME_WHITEOUT == 0 {
            return false;
        }
        self.fs.lookup(self.ino(call.header.nodeid), name).is_ok_and(|there| {
            self.fs.forget(there.ino, 1);
            is_kind(&there, mode::S_IFCHR) && there.rdev == 0
        })
    }

    /// What stands under the name, counted as told to the kernel, if it is what the request would have made.
    fn found(&self, dir: Ino, name: &[u8], is_it: impl FnOnce(&Attr) -> bool) -> Result<Attr, Errno> {
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

/// As a file is that was made a moment ago by this caller.
fn is_untouched(attr: &Attr, cred: &Cred) -> bool {
    attr.size == 0 && attr.nlink == 1 && attr.uid == cred.uid
}

#[cfg(test)]
pub(in crate::dispatch) mod tests;
