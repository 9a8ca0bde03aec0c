//! Command line options: `--name value`, in any order.

use std::path::PathBuf;

pub struct Args(Vec<String>);

impl Args {
    pub fn new() -> Args {
        Args(std::env::args().collect())
    }

    /// The value after `name`.
    pub fn option(&self, name: &str) -> Option<String> {
        self.0.iter().position(|arg| arg == name).and_then(|at| self.0.get(at + 1)).cloned()
    }

    /// The values after each `name`.
    #[allow(dead_code, reason = "not every benchmark has an option that may come again")]
    pub fn options(&self, name: &str) -> Vec<String> {
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        pairs.filter(|(arg, _)| *arg == name).map(|(_, value)| value.clone()).collect()
    }

    pub fn number(&self, name: &str, default: usize) -> usize {
        self.option(name).and_then(|text| text.parse().ok()).unwrap_or(default)
    }

    #[allow(dead_code, reason = "not every benchmark has flags")]
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|arg| arg == name)
    }

    #[allow(dead_code, reason = "not every benchmark makes files")]
    /// Where files are made: `--dir`, or the directory of temporary files.
    pub fn dir(&self) -> PathBuf {
        self.option("--dir").map_or_else(std::env::temp_dir, Into::into)
    }
}
