//! The goals, each as one comparison.

use super::results::{Field, Metric, Results, Spread};

pub struct Goal {
    pub text: String,
    pub metric: Metric,
    pub peer: &'static str,
    /// The best of them; none: the value itself is compared.
    pub bases: &'static [&'static str],
    pub bound: f64,
    pub at_most: bool,
}

impl Goal {
    pub fn reached(&self, results: &Results) -> Option<Spread> {
        match self.bases {
            [] => results.values(self.metric, self.peer),
            bases => results.ratios(self.metric, self.peer, bases),
        }
    }

    pub fn is_met(&self, spread: Spread) -> bool {
        if self.at_most { spread.median <= self.bound } else { spread.median >= self.bound }
    }
}

fn at_least(
    text: &str,
    metric: Metric,
    peer: &'static str,
    bound: f64,
    bases: &'static [&'static str],
) -> Goal {
    Goal { text: text.to_owned(), metric, peer, bases, bound, at_most: false }
}

fn metric(work: &'static str, phase: &'static str, field: Field) -> Metric {
    Metric { work, phase, field }
}

/// One size of extended attributes: a workload of its own, on a file system of its own.
pub struct XattrSize {
    pub bytes: u32,
    pub label: &'static str,
    pub work: &'static str,
    pub set: &'static str,
    pub get: &'static str,
}

macro_rules! xattr_sizes {
    ($($bytes:literal $label:literal),*) => {
        [$(XattrSize {
            bytes: $bytes,
            label: $label,
            work: concat!("xattr-", $bytes),
            set: concat!("set ", $bytes),
            get: concat!("get ", $bytes),
        }),*]
    };
}

pub const XATTR_SIZES: [XattrSize; 7] = xattr_sizes!(
    1 "1 byte", 32 "32 bytes", 256 "256 bytes", 1024 "1 KiB", 4096 "4 KiB", 16384 "16 KiB", 65536 "64 KiB"
);

/// In the order of the tables.
pub fn goals() -> Vec<Goal> {
    let mut goals = Vec::new();
    let phases = [
        ("create", "file create"),
        ("stat, cold attributes", "file stat"),
        ("readdir", "readdir (names)"),
        ("rename", "file rename"),
        ("unlink", "file unlink"),
        ("mkdir", "dir create"),
        ("rmdir", "dir remove"),
    ];
    for (work, threads) in [("meta-1", "1 thread"), ("meta-2", "2 threads")] {
        for (name, phase) in phases {
            let metric = metric(work, phase, Field::OpsPerS);
            let text = format!("{name}, {threads}");
            goals.push(at_least(&text, metric, "terrane", 0.7, &["null"]));
            goals.push(at_least(&text, metric, "terrane", 2.0, &["zfs-off"]));
        }
    }
    for (text, phase) in [
        ("find, names only, cold, seconds", "find names"),
        ("find with stat, cold, seconds", "find with stat"),
    ] {
        let seconds = metric("find", phase, Field::Secs);
        goals.push(Goal { at_most: true, ..at_least(text, seconds, "terrane", 2.0, &["ext4"]) });
    }
    let (untar, read) = (
        metric("smallfiles", "untar + syncfs", Field::OpsPerS),
        metric("smallfiles", "read all", Field::OpsPerS),
    );
    goals.push(at_least("untar of small files", untar, "terrane-zstd3", 3.0, &["zfs-off"]));
    goals.push(at_least("untar of small files", untar, "terrane-zstd3", 0.8, &["btrfs-zstd"]));
    goals.push(at_least("reading small files cold", read, "terrane-zstd3", 1.0, &["ext4"]));
    goals.push(at_least("reading small files cold", read, "terrane-zstd3", 1.0, &["btrfs-zstd"]));
    goals.push(Goal {
        text: "stored size of the small files, MB".to_owned(),
        metric: metric("smallfiles", "untar + syncfs", Field::Extra("stored", 1e6)),
        peer: "terrane-zstd3",
        bases: &[],
        bound: 35.0,
        at_most: true,
    });
    let seq = |phase| metric("seq", phase, Field::MbPerS);
    let (write, read) = (seq("seq write+fsync"), seq("seq read"));
    goals.push(at_least("sequential write + fsync", write, "terrane-off", 0.5, &["ext4"]));
    goals.push(at_least("sequential write + fsync", write, "terrane-lz4", 1.5, &["btrfs-zstd"]));
    goals.push(at_least("sequential write + fsync", write, "terrane-zstd3", 1.2, &["btrfs-zstd"]));
    goals.push(at_least("sequential read, cold", read, "terrane-lz4", 0.6, &["ext4"]));
    goals.push(at_least("sequential read, cold", read, "terrane-zstd3", 1.5, &["btrfs-zstd"]));
    let (random, overwrite) = (seq("random read"), seq("random overwrite"));
    goals.push(at_least("random 16 KiB reads, cold", random, "terrane-off-16k", 0.7, &["ext4"]));
    goals.push(at_least("random 16 KiB reads, cold", random, "terrane-zstd3-16k", 3.0, &["btrfs-zstd"]));
    goals.push(at_least("random 16 KiB reads, cold", random, "terrane-zstd3", 1.4, &["btrfs-zstd"]));
    goals.push(at_least("random 16 KiB overwrites", overwrite, "terrane-off-16k", 1.0, &["btrfs"]));
    goals.push(at_least("random 16 KiB overwrites", overwrite, "terrane-zstd3", 1.0, &["btrfs-zstd"]));
    xattrs(&mut goals);
    goals
}

/// Extended attributes by size: the set and the get of each.
fn xattrs(goals: &mut Vec<Goal>) {
    const KERNEL: &[&str] = &["ext4", "xfs", "btrfs"];
    for size in XATTR_SIZES {
        let [set, get] = [size.set, size.get].map(|phase| metric(size.work, phase, Field::OpsPerS));
        let text = |what: &str| format!("{what} one xattr of {}", size.label);
        let (setting, getting) = (text("set"), text("get, cold,"));
        if size.bytes <= 4096 {
            goals.push(at_least(&getting, get, "terrane-sa", 3.0, &["terrane-dir"]));
            goals.push(at_least(&getting, get, "terrane-library", 3.0, &["terrane-library-dir"]));
        }
        if size.bytes <= 1024 {
            goals.push(at_least(&getting, get, "terrane-sa", 0.4, &["ext4"]));
        }
        if size.bytes >= 256 {
            goals.push(at_least(&getting, get, "terrane-sa", 1.0, &["xfs"]));
        }
        let beside_xfs = if size.bytes >= 256 { 1.0 } else { 0.5 };
        goals.push(at_least(&setting, set, "terrane-sa", beside_xfs, &["xfs"]));
        for (text, metric) in [(&setting, set), (&getting, get)] {
            goals.push(at_least(text, metric, "terrane-sa", 1.0, &["zfs-off"]));
            goals.push(at_least(text, metric, "terrane-library", 1.0, KERNEL));
        }
    }
}
