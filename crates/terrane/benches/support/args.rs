//! Command line options of a benchmark.

use clap::Parser;

/// Parses the command line, without the `--bench` that `cargo bench` adds to it.
pub fn parse<Options: Parser>() -> Options {
    Options::parse_from(std::env::args_os().filter(|word| word != "--bench"))
}
