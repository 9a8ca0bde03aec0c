//! Requests and answers, without a kernel.

use crate::dispatch::Dispatch;
use crate::dispatch::replay::tests::{AGREED, ask_about, served_with};
use crate::proto::{CreateIn, Request, SetXattrIn, init, setxattr, xattr};
use crate::session::Negotiated;
use std::sync::Arc;
use terrane_posix::{Cred, Errno, Fs, mode};

const ACL: &[u8] = b"system.posix_acl_access";
const WITH_ACLS: Negotiated = Negotiated { flags: init::POSIX_ACL | init::DONT_MASK, ..AGREED };

fn set<'a>(name: &'a [u8], value: &'a [u8], flags: u32) -> Request<'a> {
    Request::Setxattr(SetXattrIn { name, value, flags, setxattr_flags: 0 })
}

/// A file, and requests about it.
struct Asked {
    dispatch: Dispatch,
    fs: Arc<Fs>,
    ino: u64,
    agreed: Negotiated,
}

impl Asked {
    fn new(agreed: Negotiated, props: &[(&str, &str)]) -> Asked {
        let (dispatch, fs) = served_with(props);
        let ino = fs.create(fs.root(), b"file", mode::S_IFREG | 0o2775, &Cred::default()).unwrap().ino;
        Asked { dispatch, fs, ino, agreed }
    }

    fn ask(&self, request: Request<'_>) -> Result<Vec<u8>, Errno> {
        ask_about(&self.dispatch, self.ino, &self.agreed, false, request)
    }

    fn again(&self, request: Request<'_>) -> Result<Vec<u8>, Errno> {
        ask_about(&self.dispatch, self.ino, &self.agreed, true, request)
    }

    fn get(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.ask(Request::Getxattr { name, size: 1 << 16 })
    }
}

fn len(answer: Result<Vec<u8>, Errno>) -> Result<u32, Errno> {
    answer.map(|raw| u32::from_le_bytes(*raw.first_chunk().unwrap()))
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
        // LOOKUP's answer begins with 40 bytes of node data, then the attributes; the mode lies at their byte
        // 60.
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

/// On any other error the kernel refuses access to all users but the owner.
#[test]
fn what_can_have_no_list_has_none() {
    let file = Asked::new(WITH_ACLS, &[("acltype", "off")]);
    assert_eq!(file.ask(Request::Getxattr { name: ACL, size: 0 }), Err(Errno::ENODATA));
    assert_eq!(file.ask(set(ACL, b"", 0)), Err(Errno::EOPNOTSUPP));
    let unknown = Request::Getxattr { name: b"system.posix_acl_accessory", size: 0 };
    assert_eq!(file.ask(unknown), Err(Errno::EOPNOTSUPP), "only the names that the kernel asks for");
}

#[test]
fn a_length_is_asked_for_with_size_0_and_a_short_buffer_is_refused() {
    let file = Asked::new(AGREED, &[]);
    file.ask(set(b"user.a", b"value", 0)).unwrap();
    file.ask(set(b"trusted.b", b"", 0)).unwrap();
    let get = |size| Request::Getxattr { name: b"user.a", size };
    assert_eq!(len(file.ask(get(0))), Ok(5));
    assert_eq!(file.ask(get(4)), Err(Errno::ERANGE));
    assert_eq!(file.ask(get(5)), Ok(b"value".to_vec()));
    assert_eq!(file.get(b"trusted.b"), Ok(Vec::new()), "an empty value is a value");
    assert_eq!(file.get(b"user.b"), Err(Errno::ENODATA));
    assert_eq!(len(file.ask(Request::Listxattr { size: 0 })), Ok(17));
    assert_eq!(file.ask(Request::Listxattr { size: 16 }), Err(Errno::ERANGE));
    let mut names = file.ask(Request::Listxattr { size: 17 }).unwrap();
    names.split_mut(|byte| *byte == 0).for_each(|name| name.sort_unstable());
    assert_eq!(names.len(), 17);
    file.ask(Request::Removexattr { name: b"user.a" }).unwrap();
    assert_eq!(file.get(b"user.a"), Err(Errno::ENODATA));
}

#[test]
fn the_callers_flags_arrive() {
    let file = Asked::new(AGREED, &[]);
    assert_eq!(file.ask(set(b"user.a", b"1", xattr::REPLACE)), Err(Errno::ENODATA));
    file.ask(set(b"user.a", b"1", xattr::CREATE)).unwrap();
    assert_eq!(file.ask(set(b"user.a", b"2", xattr::CREATE)), Err(Errno::EEXIST));
    file.ask(set(b"user.a", b"3", xattr::REPLACE)).unwrap();
    assert_eq!(file.get(b"user.a"), Ok(b"3".to_vec()));
}

/// user::rwx, user:7:rwx, group::r-x, mask::rwx, other::r-x, as setxattr(2) takes it.
const LIST: &[u8] = &[
    2, 0, 0, 0, //
    0x01, 0, 7, 0, 255, 255, 255, 255, //
    0x02, 0, 7, 0, 7, 0, 0, 0, //
    0x04, 0, 5, 0, 255, 255, 255, 255, //
    0x10, 0, 7, 0, 255, 255, 255, 255, //
    0x20, 0, 5, 0, 255, 255, 255, 255,
];

#[test]
fn the_set_group_id_bit_goes_with_a_list_if_the_kernel_says_so() {
    for (setxattr_flags, bits) in [(0, 0o2775), (setxattr::ACL_KILL_SGID, 0o775)] {
        let file = Asked::new(WITH_ACLS, &[]);
        let request = Request::Setxattr(SetXattrIn { name: ACL, value: LIST, flags: 0, setxattr_flags });
        file.ask(request).unwrap();
        assert_eq!(file.fs.getattr(file.ino).unwrap().mode & 0o7777, bits);
        assert_eq!(file.get(ACL), Ok(LIST.to_vec()));
    }
}

#[test]
fn an_attribute_that_was_set_and_not_answered_is_set_when_it_is_asked_again() {
    let file = Asked::new(AGREED, &[]);
    file.ask(set(b"user.a", b"1", xattr::CREATE)).unwrap();
    assert_eq!(file.again(set(b"user.a", b"1", xattr::CREATE)), Ok(Vec::new()));
    assert_eq!(file.again(set(b"user.a", b"2", xattr::CREATE)), Err(Errno::EEXIST), "another's");
    assert_eq!(file.again(set(b"user.a", b"1", xattr::REPLACE)), Ok(Vec::new()));
    assert_eq!(file.again(set(b"user.none", b"1", xattr::REPLACE)), Err(Errno::ENODATA));
    file.ask(Request::Removexattr { name: b"user.a" }).unwrap();
    assert_eq!(file.again(Request::Removexattr { name: b"user.a" }), Ok(Vec::new()));
    assert_eq!(file.ask(Request::Removexattr { name: b"user.a" }), Err(Errno::ENODATA));
    // The change was lost in the crash, and is done now.
    assert_eq!(file.again(set(b"user.a", b"1", xattr::CREATE)), Ok(Vec::new()));
    assert_eq!(file.again(Request::Removexattr { name: b"user.a" }), Ok(Vec::new()));
    assert_eq!(file.get(b"user.a"), Err(Errno::ENODATA));
}
