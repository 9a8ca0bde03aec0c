//! `terrane fs clone-file`: copies of files and directories that share blocks.
//!
//! The server shares whole records in copy_file_range(2), so the command needs no right that cp(1) does not need.
//! The source is stored first: records that are only in memory would be copied.

use crate::failure::{Failure, Outcome};
use clap::Args;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use terrane_fuse::mount::dev_number;

pub const HELP: &str = "\
The copy shares the blocks of its source, so it is immediate and takes only space for pointers. What is written later into one of the two
is its own. Mode, owner, times and extended attributes are copied, owners only as far as the caller may: without its owner, a copy has no set-id bits. Source and copy must be on one
mount.

Not shared are files that are stored in another form than a new file would be: with another checksum or compression. They are copied.

cp of coreutils 9 or later shares blocks as well, of what is stored already. `cp --reflink=always` does not work: Linux does not pass that
request on.
";

/// Bytes of one call at most.
const CALL_BYTES: usize = 1 << 30;
/// Bytes of names of extended attributes, and of a value.
const XATTR_BYTES: usize = 64 << 10;

#[derive(Args)]
pub struct CloneFile {
    /// Clone a directory with everything below it
    #[arg(short, long)]
    recursive: bool,
    /// A file on a mount
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// The copy, which must not exist yet
    #[arg(value_name = "DST")]
    target: PathBuf,
}

impl CloneFile {
    pub fn run(&self) -> Outcome {
        let (source, target) = (self.source.as_path(), self.target.as_path());
        let meta = source.metadata().map_err(Failure::io("examining", source))?;
        if target.symlink_metadata().is_ok() {
            let remedy = "remove it first, or give another name";
            return Err(Failure::refused(target.display(), "a new name", "an existing file", remedy));
        }
        if meta.is_dir() && !self.recursive {
            let remedy = "-r clones a directory";
            return Err(Failure::refused(source.display(), "a file", "a directory", remedy));
        }
        let parent = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let into = parent.metadata().map_err(Failure::io("examining", parent))?;
        let dev = dev_number(meta.dev());
        if !terrane_fuse::mount::list_mounts()?.iter().any(|row| row.dev == dev) {
            let (expected, remedy) = ("a file on a mount of Terrane", "mount its pool first");
            return Err(Failure::refused(source.display(), expected, "another file system", remedy));
        }
        if into.dev() != meta.dev() {
            let (expected, remedy) = ("a name on the mount of the source", "use cp to copy between mounts");
            return Err(Failure::refused(target.display(), expected, "another file system", remedy));
        }
        if meta.is_dir() {
            let (inside, dir) = (canonical(parent)?, canonical(source)?);
            if inside.starts_with(&dir) {
                let remedy = "give a name elsewhere";
                return Err(Failure::refused(
                    target.display(),
                    "a name outside of the source",
                    "one inside",
                    remedy,
                ));
            }
        }
        // It commits the whole mount: everything below is stored then.
        let stored = File::open(source).and_then(|file| file.sync_all());
        stored.map_err(Failure::io("storing", source))?;
        clone_any(source, target, &meta)
    }
}

fn canonical(path: &Path) -> Outcome<PathBuf> {
    path.canonicalize().map_err(Failure::io("examining", path))
}

fn clone_any(source: &Path, target: &Path, meta: &Metadata) -> Outcome {
    let kind = meta.file_type();
    if kind.is_dir() {
        return clone_dir(source, target, meta);
    }
    if kind.is_symlink() {
        let link = fs::read_link(source).map_err(Failure::io("reading", source))?;
        std::os::unix::fs::symlink(link, target).map_err(Failure::io("creating", target))?;
    } else if kind.is_file() {
        clone_content(source, target, meta.len()).inspect_err(|_| _ = fs::remove_file(target))?;
    } else {
        eprintln!("terrane: {} skipped: neither a file, a directory nor a symbolic link", source.display());
        return Ok(());
    }
    copy_attributes(source, target, meta)
}

fn clone_dir(source: &Path, target: &Path, meta: &Metadata) -> Outcome {
    DirBuilder::new().mode(0o700).create(target).map_err(Failure::io("creating", target))?;
    for entry in fs::read_dir(source).map_err(Failure::io("listing", source))? {
        let entry = entry.map_err(Failure::io("listing", source))?;
        let path = entry.path();
        let meta = path.symlink_metadata().map_err(Failure::io("examining", &path))?;
        clone_any(&path, &target.join(entry.file_name()), &meta)?;
    }
    copy_attributes(source, target, meta)
}

fn clone_content(source: &Path, target: &Path, bytes: u64) -> Outcome {
    let from = File::open(source).map_err(Failure::io("opening", source))?;
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(target);
    let to = new.map_err(Failure::io("creating", target))?;
    let mut done = 0;
    while done < bytes {
        let len = usize::try_from(bytes - done).unwrap_or(CALL_BYTES).min(CALL_BYTES);
        match rustix::fs::copy_file_range(&from, None, &to, None, len) {
            // It became shorter meanwhile.
            Ok(0) => break,
            Ok(copied) => done += copied as u64,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::io("cloning", source)(errno.into())),
        }
    }
    Ok(())
}

/// Owner, extended attributes, mode and times. The owner first, as its change clears set-id bits; times last.
fn copy_attributes(source: &Path, target: &Path, meta: &Metadata) -> Outcome {
    let failed = |error: io::Error| Failure::io("setting attributes of", target)(error);
    let bits = match std::os::unix::fs::lchown(target, Some(meta.uid()), Some(meta.gid())) {
        Ok(()) => 0o7777,
        // Set-id bits are meant for the owner that it has not got.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => 0o777,
        Err(error) => return Err(failed(error)),
    };
    let is_link = meta.file_type().is_symlink();
    if !is_link {
        copy_xattrs(source, target).map_err(|errno| failed(errno.into()))?;
        fs::set_permissions(target, fs::Permissions::from_mode(meta.mode() & bits)).map_err(failed)?;
    }
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(meta.atime(), meta.atime_nsec()),
        last_modification: time(meta.mtime(), meta.mtime_nsec()),
    };
    let flags = if is_link { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
    rustix::fs::utimensat(CWD, target, &times, flags).map_err(|errno| failed(errno.into()))
}

/// Copies the extended attributes that the caller may read and set.
fn copy_xattrs(source: &Path, target: &Path) -> Result<(), Errno> {
    let mut names = vec![0; XATTR_BYTES];
    let len = match rustix::fs::listxattr(source, &mut names) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        len => len?,
    };
    let mut value = vec![0; XATTR_BYTES];
    for name in names.get(..len).unwrap_or_default().split(|byte| *byte == 0).filter(|name| !name.is_empty())
    {
        let copied = rustix::fs::getxattr(source, name, &mut value).and_then(|len| {
            rustix::fs::setxattr(target, name, value.get(..len).unwrap_or_default(), XattrFlags::empty())
        });
        match copied {
            Err(Errno::PERM | Errno::ACCESS | Errno::NODATA | Errno::OPNOTSUPP) | Ok(()) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
