//! A loop device over an image is the image: the same bytes, which the kernel lets both change.

use crate::support::{Loop, TestDir, can_mount, is_root};
use std::fs;

/// Under another registry, where only the kernel knows what is mounted.
fn run_elsewhere(dir: &TestDir, words: &str) -> Result<(), String> {
    let output = dir.command(words).env("TERRANE_STATE_DIR", dir.path("elsewhere")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    if output.status.success() { Ok(()) } else { Err(said) }
}

fn assert_refused_elsewhere(dir: &TestDir, words: &str, word: &str) {
    let said = run_elsewhere(dir, words).expect_err(words);
    assert!(said.contains(word), "terrane {words} should say {word:?}, said: {said}");
}

#[test]
fn a_loop_device_over_a_mounted_image_is_in_use_and_one_over_a_copy_is_a_copy() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("loops");
    fs::create_dir(dir.path("other")).unwrap();
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    let Some(image) = Loop::new(dir.path("tank.img"), &[]) else { return };
    let image = &image.0;
    fs::write(dir.path("mnt/file"), "live").unwrap();
    dir.run("sync tank", 0);
    fs::copy(dir.path("tank.img"), dir.path("copy.img")).unwrap();
    let copy = Loop::new(dir.path("copy.img"), &[]).unwrap();
    dir.run(&format!("check {image}"), 0);
    dir.run(&format!("fs set atime=off {image}"), 0);
    assert_eq!(dir.out("fs get -H -o value atime tank"), "off\n");
    dir.refused(&format!("mount {} other", copy.0), &["a copy of one"]);

    for words in ["pool destroy", "pool import", "mount -o ro"] {
        let place = if words.starts_with("mount") { "other" } else { "" };
        assert_refused_elsewhere(&dir, &format!("{words} {image} {place}"), "tank.img locked by terrane");
    }
    run_elsewhere(&dir, &format!("pool import --new-id --name twin {}", copy.0)).unwrap();
    run_elsewhere(&dir, "mount twin other").unwrap();
    // The other way round: the file of a loop device that is mounted.
    run_elsewhere(&dir, "check ./copy.img").unwrap();
    run_elsewhere(&dir, "sync ./copy.img").unwrap();
    dir.refused("check ./copy.img", &["locked by terrane"]);
    run_elsewhere(&dir, "umount other").unwrap();
    drop(copy);

    let fixed = Loop::new(dir.path("copy.img"), &["-r"]).unwrap();
    assert_refused_elsewhere(&dir, &format!("mount {} other", fixed.0), "-o ro");
    run_elsewhere(&dir, &format!("mount {} other -o ro", fixed.0)).unwrap();
    assert_eq!(fs::read_to_string(dir.path("other/file")).unwrap(), "live");
    run_elsewhere(&dir, "umount other").unwrap();
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}
