//! What is asked and answered, without a kernel.

use crate::dispatch::Dispatch;
use crate::dispatch::replay::tests::{AGREED, ask_about, served_with};
use crate::proto::{CreateIn, Request, SetXattrIn, init};
use crate::reply::Errno;
use crate::session::Negotiated;
use terrane_posix::{Cred, mode};

const ACL: &[u8] = b"system.posix_acl_access";
const WITH_ACLS: Negotiated = Negotiated { flags: init::POSIX_ACL | init::DONT_MASK, ..AGREED };

fn set<'a>(name: &'a [u8], value: &'a [u8], flags: u32) -> Request<'a> {
    Request::Setxattr(SetXattrIn { name, value, flags, setxattr_flags: 0 })
}

/// A file, and the same questions about it.
struct Asked {
    dispatch: Dispatch,
    ino: u64,
    agreed: Negotiated,
}

impl Asked {
    fn new(agreed: Negotiated, props: &[(&str, &str)]) -> Asked {
        let (dispatch, fs) = served_with(props);
        let ino = fs.create(fs.root(), b"file", mode::S_IFREG | 0o2775, &Cred::default()).unwrap().ino;
        Asked { dispatch, ino, agreed }
    }

    fn ask(&self, request: Request<'_>) -> Result<Vec<u8>, Errno> {
        ask_about(&self.dispatch, self.ino, &self.agreed, false, request)
    }
}

#[test]
fn the_umask_is_applied_by_one_of_the_two() {
    let (dispatch, fs) = served_with(&[]);
    let create = CreateIn { flags: 0, mode: mode::S_IFREG | 0o666, umask: 0o027, open_flags: 0 };
    let bits = |name: &[u8]| fs.lookup(fs.root(), name).unwrap().mode & 0o777;
    for (agreed, file, dir) in [(AGREED, 0o666, 0o777), (WITH_ACLS, 0o640, 0o750)] {
        let ask = |request| ask_about(&dispatch, 1, &agreed, false, request).unwrap();
        ask(Request::Create { name: b"file", create });
        ask(Request::Mknod { name: b"node", mode: create.mode, umask: create.umask, rdev: 0 });
        ask(Request::Mkdir { name: b"dir", mode: 0o777, umask: create.umask });
        assert_eq!([bits(b"file"), bits(b"node"), bits(b"dir")], [file, file, dir]);
        ask(Request::Unlink { name: b"file" });
        ask(Request::Unlink { name: b"node" });
        ask(Request::Rmdir { name: b"dir" });
        // LOOKUP's answer begins with the node, and the mode lies 60 bytes into the attributes behind 40 bytes of it.
        let made = ask(Request::Tmpfile { create });
        assert_eq!(u32::from_le_bytes(*made[40 + 60..].first_chunk().unwrap()) & 0o777, file);
    }
}

#[test]
fn what_was_not_agreed_on_is_not_there() {
    let off = Asked::new(Negotiated { xattrs: false, ..AGREED }, &[]);
    for request in [
        set(b"user.a", b"1", 0),
        Request::Getxattr { name: b"user.a", size: 0 },
        Request::Listxattr { size: 0 },
        Request::Removexattr { name: b"user.a" },
    ] {
        assert_eq!(off.ask(request), Err(Errno(libc::ENOSYS)), "or the kernel asks again");
    }
    let no_acls = Asked::new(AGREED, &[]);
    for request in
        [set(ACL, b"", 0), Request::Getxattr { name: ACL, size: 0 }, Request::Removexattr { name: ACL }]
    {
        assert_eq!(no_acls.ask(request), Err(Errno::EOPNOTSUPP), "{request:?}");
    }
}

/// Any other error, and the kernel refuses the file to all but its owner.
#[test]
fn what_can_have_no_list_has_none() {
    let file = Asked::new(WITH_ACLS, &[("acltype", "off")]);
    assert_eq!(file.ask(Request::Getxattr { name: ACL, size: 0 }), Err(Errno::ENODATA));
    assert_eq!(file.ask(set(ACL, b"", 0)), Err(Errno::EOPNOTSUPP));
}
