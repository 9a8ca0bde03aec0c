//! Each workload, small, on a temporary directory.

use super::*;

/// Runs the command line as a user would, on a fresh directory.
fn bench(args: &[&str]) -> (tempfile::TempDir, Report) {
    bench_env(args, None).unwrap()
}

fn bench_env(args: &[&str], between: Option<&str>) -> Result<(tempfile::TempDir, Report)> {
    let tmp = tempfile::tempdir()?;
    let cli = Cli::parse_from([&["fsbench"], args].concat());
    let root = tmp.path().join("root");
    std::fs::create_dir(&root)?;
    let env = Env { root, between_cmd: between.map(String::from), sync_cmd: None, seed: cli.seed };
    let report = super::run(&env, &cli.work)?;
    Ok((tmp, report))
}

fn row<'a>(report: &'a Report, phase: &str) -> &'a report::Row {
    report.rows.iter().find(|r| r.phase == phase).unwrap_or_else(|| panic!("no row {phase}"))
}

#[test]
fn meta_counts_every_object_and_leaves_none() {
    let (tmp, report) = bench(&["meta", "--files", "60", "--dirs", "7", "--rename-pct", "50"]);
    for phase in ["file create", "file stat", "readdir (names)", "file unlink", "dir create", "dir remove"] {
        assert_eq!(row(&report, phase).ops, 60, "{phase}");
    }
    assert_eq!(row(&report, "file rename").ops, 30);
    for dir in std::fs::read_dir(tmp.path().join("root/files")).unwrap() {
        assert_eq!(std::fs::read_dir(dir.unwrap().path()).unwrap().count(), 0);
    }
}

#[test]
fn space_reports_each_kind() {
    let (_tmp, report) = bench(&["space", "--count", "20", "--per-dir", "6"]);
    assert_eq!(report.rows.len(), 5);
    assert!(report.rows.iter().all(|r| r.extra.contains_key("bytes_each")));
}

#[test]
fn xattr_prints_a_table_even_where_sizes_are_refused() {
    let (_tmp, report) = bench(&["xattr", "--files", "10", "--dirs", "2", "--bytes", "1,256,65536"]);
    assert!(report.text.lines().any(|l| l.starts_with("65536 |")), "{}", report.text);
    assert_eq!(report.text.lines().count(), 3 + 3);
}

#[test]
fn xattr_values_are_equal_unless_each_file_should_have_its_own() {
    for (flag, count) in [("--threads=1", 1), ("--distinct", 10)] {
        let (tmp, report) = bench(&["xattr", "--files", "10", "--dirs", "2", "--bytes", "200", flag]);
        if report.text.contains("n/a") {
            eprintln!("SKIPPED: extended attributes are refused in {}", tmp.path().display());
            return;
        }
        let dirs = (0..2).map(|dir| tmp.path().join(format!("root/x200/d{dir:05}")));
        let files = dirs.flat_map(|dir| std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()));
        let values = files.map(|path| {
            let mut value = [0; 200];
            assert_eq!(rustix::fs::getxattr(path, "user.fsbench", &mut value), Ok(200));
            value
        });
        assert_eq!(values.collect::<std::collections::BTreeSet<_>>().len(), count, "{flag}");
    }
}

#[test]
fn find_sees_the_whole_tree_and_runs_the_hook() {
    let mark = tempfile::tempdir().unwrap();
    let hook = format!("echo \"$FSBENCH_NEXT_PHASE\" >> {}/log", mark.path().display());
    let (_tmp, report) = bench_env(&["find", "--dirs", "3", "--files", "4"], Some(&hook)).unwrap();
    assert_eq!(row(&report, "find names").ops, 15);
    let log = std::fs::read_to_string(mark.path().join("log")).unwrap();
    assert_eq!(log, "find names\nfind with stat\n");
}

#[test]
fn a_failing_hook_is_an_error() {
    assert!(bench_env(&["find", "--dirs", "1", "--files", "1"], Some("exit 3")).is_err());
}

#[test]
fn seq_repeats_the_input_up_to_the_size() {
    let input = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(input.path(), vec![7u8; 40_000]).unwrap();
    let path = input.path().to_str().unwrap();
    let args = ["seq", "--input", path, "--size", "100000", "--chunk", "8192", "--random", "20"];
    let (tmp, report) = bench(&args);
    assert_eq!(row(&report, "seq read").bytes, 100_000);
    assert_eq!(row(&report, "random overwrite").ops, 20);
    assert_eq!(std::fs::metadata(tmp.path().join("root/corpus")).unwrap().len(), 100_000);
}

#[test]
fn smallfiles_copies_a_tree() {
    let from = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(from.path().join("a/b")).unwrap();
    std::fs::write(from.path().join("a/b/f"), "hello").unwrap();
    std::fs::write(from.path().join("empty"), "").unwrap();
    std::os::unix::fs::symlink("a/b/f", from.path().join("link")).unwrap();
    let (tmp, report) = bench(&["smallfiles", "--input-dir", from.path().to_str().unwrap()]);
    assert_eq!(row(&report, "untar + syncfs").ops, 5);
    assert_eq!(row(&report, "read all").ops, 2);
    let copy = tmp.path().join("root/tree/link");
    assert_eq!(std::fs::read_to_string(copy).unwrap(), "hello");
}

