//! Examples for help and manual pages.
//!
//! They are in `examples.txt`, one section per command, and are put below its help here, in one place. A test
//! refuses a command without one, and `tests/transcripts.rs` runs every one of them and compares the output.

use clap::Command;

/// Sections begin with a line such as `== terrane pool create`; then the commands that are typed, and what
/// they print.
const EXAMPLES: &str = include_str!("examples.txt");
/// For messages and help.
pub const OPTION_HELP: &str = "\
Options after -o, separated by commas:
  ro, rw                  read-only: nothing is written, not even crash recovery
  PROPERTY=VALUE          a property (see `terrane fs get`) for as long as it is mounted: compression=zstd-3
  memory=SIZE             memory limit of the daemon; see --memory
  commit=SECONDS          longest time that a change stays uncommitted (5)
  discard, nodiscard      discard emptied zones on the file or disk below (discard)
  rewind=TXG              import an older txg, and discard all later changes
  record=FILE             record births and frees of blocks, for `terrane-sim gc --trace recorded:FILE`; an absolute path
  log=FILE                log file; see --log
  metrics=ADDRESS:PORT    serve metrics for Prometheus; see --metrics
  noatime, nodiratime, relatime, strictatime, nodev, dev, nosuid, suid, noexec, exec, nosymfollow
  sync, async, dirsync    commit with every change
  allow_other             other users have access (default for root)
  default_permissions     the kernel checks modes and owners (default_permissions)
  no_default_permissions  modes and owners are not checked. Only the mounting user has access; with allow_other all users have,
                          and the mount is nosuid and nodev
  direct_io, nodirect_io  the kernel caches no file contents
  birth_times, nobirth_times  statx shows birth times; costs one more request at the first stat of a file (nobirth_times)
  uring, nouring          requests come through io_uring if the kernel allows it; the mount then ends with its daemon (nouring)
  on_crash=continue|end   when the server is killed: start another server (continue); or end the mount, programs get errors
                          until it is mounted again (end)
  crashproof=on|off       keep uncommitted changes in memory for that server, an eighth of memory=, 128M at most (on); or lose them
  follow[=SECONDS]        show what another machine commits to a pool in an object store, after so many seconds (1); read-only
  threads=COUNT           threads that read requests, 3 to 64 (16, or down to 8 if memory= is small or mounts are many)
  max_background=COUNT    background requests in progress (64)
  entry_timeout=, attr_timeout=, negative_timeout=SECONDS
  source=NAME             what `mount` shows as the source
  remount                 change ro, rw, memory= and the flags above of an existing mount
  defaults, auto, noauto, user, nouser, users, owner, group, _netdev, nofail, lazytime, iversion, silent, x-*, comment=* (ignored)
";

/// Heads the part of a help text that shows examples.
pub const EXAMPLES_HEAD: &str = "Examples:";

/// Command and examples of each section. In brackets after a command is what its test needs before.
fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let sections = EXAMPLES.split("\n== ").skip(1).filter_map(|section| section.split_once('\n'));
    sections.map(|(head, body)| (head.split(" (").next().unwrap_or(head), body.trim_matches('\n')))
}

/// The examples of a command, named as it is typed.
pub fn examples(command: &str) -> Option<&'static str> {
    all().find(|(head, _)| *head == command).map(|(_, body)| body)
}

/// This command line, with each command's examples below its help.
pub fn with_examples(command: Command) -> Command {
    let name = command.get_name().to_owned();
    add(command, &name)
}

fn add(command: Command, path: &str) -> Command {
    let command = command.mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name());
        add(sub, &path)
    });
    let Some(examples) = examples(path) else { return command };
    let before = command.get_after_help().map(|text| format!("{}\n\n", text.to_string().trim_end()));
    let indented: Vec<String> =
        examples.lines().map(|line| format!("  {line}").trim_end().to_owned()).collect();
    command.after_help(format!("{}{EXAMPLES_HEAD}\n{}", before.unwrap_or_default(), indented.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_examples(command: &Command, path: &str, found: &mut Vec<String>) {
        if examples(path).is_none_or(|text| !text.contains("$ ")) {
            found.push(path.to_owned());
        }
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            without_examples(sub, &format!("{path} {}", sub.get_name()), found);
        }
    }

    #[test]
    fn every_command_has_an_example() {
        let mut found = Vec::new();
        without_examples(&crate::command_definition(), "terrane", &mut found);
        assert!(found.is_empty(), "examples.txt has no section with a command for: {}", found.join(", "));
    }

    #[test]
    fn every_example_is_of_a_command() {
        let definition = crate::command_definition();
        // The page of mount(8)'s helper is not made from a command.
        for (head, _) in all().filter(|(head, _)| *head != "mount.terrane") {
            let mut at = &definition;
            for word in head.split(' ').skip(1) {
                let sub = at.find_subcommand(word);
                at = sub.unwrap_or_else(|| panic!("examples.txt: there is no command {head:?}"));
            }
        }
    }
}
