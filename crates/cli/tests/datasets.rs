//! Data sets on the command line: their tree, their properties and their quotas.

use crate::support::{TestDir, can_mount};
use std::fs;
use std::io::ErrorKind;

#[test]
fn a_tree_of_data_sets_is_made_listed_moved_and_destroyed() {
    let dir = TestDir::new("datasets");
    dir.run("pool create tank tank.img --size 256M -o atime=off", 0);
    dir.refused("fs create tank/home/ann", &["unknown data set 'tank/home'"]);
    dir.run("fs create -p -o compression=zstd-3 tank/home/ann", 0);
    dir.run("fs create -p tank/home/ann", 0);
    dir.run("fs create tank/home/ben -o quota=10M -o com.example:word=value", 0);
    dir.refused("fs create tank/home/ben", &["tank/home/ben", "exists"]);
    assert_eq!(dir.out("fs list -H -o name"), "tank\ntank/home\ntank/home/ann\ntank/home/ben\n");
    assert_eq!(dir.out("fs list -H -o name tank/home"), "tank/home\n");
    assert_eq!(
        dir.out("fs list -H -r -o name,type tank/home -S name"),
        "tank/home/ben\tfilesystem\ntank/home/ann\tfilesystem\ntank/home\tfilesystem\n"
    );
    assert_eq!(
        dir.out("fs list -H -o name,quota,com.example:word tank/home/ben"),
        "tank/home/ben\t10M\tvalue\n"
    );
    for name in ["tank/home//x", "tank/.", "tank/..", "tank/a@b", "tank/a#b", "tank/a%b", "tank/home/"] {
        dir.refused(&format!("fs create {name}"), &["invalid name"]);
    }
    dir.refused(&format!("fs create tank/{}", "x".repeat(256)), &["invalid name", "255"]);
    dir.refused("fs create tank", &["tank/home"]);
    dir.refused("fs get all tank/hmoe", &["unknown data set 'tank/hmoe'", "did you mean 'tank/home'?"]);
    dir.refused("fs destroy tank/home", &["tank/home", "below it"]);
    dir.refused("fs rename tank/home/ann tank/home/ben", &["tank/home/ben", "exists"]);
    dir.refused("fs rename tank/home tank/home/x", &["tank/home"]);
    dir.run("fs rename tank/home/ann tank/ann", 0);
    assert_eq!(dir.out("fs list -H -r -o name tank"), "tank\ntank/ann\ntank/home\ntank/home/ben\n");
    dir.run("fs destroy tank/home/ben", 0);
    dir.refused("fs list tank/home/ben", &["unknown data set"]);
    dir.misused("fs list -o nmae", &["name"]);
    let rows = dir.json("fs list -j -t all")["datasets"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 3);
    assert!(rows[1]["guid"].is_u64() && rows[1]["creation"].as_u64().unwrap() > 1_700_000_000, "{}", rows[1]);
    dir.run("check tank", 0);
}