#[test]
fn fsync_runs_each_thread_count() {
    let (_tmp, report) = bench(&["fsync", "--threads", "1,2", "--secs", "0.05", "--replace"]);
    assert!(row(&report, "append+fsync x1").ops > 0);
    assert!(row(&report, "replace x2").ops > 0);
    assert!(row(&report, "append+fsync x2").latency.is_some());
}

#[test]
fn gc_keeps_its_level_and_verifies() {
    let args = [
        "gc",
        "--limit",
        "4000000",
        "--secs",
        "0.3",
        "--min-size",
        "1000",
        "--max-size",
        "200000",
        "--seed",
        "9",
    ];
    let (_tmp, report) = bench(&args);
    assert_eq!(row(&report, "verify").extra["bad_files"], 0);
    let level = row(&report, "verify").bytes as f64 / 4e6;
    assert!((0.85..=0.95).contains(&level), "{level}");
    assert!(row(&report, "churn").ops > 0);
}

#[test]
fn gc_writes_several_files_at_once_and_still_keeps_its_level() {
    let args = [
        "gc",
        "--limit",
        "40000000",
        "--secs",
        "0.3",
        "--min-size",
        "1500000",
        "--max-size",
        "1500000",
        "--writers",
        "7",
    ];
    let (_tmp, report) = bench(&args);
    let verify = row(&report, "verify");
    assert_eq!((&verify.extra["bad_files"], &verify.extra["errors"]), (&0.into(), &serde_json::json!({})));
    assert_eq!(verify.ops, 25, "25 files of 1.5 MB are 95 % of 40 MB, less than one file");
    assert!(row(&report, "churn").ops > 7);
    assert!(bench_env(&["gc", "--writers", "0"], None).is_err());
}

#[test]
fn gc_asks_around_each_phase_what_was_written() {
    let asked = tempfile::NamedTempFile::new().unwrap();
    let command = format!("echo . >>{0}; cat {0} | tr -d '\n' | wc -c", asked.path().display());
    let args =
        ["gc", "--limit", "1000000", "--secs", "0.1", "--max-size", "100000", "--written-cmd", &command];
    let (_tmp, report) = bench(&args);
    for phase in ["fill", "churn"] {
        let row = row(&report, phase);
        assert_eq!(row.extra["device_bytes"], 1, "{phase}");
        assert_eq!(row.extra["write_amplification"], 1.0 / row.bytes as f64, "{phase}");
    }
    assert!(bench_env(&["gc", "--limit", "1", "--written-cmd", "echo nothing"], None).is_err());
}

#[test]
fn turnover_writes_its_volume_and_stops_at_its_level() {
    let args = ["turnover", "--limit-mib", "40", "--span-mib", "4", "--percent", "80", "--volume", "50"];
    // Not every file system supports direct I/O; on one that refuses it there is nothing to test.
    let (_tmp, report) = match bench_env(&args, None) {
        Err(error) if error.to_string().contains("create") => return eprintln!("SKIPPED: {error}"),
        outcome => outcome.unwrap(),
    };
    let fill = row(&report, "fill").bytes >> 20;
    assert!((32..=36).contains(&fill), "80 % of 40 MiB, and a file of up to 4 MiB more: {fill}");
    for phase in ["mixed direct", "mixed buffered"] {
        let written = row(&report, phase).bytes >> 20;
        assert!((20..=24).contains(&written), "{phase}: {written}");
        assert!((70..=90).contains(&row(&report, phase).extra["used_percent"].as_u64().unwrap()), "{phase}");
    }
    assert_eq!(row(&report, "verify").extra["bad_files"], 0);
}

#[test]
fn reports_serialise() {
    let (_tmp, report) = bench(&["find", "--dirs", "1", "--files", "1"]);
    let json: serde_json::Value = report.to_json();
    assert_eq!(json["rows"][1]["phase"], "find names");
    assert!(report.table().contains("find with stat"));
}

#[test]
fn latency_measures_every_operation_beside_its_writers() {
    let args = "latency --secs 0.2 --size 1048576 --apart 65536 --files 8 --chunk 65536 --rewind 262144";
    let (_tmp, report) = bench(&args.split(' ').collect::<Vec<_>>());
    assert_eq!((row(&report, "cold read").ops, row(&report, "cold stat").ops), (16, 8));
    assert_eq!(row(&report, "unlink").ops, 8);
    for phase in ["create", "append+fsync", "write incompressible", "write compressible"] {
        assert!(row(&report, phase).latency.is_some(), "{phase}");
    }
    let (_tmp, report) =
        bench(&[&args.split(' ').collect::<Vec<_>>()[..], &["--probes", "append+fsync"]].concat());
    let phases: Vec<_> = report.rows.iter().map(|row| row.phase.as_str()).collect();
    assert_eq!(phases, ["append+fsync", "write incompressible", "write compressible"]);
}
