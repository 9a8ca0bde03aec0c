//! The null server on a real mount. Where `/dev/fuse` cannot be used the tests say so and pass.
#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

mod support;

use rustix::fs::{XattrFlags, getxattr, getxattr_query, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::time::{Duration, Instant};
use support::Running;

/// With and without rings. If the kernel has none, the mount falls back, and the test says that it proves
/// nothing about rings.
const TRANSPORTS: [&str; 2] = ["", "uring"];

fn report_if_skipped(words: &str) {
    if let (true, Err(reason)) = (words.contains("uring"), terrane_fuse::transport::ring::check_available()) {
        eprintln!("SKIPPED rings: {reason}");
    }
}

#[test]
fn it_is_a_file_system_through_either_transport() {
    for words in TRANSPORTS {
        report_if_skipped(words);
        it_is_a_file_system(words);
    }
}

#[test]
fn an_aborted_mount_ends_whatever_its_transport() {
    for words in TRANSPORTS {
        report_if_skipped(words);
        let Some(running) = Running::start("aborted", words) else { return };
        let open = File::create(running.dir.join("open")).unwrap();
        running.abort();
        drop(open);
    }
}

fn it_is_a_file_system(words: &str) {
    let Some(running) = Running::start("is", words) else { return };
    let at = |name: &str| running.dir.join(name);
    let data: Vec<u8> = (0..3_000_001u32).map(|n| (n % 251) as u8).collect();
    fs::write(at("file"), &data).unwrap();
    let file = File::options().write(true).open(at("file")).unwrap();
    file.write_all_at(b"changed", 2_999_999).unwrap();
    let read = fs::read(at("file")).unwrap();
    assert_eq!(
        (read.len(), &read[..2_999_999], &read[2_999_999..]),
        (3_000_006, &data[..2_999_999], &b"changed"[..])
    );
    file.set_len(10).unwrap();
    assert_eq!(fs::read(at("file")).unwrap(), &data[..10]);

    fs::create_dir(at("dir")).unwrap();
    fs::hard_link(at("file"), at("dir/link")).unwrap();
    symlink("dir/link", at("soft")).unwrap();
    assert_eq!(fs::metadata(at("soft")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(&running.dir).unwrap().nlink(), 3);
    assert_eq!(fs::remove_dir(at("dir")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
    fs::rename(at("dir"), at("moved")).unwrap();
    fs::rename(at("moved/link"), at("file")).unwrap();
    fs::write(at("other"), b"other").unwrap();
    fs::rename(at("other"), at("moved/link")).unwrap();
    assert_eq!(fs::read(at("moved/link")).unwrap(), b"other");

    let mut open = File::open(at("moved/link")).unwrap();
    fs::remove_dir_all(at("moved")).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "other");
    drop((file, open));
    running.end();
}

#[test]
fn extended_attributes_are_what_they_were_set_to() {
    let Some(running) = Running::start("xattr", "") else { return };
    let file = running.dir.join("file");
    fs::write(&file, b"content").unwrap();
    let set = |name: &str, value: &[u8], flags| setxattr(&file, name, value, flags);
    let large = vec![7; 65536];
    set("user.a", b"first", XattrFlags::empty()).unwrap();
    set("user.a", b"other", XattrFlags::REPLACE).unwrap();
    set("user.large", &large, XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.a", b"", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.no", b"", XattrFlags::REPLACE), Err(Errno::NODATA));

    let mut value = vec![0; 65536];
    assert_eq!(getxattr(&file, "user.a", &mut value).map(|len| value[..len].to_vec()), Ok(b"other".to_vec()));
    assert_eq!(getxattr(&file, "user.large", &mut value), Ok(65536));
    assert_eq!(value, large);
    assert_eq!(getxattr_query(&file, "user.large"), Ok(65536));
    assert_eq!(getxattr(&file, "user.a", &mut [0; 4]), Err(Errno::RANGE));
    assert_eq!(getxattr(&file, "user.no", &mut value), Err(Errno::NODATA));

    let mut names = [0; 64];
    assert_eq!(
        listxattr(&file, &mut names).map(|len| names[..len].to_vec()),
        Ok(b"user.a\0user.large\0".to_vec())
    );
    removexattr(&file, "user.large").unwrap();
    assert_eq!(listxattr(&file, &mut names), Ok(7));
    assert_eq!(removexattr(&file, "user.large"), Err(Errno::NODATA));
    running.end();
}

#[test]
fn many_names_are_listed_once_and_leave_nothing_behind() {
    for words in TRANSPORTS {
        report_if_skipped(words);
        many_names(words);
    }
}

fn many_names(words: &str) {
    let Some(running) = Running::start("many", words) else { return };
    let names: Vec<String> = (0..3000).map(|n| format!("entry {n:04}")).collect();
    std::thread::scope(|scope| {
        for half in names.chunks(1500) {
            let dir = &running.dir;
            scope.spawn(move || half.iter().for_each(|name| drop(File::create(dir.join(name)).unwrap())));
        }
    });
    let mut listed: Vec<String> = fs::read_dir(&running.dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    listed.sort();
    assert_eq!(listed, names);
    names.iter().for_each(|name| fs::remove_file(running.dir.join(name)).unwrap());
    // Nobody waits for a FORGET, and those that the server has not received when the mount ends are never sent.
    let began = Instant::now();
    while running.server.memory.nodes() > 1 && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(running.server.memory.nodes(), 1, "the kernel forgets what has no name");
    running.end();
}
