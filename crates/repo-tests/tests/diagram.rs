//! `docs/crates.svg` matches the table in DESIGN.md. `make diagram` rewrites it.

use terrane_repo_tests::diagram::crates_svg;
use terrane_repo_tests::root;

#[test]
fn the_picture_of_the_crates_is_that_of_the_table() {
    let (path, svg) = (root().join("docs/crates.svg"), crates_svg());
    if std::env::var_os("TERRANE_DIAGRAM").is_some_and(|wish| wish == "write") {
        std::fs::write(&path, &svg).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == svg, "docs/crates.svg differs from the table in DESIGN.md: run `make diagram`");
}
