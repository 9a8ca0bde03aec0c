//! Extended attributes: the layout of requests and answers, and what was negotiated about them.
//!
//! The kernel checks who may access which namespace before the server gets the request, with two exceptions.
//! It lists names as the server gives them, including those that only administrators may see; see
//! [`super::admin`]. And access control lists have an effect only while the kernel checks them. If that was
//! not negotiated, they can be neither set nor read.

use super::admin::is_admin;
use super::{Answer, Dispatch, ENOSYS};
use crate::proto::{self, Header, SetXattrIn, setxattr, xattr};
use crate::reply::Reply;
use crate::session::Negotiated;
use terrane_posix::{ACL_ACCESS, ACL_DEFAULT, Cred, Errno, Fs, Ino, SetXattr};

const CAPABILITY: &[u8] = b"security.capability";

/// Whether this is exactly one of the two names that hold ACLs.
fn is_acl(name: &[u8]) -> bool {
    [ACL_ACCESS, ACL_DEFAULT].contains(&name)
}

/// Whether this mount serves such attributes. ENOSYS keeps the kernel from asking again.
fn check_negotiated(negotiated: &Negotiated, name: &[u8]) -> Answer {
    match name {
        _ if !negotiated.xattrs => Err(ENOSYS),
        _ if is_acl(name) && !negotiated.acls() => Err(Errno::EOPNOTSUPP),
        _ => Ok(()),
    }
}

/// Limits an answer to `size` bytes; with 0 the answer is the length.
pub(super) fn fit_to_size(reply: &mut Reply, size: u32) -> Answer {
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
        check_negotiated(negotiated, set.name)?;
        let how = SetXattr {
            create: set.flags & xattr::CREATE != 0,
            replace: set.flags & xattr::REPLACE != 0,
            kill_sgid: set.setxattr_flags & setxattr::ACL_KILL_SGID != 0,
        };
        self.fs.setxattr(node, set.name, set.value, how, cred)
    }

    pub(super) fn getxattr(
        &self,
        fs: &Fs,
        negotiated: &Negotiated,
        node: Ino,
        name: &[u8],
        size: u32,
        reply: &mut Reply,
    ) -> Answer {
        check_negotiated(negotiated, name)?;
        fs.getxattr(node, name, reply.raw_mut()).map_err(|errno| match errno {
            // On any other error the kernel refuses access to all users but the owner. A file that cannot
            // have a list is checked by its mode.
            Errno::EOPNOTSUPP if is_acl(name) => Errno::ENODATA,
            errno => errno,
        })?;
        fit_to_size(reply, size)
    }

    pub(super) fn listxattr(
        &self,
        fs: &Fs,
        negotiated: &Negotiated,
        (caller, node): (&Header, Ino),
        size: u32,
        reply: &mut Reply,
    ) -> Answer {
        check_negotiated(negotiated, b"")?;
        fs.listxattr(node, &|| is_admin(caller), reply.raw_mut())?;
        fit_to_size(reply, size)
    }

    pub(super) fn removexattr(&self, negotiated: &Negotiated, node: Ino, name: &[u8]) -> Answer {
        check_negotiated(negotiated, name)?;
        self.fs.removexattr(node, name)
    }

    /// Drops the file's capabilities: a program whose bytes were changed must not keep them.
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
