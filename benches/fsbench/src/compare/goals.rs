//! What was promised, each as one comparison.

use super::results::{Field, Metric, Results, Spread};

pub struct Goal {
    pub text: String,
    pub metric: Metric,
    pub peer: &'static str,
    /// `None`: the value itself is compared.
    pub base: Option<&'static str>,
    pub bound: f64,
    pub at_most: bool,
}

impl Goal {
    pub fn reached(&self, results: &Results) -> Option<Spread> {
        match self.base {
            Some(base) => results.ratios(self.metric, self.peer, base),
            None => results.values(self.metric, self.peer),
        }
    }

    pub fn is_met(&self, spread: Spread) -> bool {
        if self.at_most { spread.median <= self.bound } else { spread.median >= self.bound }
    }
}

fn at_least(text: &str, metric: Metric, peer: &'static str, bound: f64, base: &'static str) -> Goal {
    Goal { text: text.to_owned(), metric, peer, base: Some(base), bound, at_most: false }
}

fn metric(work: &'static str, phase: &'static str, field: Field) -> Metric {
    Metric { work, phase, field }
}

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
            goals.push(at_least(&text, metric, "terrane", 0.7, "null"));
            goals.push(at_least(&text, metric, "terrane", 2.0, "zfs-off"));
        }
    }
    for (text, phase) in [
        ("find, names only, cold, seconds", "find names"),
        ("find with stat, cold, seconds", "find with stat"),
    ] {
        let seconds = metric("find", phase, Field::Secs);
        goals.push(Goal { at_most: true, ..at_least(text, seconds, "terrane", 2.0, "ext4") });
    }
    let (untar, read) = (
        metric("smallfiles", "untar + syncfs", Field::OpsPerS),
        metric("smallfiles", "read all", Field::OpsPerS),
    );
    goals.push(at_least("untar of small files", untar, "terrane-zstd3", 3.0, "zfs-off"));
    goals.push(at_least("untar of small files", untar, "terrane-zstd3", 0.8, "btrfs-zstd"));
    goals.push(at_least("reading small files cold", read, "terrane-zstd3", 1.0, "ext4"));
    goals.push(at_least("reading small files cold", read, "terrane-zstd3", 1.0, "btrfs-zstd"));
    goals.push(Goal {
        text: "stored size of the small files, MB".to_owned(),
        metric: metric("smallfiles", "untar + syncfs", Field::Extra("stored", 1e6)),
        peer: "terrane-zstd3",
        base: None,
        bound: 35.0,
        at_most: true,
    });
    let seq = |phase| metric("seq", phase, Field::MbPerS);
    let (write, read) = (seq("seq write+fsync"), seq("seq read"));
    goals.push(at_least("sequential write + fsync", write, "terrane-off", 0.5, "ext4"));
    goals.push(at_least("sequential write + fsync", write, "terrane-lz4", 1.5, "btrfs-zstd"));
    goals.push(at_least("sequential write + fsync", write, "terrane-zstd3", 1.2, "btrfs-zstd"));
    goals.push(at_least("sequential read, cold", read, "terrane-lz4", 0.6, "ext4"));
    goals.push(at_least("sequential read, cold", read, "terrane-zstd3", 1.5, "btrfs-zstd"));
    let (random, overwrite) = (seq("random read"), seq("random overwrite"));
    goals.push(at_least("random 16 KiB reads, cold", random, "terrane-off-16k", 0.7, "ext4"));
    goals.push(at_least("random 16 KiB reads, cold", random, "terrane-zstd3-16k", 3.0, "btrfs-zstd"));
    goals.push(at_least("random 16 KiB reads, cold", random, "terrane-zstd3", 1.4, "btrfs-zstd"));
    goals.push(at_least("random 16 KiB overwrites", overwrite, "terrane-off-16k", 1.0, "btrfs"));
    goals.push(at_least("random 16 KiB overwrites", overwrite, "terrane-zstd3", 1.0, "btrfs-zstd"));
    goals
}
