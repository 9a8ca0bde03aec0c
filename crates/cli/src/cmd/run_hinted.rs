//! `terrane run-hinted`: runs a program whose `fcntl` write hints reach Terrane.

use crate::failure::{Failure, Outcome};
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "libterrane_hints.so";
/// Names another library.
const VARIABLE: &str = "TERRANE_HINTS_LIBRARY";

pub const HELP: &str = "\
The kernel answers F_SET_RW_HINT itself, and does not tell a FUSE file system. This command puts libterrane_hints.so in front of
LD_PRELOAD and becomes the program. The library turns F_SET_RW_HINT, F_SET_FILE_RW_HINT and the two that read a hint into Terrane's
ioctl for files on a mount of Terrane. All other calls and files are left to the C library and the kernel. Child processes are
covered as well.

Not covered: programs that are linked statically or with another C library (musl), that call the kernel without the C library (Go),
or that run set-user-ID. They can use `terrane fs hint` on their directory.

The library is beside this program, or in ../lib/terrane. TERRANE_HINTS_LIBRARY names another.
";

/// Run a program whose write hints by fcntl reach Terrane
#[derive(Args)]
#[command(after_help = HELP)]
pub struct RunHinted {
    /// The program and its arguments
    #[arg(required = true, num_args = 1.., trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunHinted {
    pub fn run(&self) -> Outcome {
        let Some((program, arguments)) = self.command.split_first() else { return Ok(()) };
        let mut preload = OsString::from(library()?);
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let error = Command::new(program).args(arguments).env("LD_PRELOAD", preload).exec();
        Err(Failure::io("running", Path::new(program))(error))
    }
}

/// The library's path: the variable's, beside this program, or where it is installed.
fn library() -> Outcome<PathBuf> {
    let found = match std::env::var_os(VARIABLE) {
        Some(path) => Some(PathBuf::from(path)),
        None => {
            let program = std::env::current_exe()?;
            let bin = program.parent().unwrap_or(Path::new("/"));
            [bin.join(LIBRARY), bin.join("../lib/terrane").join(LIBRARY)]
                .into_iter()
                .find(|path| path.is_file())
        }
    };
    let remedy = format!("install it, or name it in {VARIABLE}");
    let Some(path) = found else {
        let expected = "it beside this program or in ../lib/terrane";
        return Err(Failure::refused(LIBRARY, expected, "neither", remedy));
    };
    let path = path.canonicalize().map_err(Failure::io("examining", &path))?;
    // They separate the names in the list, and cannot be quoted.
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| b": \t\n".contains(byte)) {
        let expected = "a path without blanks and colons, which LD_PRELOAD cannot hold";
        return Err(Failure::refused(path.display(), expected, "some", remedy));
    }
    Ok(path)
}
