//! This program, as the process that a session starts to have the kernel drop what it caches.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::process::Command;

/// Set for [`the_process_that_forgets`].
const FORGETS: &str = "TERRANE_TEST_FORGETS";

pub fn forgetter() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "forgetter::the_process_that_forgets"]).env(FORGETS, "");
    command
}

#[test]
fn the_process_that_forgets() {
    // Otherwise the tests run, and there is nothing to drop.
    if std::env::var_os(FORGETS).is_some() {
        terrane_fuse::forget::run().unwrap();
    }
}
