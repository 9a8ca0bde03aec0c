//! Logging: destinations, filters and formats.
//!
//! A daemon writes one line of `key=value` pairs for each event. It goes to standard error (for a background
//! mount that is its log file) or to the file of `--log`. For the journal the priority stands in front
//! instead of time and level. Other commands write sentences for the user at the terminal.
//!
//! `RUST_LOG` selects what is written, in the syntax of `env_filter`: comma-separated directives. Each is a level
//! (`debug`), a module and its level (`terrane_pool::gc=trace`, or shorter `pool::gc=trace`), or a module
//! alone, for all of it. The longest matching module decides. `/TEXT` at the end selects lines with that text.
//!
//! A daemon writes a bounded number of lines per minute of each kind of event ([`limit`]). A log in the state
//! directory is rotated at [`BYTES_MAX`] while the daemon runs: so the two files there never take much more
//! than twice that.
//!
//! Invariant: an event is one line, written by one call, so lines of several threads do not mix.

mod limit;

use crate::clock;
use crate::failure::{Failure, Outcome};
use env_filter::Filter;
use limit::{Limiter, SuppressedEvents};
use log::kv::{self, VisitSource};
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Names of our crates begin with this; in directives it may be left out.
const OURS: &str = "terrane_";
const VARIABLE: &str = "RUST_LOG";

fn short(module: &str) -> &str {
    module.strip_prefix(OURS).unwrap_or(module)
}

/// Parses the directives, for modules by their short names. The second value lists those that mean nothing.
fn parse(directives: &str, default: LevelFilter) -> (Filter, Vec<String>) {
    let (directives, text) =
        directives.split_once('/').map_or((directives, None), |(list, text)| (list, Some(text)));
    let mut builder = env_filter::Builder::new();
    builder.filter_level(default);
    let words = directives.split(',').map(str::trim).filter(|word| !word.is_empty());
    let is_module = |word: &str| !word.contains(' ') && !word.starts_with('=');
    let is_known = |word: &&str| is_module(word) && builder.try_parse(short(word)).is_ok();
    let (_, mut unknown): (Vec<&str>, Vec<&str>) = words.partition(is_known);
    if let Some(text) = text
        && builder.try_parse(&format!("/{text}")).is_err()
    {
        unknown.push(text);
    }
    (builder.build(), unknown.into_iter().map(str::to_owned).collect())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// For a person at a terminal.
    Sentence,
    /// `time=.. level=.. module=.. pool=.. msg=..`
    Pairs,
    /// The same for the journal, which knows time and level itself.
    Journal,
}

struct State {
    filter: Filter,
    style: Style,
    /// The pool that a daemon serves.
    pool: Option<String>,
    file: Option<File>,
    /// The path of the log file, or of the file that standard error is; `None` if it is no file of ours.
    path: Option<PathBuf>,
}

/// A longer log in the state directory is rotated.
pub const BYTES_MAX: u64 = 1 << 20;
/// How often that is checked, and suppressed lines are reported.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

struct Logger;

static LOGGER: Logger = Logger;
static STATE: RwLock<Option<State>> = RwLock::new(None);
static LIMITER: Mutex<Limiter> = Mutex::new(Limiter::new());
static COUNTS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

/// The levels, and how many lines each has had.
pub fn line_counts() -> Vec<(String, u64)> {
    let count =
        |level: Level| COUNTS.get(level as usize - 1).map_or(0, |count| count.load(Ordering::Relaxed));
    Level::iter().map(|level| (level.as_str().to_lowercase(), count(level))).collect()
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let state = STATE.read().unwrap_or_else(PoisonError::into_inner);
        let metadata = Metadata::builder().level(metadata.level()).target(short(metadata.target())).build();
        state.as_ref().is_some_and(|state| state.filter.enabled(&metadata))
    }

    fn log(&self, record: &Record<'_>) {
        let state = STATE.read().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = state.as_ref() else { return };
        let record = &record.to_builder().target(short(record.target())).build();
        if !state.filter.enabled(record.metadata()) {
            return;
        }
        // Whatever text is asked for: the counts tell of errors.
        if let Some(count) = COUNTS.get(record.level() as usize - 1) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if !state.filter.matches(record) {
            return;
        }
        let limiter = || LIMITER.lock().unwrap_or_else(PoisonError::into_inner);
        // A command writes all its lines, and exits.
        if state.style == Style::Sentence || limiter().passes(record, Instant::now()) {
            state.write(record);
        }
    }

    fn flush(&self) {}
}

