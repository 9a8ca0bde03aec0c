//! Extended attributes and access control lists as programs see them: a real mount of a file system on a
//! simulated device.
//!
//! The tests cover what only the kernel can show: who gets access, which requests it sends, and what it
//! caches. Where `/dev/fuse` cannot be used, or this is not root, the tests say so and pass.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

mod support;

use rustix::fs::{
    XattrFlags, getxattr, getxattr_query, lgetxattr, listxattr, listxattr_query, lsetxattr, removexattr,
    setxattr,
};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::{Mounted, call};
use terrane_fuse::dispatch::{GET_WRITE_HINT, SET_WRITE_HINT};

const OTHER_USER: u32 = 1000;
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const HINT: &str = "user.terrane.write_hint";
const CAPABILITY: &str = "security.capability";
/// CAP_NET_RAW, permitted and effective, as `setcap` writes it.
const CAPABILITIES: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0u8; 1 << 16];
    let len = getxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    setxattr(path, name, value, XattrFlags::empty())
}

fn names(path: &Path) -> Result<Vec<String>, Errno> {
    let mut list = vec![0u8; 1 << 16];
    let len = listxattr(path, &mut list[..])?;
    let text = String::from_utf8(list[..len].to_vec()).unwrap();
    let mut names: Vec<_> = text.split_terminator('\0').map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

#[test]
fn values_and_names_come_back_through_a_mount() {
    for home in ["sa", "dir"] {
        let Some(mounted) = Mounted::start("values", &[("xattr", home)], "") else { return };
        let path = mounted.file("file", 0o644);
        let path = path.as_path();
        assert_eq!(names(path), Ok(Vec::new()));
        set(path, "user.a", b"value").unwrap();
        assert_eq!(getxattr_query(path, "user.a"), Ok(5));
        assert_eq!(getxattr(path, "user.a", &mut [0u8; 4][..]), Err(Errno::RANGE));
        assert_eq!(getxattr(path, "user.a", &mut [0u8; 5][..]), Ok(5));
        assert_eq!(get(path, "user.a").unwrap(), b"value");
        assert_eq!(get(path, "user.b"), Err(Errno::NODATA));
        assert_eq!(setxattr(path, "user.a", b"", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(setxattr(path, "user.b", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
        set(path, "user.empty", b"").unwrap();
        assert_eq!(get(path, "user.empty"), Ok(Vec::new()));
        let longest: Vec<u8> = (0..1u32 << 16).map(|n| n.to_le_bytes()[1] ^ n.to_le_bytes()[0]).collect();
        set(path, "user.longest", &longest).unwrap();
        assert_eq!(get(path, "user.longest"), Ok(longest));
        set(path, "trusted.t", b"t").unwrap();
        assert_eq!(names(path).unwrap(), ["trusted.t", "user.a", "user.empty", "user.longest"]);
        assert_eq!(listxattr_query(path), Ok(10 + 7 + 11 + 13));
        assert_eq!(listxattr(path, &mut [0u8; 40][..]), Err(Errno::RANGE));
        for name in ["user.a", "user.empty", "user.longest", "trusted.t"] {
            removexattr(path, name).unwrap();
            assert_eq!(removexattr(path, name), Err(Errno::NODATA));
        }
        assert_eq!(names(path), Ok(Vec::new()));

        // The kernel caches times, and learns that this one changed.
        let before = fs::metadata(path).unwrap();
        set(path, "user.a", b"1").unwrap();
        let after = fs::metadata(path).unwrap();
        assert_ne!((before.ctime(), before.ctime_nsec()), (after.ctime(), after.ctime_nsec()));
        assert_eq!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()));

        fs::create_dir(mounted.path("dir")).unwrap();
        set(&mounted.path("dir"), "user.a", b"1").unwrap();
        let link = mounted.path("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert_eq!(lsetxattr(&link, "user.a", b"1", XattrFlags::empty()), Err(Errno::PERM));
        lsetxattr(&link, "trusted.a", b"1", XattrFlags::empty()).unwrap();
        assert_eq!(lgetxattr(&link, "trusted.a", &mut [0u8; 9][..]), Ok(1));
        assert_eq!(set(path, "strange.a", b"1"), Err(Errno::OPNOTSUPP));
        mounted.end();
    }
}

#[test]
fn hints_are_said_through_a_mount() {
    const PATH: &str = "TERRANE_TEST_HINTED";
    let hint = |file: &File| {
        let mut number = 99u64;
        call(file, GET_WRITE_HINT, &mut number).map(|()| number)
    };
    // In the child: this same test, run by another user.
    if let Some(path) = std::env::var_os(PATH) {
        let file = File::open(path).unwrap();
        println!("hint {:?} set {:?}", hint(&file), call(&file, SET_WRITE_HINT, &mut 2u64));
        return;
    }
    let Some(mounted) = Mounted::start("hints", &[], "") else { return };
    let path = mounted.file("file", 0o644);
    let file = File::open(&path).unwrap();
    assert_eq!(hint(&file), Ok(0));
    for number in [2u64, 5, 1] {
        call(&file, SET_WRITE_HINT, &mut number.clone()).unwrap();
        assert_eq!(hint(&file), Ok(number));
    }
    assert_eq!(get(&path, HINT).unwrap(), b"none");
    assert_eq!(call(&file, SET_WRITE_HINT, &mut 6u64), Err(libc::EINVAL));
    assert_eq!(call(&file, GET_WRITE_HINT + 7, &mut 6u64), Err(libc::ENOTTY));
    set(&path, HINT, b"medium").unwrap();
    assert_eq!((hint(&file), names(&path).unwrap().as_slice()), (Ok(3), &[HINT.to_owned()][..]));
    assert_eq!(set(&path, HINT, b"some"), Err(Errno::INVAL));

    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    call(&File::open(&dir).unwrap(), SET_WRITE_HINT, &mut 2u64).unwrap();
    fs::write(dir.join("below"), b"content").unwrap();
    assert_eq!(hint(&File::open(dir.join("below")).unwrap()), Ok(2));

    // A user that may not change the file may still read the hint.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1000", "--clear-groups"]).arg(std::env::current_exe().unwrap());
    let test = "hints_are_said_through_a_mount";
    match command.args(["--exact", test, "--nocapture"]).env(PATH, &path).output() {
        Ok(output) => {
            let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(stdout.contains("hint Ok(3) set Err(1)"), "{stdout}\n{output:?}");
        }
        Err(error) => eprintln!("SKIPPED the part of another user: setpriv: {error}"),
    }
    drop(file);
    mounted.end();
}

#[test]
fn names_of_administrators_are_shown_to_who_is_capable_of_it() {
    const PATH: &str = "TERRANE_TEST_LISTED";
    // In the child: this same test, run by another user.
    if let Some(path) = std::env::var_os(PATH) {
        println!("listed {}", names(Path::new(&path)).unwrap().join(" "));
        return;
    }
    let Some(mounted) = Mounted::start("admin", &[], "") else { return };
    let path = mounted.file("file", 0o644);
    set(&path, "trusted.t", b"1").unwrap();
    set(&path, "user.u", b"1").unwrap();
    assert_eq!(names(&path).unwrap(), ["trusted.t", "user.u"]);
    for (words, shown) in [
        ("--reuid=1000", "listed user.u\n"),
        ("--bounding-set=-sys_admin", "listed user.u\n"),
        ("--reuid=1000 --inh-caps=+sys_admin --ambient-caps=+sys_admin", "listed trusted.t user.u\n"),
    ] {
        let mut command = Command::new("setpriv");
        command.args(words.split(' ')).arg("--clear-groups").arg(std::env::current_exe().unwrap());
        let test = "names_of_administrators_are_shown_to_who_is_capable_of_it";
        let child = command.args(["--exact", test, "--nocapture"]).env(PATH, &path).output();
        match child {
            Ok(output) => {
                let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success() && stdout.contains(shown), "{words}: {stdout}\n{output:?}");
            }
            Err(error) => eprintln!("SKIPPED {words}: setpriv: {error}"),
        }
    }
    mounted.end();
}

#[test]
fn a_kernel_that_was_told_of_none_asks_no_more() {
    let Some(mounted) = Mounted::start("off", &[("xattr", "off")], "") else { return };
    for n in 0..20 {
        let path = mounted.file(&format!("file{n}"), 0o644);
        assert_eq!(set(&path, "user.a", b"1"), Err(Errno::OPNOTSUPP));
        assert_eq!(get(&path, "user.a"), Err(Errno::OPNOTSUPP));
        assert_eq!(get(&path, ACCESS), Err(Errno::NODATA), "the kernel's own answer");
        assert_eq!(names(&path), Err(Errno::OPNOTSUPP));
        assert_eq!(removexattr(&path, "user.a"), Err(Errno::OPNOTSUPP));
    }
    for operation in ["setxattr", "getxattr", "listxattr", "removexattr"] {
        assert_eq!(mounted.asked(operation), 1, "{operation}");
    }
    mounted.end();
}

type Change = fn(&Path);

#[test]
fn a_change_of_a_file_takes_its_capabilities_away() {
    for words in ["", "direct_io"] {
        let Some(mounted) = Mounted::start("capability", &[], words) else { return };
        let changes: [(&str, Change); 5] = [
            ("write", |path| OpenOptions::new().append(true).open(path).unwrap().write_all(b"x").unwrap()),
            ("write past the cache", |path| {
                let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
                let pages = vec![1u8; 3 * 4096];
                let start = pages.as_ptr().align_offset(4096);
                file.write_all_at(&pages[start..start + 4096], 0).unwrap();
            }),
            ("cut", |path| OpenOptions::new().write(true).open(path).unwrap().set_len(3).unwrap()),
            ("cut when opened", |path| drop(File::create(path).unwrap())),
            ("give", |path| std::os::unix::fs::chown(path, Some(OTHER_USER), None).unwrap()),
        ];
        for (what, change) in changes {
            let path = mounted.file(what, 0o755);
            set(&path, CAPABILITY, &CAPABILITIES).unwrap();
            set(&path, "user.a", b"stays").unwrap();
            assert_eq!(get(&path, CAPABILITY).unwrap(), CAPABILITIES);
            change(&path);
            assert_eq!(get(&path, CAPABILITY), Err(Errno::NODATA), "{what}, {words:?}");
            assert_eq!(get(&path, "user.a").unwrap(), b"stays");
        }
        mounted.end();
    }
}

#[test]
fn what_a_mount_with_sync_answered_is_durable() {
    let Some(mounted) = Mounted::start("sync", &[], "sync") else { return };
    let path = mounted.file("file", 0o644);
    let pool = mounted.fs.dataset().object_set().pool();
    // A change is committed or logged: either flushes.
    let flushes = || pool.stats().flush.count();
    let source = mounted.file("source", 0o644);
    std::fs::write(&source, [7; 10_000]).unwrap();
    let open = |path: &Path| std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let changes: [&dyn Fn(); 4] = [
        &|| set(&path, "user.a", b"1").unwrap(),
        &|| removexattr(&path, "user.a").unwrap(),
        &|| {
            let (from, to) = (std::fs::File::open(&source).unwrap(), open(&path));
            assert_eq!(rustix::fs::copy_file_range(&from, None, &to, None, 10_000), Ok(10_000));
        },
        &|| drop(std::fs::File::create(&path).unwrap()),
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let before = flushes();
        change();
        assert!(flushes() > before, "change {nth}");
    }
    mounted.end();
}

#[test]
fn a_mount_for_reading_refuses_changes() {
    let Some(mounted) = Mounted::start("ro", &[], "ro") else { return };
    assert_eq!(set(&mounted.dir, "user.a", b"1"), Err(Errno::ROFS));
    assert_eq!(removexattr(&mounted.dir, "user.a"), Err(Errno::ROFS));
    assert_eq!(get(&mounted.dir, "user.a"), Err(Errno::NODATA));
    mounted.end();
}

/// A list as setxattr(2) takes it: tag, permissions and id of each entry.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut raw = 2u32.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        raw.extend_from_slice(&tag.to_le_bytes());
        raw.extend_from_slice(&bits.to_le_bytes());
        raw.extend_from_slice(&id.to_le_bytes());
    }
    raw
}

const NO_ID: u32 = u32::MAX;

/// All rights for the owner, `bits` for one user, none for others.
fn list_for(user: u32, bits: u16) -> Vec<u8> {
    let any = NO_ID;
    list(&[(0x01, 7, any), (0x02, bits, user), (0x04, 0, any), (0x10, bits, any), (0x20, 0, any)])
}

fn may(user: u32, what: &str, path: &Path) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", what]).arg("sh").arg(path).uid(user).gid(user);
    command.stderr(std::process::Stdio::null()).status().unwrap().success()
}

