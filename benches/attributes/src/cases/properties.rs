use crate::judge::{Done, Judge, file};
use crate::xattr::{self, noise};
use rustix::io::Errno;
use std::path::Path;

/// Values that came while the property was another are read, listed and removed like all others.
pub fn properties(j: &mut Judge, dir: &Path) -> Done {
    if !j.property("xattr=sa")? {
        j.skip("the file system has no properties");
        return Ok(());
    }
    let f = file(dir, "f")?;
    let names = ["user.sa", "user.both", "user.large"];
    xattr::set(&f, "user.sa", b"in the inode")?;
    xattr::set(&f, "user.both", b"in the inode")?;
    xattr::set(&f, "user.large", &noise(1, 40_000))?;
    j.property("xattr=dir")?;
    j.is("dir: all are listed", xattr::list(&f), xattr::listed(&names));
    j.is("dir: get", xattr::get(&f, "user.sa"), b"in the inode".to_vec());
    j.is("dir: replace", xattr::replace(&f, "user.both", b"in the directory"), ());
    j.is("dir: create what is there", xattr::create(&f, "user.sa", b"x"), Errno::EXIST);
    j.is("dir: new", xattr::set(&f, "user.dir", b"in the directory"), ());
    let all = xattr::listed(&["user.sa", "user.both", "user.large", "user.dir"]);
    j.is("dir: each is listed once", xattr::list(&f), all.clone());
    j.is("dir: the newer one counts", xattr::get(&f, "user.both"), b"in the directory".to_vec());
    j.remount("rw")?;
    j.is("dir: mounted anew", xattr::get(&f, "user.both"), b"in the directory".to_vec());
    j.is("dir: list, mounted anew", xattr::list(&f), all);
    j.property("xattr=sa")?;
    j.is("sa: get", xattr::get(&f, "user.dir"), b"in the directory".to_vec());
    j.is("sa: replace", xattr::replace(&f, "user.both", b"in the inode again"), ());
    j.is("sa: the newer one counts", xattr::get(&f, "user.both"), b"in the inode again".to_vec());
    j.is("sa: remove", xattr::remove(&f, "user.both"), ());
    j.is("sa: no older one comes back", xattr::get(&f, "user.both"), Errno::NODATA);
    j.is("sa: remove from the directory", xattr::remove(&f, "user.dir"), ());
    j.is("sa: list", xattr::list(&f), xattr::listed(&["user.sa", "user.large"]));
    j.remount("rw")?;
    j.is("sa: list, mounted anew", xattr::list(&f), xattr::listed(&["user.sa", "user.large"]));
    j.is("sa: large", xattr::get(&f, "user.large"), noise(1, 40_000));
    Ok(())
}