impl State {
    fn write(&self, record: &Record<'_>) {
        let line = line(self.style, self.pool.as_deref(), &clock::now(), record);
        // If it fails there is nowhere to report it.
        let _ = match &self.file {
            Some(file) => { file }.write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }

    fn report_suppressed(&self, left_out: &SuppressedEvents) {
        let SuppressedEvents { level, target, count, last } = left_out;
        let fields = [("more", *count)];
        let mut builder = Record::builder();
        let builder = builder.level(*level).target(target).key_values(&fields);
        self.write(&builder.args(format_args!("{count} similar lines suppressed; the last: {last}")).build());
    }
}

/// Reopens a daemon's log by its path: for programs that rotate logs by renaming them.
pub fn reopen() -> Outcome {
    let mut state = STATE.write().unwrap_or_else(PoisonError::into_inner);
    let Some((state, path)) = state.as_mut().and_then(|state| state.path.clone().map(|path| (state, path)))
    else {
        return Ok(());
    };
    let file = open(&path).map_err(Failure::io("opening the log", &path))?;
    match &mut state.file {
        Some(old) => *old = file,
        None => terrane_fuse::process::replace_stderr(&file)
            .map_err(Failure::io("redirecting standard error to", &path))?,
    }
    Ok(())
}

/// Bounds a log from now on, in a thread of its own: reports suppressed lines, and rotates the file if it is
/// ours.
pub fn start_maintenance(rotates: bool) -> Outcome {
    let maintain = move || loop {
        std::thread::sleep(CHECK_PERIOD);
        let left_out = LIMITER.lock().unwrap_or_else(PoisonError::into_inner).end_periods(Instant::now());
        let state = STATE.read().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = state.as_ref() else { continue };
        left_out.iter().for_each(|left_out| state.report_suppressed(left_out));
        if let Some(path) = state.path.as_ref().filter(|_| rotates) {
            // A failed rotation is tried again; it could not be logged anyway.
            let _ = rotate(path, BYTES_MAX);
        }
    };
    std::thread::Builder::new().name("log".into()).spawn(maintain)?;
    Ok(())
}

/// If a log is longer than this, moves its content to a file beside it. The log itself stays the same file,
/// since several processes have it open. Lines written during the move may be lost.
fn rotate(path: &Path, bytes_max: u64) -> std::io::Result<()> {
    if std::fs::metadata(path)?.len() <= bytes_max {
        return Ok(());
    }
    let mut before = path.as_os_str().to_owned();
    before.push(".1");
    std::fs::copy(path, Path::new(&before))?;
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

/// Key-value fields that a log call adds to its message.
struct Pairs<'a>(&'a mut String);

impl<'kvs> VisitSource<'kvs> for Pairs<'_> {
    fn visit_pair(&mut self, key: kv::Key<'kvs>, value: kv::Value<'kvs>) -> Result<(), kv::Error> {
        pair(self.0, key.as_str(), &value.to_string());
        Ok(())
    }
}

fn pair(line: &mut String, key: &str, value: &str) {
    if !line.is_empty() && !line.ends_with('>') {
        line.push(' ');
    }
    let plain = |c: char| !c.is_control() && !" \"=\\".contains(c);
    // Writing to a `String` cannot fail.
    let _ = match !value.is_empty() && value.chars().all(plain) {
        true => write!(line, "{key}={value}"),
        false => write!(line, "{key}={value:?}"),
    };
}

fn line(style: Style, pool: Option<&str>, now: &str, record: &Record<'_>) -> String {
    let mut line = String::new();
    let level = record.level().as_str().to_lowercase();
    let text = record.args().to_string();
    match style {
        Style::Sentence => {
            let mut fields = String::new();
            // Our own visitor never fails.
            let _ = record.key_values().visit(&mut Pairs(&mut fields));
            line = format!("terrane: {level}: {}", text.replace('\n', " "));
            if !fields.is_empty() {
                let _ = write!(line, " ({fields})");
            }
        }
        Style::Pairs | Style::Journal => {
            if style == Style::Journal {
                // Priorities of syslog, which the journal strips.
                let priority = match record.level() {
                    Level::Error => 3,
                    Level::Warn => 4,
                    Level::Info => 6,
                    Level::Debug | Level::Trace => 7,
                };
                let _ = write!(line, "<{priority}>");
            } else {
                pair(&mut line, "time", now);
                pair(&mut line, "level", &level);
            }
            pair(&mut line, "module", short(record.target()));
            if let Some(pool) = pool {
                pair(&mut line, "pool", pool);
            }
            let _ = record.key_values().visit(&mut Pairs(&mut line));
            pair(&mut line, "msg", &text);
        }
    }
    line.push('\n');
    line
}

fn install(state: State, unknown: &[String]) {
    log::set_max_level(state.filter.filter());
    *STATE.write().unwrap_or_else(PoisonError::into_inner) = Some(state);
    // Fails if it is set already, and then it is ours.
    let _ = log::set_logger(&LOGGER);
    for word in unknown {
        log::warn!(
            "{VARIABLE}: {word:?} ignored: it should be a level (off, error, warn, info, debug, trace), a module, or MODULE=LEVEL"
        );
    }
}

fn filter(default: LevelFilter) -> (Filter, Vec<String>) {
    parse(&std::env::var(VARIABLE).unwrap_or_default(), default)
}

/// Starts logging, for a command in the foreground.
pub fn start() {
    let (filter, unknown) = filter(LevelFilter::Warn);
    install(State { filter, style: Style::Sentence, pool: None, file: None, path: None }, &unknown);
}

