//! Runs each command that README.md and the examples below `--help` show, and compares its output.
//!
//! A transcript is lines: `$ ` begins a command, `> ` continues it, and its output follows. `...` marks
//! omitted output; a command with nothing below it prints nothing. Numbers and column widths may differ,
//! nothing else. Every command ends with exit code 0.
//!
//! Each transcript runs in a mount and process namespace of its own, in which /var/lib, /mnt, /run, /dev,
//! /etc/fstab, /usr/local and /usr/sbin are private. So commands run exactly as the page shows them, and
//! nothing is left behind: the processes end with the namespace, and their mounts with them. Where no such
//! namespace can be created, the test says so and passes.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

#[allow(dead_code, reason = "a program of its own, that does not need all of it")]
mod support;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A command and its expected output.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    command: String,
    output: Vec<String>,
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), output: Vec::new() });
        } else if let Some(step) = steps.last_mut() {
            match line.strip_prefix("> ").filter(|_| step.output.is_empty()) {
                Some(more) => step.command = format!("{}\n{more}", step.command),
                None => step.output.push(line.to_owned()),
            }
        }
    }
    steps
}

/// Replaces numbers with their units, and long hexadecimal names, by `#`, and runs of blanks by one, so that
/// a page does not fail because a megabyte more is free.
fn plain(line: &str) -> String {
    let is_id = |word: &str| word.len() >= 8 && word.chars().all(|c| c.is_ascii_hexdigit());
    let line: Vec<&str> =
        line.split(' ').map(|word| if is_id(word.trim_end_matches('.')) { "#" } else { word }).collect();
    let line = line.join(" ");
    let mut out = String::new();
    let mut chars = line.trim().chars().peekable();
    while let Some(c) = chars.next() {
        let word_before = out.ends_with(|before: char| before.is_ascii_alphabetic());
        if c.is_ascii_digit() && !word_before {
            if c == '0' && chars.next_if_eq(&'x').is_some() {
                while chars.next_if(char::is_ascii_hexdigit).is_some() {}
            }
            while chars.next_if(|c| c.is_ascii_digit() || *c == '.').is_some() {}
            if chars.peek().is_some_and(|c| "KMGT".contains(*c)) {
                chars.next();
            }
            out.push('#');
        } else if c == ' ' || c == '\t' {
            while chars.next_if(|c| *c == ' ' || *c == '\t').is_some() {}
            out.push(' ');
        } else {
            out.push(c);
        }
    }
    out
}

fn agrees(expected: &[String], found: &[String]) -> bool {
    match expected.split_first() {
        None => found.is_empty(),
        Some((line, rest)) if line.trim() == "..." => {
            (0..=found.len()).any(|skip| agrees(rest, &found[skip..]))
        }
        Some((line, rest)) => found
            .split_first()
            .is_some_and(|(first, found)| plain(line) == plain(first) && agrees(rest, found)),
    }
}

fn without_blank_ends(lines: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.into_iter().skip_while(|line| line.trim().is_empty()).collect();
    while lines.last().is_some_and(|line| line.trim().is_empty()) {
        lines.pop();
    }
    lines
}

/// The directories that a transcript may write to.
const PRIVATE_DIRS: &str = r#"
set -e
# In memory: where the temporary directory is an overlay itself, another cannot lie on it.
mount -t tmpfs -o mode=755 tmpfs "$T"
mkdir -p "$T"/{lib,mnt,run,dev,local,sbin,work1,work2}
touch "$T/fstab"
# The state of this user, and a disk.
export HOME="$T" TERRANE_STATE_DIR= XDG_RUNTIME_DIR=
truncate -s 2G "$T/dev/sdb" && chmod 600 "$T/dev/sdb"
for node in null zero urandom tty fuse; do
    [ -e /dev/$node ] || continue
    touch "$T/dev/$node"
    mount --bind /dev/$node "$T/dev/$node"
