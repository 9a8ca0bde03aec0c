//! `terrane-null`: mounts the null server.
//!
//! It takes the options of Terrane's own mounts after `-o`, and exits when its mount ends.

use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use terrane_fuse::{MountOptions, Session};
use terrane_null::Memory;

/// The background process writes this to standard output once it is mounted.
const READY: &[u8] = b"ready\n";
const BACKGROUND: &str = "--background";

/// Mounts a file system in memory behind Terrane's front end
///
/// It is empty, or has a tree of empty files, and is gone with its mount.
#[derive(Parser)]
#[command(name = "terrane-null", max_term_width = 110)]
struct Arguments {
    /// Directory to mount on
    #[arg(value_name = "MOUNTPOINT")]
    dir: PathBuf,
    /// Mount options of Terrane, separated by commas; may be repeated
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Serve from this process, and return when the mount ends
    #[arg(short, long)]
    foreground: bool,
    /// Given to the process that this one starts
    #[arg(long, hide = true)]
    background: bool,
    /// Begin with this many directories, and empty files in each: 1000x100
    #[arg(long, value_name = "DIRSxNAMES", default_value = "0x0", hide_default_value = true, value_parser = tree)]
    tree: (usize, usize),
    /// Listings bring no attributes
    #[arg(long)]
    names_only: bool,
}

fn tree(text: &str) -> Result<(usize, usize), String> {
    let counts =
        text.split_once('x').and_then(|(dirs, names)| Some((dirs.parse().ok()?, names.parse().ok()?)));
    counts.ok_or_else(|| "expected two counts, like 1000x100".into())
}

fn mount_options(arguments: &Arguments) -> Result<MountOptions, String> {
    let mut options = MountOptions::for_root("null");
    for words in &arguments.options {
        options.apply(words).map_err(|error| error.to_string())?;
    }
    Ok(options)
}

/// Starts this program again, and waits until it is mounted.
fn in_background() -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let exe = std::env::current_exe().map_err(text)?;
    let mut command = Command::new(exe);
    command.args(std::env::args_os().skip(1)).arg(BACKGROUND).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(text)?;
    let mut heard = vec![0; READY.len()];
    let stood = child.stdout.take().is_some_and(|mut pipe| pipe.read_exact(&mut heard).is_ok());
    if stood { Ok(()) } else { Err("mount failed: the server exited before it was ready".to_owned()) }
}

fn serve(arguments: &Arguments, options: &MountOptions) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(text)?;
    let mut memory = Memory::new(options);
    if arguments.names_only {
        memory.show_names_only();
    }
    memory.make_tree(arguments.tree.0, arguments.tree.1);
    let session = Session::mount(&arguments.dir, options).map_err(|error| error.to_string())?;
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
    let arguments = Arguments::parse();
    let outcome = mount_options(&arguments).and_then(|options| {
        if arguments.foreground || arguments.background {
            serve(&arguments, &options)
        } else {
            in_background()
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("terrane-null: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Arguments, mount_options};
    use clap::{CommandFactory, Parser};

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(std::iter::once("terrane-null").chain(line.split(' ')))
    }

    #[test]
    fn lines_of_scripts_are_taken() {
        Arguments::command().debug_assert();
        let walked = parse("/mnt --tree 10000x1800 --names-only").unwrap();
        assert_eq!((walked.tree, walked.names_only, walked.foreground), ((10_000, 1800), true, false));
        let mounted = parse("-f /mnt -o ro -o noatime,allow_other --background").unwrap();
        assert_eq!((mounted.tree, mounted.foreground, mounted.background), ((0, 0), true, true));
        assert_eq!(mounted.options, ["ro", "noatime,allow_other"]);
        assert!(mount_options(&mounted).is_ok());
    }

    #[test]
    fn malformed_lines_are_refused() {
        for line in
            ["--tree 10x1", "/mnt /other", "/mnt --tree 10", "/mnt --tree 1x-1", "/mnt --tre 1x1", "/mnt -o"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
        let unknown = parse("/mnt -o nosuchoption").unwrap();
        assert!(mount_options(&unknown).unwrap_err().contains("nosuchoption"));
    }
}
