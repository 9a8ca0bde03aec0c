//! `terrane-null MOUNTPOINT [-o OPTIONS] [--foreground] [--tree DIRSxNAMES] [--names-only]`: mounts the null
//! server.
//!
//! It takes the options of Terrane's own mounts after `-o`, and exits when its mount ends.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use terrane_fuse::{MountOptions, Session};
use terrane_null::Memory;

const USAGE: &str = "terrane-null MOUNTPOINT [-o OPTIONS] [--foreground] [--tree DIRSxNAMES] [--names-only]
  An in-memory file system behind Terrane's FUSE front end, lost at unmount. It begins empty, or with a tree of empty files.
  With --names-only, listings carry no attributes.";
/// The background process writes this to standard output once it is mounted.
const READY: &[u8] = b"ready\n";
const BACKGROUND: &str = "--background";

struct Arguments {
    dir: PathBuf,
    options: MountOptions,
    foreground: bool,
    background: bool,
    /// Directories, and files in each.
    tree: (usize, usize),
    names_only: bool,
}

fn parse(words: &[OsString]) -> Result<Arguments, String> {
    let (mut dir, mut foreground, mut background, mut tree, mut names_only) =
        (None, false, false, (0, 0), false);
    let mut options = MountOptions::for_root("null");
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-o") => {
                let given = words.next().and_then(|given| given.to_str()).ok_or("-o needs options")?;
                options.apply(given).map_err(|error| error.to_string())?;
            }
            Some("-f" | "--foreground") => foreground = true,
            Some(BACKGROUND) => background = true,
            Some("--names-only") => names_only = true,
            Some("--tree") => {
                let given = words.next().and_then(|given| given.to_str()?.split_once('x'));
                let counts = given.and_then(|(dirs, names)| Some((dirs.parse().ok()?, names.parse().ok()?)));
                tree = counts.ok_or("--tree needs two counts, such as 1000x100")?;
            }
            Some(word) if word.starts_with('-') => return Err(format!("{word}: unknown option\n{USAGE}")),
            _ if dir.is_none() => dir = Some(PathBuf::from(word)),
            _ => return Err(format!("more than one mount point\n{USAGE}")),
        }
    }
    let dir = dir.ok_or(USAGE)?;
    Ok(Arguments { dir, options, foreground, background, tree, names_only })
}

/// Starts this program again, and waits until it is mounted.
fn in_background(words: &[OsString]) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let exe = std::env::current_exe().map_err(text)?;
    let mut command = Command::new(exe);
    command.args(words).arg(BACKGROUND).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(text)?;
    let mut heard = vec![0; READY.len()];
    let stood = child.stdout.take().is_some_and(|mut pipe| pipe.read_exact(&mut heard).is_ok());
    if stood { Ok(()) } else { Err("mount failed: the server exited before it was ready".to_owned()) }
}

fn serve(arguments: &Arguments) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(text)?;
    let mut memory = Memory::new(&arguments.options);
    if arguments.names_only {
        memory.show_names_only();
    }
    memory.make_tree(arguments.tree.0, arguments.tree.1);
    let session = Session::mount(&arguments.dir, &arguments.options).map_err(|error| error.to_string())?;
    let unmount = session.unmount_handle();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if let Err(error) = unmount.detach() {
                eprintln!("terrane-null: {error}");
            }
        }
    });
    let Some(negotiated) = session.negotiate().map_err(text)? else { return Ok(()) };
    if arguments.background {
        terrane_fuse::process::detach_from_terminal().map_err(text)?;
        std::env::set_current_dir("/").map_err(text)?;
        // Fails if no process waits any more, which does not matter to the mount.
        let _ = std::io::stdout().write_all(READY);
    }
    session.run_negotiated(&negotiated, &memory).map_err(text)
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = parse(&words).and_then(|arguments| match arguments.foreground || arguments.background {
        true => serve(&arguments),
        false => in_background(&words),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("terrane-null: {error}");
            ExitCode::FAILURE
        }
    }
}