done
mkdir -p "$T/dev/shm"
ln -s /proc/self/fd "$T/dev/fd"
mount --rbind "$T/dev" /dev
mount -t overlay overlay -o "lowerdir=/usr/local,upperdir=$T/local,workdir=$T/work1" /usr/local
mount -t overlay overlay -o "lowerdir=/usr/sbin,upperdir=$T/sbin,workdir=$T/work2" /usr/sbin
[ ! -e /etc/fstab ] || mount --bind "$T/fstab" /etc/fstab
mount --bind "$T/lib" /var/lib
mount --bind "$T/run" /run
mount --bind "$T/mnt" /mnt
set +e
# Already root here.
sudo() { "$@"; }
export LC_ALL=C TERM=dumb NO_COLOR=1
# What is built is what this test was built with.
export CARGO=true
unset RUST_LOG
"#;
/// The installed program runs, not the built one.
const INSTALLED: &str = "PATH=/usr/local/sbin:/usr/local/bin:$PATH\n";
const POOL: &str = "terrane pool create tank /var/lib/tank.img --size 1G -o compression=zstd-3\n";
/// What `make install` creates for mount(8), and a line for it.
const HELPER: &str = "ln -sfn \"$TERRANE\" /usr/sbin/mount.terrane\n\
                      echo '/var/lib/tank.img  /mnt  terrane  noauto,noatime  0  0' >>/etc/fstab\n";
const MOUNT: &str =
    "terrane mount tank /mnt && mkdir /mnt/src && seq 100000 >/mnt/src/numbers && terrane sync tank\n";

struct Session {
    dir: PathBuf,
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn namespace() -> Command {
    let mut command = Command::new("unshare");
    // A `make` that runs these tests must be invisible to the one in a transcript: it would print messages
    // about directories.
    for variable in ["MAKELEVEL", "MAKEFLAGS", "MFLAGS"] {
        command.env_remove(variable);
    }
    command.args(["--mount", "--fork", "--pid", "--kill-child", "--mount-proc"]);
    let root = fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0);
    if !root {
        command.arg("--map-root-user");
    }
    command
}