#[test]
fn a_list_lets_in_whom_the_mode_keeps_out() {
    let (read, write) = (r#"cat "$1" >/dev/null"#, r#"echo x >>"$1""#);
    let Some(mounted) = Mounted::start("lists", &[], "") else { return };
    let path = mounted.file("file", 0o600);
    assert!(!may(OTHER_USER, read, &path));
    set(&path, ACCESS, &list_for(OTHER_USER, 4)).unwrap();
    assert!(
        may(OTHER_USER, read, &path) && !may(OTHER_USER, write, &path) && !may(OTHER_USER + 1, read, &path)
    );
    // The group's bits are the mask, and the kernel was told.
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o740);
    fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    assert!(!may(OTHER_USER, read, &path), "chmod changes the mask");
    fs::set_permissions(&path, Permissions::from_mode(0o760)).unwrap();
    assert!(may(OTHER_USER, read, &path) && !may(OTHER_USER, write, &path), "the entry says only read");
    set(&path, ACCESS, &list_for(OTHER_USER, 6)).unwrap();
    assert!(may(OTHER_USER, write, &path));
    removexattr(&path, ACCESS).unwrap();
    assert!(!may(OTHER_USER, read, &path));
    assert_eq!(get(&path, ACCESS), Err(Errno::NODATA));
    mounted.end();

    let Some(mounted) = Mounted::start("no-lists", &[("acltype", "off")], "") else { return };
    let path = mounted.file("file", 0o600);
    assert_eq!(set(&path, ACCESS, &list_for(OTHER_USER, 4)), Err(Errno::OPNOTSUPP));
    assert_eq!(get(&path, ACCESS), Err(Errno::OPNOTSUPP));
    assert!(!may(OTHER_USER, read, &path) && may(0, read, &path));
    mounted.end();
}

