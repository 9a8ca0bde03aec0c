use crate::checker::{Checker, Done, directory, file};
use crate::xattr;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::io::Errno;
use std::path::Path;

pub fn kinds(j: &mut Checker, dir: &Path) -> Done {
    let d = directory(dir, "directory")?;
    for name in ["user.a", "trusted.a", "security.a"] {
        j.check(format!("directory: set {name}"), xattr::set(&d, name, b"of it"), ());
        j.check(format!("directory: get {name}"), xattr::get(&d, name), b"of it".to_vec());
    }
    let inside = file(&d, "inside")?;
    j.check("directory: nothing is inherited", xattr::list(&inside), xattr::listed(&[]));
    links(j, dir)?;
    let made = [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("character device", FileType::CharacterDevice, makedev(1, 3)),
        ("block device", FileType::BlockDevice, makedev(7, 200)),
    ];
    for (kind, file_type, device) in made {
        let path = dir.join(kind);
        mknodat(CWD, &path, file_type, Mode::from_raw_mode(0o644), device)?;
        only_privileged(j, kind, &path);
    }
    if j.remount("rw")? {
        for (kind, ..) in made {
            let found = xattr::get(&dir.join(kind), "trusted.kept");
            j.check(format!("{kind}: kept, remounted"), found, b"kept".to_vec());
        }
        j.check("symlink: kept, remounted", xattr::lget(&dir.join("l"), "trusted.kept"), b"kept".to_vec());
        j.check("directory: kept, remounted", xattr::get(&d, "user.a"), b"of it".to_vec());
    }
    std::fs::remove_dir_all(&d)?;
    for (kind, ..) in made {
        std::fs::remove_file(dir.join(kind))?;
    }
    Ok(())
}

/// Neither contents nor entries: no permission bits would govern `user.*`.
fn only_privileged(j: &mut Checker, kind: &str, path: &Path) {
    j.check(format!("{kind}: set user.a"), xattr::lset(path, "user.a", b"x"), Errno::PERM);
    j.check(format!("{kind}: get user.a"), xattr::lget(path, "user.a"), Errno::NODATA);
    j.check(format!("{kind}: remove user.a"), xattr::lremove(path, "user.a"), Errno::PERM);
    for name in ["trusted.a", "security.a"] {
        j.check(format!("{kind}: set {name}"), xattr::lset(path, name, b"x"), ());
        j.check(format!("{kind}: get {name}"), xattr::lget(path, name), b"x".to_vec());
    }
    j.check(format!("{kind}: list"), xattr::llist(path), xattr::listed(&["trusted.a", "security.a"]));
    j.check(format!("{kind}: remove trusted.a"), xattr::lremove(path, "trusted.a"), ());
    j.check(format!("{kind}: set trusted.kept"), xattr::lset(path, "trusted.kept", b"kept"), ());
}

fn links(j: &mut Checker, dir: &Path) -> Done {
    let (f, l) = (file(dir, "f")?, dir.join("l"));
    std::os::unix::fs::symlink("f", &l)?;
    j.check("symlink: set goes to the file", xattr::set(&l, "user.a", b"file's"), ());
    j.check("symlink: the file has it", xattr::get(&f, "user.a"), b"file's".to_vec());
    j.check("symlink: get goes to the file", xattr::get(&l, "user.a"), b"file's".to_vec());
    j.check("symlink: the link has nothing", xattr::llist(&l), xattr::listed(&[]));
    only_privileged(j, "symlink", &l);
    j.check("symlink: the file has no more", xattr::list(&l), xattr::listed(&["user.a"]));
    // Long enough that target and attributes do not share the inode on every file system.
    let long = dir.join("long");
    std::os::unix::fs::symlink("x".repeat(1000), &long)?;
    j.check("long symlink: set", xattr::lset(&long, "trusted.a", &[7; 1000]), ());
    j.check("long symlink: get", xattr::lget(&long, "trusted.a"), vec![7; 1000]);
    j.check("long symlink: its target", std::fs::read_link(&long)?.as_os_str().len(), 1000);
    Ok(())
}