#[test]
fn properties_of_a_tree_name_their_sources() {
    let dir = TestDir::new("sources");
    dir.run("pool create tank tank.img --size 256M -o mountpoint=/srv", 0);
    dir.run("fs create -p tank/home/ann", 0);
    let get = |words: &str| dir.out(&format!("fs get -H -o name,value,source {words}"));
    dir.run("fs set compression=zstd-3 com.example:word=x=y tank/home", 0);
    assert_eq!(get("compression tank/home/ann"), "tank/home/ann\tzstd-3\tinherited from tank/home\n");
    assert_eq!(get("mountpoint tank/home/ann"), "tank/home/ann\t/srv/home/ann\tinherited from tank\n");
    assert_eq!(
        get("-r com.example:word tank"),
        "tank\t-\t-\ntank/home\tx=y\tlocal\ntank/home/ann\tx=y\tinherited from tank/home\n"
    );
    assert_eq!(
        get("-r -s local all tank"),
        "tank\t/srv\tlocal\ntank/home\tzstd-3\tlocal\ntank/home\tx=y\tlocal\n"
    );
    assert_eq!(
        get("-r -s inherited com.example:word tank"),
        "tank/home/ann\tx=y\tinherited from tank/home\n"
    );
    dir.run("fs set compression=off tank/home/ann", 0);
    dir.run("fs inherit -r compression,com.example:word tank/home", 0);
    assert_eq!(get("compression tank/home/ann"), "tank/home/ann\tlz4\tdefault\n");
    assert_eq!(get("-r -s none com.example:word tank/home"), "tank/home\t-\t-\ntank/home/ann\t-\t-\n");
    dir.run("fs set quota=1.5G tank/home", 0);
    assert_eq!(dir.out("fs get -H -p -o value quota,refquota tank/home"), "1610612736\n0\n");
    assert_eq!(
        dir.out("fs get -H -o value available tank/home"),
        dir.out("fs get -H -o value available tank")
    );
    dir.run("fs set quota=8M tank/home", 0);
    let available = dir.out("fs get -H -p -o value available tank/home/ann");
    assert!(available.trim().parse::<u64>().unwrap() < 8 << 20, "{available}");
    dir.refused("fs set failmode=continue tank/home", &["failmode", "root data set"]);
    dir.misused("fs set Com.example:word=x tank", &["lower-case"]);
    dir.misused("fs set quota=much tank", &["quota", "none"]);
    dir.misused("fs set used=1 tank", &["used"]);
    assert_eq!(
        get("type,usedbysnapshots tank/home"),
        "tank/home\tfilesystem\tcounted\ntank/home\t0\tcounted\n"
    );
}

#[test]
fn a_mounted_data_set_obeys_readonly_and_quota() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("obeys");
    dir.run("pool create tank tank.img --size 256M -o compression=off", 0);
    dir.run("mount tank mnt", 0);
    let file = |name: &str| dir.path("mnt").join(name);
    fs::write(file("kept"), "kept").unwrap();
    dir.run("fs create tank/home", 0);
    dir.run("fs set readonly=on tank", 0);
    assert_eq!(dir.out("fs get -H -o value,source readonly tank/home"), "on\tinherited from tank\n");
    let refused = |outcome: std::io::Result<()>| assert_eq!(outcome.unwrap_err().raw_os_error(), Some(30));
    refused(fs::write(file("new"), "new"));
    refused(fs::write(file("kept"), "changed"));
    refused(fs::remove_file(file("kept")));
    refused(fs::rename(file("kept"), file("moved")));
    assert_eq!(fs::read(file("kept")).unwrap(), b"kept");
    dir.run("fs set readonly=off tank", 0);
    fs::write(file("kept"), "again").unwrap();

    dir.run("fs set refquota=16M tank", 0);
    let stat = rustix::fs::statvfs(dir.path("mnt")).unwrap();
    assert!(stat.f_bavail * stat.f_frsize <= 16 << 20, "df shows the quota");
    let full = fs::write(file("large"), vec![7; 32 << 20]).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::QuotaExceeded, "{full}");
    dir.run("sync tank", 0);
    let used = dir.out("fs get -H -p -o value referenced tank").trim().parse::<u64>().unwrap();
    assert!(used <= 16 << 20 && used > 12 << 20, "{used}");
    fs::remove_file(file("large")).unwrap();
    dir.run("sync tank", 0);
    fs::write(file("small"), vec![7; 4 << 20]).unwrap();
    dir.run("fs set refquota=none tank", 0);
    fs::write(file("large"), vec![7; 32 << 20]).unwrap();
    dir.run("fs rename tank/home tank/house", 0);
    assert_eq!(dir.out("fs list -H -o name"), "tank\ntank/house\n");
    dir.run("fs destroy tank/house", 0);
    dir.run("umount mnt", 0);
    dir.run("check tank", 0);
}
