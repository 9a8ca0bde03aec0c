//! Quotas and project ids on a mount, by the tools that users have.

use crate::support::{NOBODY, TestDir, as_user, can_mount, is_root, noise};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// Writes until the file system refuses, and returns the error.
fn fill(path: &Path, bytes: &[u8]) -> io::Error {
    let mut file = File::create(path).unwrap();
    (0..64)
        .find_map(|_| file.write_all(bytes).and_then(|()| file.sync_all()).err())
        .expect("no limit stops it")
}

/// Output of a tool; `None`: it does not run here.
fn tool(program: &str, args: &[&str], path: &Path) -> Option<(bool, String)> {
    match Command::new(program).args(args).arg(path).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
        }
        Err(error) => {
            eprintln!("SKIPPED: {program} does not run here: {error}");
            None
        }
    }
}

#[test]
fn a_user_meets_a_limit_and_gets_a_higher_one() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("quotas");
    dir.run("pool create tank tank.img --size 256M -o compression=off", 0);
    // Also while nothing is mounted.
    dir.run(&format!("fs set userquota@{NOBODY}=8M groupobjquota@0=none tank"), 0);
    dir.run("mount tank mnt -o allow_other", 0);
    let mnt = dir.path("mnt");
    fs::set_permissions(&mnt, fs::Permissions::from_mode(0o777)).unwrap();
    let (mine, roots) = (mnt.join("mine"), mnt.join("roots"));
    let bytes = noise(1 << 20);
    let refused = as_user(NOBODY, || fill(&mine, &bytes));
    assert_eq!(refused.raw_os_error(), Some(libc::EDQUOT), "{refused}");
    fs::write(&roots, noise(16 << 20)).unwrap();
    let given = chown(&roots, Some(NOBODY), None).unwrap_err();
    assert_eq!(given.raw_os_error(), Some(libc::EDQUOT), "root gives away what exceeds the limit: {given}");
    let made = as_user(NOBODY, || fs::create_dir(mnt.join("dir")).unwrap_err());
    assert_eq!(made.raw_os_error(), Some(libc::EDQUOT), "{made}");
    dir.run("sync tank", 0);

    let row_of = |id: u32| {
        let rows = dir.json("fs userspace --json -n tank")["owners"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["id"] == id).unwrap()
    };
    let row = row_of(NOBODY);
    let used = row["used"].as_u64().unwrap();
    assert!((7 << 20..10 << 20).contains(&used), "{row}");
    assert_eq!((row["quota"].as_u64(), row["objects"].as_u64()), (Some(8 << 20), Some(1)));
    assert!(row_of(0)["used"].as_u64().unwrap() >= 16 << 20);
    assert!(dir.out("fs userspace tank").lines().any(|line| line.starts_with("root ")), "names are shown");
    assert_eq!(dir.out(&format!("fs get -H -o value userquota@{NOBODY} tank")), "8M\n");

    dir.run(&format!("fs set userquota@{NOBODY}=64M tank"), 0);
    as_user(NOBODY, || File::options().append(true).open(&mine).unwrap().write_all(&bytes)).unwrap();
    chown(&roots, Some(NOBODY), None).unwrap();
    dir.run("sync tank", 0);
    assert!(row_of(NOBODY)["used"].as_u64().unwrap() >= 24 << 20);
    // What is above a new limit stays, and can be removed.
    dir.run(&format!("fs set userquota@{NOBODY}=1M tank"), 0);
    assert_eq!(fs::read(&roots).unwrap().len(), 16 << 20);
    as_user(NOBODY, || fs::remove_file(&mine)).unwrap();
    fs::remove_file(&roots).unwrap();
    as_user(NOBODY, || fs::write(mnt.join("small"), b"text")).unwrap();

    dir.run(&format!("fs inherit userquota@{NOBODY} tank"), 0);
    assert_eq!(dir.out(&format!("fs get -H -o value,source userquota@{NOBODY} tank")), "none\tdefault\n");
    dir.misused("fs set userquota@0=much tank", &["userquota@0", "10G"]);
    dir.refused(
        "fs set userquota@no-such-user=1G tank",
        &["userquota@no-such-user", "the name or the number of a user"],
    );
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn limits_belong_to_one_data_set() {
    let dir = TestDir::new("quotas-of-data-sets");
    dir.run("pool create tank tank.img --size 256M", 0);
    dir.run("fs create tank/home", 0);
    dir.run("fs create tank/home/ann", 0);
    dir.run("fs set userquota@7=8M tank/home", 0);
    let limits = || dir.out("fs get -r -H -o name,value,source userquota@7 tank");
    assert_eq!(
        limits(),
        "tank\tnone\tdefault\ntank/home\t8M\tlocal\ntank/home/ann\tnone\tdefault\n",
        "not inherited"
    );
    let rows =
        |name: &str| dir.json(&format!("fs userspace -j -n {name}"))["owners"].as_array().unwrap().clone();
    let of_seven = |name: &str| rows(name).into_iter().find(|row| row["id"] == 7);
    assert_eq!(of_seven("tank/home").unwrap()["quota"], 8 << 20);
    assert_eq!((of_seven("tank"), of_seven("tank/home/ann")), (None, None));
    dir.run("snapshot tank/home@one", 0);
    dir.run("fs clone tank/home@one tank/copy", 0);
    assert_eq!(
        of_seven("tank/copy").unwrap()["quota"],
        8 << 20,
        "a clone begins with the limits of its origin"
    );
    dir.run("fs inherit -r userquota@7 tank", 0);
    assert!(!limits().contains("8M"));
    assert_eq!((of_seven("tank/home"), of_seven("tank/copy")), (None, None));
    dir.refused("fs create -o userquota@7=1G tank/new", &["userquota@7", "terrane fs set"]);
    dir.refused("fs userspace tank/hom", &["tank/hom", "did you mean 'tank/home'?"]);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn projects_are_set_by_chattr_and_limited() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("projects");
    dir.run("pool create tank tank.img --size 256M -o compression=off", 0);
    dir.run("mount tank mnt", 0);
    let mnt = dir.path("mnt");
    let tree = mnt.join("tree");
    fs::create_dir(&tree).unwrap();
    let Some((true, _)) = tool("chattr", &["+P", "-p", "42"], &tree) else {
        dir.run("umount mnt", 0);
        eprintln!("SKIPPED: chattr cannot set project ids here");
        return;
    };
    fs::create_dir(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/file"), noise(1 << 20)).unwrap();
    let project = |path: &Path| tool("lsattr", &["-d", "-p"], path).map(|(_, text)| text);
    for path in ["tree", "tree/sub", "tree/sub/file"] {
        if let Some(text) = project(&mnt.join(path)) {
            assert_eq!(text.split_whitespace().next(), Some("42"), "{path}: {text}");
        }
    }
    if let Some((_, text)) = tool("xfs_io", &["-r", "-c", "stat"], &tree.join("sub/file")) {
        // Some versions show nothing of the kind on other file systems than XFS.
        assert!(!text.contains("projid") || text.contains("projid = 42"), "{text}");
    }
    fs::write(mnt.join("outside"), b"x").unwrap();
    let moved = fs::rename(mnt.join("outside"), tree.join("inside")).unwrap_err();
    assert_eq!(moved.raw_os_error(), Some(libc::EXDEV), "{moved}");
    let linked = fs::hard_link(mnt.join("outside"), tree.join("inside")).unwrap_err();
    assert_eq!(linked.raw_os_error(), Some(libc::EXDEV), "{linked}");
    assert!(
        tool("mv", &[mnt.join("outside").to_str().unwrap()], &tree.join("inside")).unwrap().0,
        "mv copies"
    );

    dir.run("fs set projectquota@42=8M tank", 0);
    dir.run("sync tank", 0);
    let df = |path: &Path| {
        let (_, text) = tool("df", &["--output=size", "-k"], path).unwrap();
        text.split_whitespace().last().and_then(|word| word.parse::<u64>().ok()).unwrap()
    };
    assert_eq!(df(&tree.join("sub")), 8 << 10, "the limit of the project");
    assert!(df(&mnt) > 100 << 10);
    let refused = fill(&tree.join("sub/large"), &noise(1 << 20));
    assert_eq!(refused.raw_os_error(), Some(libc::EDQUOT), "{refused}");
    fs::write(mnt.join("others"), noise(16 << 20)).unwrap();
    dir.run("sync tank", 0);
    let rows = dir.json("fs projectspace -j tank")["owners"].as_array().unwrap().clone();
    let row = rows.iter().find(|row| row["id"] == 42).unwrap();
    assert!((7 << 20..10 << 20).contains(&row["used"].as_u64().unwrap()), "{row}");
    assert_eq!(row["objects"], 5);

    // They last, and go with their files.
    dir.run("umount mnt", 0);
    dir.run("mount tank mnt", 0);
    if let Some(text) = project(&tree.join("sub/file")) {
        assert_eq!(text.split_whitespace().next(), Some("42"), "{text}");
    }
    fs::remove_dir_all(&tree).unwrap();
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
    let rows = dir.json("fs projectspace -j tank")["owners"].as_array().unwrap().clone();
    let row = rows.iter().find(|row| row["id"] == 42).unwrap();
    assert_eq!((row["used"].as_u64(), row["quota"].as_u64()), (Some(0), Some(8 << 20)));
}

/// Counts and limits of a snapshot are those of its time, from the pool and from a mount, and the same by a server and without one.
#[test]
fn a_snapshot_shows_what_owners_had() {
    let dir = TestDir::new("quotas-of-snapshots");
    dir.run("pool create tank tank.img --size 256M -o compression=off", 0);
    dir.run("fs create tank/home", 0);
    dir.run("fs set userquota@7=8M groupobjquota@9=5 tank/home", 0);
    dir.run("snapshot tank@empty tank/home@before", 0);
    dir.run("fs set userquota@7=16M tank/home", 0);
    dir.run("fs inherit groupobjquota@9 tank/home", 0);
    let rows = |words: &str| dir.json(&format!("fs {words} --json -n"))["owners"].as_array().unwrap().clone();
    let of = |words: &str, id: u32| rows(words).into_iter().find(|row| row["id"] == id);
    let limits_are_right = || {
        assert_eq!(of("userspace tank/home@before", 7).unwrap()["quota"], 8 << 20);
        assert_eq!(of("groupspace tank/home@before", 9).unwrap()["objquota"], 5);
        assert_eq!(of("userspace tank/home", 7).unwrap()["quota"], 16 << 20);
        assert_eq!(of("groupspace tank/home", 9), None);
        assert_eq!(of("userspace tank@empty", 7), None);
        assert_eq!(rows("projectspace tank@empty").len(), rows("projectspace tank").len());
        dir.refused("fs userspace tank/home@no", &["tank/home@no"]);
        dir.refused("fs userspace tank/home@", &["tank/home@"]);
        dir.refused("fs userspace tank/none@before", &["tank/none"]);
    };
    limits_are_right();
    if !can_mount() {
        return;
    }
    dir.run("mount tank/home mnt", 0);
    limits_are_right();
    let owner =
        rows("userspace tank/home@before").iter().find(|row| row["objects"] == 1).unwrap()["id"].clone();
    let used = |words: &str| {
        let rows = rows(words);
        rows.iter().find(|row| row["id"] == owner).unwrap()["used"].as_u64().unwrap()
    };
    let before = used("userspace tank/home@before");
    fs::write(dir.path("mnt/file"), noise(4 << 20)).unwrap();
    dir.run("snapshot tank/home@after", 0);
    fs::remove_file(dir.path("mnt/file")).unwrap();
    dir.run("sync tank", 0);
    let after = used("userspace tank/home@after");
    assert!(after >= before + (4 << 20), "{before}, {after}");
    assert_eq!(used("userspace tank/home@before"), before);
    assert!(dir.out("fs userspace tank/home@after").starts_with("NAME "), "a table for people");
    dir.run("umount mnt", 0);
    assert_eq!(used("userspace tank/home@after"), after, "without a server");
    // A mounted snapshot.
    dir.run("mount tank/home@after mnt", 0);
    assert_eq!(used("userspace tank/home@after"), after);
    dir.run("umount mnt", 0);
}
