//! Metrics and logs of a pool at work: a strict parser accepts the metrics, and they follow the operations.
//!
//! Where `/dev/fuse` cannot be used, the tests of mounts say so and pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory with a pool; removed with its mount when the test ends, also if it fails.
struct TestDir {
    dir: PathBuf,
}

impl TestDir {
    fn new(name: &str) -> TestDir {
        let dir = std::env::temp_dir().join(format!("terrane-metrics-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("mnt")).unwrap();
        let dir = TestDir { dir };
        dir.run("pool create tank tank.img --size 128M");
        dir
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrane"));
        command.args(words.split_whitespace()).current_dir(&self.dir);
        command.env("TERRANE_STATE_DIR", self.path("state"));
        command.env_remove("RUST_LOG").env_remove("JOURNAL_STREAM");
        command
    }

    fn expect(&self, output: &Output, words: &str) -> String {
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "terrane {words}: {err}");
        String::from_utf8(output.stdout.clone()).unwrap()
    }

    fn run(&self, words: &str) -> String {
        self.expect(&self.command(words).output().unwrap(), words)
    }

    fn metrics(&self) -> Metrics {
        Metrics::parse(&self.run("metrics tank"))
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path("mnt")).stderr(Stdio::null()).status();
        let _ = Command::new("fusermount3").arg("-uz").arg(self.path("mnt")).stderr(Stdio::null()).status();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn can_mount() -> bool {
    let able = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !able {
        eprintln!("SKIPPED: /dev/fuse cannot be opened, so nothing is mounted and nothing of it tested");
    }
    able
}

/// Samples by name and labels, as written; parsed strictly by the exposition format.
struct Metrics {
    samples: BTreeMap<String, f64>,
    kinds: BTreeMap<String, String>,
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Splits `{a="b",c="d"} 1` into labels and value.
fn labels(mut text: &str) -> (Vec<(String, String)>, &str) {
    let mut found = Vec::new();
    text = text.strip_prefix('{').expect("labels");
    loop {
        let (name, rest) = text.split_once("=\"").expect("a label");
        assert!(is_name(name), "{name:?}");
        let mut value = String::new();
        let mut chars = rest.char_indices();
        let end = loop {
            match chars.next().expect("the end of a label") {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().expect("an escape").1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("escape {c:?}"),
                }),
                (_, c) => value.push(c),
            }
        };
        found.push((name.to_owned(), value));
        let rest = &rest[end + 1..];
        match rest.strip_prefix(',') {
            Some(rest) => text = rest,
            None => return (found, rest.strip_prefix("} ").expect("one space before the value")),
        }
    }
}

impl Metrics {
    fn parse(page: &str) -> Metrics {
        assert!(page.ends_with('\n'), "each line ends");
        let (mut samples, mut kinds) = (BTreeMap::new(), BTreeMap::new());
        // Of histograms: the buckets seen so far of a series, without `le`.
        let mut bounds: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        let mut family: Option<(String, String)> = None;
        let mut helped: Option<String> = None;
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("a help text");
                assert!(is_name(name) && help.ends_with('.') && !help.contains('\\'), "{line}");
                helped = Some(name.to_owned());
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert_eq!(helped.take().as_deref(), Some(name), "HELP, then TYPE");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                if kind == "histogram" {
                    assert!(name.ends_with("_seconds"), "{line}");
                }
                assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
                family = Some((name.to_owned(), kind.to_owned()));
                continue;
            }
            let at = line.find('{').unwrap_or_else(|| panic!("no labels in {line:?}"));
            let (name, rest) = line.split_at(at);
            let (mut labels, value) = labels(rest);
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number in {line:?}"));
            assert!(value >= 0.0 && value.is_finite(), "{line}");
            assert_eq!(labels[0], ("pool".to_owned(), "tank".to_owned()));
            let names: BTreeSet<&String> = labels.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), labels.len(), "{line}");
            let (of, kind) = family.as_ref().expect("a sample after its TYPE");
            if kind == "histogram" {
                let suffix = name.strip_prefix(of.as_str()).expect("a sample of its family");
                if suffix == "_bucket" {
                    let (le, bound) = labels.pop().unwrap();
                    assert_eq!(le, "le");
                    let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
                    let series = format!("{of}{labels:?}");
                    let before = bounds.insert(series, (bound, value)).unwrap_or((0.0, 0.0));
                    assert!(bound > before.0 && value >= before.1, "buckets grow: {line}");
                } else if suffix == "_count" {
                    let last = bounds[&format!("{of}{labels:?}")];
                    assert_eq!(last, (f64::INFINITY, value), "{line}");
                } else {
                    assert_eq!(suffix, "_sum", "{line}");
                }
            } else {
                assert_eq!(name, of, "a sample of its family");
            }
            assert!(samples.insert(line.rsplit_once(' ').unwrap().0.to_owned(), value).is_none(), "{line}");
        }
        assert!(helped.is_none());
        Metrics { samples, kinds }
    }

    fn get(&self, name: &str, labels: &str) -> f64 {
        let labels = if labels.is_empty() { String::new() } else { format!(",{labels}") };
        let key = format!("terrane_{name}{{pool=\"tank\"{labels}}}");
        *self.samples.get(&key).unwrap_or_else(|| panic!("there is no {key}"))
    }
}

