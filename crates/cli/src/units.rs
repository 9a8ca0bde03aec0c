//! `terrane-generator`: mount units of systemd for data sets with `canmount=on` and a `mountpoint`.
//!
//! systemd runs generators early at boot and at each `daemon-reload`. This one reads the [list](crate::boot_mounts) that commands keep,
//! and writes units into the directory of the lowest priority: what `/etc/fstab` and `/etc/systemd/system` say wins.
//!
//! A boot must not fail because of it: what cannot be used is reported and left out, and the exit code is always 0.

use crate::boot_mounts::{self, BootMount, PoolMounts};
use crate::failure::{Failure, Outcome};
use crate::registry::{boot_mounts_file, is_name};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

/// The name by which systemd starts it.
pub const GENERATOR: &str = "terrane-generator";
/// The longest name of a unit.
const UNIT_NAME_MAX: usize = 255;
/// The target before which local file systems are mounted.
const TARGET: &str = "local-fs.target";

/// Writes the units into the last of these directories: systemd names those for normal, early and late units.
pub fn generate(dirs: &[OsString]) {
    let Some(dir) = dirs.last() else {
        warn("expected a directory for the units");
        return;
    };
    // An initrd has no list of its own, and mounts only what the system needs to start.
    if std::env::var_os("SYSTEMD_IN_INITRD").is_some_and(|value| value == "1") {
        return;
    }
    let list = boot_mounts_file();
    // The variable is systemd's own.
    let fstab = std::env::var_os("SYSTEMD_FSTAB").unwrap_or_else(|| "/etc/fstab".into());
    let done = boot_mounts::read(&list).and_then(|pools| {
        let fstab = match fs::read(&fstab) {
            Ok(raw) => raw,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Failure::io("reading", Path::new(&fstab))(error)),
        };
        let taken = fstab_dirs(&fstab);
        let units = units(&pools, &list, &taken, &mut |text| warn(&text));
        if units.is_empty() { Ok(()) } else { write(Path::new(dir), &units) }
    });
    if let Err(failure) = done {
        warn(&format!("no units made: {failure}"));
    }
}

fn warn(text: &str) {
    let line = format!("{GENERATOR}: {text}\n").replace(|c: char| c.is_control() && c != '\n', "?");
    // A generator must not end because nobody reads what it says.
    let _ = io::stderr().write_all(line.as_bytes());
    // systemd gives generators no way to its log but that of the kernel. It sets the variable for them.
    if std::env::var_os("SYSTEMD_SCOPE").is_some() {
        let _ = fs::write("/dev/kmsg", format!("<4>{line}"));
    }
}

/// The units by name, and their content.
fn units(
    pools: &BTreeMap<String, PoolMounts>,
    list: &Path,
    taken: &[PathBuf],
    refuse: &mut dyn FnMut(String),
) -> BTreeMap<String, String> {
    let mut units = BTreeMap::new();
    for (pool, of_pool) in pools {
        for mount in &of_pool.mounts {
            match unit(pool, of_pool, mount, list, taken) {
                Ok(Some((name, _))) if units.contains_key(&name) => {
                    refuse(format!("{}: not mounted at {}: another data set is", mount.name, mount.dir));
                }
                Ok(unit) => units.extend(unit),
                Err(reason) => refuse(format!("{}: not mounted at {:?}: {reason}", mount.name, mount.dir)),
            }
        }
    }
    units
}