/// From now on logs as the daemon of a pool, into `file` if there is one. `path` is that of the file, or of
/// what standard error is.
pub fn serve(pool: &str, file: Option<File>, path: Option<PathBuf>) {
    let (filter, _) = filter(LevelFilter::Info);
    let style = if file.is_none() && stderr_is_the_journal() { Style::Journal } else { Style::Pairs };
    install(State { filter, style, pool: Some(pool.to_owned()), file, path }, &[]);
}

/// Opens a log file for appending; other programs may rotate or truncate it.
pub fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// systemd says which stream is its journal's: standard error may have been redirected since.
fn stderr_is_the_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").ok();
    let Some((device, inode)) = stream.as_deref().and_then(|stream| stream.split_once(':')) else {
        return false;
    };
    std::fs::metadata("/proc/self/fd/2")
        .is_ok_and(|meta| device.parse() == Ok(meta.dev()) && inode.parse() == Ok(meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_module_decides() {
        let (filter, unknown) = parse(
            "warn, terrane_pool=debug,pool::gc=trace ,terrane_fuse=off,zap,=info,fuse=loud,a b,a=b=c",
            LevelFilter::Info,
        );
        assert_eq!(unknown, ["=info", "fuse=loud", "a b", "a=b=c"]);
        let is_on = |level: Level, target: &str| {
            filter.enabled(&Metadata::builder().level(level).target(short(target)).build())
        };
        for (target, most) in [
            ("terrane_pool", LevelFilter::Debug),
            ("terrane_pool::txg_sync", LevelFilter::Debug),
            ("terrane_pool::gc", LevelFilter::Trace),
            ("terrane_pool::gc::victim", LevelFilter::Trace),
            ("terrane_fuse::session", LevelFilter::Off),
            ("terrane_zap", LevelFilter::Trace),
            ("terrane", LevelFilter::Warn),
        ] {
            for level in Level::iter() {
                assert_eq!(is_on(level, target), level <= most, "{target} {level}");
            }
        }
        assert_eq!(filter.filter(), LevelFilter::Trace);
        assert_eq!(parse("", LevelFilter::Warn).0.filter(), LevelFilter::Warn);
        assert_eq!(parse("OFF", LevelFilter::Warn).0.filter(), LevelFilter::Off);
    }

    #[test]
    fn lines_can_be_chosen_by_their_text() {
        let (filter, unknown) = parse("warn,pool=debug, fuse=off/zone", LevelFilter::Info);
        assert!(unknown.is_empty());
        let mut builder = Record::builder();
        let builder = builder.level(Level::Debug).target("pool::gc");
        assert!(filter.matches(&builder.args(format_args!("zone 7 is empty")).build()));
        assert!(!filter.matches(&builder.args(format_args!("txg 7 is durable")).build()));
    }

    #[test]
    fn an_event_is_one_line_of_pairs() {
        let fields = [("zone", 7)];
        let record = |text: std::fmt::Arguments<'_>, show: &dyn Fn(&Record<'_>)| {
            let mut builder = Record::builder();
            builder.args(text).level(Level::Warn).target("terrane_pool::gc").key_values(&fields);
            show(&builder.build());
        };
        record(format_args!("two \"words\"\nand a line"), &|record| {
            assert_eq!(
                line(Style::Pairs, Some("tank"), "NOW", record),
                "time=NOW level=warn module=pool::gc pool=tank zone=7 msg=\"two \\\"words\\\"\\nand a line\"\n"
            );
            assert_eq!(
                line(Style::Journal, None, "NOW", record),
                "<4>module=pool::gc zone=7 msg=\"two \\\"words\\\"\\nand a line\"\n"
            );
            assert_eq!(
                line(Style::Sentence, None, "NOW", record),
                "terrane: warn: two \"words\" and a line (zone=7)\n"
            );
        });
        record(format_args!("word"), &|record| {
            assert!(line(Style::Pairs, None, "NOW", record).ends_with(" zone=7 msg=word\n"));
        });
        record(format_args!(""), &|record| {
            assert!(line(Style::Pairs, None, "NOW", record).ends_with(" msg=\"\"\n"));
        });
    }

    #[test]
    fn a_long_log_is_moved_aside_and_stays_the_same_file() {
        let path = std::env::temp_dir().join(format!("terrane-rotate-{}.log", std::process::id()));
        let mut log = open(&path).unwrap();
        log.write_all(b"first\n").unwrap();
        rotate(&path, 6).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first\n", "not longer than that");
        rotate(&path, 5).unwrap();
        log.write_all(b"second\n").unwrap();
        let before = path.with_extension("log.1");
        assert_eq!(std::fs::read(&before).unwrap(), b"first\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"second\n");
        std::fs::remove_file(path).unwrap();
        std::fs::remove_file(before).unwrap();
    }

    #[test]
    fn a_stream_is_the_journal_only_if_it_is_that_stream() {
        assert!(!stderr_is_the_journal());
    }
}
