//! CONTRIBUTING.md names files and items that are there.

use terrane_repo_tests::{read, root};

/// Cells of inline code in the rows of the page's tables.
fn rows() -> Vec<Vec<String>> {
    let page = read(root().join("CONTRIBUTING.md"));
    let rows = page.lines().filter(|line| line.starts_with("| a new "));
    rows.map(|row| row.split('`').skip(1).step_by(2).map(str::to_owned).collect()).collect()
}

#[test]
fn the_four_answers_lead_to_code() {
    let rows = rows();
    assert_eq!(rows.len(), 4, "an xattr namespace, a GC policy, a kind of device, a block checksum");
    for row in rows {
        let [file, item] = row.as_slice() else { panic!("a file and an item: {row:?}") };
        let text = read(root().join(file));
        assert!(text.contains(item.as_str()), "{file} has no {item}");
    }
}

#[test]
fn files_that_the_page_names_are_there() {
    let page = read(root().join("CONTRIBUTING.md"));
    let named = page.split('`').skip(1).step_by(2).filter(|name| name.starts_with("crates/"));
    let mut count = 0;
    for name in named {
        count += 1;
        assert!(root().join(name).exists(), "{name}");
    }
    assert!(count > 8, "{count} files");
    for item in ["trait Operation", "fn execute"] {
        assert!(read(root().join("crates/posix/src/operation.rs")).contains(item), "{item}");
    }
    let props = read(root().join("crates/dataset/src/props.rs"));
    assert!(props.contains("PROPERTIES") && props.contains("fn feature_of"));
}
