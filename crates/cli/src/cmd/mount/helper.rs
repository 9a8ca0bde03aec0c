//! Other names of this program, under which mount(8), fsck(8) and mkfs(8) start it.
//!
//! `mount -t terrane SOURCE DIR -o ...` becomes `mount.terrane SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS]
//! [-t TYPE]`. `mount` shows the source exactly as it was given: by it `mount -a`, findmnt and systemd know
//! that a line of fstab is mounted.

use super::{HelperCall, Mount};
use crate::failure::Failure;
use crate::registry::Registry;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit codes of mount(8): the command line is wrong; a mount failed.
const MOUNT_USAGE: u8 = 1;
const MOUNT_FAILED: u8 = 32;
/// Exit codes of fsck(8).
const FSCK_ERRORS_LEFT: u8 = 4;
const FSCK_FAILED: u8 = 8;
const FSCK_USAGE: u8 = 16;

const MOUNT_HELP: &str =
    "usage: mount.terrane SOURCE DIR [-sfnv] [-o OPTIONS]; see `terrane help mount` for the options";
const FSCK_HELP: &str = "usage: fsck.terrane [-a | -p | -n | -y] [-f] DEVICE";

/// Runs the helper if this program was started under another name; `None`: it is called `terrane`.
pub fn run() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    let called = PathBuf::from(words.next()?);
    let called = called.file_name()?.to_str()?.to_owned();
    let words: Vec<OsString> = words.collect();
    let (outcome, failed, usage) = match called.as_str() {
        "mount.terrane" | "mount.fuse.terrane" => (mount(&words), MOUNT_FAILED, MOUNT_USAGE),
        "fsck.terrane" => (fsck(&words), FSCK_FAILED, FSCK_USAGE),
        _ => return None,
    };
    Some(match outcome {
        Ok(code) => ExitCode::from(code),
        Err(Refused::Usage(text)) => {
            eprintln!("{called}: {text}");
            ExitCode::from(usage)
        }
        Err(Refused::Failed(failure)) => {
            eprintln!("{called}: {failure}");
            ExitCode::from(failed)
        }
    })
}

#[derive(Debug)]
enum Refused {
    Usage(String),
    Failed(Failure),
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Refused {
        Refused::Failed(failure)
    }
}

/// Translates the command line of mount(8) to ours.
fn parse(words: &[OsString]) -> Result<(Mount, bool), Refused> {
    let usage = |found: &str| Refused::Usage(format!("{found}\n{MOUNT_HELP}"));
    let mut plain = Vec::new();
    let mut options = Vec::new();
    let (mut dry_run, mut sloppy) = (false, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_str().unwrap_or_default();
        match text.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            None => plain.push(word.clone()),
            // Options with a value: one for us, or one that mount(8) has handled itself.
            Some("o" | "t" | "N") => {
                let value = words.next().ok_or_else(|| usage(&format!("{text} should have a value")))?;
                if text == "-o" {
                    let value = value.to_str().ok_or_else(|| usage("-o should be valid text"))?;
                    options.extend(value.split(',').filter(|word| !word.is_empty()).map(str::to_owned));
                }
            }
            Some(letters) => {
                for letter in letters.chars() {
                    match letter {
                        'f' => dry_run = true,
                        's' => sloppy = true,
                        // We write no mtab and have no more verbose output.
                        'n' | 'v' => {}
                        _ => return Err(usage(&format!("{text:?} should be one of -s -f -n -v -N -o -t"))),
                    }
                }
            }
        }
    }
    let [source, dir]: [OsString; 2] =
        plain.try_into().map_err(|_| usage("a source and a directory are expected"))?;
    let source = source.into_string().map_err(|source| usage(&format!("{source:?} should be valid text")))?;
    let mount = Mount {
        pool: Some(source.clone()),
        dir: Some(dir.into()),
        all: false,
        options,
        foreground: false,
        memory: None,
        log: None,
        metrics: None,
        helper_call: Some(HelperCall { source, dry_run }),
    };
    Ok((mount, sloppy))
}