#[test]
fn metrics_are_well_formed_and_follow_what_is_done() {
    let dir = TestDir::new("count");
    let alone = dir.metrics();
    assert_eq!(alone.get("mounted", ""), 0.0);
    assert!(alone.get("pool_available_bytes", "") > 50e6 && alone.get("zones", "state=\"empty\"") > 50.0);
    assert!(!alone.kinds.contains_key("terrane_fuse_request_seconds"));
    if !can_mount() {
        return;
    }
    dir.run("mount --metrics 127.0.0.1:0 tank mnt");
    let before = dir.metrics();
    assert_eq!(before.get("mounted", ""), 1.0);
    let mnt = dir.path("mnt");
    let data: Vec<u8> = (0..3_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(mnt.join("file"), &data).unwrap();
    fs::create_dir(mnt.join("dir")).unwrap();
    assert!(fs::create_dir(mnt.join("dir")).is_err());
    fs::File::open(mnt.join("file")).unwrap().sync_all().unwrap();
    let after = dir.metrics();
    let grew = |name: &str, labels: &str| after.get(name, labels) - before.get(name, labels);
    assert!(grew("fuse_written_bytes_total", "") >= 12e6);
    assert!(grew("zone_written_bytes_total", "class=\"data\"") >= 11e6);
    assert!(grew("zone_written_blocks_total", "class=\"metadata A\"") >= 1.0);
    assert!(grew("txg_sync_seconds_count", "") >= 1.0 && grew("txg_sync_seconds_sum", "") > 0.0);
    assert!(grew("life_user_bytes_total", "") >= 12e6);
    assert!(grew("life_device_bytes_total", "use=\"data\"") >= 11e6);
    assert!(after.get("write_amplification", "window=\"life\"") > 0.9);
    assert!(after.get("write_amplification", "window=\"minute\"") > 0.9);
    assert!(grew("committed_txg", "") >= 1.0 && grew("device_flushes_total", &device(&after)) >= 2.0);
    assert!(grew("pool_used_bytes", "") >= 11e6);
    assert!(after.get("fuse_request_seconds_count", "operation=\"mkdir\"") >= 1.0);
    assert_eq!(after.get("fuse_request_seconds_count", "operation=\"fsync\""), 1.0);
    assert!(after.get("block_logical_bytes_total", "") >= after.get("block_stored_bytes_total", ""));
    assert_eq!(after.get("checksum_errors_total", ""), 0.0);
    assert!(after.get("resident_memory_bytes", "") > 1e6);
    // Overwritten in place.
    let file = fs::OpenOptions::new().write(true).open(mnt.join("file")).unwrap();
    (&file).write_all(&data).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let again = dir.metrics();
    assert_eq!(again.get("nopwrite_blocks_total", ""), 92.0);
    assert_eq!(again.get("nopwrite_bytes_total", ""), 12e6);
    assert_eq!(
        again.get("life_device_bytes_total", "use=\"data\""),
        after.get("life_device_bytes_total", "use=\"data\"")
    );
    // No counter has decreased.
    for (name, value) in &before.samples {
        let family = name.split('{').next().unwrap();
        let grows = ["_total", "_count", "_sum", "_bucket"].iter().any(|end| family.ends_with(end));
        assert!(!grows || after.samples[name] >= *value, "{name}");
    }
    dir.run("umount mnt");
    assert_eq!(dir.metrics().get("mounted", ""), 0.0);
}

/// The label of the only device.
fn device(metrics: &Metrics) -> String {
    let line = metrics.samples.keys().find(|key| key.starts_with("terrane_device_flushes_total")).unwrap();
    let at = line.find("device=").unwrap();
    line[at..].trim_end_matches('}').to_owned()
}

fn http(port: u16, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(request.as_bytes())?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    Ok(heard)
}

#[test]
fn a_mount_answers_scrapers_and_logs_into_its_file() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("serve");
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let words = format!("mount -o metrics=127.0.0.1:{port},log=tank.log tank mnt");
    let mut command = dir.command(&words);
    command.env("RUST_LOG", "warn,terrane=info,pool::txg_sync=debug");
    dir.expect(&command.output().unwrap(), &words);
    let page = http(port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK") && head.contains("version=0.0.4"), "{head}");
    assert_eq!(Metrics::parse(body).get("mounted", ""), 1.0);
    assert!(http(port, "GET /etc/passwd HTTP/1.1\r\n\r\n").unwrap().starts_with("HTTP/1.0 404 "));
    fs::write(dir.path("mnt/file"), "x").unwrap();
    dir.run("sync tank");
    dir.run("umount mnt");
    let log = fs::read_to_string(dir.path("tank.log")).unwrap();
    for line in log.lines() {
        assert!(line.starts_with("time=20") && line.contains(" level=") && line.contains(" msg="), "{line}");
        assert!(line.contains(" pool=tank "), "{line}");
    }
    let committed = log.lines().find(|line| line.contains("module=pool::txg_sync") && line.contains(" txg="));
    assert!(committed.is_some_and(|line| line.contains("level=debug")), "{log}");
    assert!(log.contains(&format!("device={}", dir.path("tank.img").display())), "{log}");
    assert!(!dir.path("state/tank.log").exists(), "one log is enough");
}

#[test]
fn an_address_that_is_taken_is_refused_before_the_mount() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("taken");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [taken.local_addr().unwrap().to_string(), "nowhere".to_owned()] {
        let output = dir.command(&format!("mount --metrics {address} tank mnt")).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && err.contains("ADDRESS:PORT"), "{err}");
    }
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(dir.path("mnt").to_str().unwrap()));
    assert!(dir.run("pool status tank").contains("tank.img"));
}

