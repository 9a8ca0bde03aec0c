//! Extended attributes: the shape of questions and answers, and what was agreed on about them.
//!
//! Who may do what to which namespace the kernel has judged before we hear of it, with two exceptions. It lists names as we give them,
//! those that only administrators may see included; see [`super::admin`]. And access control lists mean something only while the kernel
//! judges by them: where it was not asked to, they can neither be set nor seen.

use super::admin::is_admin;
use super::{Answer, Dispatch, ENOSYS};
use crate::proto::{self, Header, SetXattrIn, setxattr, xattr};
use crate::reply::Reply;
use crate::session::Negotiated;
use terrane_posix::{ACL_ACCESS, ACL_DEFAULT, Cred, Errno, Ino, SetXattr};

const CAPABILITY: &[u8] = b"security.capability";

/// The two names that the kernel judges by; any longer one is unknown.
fn is_acl(name: &[u8]) -> bool {
    [ACL_ACCESS, ACL_DEFAULT].contains(&name)
}

/// Whether this mount has such attributes at all. "I have no such operation" keeps the kernel from asking again.
fn judge(negotiated: &Negotiated, name: &[u8]) -> Answer {
    match name {
        _ if !negotiated.xattrs => Err(ENOSYS),
        _ if is_acl(name) && !negotiated.acls() => Err(Errno::EOPNOTSUPP),
        _ => Ok(()),
    }
}

/// An answer of at most `size` bytes; with 0 its length is the answer.
fn fit(reply: &mut Reply, size: u32) -> Answer {
    let len = u32::try_from(reply.len()).map_err(|_| Errno::ERANGE)?;
    if size == 0 {
        reply.clear();
        reply.bytes(&proto::GetxattrOut { size: len, padding: 0 }.encode());
    }
    if size == 0 || len <= size { Ok(()) } else { Err(Errno::ERANGE) }
}

impl Dispatch {
    pub(super) fn setxattr(
        &self,
        negotiated: &Negotiated,
        node: Ino,
        set: &SetXattrIn<'_>,
        cred: &Cred,
    ) -> Answer {
        judge(negotiated, set.name)?;
        let how = SetXattr {
            create: set.flags & xattr::CREATE != 0,
            replace: set.flags & xattr::REPLACE != 0,
            kill_sgid: set.setxattr_flags & setxattr::ACL_KILL_SGID != 0,
        };
        self.fs.setxattr(node, set.name, set.value, how, cred)
    }

    pub(super) fn getxattr(
        &self,
        negotiated: &Negotiated,
        node: Ino,
        name: &[u8],
        size: u32,
        reply: &mut Reply,
    ) -> Answer {
        judge(negotiated, name)?;
        self.fs.getxattr(node, name, reply.tail()).map_err(|errno| match errno {
            // The kernel would refuse the file to everybody but its owner. What can have no list is judged by its mode.
            Errno::EOPNOTSUPP if is_acl(name) => Errno::ENODATA,
            errno => errno,
        })?;
        fit(reply, size)
    }

    pub(super) fn listxattr(
        &self,
        negotiated: &Negotiated,
        caller: &Header,
        size: u32,
        reply: &mut Reply,
    ) -> Answer {
        judge(negotiated, b"")?;
        self.fs.listxattr(self.ino(caller.nodeid), &|| is_admin(caller), reply.tail())?;
        fit(reply, size)
    }

    pub(super) fn removexattr(&self, negotiated: &Negotiated, node: Ino, name: &[u8]) -> Answer {
        judge(negotiated, name)?;
        self.fs.removexattr(node, name)
    }

    /// Whoever changes a program's bytes does not get what it was allowed to do.
    pub(super) fn drop_capabilities(&self, node: Ino) -> Answer {
        match self.fs.getxattr(node, CAPABILITY, &mut Vec::new()) {
            Ok(()) => self.fs.removexattr(node, CAPABILITY),
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests;
