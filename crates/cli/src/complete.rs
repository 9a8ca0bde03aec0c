//! Completion in the shell: what Tab offers.
//!
//! The scripts that shells load only call this program again, with [`VARIABLE`] set and the words typed so
//! far. So names of pools and properties come from the registry and the code, and no script can be out of
//! date.
//!
//! The name of an argument in the definitions (`pool`, `PROPERTY=VALUE`) says what it takes, in one place for
//! all commands. Completion reads only the registry: Tab must not open a device.

use crate::figures::FIGURES;
use crate::help::OPTION_HELP;
use crate::registry::Registry;
use clap::{Arg, Command};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::{EnvCompleter, Shells};
use std::ffi::OsStr;
use std::io;
use terrane_dataset::PROPERTIES;

/// Set by the scripts to the name of the shell.
pub const VARIABLE: &str = "TERRANE_COMPLETE";
/// Shells that are supported.
pub const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// If a shell asks for completions, answers it and exits.
pub fn serve(definition: fn() -> Command) {
    CompleteEnv::with_factory(move || with_completers(definition())).var(VARIABLE).complete();
}

/// The script for a shell, one of [`SHELLS`].
pub fn script(shell: &str) -> io::Result<Vec<u8>> {
    let shells = Shells::builtins();
    let known = shells.completer(shell).filter(|_| SHELLS.contains(&shell));
    let completer: &dyn EnvCompleter =
        known.ok_or_else(|| io::Error::other(format!("unsupported shell {shell:?}")))?;
    let mut out = Vec::new();
    completer.write_registration(VARIABLE, "terrane", "terrane", "terrane", &mut out)?;
    if shell == "zsh" {
        // Loaded at the first Tab, as the function `_terrane`: then it must answer, not only define.
        out.extend_from_slice(
            b"[ \"$funcstack[1]\" != _terrane ] || _clap_dynamic_completer_terrane \"$@\"\n",
        );
    }
    Ok(out)
}

fn with_completers(command: Command) -> Command {
    // `pool create` names a pool that does not exist yet.
    let makes = command.get_name() == "create";
    command.mut_subcommands(with_completers).mut_args(move |arg| match completer(&arg) {
        Some(_) if makes && arg.get_id() == "name" => arg,
        Some(completer) => arg.add(completer),
        None => arg,
    })
}

fn completer(arg: &Arg) -> Option<ArgValueCompleter> {
    let value = arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
    let id = arg.get_id().as_str();
    Some(match value {
        "PROPERTY=VALUE" => ArgValueCompleter::new(assignments),
        value if value.starts_with("PROPERTY") => ArgValueCompleter::new(properties),
        "OPTIONS" => ArgValueCompleter::new(mount_options),
        "DIR|POOL" | "NAME|DEVICE" => ArgValueCompleter::new(pools),
        "ALGORITHM" => ArgValueCompleter::new(algorithms),
        "PATH" => ArgValueCompleter::new(PathCompleter::any()),
        _ if ["pool", "pools", "name", "names"].contains(&id) => ArgValueCompleter::new(pools),
        _ => return None,
    })
}

fn all(words: impl IntoIterator<Item = String>, start: &OsStr) -> Vec<CompletionCandidate> {
    let start = start.to_string_lossy();
    words.into_iter().filter(|word| word.starts_with(&*start)).map(CompletionCandidate::new).collect()
}

/// Known pools; paths if the word begins like one.
fn pools(start: &OsStr) -> Vec<CompletionCandidate> {
    if start.to_string_lossy().contains('/') {
        return PathCompleter::any().complete(start);
    }
    let known = Registry::of_this_user().and_then(|registry| registry.pools()).unwrap_or_default();
    all(known.into_keys(), start)
}

fn properties(start: &OsStr) -> Vec<CompletionCandidate> {
    let names = PROPERTIES.iter().map(|property| property.name);
    let figures = FIGURES.iter().map(|figure| figure.name);
    all(names.chain(figures).chain(["all"]).map(str::to_owned), start)
}

fn assignments(start: &OsStr) -> Vec<CompletionCandidate> {
    if !start.to_string_lossy().contains('=') {
        return all(PROPERTIES.iter().map(|property| format!("{}=", property.name)), start);
    }
    let values = PROPERTIES
        .iter()
        .flat_map(|property| property.value_words().map(move |word| format!("{}={word}", property.name)));
    all(values, start)
}

/// Values of the property `compression`, except those that follow the load.
fn algorithms(start: &OsStr) -> Vec<CompletionCandidate> {
    let start = format!("compression={}", start.to_string_lossy());
    let values = assignments(OsStr::new(&start)).into_iter();
    let words = values.filter_map(|value| {
        let value = value.get_value().to_string_lossy().into_owned();
        value.strip_prefix("compression=").map(str::to_owned)
    });
    words.filter(|word| !word.starts_with("zstd-auto")).map(CompletionCandidate::new).collect()
}

/// Completes the last of several comma-separated options.
fn mount_options(start: &OsStr) -> Vec<CompletionCandidate> {
    let start = start.to_string_lossy();
    let (before, last) = start.rsplit_once(',').map_or(("", &*start), |(before, last)| (before, last));
    let before = if before.is_empty() { String::new() } else { format!("{before},") };
    all(option_words(), OsStr::new(last)).into_iter().map(|word| word.add_prefix(&before)).collect()
}

/// The words in the first column of the help for mount options, up to the `=`.
fn option_words() -> Vec<String> {
    let rows = OPTION_HELP.lines().filter_map(|line| line.strip_prefix("  "));
    let firsts = rows.filter(|row| !row.starts_with(' ')).filter_map(|row| row.split("  ").next());
    let words = firsts.filter(|first| !first.contains('(')).flat_map(|first| first.split(", "));
    words.map(|word| word.find('=').map_or(word, |at| &word[..=at]).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completions(candidates: Vec<CompletionCandidate>) -> Vec<String> {
        candidates.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn properties_and_their_values_are_offered() {
        assert_eq!(completions(assignments(OsStr::new("comp"))), ["compression="]);
        let values = completions(assignments(OsStr::new("compression=l")));
        assert_eq!(values, ["compression=lz4", "compression=lzjb"]);
        assert_eq!(completions(algorithms(OsStr::new("l"))), ["lz4", "lzjb"]);
        // The last of a list, of a property that is set at pool creation, and an alias.
        for word in ["utf8only=on", "normalization=formKD", "casesensitivity=mixed", "xattr=on"] {
            assert_eq!(completions(assignments(OsStr::new(word))), [word]);
        }
        assert!(completions(properties(OsStr::new(""))).contains(&"all".to_owned()));
    }

    #[test]
    fn the_last_mount_option_is_completed() {
        assert_eq!(completions(mount_options(OsStr::new("ro,comm"))), ["ro,commit="]);
        assert!(completions(mount_options(OsStr::new(""))).contains(&"noatime".to_owned()));
    }

    #[test]
    fn every_shell_has_a_script_that_calls_us() {
        for shell in SHELLS {
            let script = String::from_utf8(script(shell).unwrap_or_default()).unwrap_or_default();
            assert!(
                script.contains(&format!("{VARIABLE}=\"{shell}\""))
                    || script.contains(&format!("{VARIABLE}={shell}"))
            );
        }
        assert!(script("cmd.exe").is_err());
    }
}