#[test]
fn under_systemd_lines_begin_with_their_priority() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("journal");
    let journal = fs::File::create(dir.path("journal")).unwrap();
    let meta = journal.metadata().unwrap();
    let stream = format!("{}:{}", meta.dev(), meta.ino());
    let mut child =
        dir.command("mount -f tank mnt").env("JOURNAL_STREAM", stream).stderr(journal).spawn().unwrap();
    let mounted = |path: &Path| {
        fs::read_to_string("/proc/self/mounts").unwrap().contains(&format!(" {} ", path.display()))
    };
    let begun = std::time::Instant::now();
    while !mounted(&dir.path("mnt")) {
        assert!(begun.elapsed().as_secs() < 20, "it does not mount");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    dir.run("umount mnt");
    assert!(child.wait().unwrap().success());
    let log = fs::read_to_string(dir.path("journal")).unwrap();
    assert!(log.lines().count() >= 2, "{log}");
    assert!(log.lines().all(|line| line.starts_with("<6>module=") && line.contains(" pool=tank ")), "{log}");
}

#[test]
fn a_daemon_stays_within_its_memory() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("memory");
    let refused = dir.command("mount --memory 1M tank mnt").output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "less than it needs is a mistake");
    fs::remove_file(dir.path("tank.img")).unwrap();
    dir.run("pool create tank tank.img --size 1G --force");
    dir.run("mount --memory 192M tank mnt");
    // More than its limits, for reads and for writes.
    let data: Vec<u8> = (0..8_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    for number in 0..12 {
        fs::write(dir.path(&format!("mnt/{number}")), &data).unwrap();
    }
    dir.run("sync tank");
    dir.run("umount mnt");
    dir.run("mount --memory 192M tank mnt");
    for number in 0..12 {
        assert!(fs::read(dir.path(&format!("mnt/{number}"))).unwrap() == data, "{number}");
    }
    let metrics = dir.metrics();
    assert!(metrics.get("cache_limit_bytes", "") <= 96e6 * 1.05);
    assert!(metrics.get("dirty_limit_bytes", "") <= 48e6 * 1.05);
    let resident = metrics.get("resident_memory_bytes", "");
    assert!(resident < f64::from(192 << 20), "{resident}");
    dir.run("umount mnt");
}