/// The name and content of a unit. `None`: the directory is taken.
fn unit(
    pool: &str,
    of_pool: &PoolMounts,
    mount: &BootMount,
    list: &Path,
    taken: &[PathBuf],
) -> Result<Option<(String, String)>, &'static str> {
    let rest = mount.name.strip_prefix(pool).filter(|_| is_name(pool));
    if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) || !is_line(&mount.name) {
        return Err("the name is invalid");
    }
    let dir =
        simplified(Path::new(&mount.dir)).filter(|_| is_line(&mount.dir)).ok_or("the path is invalid")?;
    if dir == Path::new("/") {
        return Err("the root directory is mounted by the system");
    }
    if taken.contains(&dir) {
        return Ok(None);
    }
    let name = unit_name(&dir, "mount");
    if name.len() > UNIT_NAME_MAX {
        return Err("the path is too long for a unit");
    }
    let (source, dir) = (specifiers_escaped(&mount.name), specifiers_escaped(&dir.display().to_string()));
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| writeln!(text, "{words}").expect("memory does not fail");
    line(format_args!("# Made by {GENERATOR}, again at each boot. A line of /etc/fstab replaces it."));
    line(format_args!("[Unit]\nDescription=Terrane data set {source}"));
    line(format_args!("Documentation=man:{GENERATOR}(8)"));
    line(format_args!("SourcePath={}", specifiers_escaped(&list.display().to_string())));
    // `mount -a` comes after, and leaves alone what is mounted.
    line(format_args!("Before={TARGET} terrane-mounts.service"));
    // The names of pools are there.
    line(format_args!("RequiresMountsFor=/var/lib/terrane"));
    for device in &of_pool.devices {
        let Some(path) = simplified(device).filter(|path| path.to_str().is_some_and(is_line)) else {
            continue;
        };
        if path.starts_with("/dev") {
            // The device may have another name now, by which the mount finds it. So a missing one ends only the wait.
            let device = unit_name(&path, "device");
            line(format_args!("Wants={device}\nAfter={device}"));
        } else {
            line(format_args!("RequiresMountsFor={}", quoted(&path.display().to_string())));
        }
    }
    line(format_args!("\n[Mount]\nWhat={source}\nWhere={dir}\nType=terrane"));
    // As in the other units: a long commit is no reason to kill it.
    line(format_args!("TimeoutSec=150"));
    Ok(Some((name, text)))
}

fn write(dir: &Path, units: &BTreeMap<String, String>) -> Outcome {
    let wants = dir.join(format!("{TARGET}.wants"));
    fs::create_dir_all(&wants).map_err(Failure::io("creating", &wants))?;
    let written = units.iter().map(|(name, text)| {
        let (path, link) = (dir.join(name), wants.join(name));
        fs::write(&path, text).map_err(Failure::io("writing", &path))?;
        symlink(Path::new("..").join(name), &link).map_err(Failure::io("linking", &link))
    });
    // One that fails keeps no others back.
    written.fold(Ok(()), Outcome::and)
}

/// Whether a text can be the value of a line.
fn is_line(text: &str) -> bool {
    !text.chars().any(char::is_control) && text.trim() == text && !text.ends_with('\\')
}

/// An absolute path without what means nothing. `None`: it is not absolute, or has `..`.
fn simplified(path: &Path) -> Option<PathBuf> {
    let is_plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
    is_plain.then(|| path.components().collect())
}

/// As `systemd-escape --path --suffix=SUFFIX`.
fn unit_name(path: &Path, suffix: &str) -> String {
    let path = path.as_os_str().as_encoded_bytes();
    let inner = path.strip_prefix(b"/").unwrap_or(path);
    let mut name = String::new();
    for (index, byte) in inner.iter().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if index == 0 => name.push_str("\\x2e"),
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b':' | b'_' | b'.' => name.push(char::from(*byte)),
            byte => write!(name, "\\x{byte:02x}").expect("memory does not fail"),
        }
    }
    if inner.is_empty() {
        name.push('-');
    }
    format!("{name}.{suffix}")
}

/// A value in which systemd replaces specifiers.
fn specifiers_escaped(text: &str) -> String {
    text.replace('%', "%%")
}

/// The same as one word of several.
fn quoted(text: &str) -> String {
    format!("\"{}\"", specifiers_escaped(text).replace('\\', "\\\\").replace('"', "\\\""))
}

/// The directories of the lines of an fstab.
fn fstab_dirs(raw: &[u8]) -> Vec<PathBuf> {
    let lines = raw.split(|byte| *byte == b'\n');
    let fields = lines.filter_map(|line| {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        fields.next().filter(|first| !first.starts_with(b"#")).and(fields.next())
    });
    fields.filter_map(|field| simplified(Path::new(&unescaped(field)))).collect()
}