#[test]
fn a_default_list_takes_the_place_of_the_umask() {
    let make = r#"umask 027; cd "$1" && : >file && mkdir dir && mkfifo fifo"#;
    for (acl, bits) in [("posix", [0o660, 0o770, 0o660]), ("off", [0o640, 0o750, 0o640])] {
        let Some(mounted) = Mounted::start("default", &[("acltype", acl)], "") else { return };
        let bits_of = |dir: &Path| {
            ["file", "dir", "fifo"].map(|name| fs::metadata(dir.join(name)).unwrap().mode() & 0o777)
        };
        let (plain, listed) = (mounted.path("plain"), mounted.path("listed"));
        fs::create_dir(&plain).unwrap();
        fs::create_dir(&listed).unwrap();
        assert!(may(0, make, &plain));
        assert_eq!(bits_of(&plain), [0o640, 0o750, 0o640], "one of the two applied the umask");
        let given = set(&listed, DEFAULT, &list_for(OTHER_USER, 7));
        assert_eq!(given, if acl == "off" { Err(Errno::OPNOTSUPP) } else { Ok(()) });
        assert!(may(0, make, &listed));
        assert_eq!(bits_of(&listed), bits);
        if acl == "posix" {
            assert_eq!(get(&listed.join("dir"), DEFAULT).unwrap(), list_for(OTHER_USER, 7));
            let use_them = r#": >>"$1/file" && : >"$1/dir/new""#;
            assert!(may(OTHER_USER, use_them, &listed) && !may(OTHER_USER + 1, use_them, &listed));
        }
        mounted.end();
    }
}

/// What ACLs cost for files that have none. For the owner nothing; for others one request while the kernel
/// caches the answer. It never caches that of the root directory, which it knew before anything was
/// negotiated.
#[test]
fn a_file_without_a_list_is_asked_for_it_once() {
    let Some(mounted) = Mounted::start("once", &[], "") else { return };
    fs::create_dir(mounted.path("dir")).unwrap();
    let path = mounted.file("dir/file", 0o664);
    // Until they are stored, the kernel forgets attributes after half a second, and lists with them.
    for stored in [&path, &mounted.path("dir")] {
        fs::File::open(stored).unwrap().sync_all().unwrap();
    }
    fs::metadata(&path).unwrap();
    std::thread::sleep(Duration::from_millis(600));
    fs::metadata(&path).unwrap();
    let before = mounted.asked("getxattr");
    (0..50).for_each(|_| drop(fs::read(&path).unwrap()));
    assert_eq!(mounted.asked("getxattr"), before);
    (0..20).for_each(|_| assert!(may(OTHER_USER, r#"[ -r "$1" ]"#, &path)));
    let asked = mounted.asked("getxattr") - before;
    assert!(asked <= 20 + 2, "{asked} times: 20 for the root, and for the directory and the file");
    mounted.end();
}
