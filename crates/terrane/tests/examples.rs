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

#[allow(dead_code, reason = "its main is run by hand")]
#[path = "../examples/directory_ids.rs"]
mod directory_ids;

#[test]
fn identifiers_lie_beside_names_of_directories() {
    directory_ids::run(30, 10, None).unwrap();
    directory_ids::run(3, 300, None).unwrap();
    directory_ids::run(1, 0, None).unwrap();
}
