//! The examples run.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[allow(dead_code, reason = "its main is run by hand")]
#[path = "../examples/file_ids.rs"]
mod file_ids;

#[test]
fn file_identifiers_are_stored_found_and_removed() {
    file_ids::run(300, 10, None).unwrap();
    file_ids::run(5, 200, None).unwrap();
    file_ids::run(1, 0, None).unwrap();
}