fn mount(words: &[OsString]) -> Result<u8, Refused> {
    let (mut mount, sloppy) = parse(words)?;
    if sloppy {
        let known = |word: &String| {
            super::ParsedOptions::parse(std::slice::from_ref(word), terrane_fuse::MountOptions::default())
                .is_ok()
        };
        mount.options.retain(known);
    }
    let dir = std::env::current_dir().ok();
    if let (Some(call), Some(dir)) = (&mut mount.helper_call, dir)
        && let Some(name) = name_of_directory(&call.source, &dir, &Registry::of_this_user()?.pools()?)
    {
        mount.pool = Some(name.clone());
        call.source = name;
    }
    mount.run()?;
    Ok(0)
}

/// The name of a data set from which mount(8) has made the path of a directory: `tank/home` is `/tank/home` for it if it runs in `/`
/// and there is such a directory, as the mount point of the data set often is.
fn name_of_directory(source: &str, current: &Path, pools: &BTreeMap<String, PathBuf>) -> Option<String> {
    let name = Path::new(source).strip_prefix(current).ok()?.to_str()?;
    let pool = name.split(['/', '@']).next()?;
    // Asked last: a server that does not answer may be mounted there.
    let is_meant = pools.contains_key(pool) && Path::new(source).is_dir();
    is_meant.then(|| name.to_owned())
}

/// Nothing is ever repaired: a pool is consistent after a crash. So without `-f` the answer at boot is at
/// once that all is well; `-f` checks.
fn fsck(words: &[OsString]) -> Result<u8, Refused> {
    let usage = |found: String| Refused::Usage(format!("{found}\n{FSCK_HELP}"));
    let (mut device, mut force, mut boot) = (None, false, false);
    for word in words {
        let text = word.to_str().ok_or_else(|| usage(format!("{word:?} should be valid text")))?;
        match text.strip_prefix('-') {
            None if device.is_none() => device = Some(text.to_owned()),
            None => return Err(usage(format!("{text:?}: one device is expected"))),
            Some(letters) => {
                for letter in letters.chars() {
                    match letter {
                        'a' | 'p' => boot = true,
                        'f' => force = true,
                        // Checks are always read-only; -C asks for a progress bar, which a terminal gets
                        // anyway.
                        'n' | 'y' | 'r' | 'v' | 'V' | 'M' | 'T' | 'C' | '0'..='9' => {}
                        _ => return Err(usage(format!("{text:?} is not known"))),
                    }
                }
            }
        }
    }
    let device = device.ok_or_else(|| usage("a device is expected".to_owned()))?;
    if boot && !force {
        let path = std::path::Path::new(&device);
        crate::target::read_label(path)?;
        return Ok(0);
    }
    Ok(if crate::run(&["check", &device])? { 0 } else { FSCK_ERRORS_LEFT })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> Result<(Mount, bool), Refused> {
        parse(&words.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_line_of_mount_is_understood() {
        let (mount, sloppy) =
            parsed("/images/a.img /mnt -n -o rw,noatime -sv -N 3 -t fuse.terrane -o nofail").unwrap();
        assert_eq!(
            (mount.pool.as_deref(), mount.dir.as_deref()),
            (Some("/images/a.img"), Some(Path::new("/mnt")))
        );
        assert_eq!(mount.options, ["rw", "noatime", "nofail"]);
        let helper = mount.helper_call.clone().unwrap();
        assert!(sloppy && !helper.dry_run && helper.source == "/images/a.img");
        assert!(parsed("tank /mnt -f").unwrap().0.helper_call.unwrap().dry_run);
    }

    #[test]
    fn another_command_line_is_wrong() {
        for words in ["tank", "tank /mnt /more", "tank /mnt -x", "tank /mnt -o"] {
            assert!(matches!(parsed(words), Err(Refused::Usage(text)) if text.contains("usage")), "{words}");
        }
    }

    #[test]
    fn a_directory_with_the_name_of_a_data_set_is_not_its_source() {
        let dir = std::env::temp_dir().join(format!("terrane-helper-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("tank/home")).unwrap();
        std::fs::write(dir.join("tank/image"), "").unwrap();
        let pools = [("tank".to_owned(), PathBuf::from("/images/tank.img"))].into();
        let name = |word: &str| {
            let source = dir.join(word);
            name_of_directory(source.to_str().unwrap(), &dir, &pools)
        };
        assert_eq!(name("tank/home").as_deref(), Some("tank/home"));
        assert_eq!(name("tank").as_deref(), Some("tank"));
        assert_eq!((name("tank/image"), name("tank/gone"), name("other/home")), (None, None, None));
        assert_eq!(name_of_directory("tank/home", &dir, &pools), None);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
