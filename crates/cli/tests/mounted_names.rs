//! Names with several spellings, on a mount.
//!
//! The kernel keeps a dentry for each spelling that a program used. Were one kept longer than the kernel holds
//! it, a change by another spelling would leave it wrong.

use crate::support::{TestDir, can_mount};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A directory whose names have several spellings.
struct Names(TestDir);

impl Names {
    /// A pool that ignores case and normalizes to form C, mounted.
    fn new(name: &str) -> Option<Names> {
        if !can_mount() {
            return None;
        }
        let dir = TestDir::new(name);
        dir.run(
            "pool create tank tank.img --size 64M -o casesensitivity=insensitive -o normalization=formC",
            0,
        );
        dir.run("mount tank mnt", 0);
        Some(Names(dir))
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path("mnt").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    fn assert_holds(&self, name: &str, text: &str) {
        assert_eq!(fs::read_to_string(self.path(name)).unwrap(), text, "{name}");
    }

    fn assert_missing(&self, names: &[&str]) {
        for name in names {
            let found = fs::symlink_metadata(self.path(name)).map(|_| ());
            assert_refused(found, Errno::NOENT, name);
        }
    }

    fn assert_lists(&self, expected: &[&str]) {
        let entries = fs::read_dir(self.path("")).unwrap();
        let mut found: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        found.sort_unstable();
        assert_eq!(found, expected);
    }

    /// Requests of the kernel for a name, so far.
    fn lookups(&self) -> u64 {
        let metrics = self.0.out("metrics tank");
        let row = "terrane_fuse_request_seconds_count{pool=\"tank\",operation=\"lookup\"} ";
        metrics.lines().find_map(|line| line.strip_prefix(row)).unwrap().parse().unwrap()
    }

    fn end(self) {
        self.0.run("umount mnt", 0);
        assert!(self.0.out("check tank").contains("nothing found"));
    }
}

fn assert_refused(outcome: io::Result<()>, expected: Errno, what: &str) {
    let found = outcome.expect_err(what).raw_os_error();
    assert_eq!(found, Some(expected.raw_os_error()), "{what}");
}

#[test]
fn every_spelling_shows_a_change_made_by_another_one() {
    let Some(names) = Names::new("spellings") else { return };
    // Missing under every spelling, then found under every spelling.
    names.assert_missing(&["FOO", "foo"]);
    names.write("foo", "1");
    names.assert_holds("FOO", "1");
    names.assert_holds("Foo", "1");
    names.assert_lists(&["foo"]);
    names.write("FOO", "2");
    names.assert_holds("foo", "2");
    names.assert_lists(&["foo"]);
    assert_refused(fs::create_dir(names.path("fOO")), Errno::EXIST, "mkdir");
    let exclusive = File::create_new(names.path("fOO")).map(|_| ());
    assert_refused(exclusive, Errno::EXIST, "O_EXCL");
    // Gone under one spelling is gone under all.
    fs::remove_file(names.path("FOO")).unwrap();
    names.assert_missing(&["foo", "Foo", "FOO"]);
    names.assert_lists(&[]);

    fs::create_dir(names.path("Dir")).unwrap();
    names.write("dir/File", "x");
    names.assert_holds("DIR/FILE", "x");
    names.assert_holds("dir/../DIR/file", "x");
    names.rename("DIR", "other");
    names.assert_missing(&["Dir", "dir", "DIR"]);
    names.assert_holds("OTHER/file", "x");

    names.write("a", "old");
    names.write("b", "new");
    names.rename("B", "A");
    names.assert_holds("a", "new");
    names.assert_missing(&["b", "B"]);
    names.assert_lists(&["A", "other"]);
    fs::hard_link(names.path("A"), names.path("link")).unwrap();
    assert_refused(fs::hard_link(names.path("A"), names.path("LINK")), Errno::EXIST, "link");
    fs::remove_file(names.path("Link")).unwrap();
    names.assert_missing(&["link", "LINK"]);
    names.end();
}

/// The kernel finds one inode under both spellings, and sends no request.
#[test]
fn another_spelling_takes_a_rename_by_way_of_another_name() {
    let Some(names) = Names::new("respelled") else { return };
    fs::create_dir(names.path("Other")).unwrap();
    names.write("Other/file", "x");
    names.rename("Other", "tmp");
    names.rename("TMP", "OTHER");
    names.assert_lists(&["OTHER"]);
    names.assert_holds("other/file", "x");
    names.rename("OTHER", "other");
    names.assert_lists(&["OTHER"]);
    names.end();
}

#[test]
fn forms_of_a_character_are_one_name_and_other_bytes_are_none() {
    let Some(names) = Names::new("forms") else { return };
    let (composed, decomposed) = ("na\u{ef}ve", "nai\u{308}ve");
    names.write(decomposed, "y");
    names.assert_holds(composed, "y");
    names.assert_holds("NA\u{cf}VE", "y");
    fs::remove_file(names.path(composed)).unwrap();
    names.assert_missing(&[decomposed, composed]);
    let bad = names.path("").join(Path::new(OsStr::from_bytes(b"bad\xff")));
    assert_refused(File::create_new(bad).map(|_| ()), Errno::ILSEQ, "no character");
    names.end();
}

#[test]
fn only_a_name_with_one_spelling_is_remembered_by_the_kernel() {
    let Some(names) = Names::new("remembered") else { return };
    let requests_of = |name: &str| {
        names.assert_holds(name, "z");
        let before = names.lookups();
        names.assert_holds(name, "z");
        names.lookups() - before
    };
    names.write("2026", "z");
    names.write("word", "z");
    assert_eq!(requests_of("2026"), 0);
    assert!(requests_of("word") > 0, "a dentry that a change of another spelling leaves wrong");
    names.end();
}

#[test]
fn how_names_are_compared_is_decided_when_the_pool_is_made() {
    let Some(names) = Names::new("compared") else { return };
    let shown = names.0.out("fs get -H -o value,source casesensitivity tank");
    assert_eq!(shown, "insensitive\tcreation\n");
    names.0.refused("fs set casesensitivity=sensitive tank", &["pool create"]);
    names.end();
}
