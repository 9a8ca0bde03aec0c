//! Copies on a mount share blocks: `cp`, copy_file_range(2) and `terrane fs clone-file`.

use crate::support::{NOBODY, TestDir, can_mount, is_root, noise};
use rustix::fs::copy_file_range;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

const FILE_BYTES: usize = 24 << 20;

fn cp(words: &[&str], from: &Path, to: &Path) -> bool {
    Command::new("cp").args(words).arg(from).arg(to).output().unwrap().status.success()
}

/// Blocks with several references, and the space that sharing saves.
fn shared(dir: &TestDir) -> (u64, u64) {
    dir.run("sync tank", 0);
    let status = &dir.json("pool status --json tank")["pools"][0];
    (status["shared_blocks"].as_u64().unwrap(), status["saved_bytes"].as_u64().unwrap())
}

#[test]
fn copies_on_a_mount_share_blocks_and_stay_equal() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("mounted-clones");
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.run("mount tank mnt", 0);
    let mnt = dir.path("mnt");
    let mut data = noise(FILE_BYTES + 1000);
    let source = mnt.join("source");
    fs::write(&source, &data).unwrap();
    dir.run("sync tank", 0);
    let (copy, second, third) = (mnt.join("copy"), mnt.join("second"), mnt.join("third"));
    assert!(cp(&["--reflink=auto"], &source, &copy));
    let blocks = FILE_BYTES as u64 / (128 << 10) + 1;
    let (count, saved) = shared(&dir);
    assert_eq!(count, blocks);
    assert!(saved >= FILE_BYTES as u64);
    assert!(fs::read(&copy).unwrap() == data, "the copy differs");
    // FUSE does not pass FICLONE on.
    assert!(!cp(&["--reflink=always"], &source, &second));
    let _ = fs::remove_file(&second);
    dir.run("fs clone-file mnt/source mnt/second", 0);
    assert_eq!(shared(&dir), (blocks, 2 * saved));
    // What the kernel holds of the target, and has not stored, is not the copy's.
    fs::write(&third, noise(4 << 20)).unwrap();
    let into = OpenOptions::new().write(true).open(&third).unwrap();
    let copied = copy_file_range(File::open(&source).unwrap(), Some(&mut 0), &into, Some(&mut 0), 2 << 20);
    assert_eq!(copied, Ok(2 << 20));
    let found = fs::read(&third).unwrap();
    assert!(found[..2 << 20] == data[..2 << 20] && found[2 << 20..] == noise(4 << 20)[2 << 20..]);
    // And what it holds of the source is.
    let changed = OpenOptions::new().write(true).open(&source).unwrap();
    changed.write_all_at(b"later", 1 << 20).unwrap();
    data[1 << 20..][..5].copy_from_slice(b"later");
    let fourth = mnt.join("fourth");
    assert!(cp(&[], &source, &fourth));
    changed.write_all_at(b"after", 1 << 20).unwrap();
    assert!(fs::read(&fourth).unwrap() == data);
    assert!(fs::read(&copy).unwrap()[1 << 20..][..5] != *b"later");
    drop((into, changed));

    dir.run("umount mnt", 0);
    let report = dir.out("check tank");
    assert!(report.contains("nothing found"), "{report}");
    dir.run("mount tank mnt", 0);
    assert!(fs::read(&fourth).unwrap() == data);
    fs::remove_file(&source).unwrap();
    data[1 << 20..][..5].copy_from_slice(&noise(FILE_BYTES)[1 << 20..][..5]);
    for path in [&copy, &second] {
        assert!(fs::read(path).unwrap() == data, "{} differs", path.display());
    }
    dir.run("umount mnt", 0);
    let report = dir.out("check tank");
    assert!(report.contains("nothing found"), "{report}");
}

/// A copy that belongs to its maker does not lend the maker's identity to everybody, as the source lends its owner's.
#[test]
fn a_clone_without_its_owner_has_no_set_id_bits() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("clones-set-id");
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.run("mount tank mnt", 0);
    let (program, source) = (dir.path("terrane"), dir.path("mnt/source"));
    fs::copy(env!("CARGO_BIN_EXE_terrane"), &program).unwrap();
    fs::write(&source, "not to be run").unwrap();
    for (path, mode) in [("", 0o755), ("terrane", 0o755), ("mnt", 0o1777), ("mnt/source", 0o6755)] {
        fs::set_permissions(dir.path(path), Permissions::from_mode(mode)).unwrap();
    }
    for (user, name, mode) in [(NOBODY, "other", 0o755), (0, "own", 0o6755)] {
        let mut command = Command::new(&program);
        command.args(["fs", "clone-file"]).arg(&source).arg(dir.path("mnt").join(name)).uid(user).gid(user);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let meta = fs::metadata(dir.path("mnt").join(name)).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o7777), (user, mode), "{name}");
    }
    dir.run("umount mnt", 0);
}

/// Files come back from a snapshot without a copy of bytes. Two data sets are two file systems of the kernel, so a copy
/// between them is one of bytes.
#[test]
fn copies_between_mounts_and_out_of_snapshots_are_equal() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("clones-between");
    fs::create_dir(dir.path("other")).unwrap();
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.run("fs create tank/other", 0);
    dir.run("mount tank mnt", 0);
    dir.run("mount tank/other other", 0);
    let (mnt, other) = (dir.path("mnt"), dir.path("other"));
    let data = noise(5 << 20);
    fs::write(mnt.join("source"), &data).unwrap();
    dir.run("snapshot tank@kept", 0);
    assert!(cp(&["--reflink=auto"], &mnt.join("source"), &mnt.join("shared")));
    assert!(cp(&["--reflink=auto"], &mnt.join("source"), &other.join("copy")));
    fs::remove_file(mnt.join("source")).unwrap();
    assert!(cp(&["--reflink=auto"], &mnt.join(".terrane/snapshot/kept/source"), &mnt.join("back")));
    let data_bytes = data.len() as u64;
    let (blocks, saved) = shared(&dir);
    assert!(blocks == 40 && saved >= 2 * data_bytes, "the copy back shares them: {saved}");
    let all = [mnt.join("shared"), mnt.join("back"), other.join("copy")];
    all.iter().for_each(|path| assert!(fs::read(path).unwrap() == data, "{}", path.display()));
    // The snapshot holds one reference, and the copy the other.
    dir.run("fs destroy tank@kept", 0);
    fs::remove_file(mnt.join("back")).unwrap();
    dir.run("umount mnt", 0);
    dir.run("umount other", 0);
    let report = dir.out("check tank");
    assert!(report.contains("nothing found"), "{report}");
    dir.run("mount tank mnt", 0);
    assert!(fs::read(mnt.join("shared")).unwrap() == data);
    dir.run("umount mnt", 0);
}