/// A field of fstab: `\040` is a space.
fn unescaped(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let octal =
            after.get(..3).filter(|_| *byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(decoded) => {
                plain.push(decoded);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(plain)
}

/// Runs the generator if this program was started as that. `None`: it was started under another name.
pub fn run() -> Option<std::process::ExitCode> {
    let mut words = std::env::args_os();
    let called = PathBuf::from(words.next()?);
    if called.file_name() != Some(OsStr::new(GENERATOR)) {
        return None;
    }
    generate(&words.collect::<Vec<_>>());
    Some(std::process::ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn pools(mounts: &[(&str, &str)]) -> BTreeMap<String, PoolMounts> {
        let mounts = mounts.iter().map(|(name, dir)| BootMount { name: (*name).into(), dir: (*dir).into() });
        let devices = ["/dev/disk/by-id/a-b", "/var/my \"images\"/100%.img"].map(PathBuf::from).to_vec();
        [("tank".to_owned(), PoolMounts { devices, mounts: mounts.collect() })].into()
    }

    #[test]
    fn a_unit_that_cannot_be_written_keeps_no_others_back() {
        let dir = std::env::temp_dir().join(format!("terrane-units-{}", std::process::id()));
        fs::create_dir_all(dir.join("a.mount")).unwrap();
        let units = ["a.mount", "b.mount"].map(|name| (name.to_owned(), format!("of {name}"))).into();
        let failure = write(&dir, &units).unwrap_err();
        assert!(failure.0.contains("a.mount"), "{failure}");
        assert_eq!(fs::read_to_string(dir.join(format!("{TARGET}.wants/b.mount"))).unwrap(), "of b.mount");
        fs::remove_dir_all(dir).unwrap();
    }

    fn made(mounts: &[(&str, &str)], fstab: &str) -> (BTreeMap<String, String>, Vec<String>) {
        let mut refused = Vec::new();
        let taken = fstab_dirs(fstab.as_bytes());
        let list = Path::new("/etc/terrane/mounts");
        let units = units(&pools(mounts), list, &taken, &mut |text| refused.push(text));
        (units, refused)
    }

    #[test]
    fn a_unit_mounts_a_data_set_after_its_devices() {
        let (units, refused) = made(&[("tank/home 100%", "/srv//ann's 100%/")], "");
        assert_eq!(refused, Vec::<String>::new());
        let (name, text) = units.first_key_value().unwrap();
        assert_eq!(name, "srv-ann\\x27s\\x20100\\x25.mount");
        let lines: Vec<&str> = text.lines().collect();
        for line in [
            "What=tank/home 100%%",
            "Where=/srv/ann's 100%%",
            "Type=terrane",
            "Before=local-fs.target terrane-mounts.service",
            "RequiresMountsFor=/var/lib/terrane",
            "Wants=dev-disk-by\\x2did-a\\x2db.device",
            "After=dev-disk-by\\x2did-a\\x2db.device",
            "RequiresMountsFor=\"/var/my \\\"images\\\"/100%%.img\"",
        ] {
            assert!(lines.contains(&line), "{line}\n{text}");
        }
    }

    #[test]
    fn what_cannot_be_mounted_is_left_out() {
        let long = format!("/{}", "x".repeat(300));
        let (units, refused) = made(
            &[
                ("tank", "/"),
                ("tank/a", "relative"),
                ("tank/b", "/x/../etc"),
                ("tank/c", "/new\nline"),
                ("tank/d\nx", "/d"),
                ("other/e", "/e"),
                ("tankard/f", "/f"),
                ("tank/g", &long),
                ("tank/h", "/same"),
                ("tank/i", "/same/"),
                ("tank/j", "/j\\"),
            ],
            "",
        );
        assert_eq!(units.keys().collect::<Vec<_>>(), ["same.mount"]);
        assert!(units["same.mount"].contains("What=tank/h\n"));
        assert_eq!(refused.len(), 10, "{refused:?}");
    }

    #[test]
    fn a_line_of_fstab_wins() {
        let fstab = "# /not/this  /c terrane\nUUID=1 /a ext4 defaults 0 2\n\ntank/x\t/b\\040c/ terrane noauto\nswap none swap\nx\n";
        let (units, refused) = made(&[("tank/a", "/a"), ("tank/b", "/b c"), ("tank/c", "/c")], fstab);
        assert_eq!(units.keys().collect::<Vec<_>>(), ["c.mount"]);
        assert_eq!(refused, Vec::<String>::new());
    }

    #[test]
    fn names_are_those_of_systemd() {
        let paths = ["/", "/home", "/.hidden/.x", "/a-b/c_d:e.f", "/\u{e4} \\\"%'", "/dev/disk/by-id/x=1"];
        let expected = [
            "-",
            "home",
            "\\x2ehidden-.x",
            "a\\x2db-c_d:e.f",
            "\\xc3\\xa4\\x20\\x5c\\x22\\x25\\x27",
            "dev-disk-by\\x2did-x\\x3d1",
        ];
        for (path, expected) in paths.into_iter().zip(expected) {
            assert_eq!(unit_name(Path::new(path), "mount"), format!("{expected}.mount"));
        }
        match Command::new("systemd-escape").args(["--path", "--suffix=mount"]).args(paths).output() {
            Ok(output) => {
                let names = expected.map(|name| format!("{name}.mount")).join(" ");
                assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), names);
            }
            Err(error) => eprintln!("SKIPPED: systemd-escape does not run here: {error}"),
        }
    }
}
