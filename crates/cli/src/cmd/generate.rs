//! `terrane generate`: manual pages and completions, from the definitions that parse the command line, and mount units.
//! Hidden: it is for installers and packagers.

use super::print;
use crate::failure::{Failure, Outcome};
use crate::{complete, pages, units};
use clap::{Command, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum GenerateCommand {
    /// Write all manual pages into a directory
    Man { dir: PathBuf },
    /// Print the completion script for a shell
    Completions {
        #[arg(value_parser = complete::SHELLS)]
        shell: String,
    },
    /// Write mount units of systemd, as terrane-generator does
    Units {
        /// Directories for normal, early and late units; the last one is used
        #[arg(required = true)]
        dirs: Vec<OsString>,
    },
}

impl GenerateCommand {
    pub fn run(&self, definition: Command) -> Outcome {
        match self {
            GenerateCommand::Man { dir } => {
                std::fs::create_dir_all(dir).map_err(Failure::io("making", dir))?;
                for (name, page) in pages::all(definition)? {
                    let path = dir.join(name);
                    std::fs::write(&path, page).map_err(Failure::io("writing", &path))?;
                }
                Ok(())
            }
            GenerateCommand::Completions { shell } => {
                print(&String::from_utf8_lossy(&complete::script(shell)?))
            }
            GenerateCommand::Units { dirs } => {
                units::generate(dirs);
                Ok(())
            }
        }
    }
}