/// Whether transcripts can run here. If not, a message says so, and readers of the log count it.
fn can_play() -> bool {
    // Two tests may probe at once, and one must not remove the other's directory.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name =
        format!("terrane-transcript-probe-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().join(name);
    let session = Session { dir };
    let script = format!("{PRIVATE_DIRS}\nset -e; test -w /dev/fuse; mount -t tmpfs none /mnt");
    let outcome = play_script(&session, &script);
    let able = outcome.as_ref().is_ok_and(|(ok, _)| *ok);
    if !able {
        eprintln!(
            "\n*** SKIPPED: no private mounts, or no /dev/fuse, here; transcripts are not played: {outcome:?} ***\n"
        );
    }
    able
}

/// Whether it succeeded, and what it printed.
fn play_script(session: &Session, script: &str) -> std::io::Result<(bool, String)> {
    fs::create_dir_all(&session.dir)?;
    let program = Path::new(env!("CARGO_BIN_EXE_terrane"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = namespace();
    command.args(["bash", "-c", &format!("exec 2>&1\n{script}")]).stdin(Stdio::null());
    command.env("T", &session.dir).env("TERRANE", program).env("PATH", path).current_dir(root());
    let output = command.output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

/// Runs a transcript after `before`, and returns the output of each command; or describes the difference.
fn play(name: &str, before: &str, steps: &[Step]) -> Result<Vec<Vec<String>>, String> {
    let slug: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let dir = std::env::temp_dir().join(format!("terrane-transcript-{slug}-{}", std::process::id()));
    let session = Session { dir };
    // Lines that no command prints.
    let mark = '\u{1}';
    let cut = format!("\n{mark}");
    let mut script = format!("{PRIVATE_DIRS}\n{before}\n");
    for step in steps {
        writeln!(script, "printf '\\n{mark}\\n'\n{}\nprintf '\\n{mark}%d\\n' $?", step.command).unwrap();
    }
    script.push_str("while umount /mnt 2>/dev/null; do :; done\n");
    let (_, printed) = play_script(&session, &script).map_err(|error| error.to_string())?;
    // The output before the first step, then for each step its output and exit code.
    let mut pieces = printed.split(cut.as_str());
    let setup = pieces.next().unwrap_or_default().trim();
    if !setup.is_empty() {
        return Err(format!("{name}: before the first command: {setup}"));
    }
    let mut outputs = Vec::new();
    for step in steps {
        let output = pieces.next().ok_or_else(|| format!("{name}: {} was never run", step.command))?;
        let code = pieces.next().unwrap_or("none\n");
        let found = without_blank_ends(output.lines().map(|line| line.trim_end().to_owned()));
        let expected = without_blank_ends(step.output.iter().map(|line| line.trim_end().to_owned()));
        let code = code.lines().next().unwrap_or("none");
        let accepted = agrees(&expected, &found) || blessed(&expected);
        if code != "0" || !accepted {
            let (expected, found) = (expected.join("\n"), found.join("\n"));
            return Err(format!(
                "{name}\n$ {}\nexit code {code}\n--- the page says\n{expected}\n--- it printed\n{found}\n---",
                step.command
            ));
        }
        outputs.push(if agrees(&expected, &found) { expected } else { found });
    }
    Ok(outputs)
}

fn blessed(expected: &[String]) -> bool {
    std::env::var_os("TERRANE_BLESS").is_some() && !expected.iter().any(|line| line.trim() == "...")
}

/// The transcript with its actual output.
fn rewritten(steps: &[Step], outputs: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (step, output) in steps.iter().zip(outputs) {
        writeln!(text, "$ {}", step.command.replace('\n', "\n> ")).unwrap();
        for line in output {
            writeln!(text, "{line}").unwrap();
        }
    }
    text
}

#[test]
fn the_examples_of_every_help_and_manual_page_work() {
    if !can_play() {
        return;
    }
    support::hints_library();
    let path = root().join("crates/cli/src/examples.txt");
    let mut text = fs::read_to_string(&path).unwrap();
    let mut failures = Vec::new();
    // In brackets after a command is what must exist before; without brackets: a mounted pool.
    for section in text.clone().split("\n== ").skip(1) {
        let (head, body) = section.split_once('\n').unwrap();
        let (name, state) = head.split_once(" (").unwrap_or((head, "mounted)"));
        let before = match state {
            "nothing)" => String::new(),
            "unmounted)" => format!("{POOL}{HELPER}"),
            "mounted)" => format!("{POOL}{MOUNT}"),
            other => panic!("examples.txt: {name}: what is ({other}?"),
        };
        let steps = steps(body);
        assert!(!steps.is_empty(), "examples.txt: {name} shows no command");
        match play(name, &before, &steps) {
            Ok(outputs) => {
                let old = format!("\n== {head}\n{}", body.trim_matches('\n'));
                text =
                    text.replace(&old, &format!("\n== {head}\n{}", rewritten(&steps, &outputs).trim_end()));
            }
            Err(failure) => failures.push(failure),
        }
    }
    if std::env::var_os("TERRANE_BLESS").is_some() {
        fs::write(&path, text).unwrap();
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn what_the_readme_shows_works_from_install_to_uninstall() {
    let path = root().join("README.md");
    let mut page = fs::read_to_string(&path).unwrap();
    // One session from the first block to the last, as a reader types them.
    let before = page.clone();
    let blocks: Vec<&str> =
        before.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let of_blocks: Vec<Vec<Step>> = blocks.iter().map(|block| steps(block)).collect();
    let all = of_blocks.concat();
    assert!(all.len() > 5, "README.md shows how it is used in blocks of `console`");
    if !can_play() {
        return;
    }
    support::hints_library();
    let mut outputs = play("README.md", INSTALLED, &all).unwrap_or_else(|failure| panic!("{failure}"));
    for (block, steps) in blocks.iter().zip(of_blocks) {
        let rest = outputs.split_off(steps.len());
        page = page.replace(block, &rewritten(&steps, &outputs));
        outputs = rest;
    }
    if std::env::var_os("TERRANE_BLESS").is_some() {
        fs::write(&path, page).unwrap();
    }
}

#[test]
fn pages_are_compared_but_for_numbers() {
    assert_eq!(plain("tank   1.46G  0 "), plain("tank 16M 7"));
    assert_eq!(plain("blake3 23fae0cd9af4b6c9.. -"), plain("blake3 ffffeeeedddd1111.. -"));
    assert_eq!(plain("1:0x61a0"), plain("2:0x5"));
    assert_ne!(plain("lz4"), plain("lz5"));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(agrees(&lines("a\n...\nd 1"), &lines("a\nb\nc\nd 22")));
    assert!(!agrees(&lines("a"), &lines("a\nb")) && !agrees(&lines("a\n..."), &lines("b")));
    assert_eq!(steps("text\n$ a \\\n> b\n> c"), [Step { command: "a \\\nb\nc".to_owned(), output: vec![] }]);
    assert_eq!(steps("$ a \\\n> b\n\n> c")[0].output, ["", "> c"]);
}
