//! Counts of users, groups and projects, their limits, and project ids.

use crate::support::{Machine, ROOT_CRED, Short, USER};
use std::collections::BTreeMap;
use terrane_dataset::{QuotaName, Quotas};
use terrane_format::{BlockPtr, Feature};
use terrane_object::OwnerKind;
use terrane_object::owners::OwnerCount;
use terrane_posix::{
    Cred, Errno, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Fs, Ino, InodeFlags, Job, JobStep, RENAME_EXCHANGE,
    RewriteSpec, SetAttr, SetXattr, WriteFlags,
};
use terrane_wire::Prng;

type Counts = BTreeMap<(OwnerKind, u32), OwnerCount>;

/// What a walk over the stored objects finds.
fn walked(m: &Machine) -> Counts {
    let set = m.fs().dataset().object_set();
    let epoch = set.owner_epoch().unwrap();
    let mut counts = Counts::new();
    let failed = set.for_each_dnode(&mut |id, dnode| {
        let Some(owners) = set.owners_of(dnode.kind, &dnode.bonus) else { return };
        assert!(!epoch.is_complete || dnode.owner_epoch == epoch.epoch, "object {id} is not counted");
        if dnode.owner_epoch == epoch.epoch {
            for key in owners.ids() {
                let count = counts.entry(key).or_default();
                count.bytes += dnode.used;
                count.objects += 1;
            }
        }
    });
    assert!(failed.is_empty());
    counts
}

/// What the tables say.
fn told(m: &Machine) -> Counts {
    let quotas = m.fs().dataset().quotas();
    let of = |kind| quotas.usage(kind).unwrap().into_iter().map(move |row| ((kind, row.id), row.count));
    let all = OwnerKind::ALL.into_iter().flat_map(of);
    all.filter(|(_, count)| *count != OwnerCount::default()).collect()
}

fn assert_exact(m: &Machine, what: &str) {
    assert_eq!(told(m), walked(m), "{what}");
}

fn synced(m: &Machine, what: &str) -> Counts {
    m.fs().sync().unwrap();
    assert_exact(m, what);
    told(m)
}

fn chown(fs: &Fs, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    fs.setattr(ino, &SetAttr { uid, gid, ..SetAttr::default() }, &ROOT_CRED).map(drop)
}

fn chproj(fs: &Fs, ino: Ino, project: u32) -> Result<(), Errno> {
    fs.set_flags_and_project(ino, fs.inode_flags(ino).unwrap(), project)
}

fn user(uid: u32) -> Cred {
    Cred { uid, gid: 100, umask: 0 }
}

fn write(fs: &Fs, ino: Ino, offset: u64, data: &[u8]) -> Result<u32, Errno> {
    fs.write(ino, offset, data, WriteFlags::default())
}

fn quotas(m: &Machine) -> &Quotas {
    m.fs().dataset().quotas()
}

fn limit(m: &Machine, name: &str, value: u64) {
    quotas(m).set(QuotaName::parse(name).unwrap(), value).unwrap();
}

#[test]
fn a_walk_finds_what_the_tables_say_after_any_change_and_crash() {
    for seed in 0..6 {
        let xattr = if seed % 2 == 0 { "sa" } else { "dir" };
        let props = [("recordsize", "4K"), ("compression", "lz4"), ("xattr", xattr)];
        let mut m = Machine::new(400 + seed, &props);
        let mut random = Prng::new(seed);
        let mut next = |below: u64| random.next_u64() % below;
        let mut files: Vec<Ino> = Vec::new();
        let mut name = 0;
        for step in 0..400 {
            let fs = m.fs();
            let root = fs.root();
            let pick = if files.is_empty() { 0 } else { files[next(files.len() as u64) as usize] };
            let data = Prng::new(step).random_bytes(next(9000) as usize);
            match next(16) {
                0..=2 => {
                    name += 1;
                    let cred = Cred { uid: next(4) as u32, gid: next(3) as u32, umask: 0 };
                    let name = format!("file{name}");
                    let made = match next(4) {
                        0 => fs.mkdir(root, name.as_bytes(), 0o755, &cred),
                        1 => fs.symlink(root, name.as_bytes(), &vec![b'x'; 1 + next(3000) as usize], &cred),
                        _ => fs.create(root, name.as_bytes(), 0o644, &cred),
                    };
                    files.push(made.unwrap().ino);
                }
                _ if pick == 0 => {}
                3..=5 => drop(write(fs, pick, next(40_000), &data)),
                6 => chown(fs, pick, Some(next(4) as u32), Some(next(3) as u32)).unwrap(),
                7 => drop(fs.inode_flags(pick).map(|_| chproj(fs, pick, next(3) as u32).unwrap())),
                8 => drop(fs.size(pick, next(30_000))),
                9 => drop(fs.fallocate(
                    pick,
                    FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE,
                    next(20_000),
                    1 + next(9000),
                )),
                10 | 11 => {
                    let name = format!("user.{}", next(4));
                    let _ = fs.setxattr(pick, name.as_bytes(), &data, SetXattr::default(), &ROOT_CRED);
                }
                12 => drop(fs.removexattr(pick, format!("user.{}", next(4)).as_bytes())),
                13 => {
                    // Its last use may come later.
                    let index = files.iter().position(|ino| *ino == pick).unwrap();
                    let names = fs.names(root);
                    let found = names.into_iter().find(|name| fs.ino(root, name) == Ok(pick));
                    let name = found.unwrap();
                    fs.unlink(root, name.as_bytes()).or_else(|_| fs.rmdir(root, name.as_bytes())).unwrap();
                    if next(2) == 0 {
                        files.remove(index);
                        fs.forget(pick, u64::MAX);
                    } else {
                        let _ = chown(fs, pick, Some(3), None);
                        let _ = write(fs, pick, 0, &data);
                        files.remove(index);
                    }
                }
                14 => drop(synced(&m, &format!("seed {seed} step {step}"))),
                _ => match next(6) {
                    0 => {
                        m.remount();
                        files.clear();
                        assert_exact(&m, "remounted");
                    }
                    1 => {
                        m.fs().sync().unwrap();
                        m.fs().file(root, &format!("lost{step}"));
                        m.crash();
                        files.clear();
                        assert_exact(&m, "crashed");
                    }
                    _ => {}
                },
            }
        }
        let all = synced(&m, "the end");
        assert!(m.fs().dataset().object_set().owner_epoch().unwrap().is_complete);
        let sum = |kind| -> (u64, u64) {
            let of = all.iter().filter(|((of, _), _)| *of == kind);
            of.fold((0, 0), |(bytes, objects), (_, count)| (bytes + count.bytes, objects + count.objects))
        };
        assert_eq!(sum(OwnerKind::User), sum(OwnerKind::Group), "each object has one owner of each kind");
        assert_eq!(sum(OwnerKind::User), sum(OwnerKind::Project));
    }
}

/// chown, chgrp and chproj of large files, and of files without a name.
#[test]
fn large_and_nameless_files_move_whole() {
    let mut m = Machine::new(41, &[("recordsize", "16K"), ("compression", "off")]);
    let root = m.fs().root();
    let large = m.fs().file(root, "large").ino;
    let bytes = Prng::new(5).random_bytes(4 << 20);
    m.fs().put(large, 0, &bytes);
    let open = m.fs().file(root, "open").ino;
    m.fs().put(open, 0, &bytes[..1 << 20]);
    let before = synced(&m, "written");
    let mine = before[&(OwnerKind::User, USER.uid)];
    assert!((5 << 20..6 << 20).contains(&mine.bytes), "{mine:?}");
    assert_eq!(mine.objects, 2);
    m.fs().unlink(root, b"open").unwrap();
    assert_eq!(synced(&m, "open, and without a name")[&(OwnerKind::User, USER.uid)], mine);
    chown(m.fs(), open, Some(7), Some(8)).unwrap();
    chown(m.fs(), large, Some(7), None).unwrap();
    chproj(m.fs(), large, 9).unwrap();
    let after = synced(&m, "moved");
    assert_eq!(after.get(&(OwnerKind::User, USER.uid)), None);
    assert_eq!(after[&(OwnerKind::User, 7)], mine);
    assert_eq!(after[&(OwnerKind::Group, 8)].objects, 1);
    assert!(after[&(OwnerKind::Project, 9)].bytes > 4 << 20);
    m.fs().forget(open, u64::MAX);
    let last = synced(&m, "destroyed");
    assert_eq!(last[&(OwnerKind::User, 7)], last[&(OwnerKind::Project, 9)]);
    m.remount();
    assert_eq!(told(&m), last);
    assert_eq!(m.fs().project(large), Ok(9));
}

/// Hidden objects of extended attributes belong to the owners of their file.
#[test]
fn hidden_attributes_move_with_their_file() {
    let m = Machine::new(42, &[("xattr", "dir")]);
    let root = m.fs().root();
    let file = m.fs().file(root, "file").ino;
    for at in 0..40 {
        let value = Prng::new(at).random_bytes(3000);
        let name = format!("user.{at}");
        m.fs().setxattr(file, name.as_bytes(), &value, SetXattr::default(), &USER).unwrap();
    }
    let before = synced(&m, "set")[&(OwnerKind::User, USER.uid)];
    assert_eq!(before.objects, 42);
    chown(m.fs(), file, Some(7), Some(8)).unwrap();
    chproj(m.fs(), file, 9).unwrap();
    let after = synced(&m, "moved");
    assert_eq!(after.get(&(OwnerKind::User, USER.uid)), None);
    for key in [(OwnerKind::User, 7), (OwnerKind::Group, 8), (OwnerKind::Project, 9)] {
        assert_eq!((after[&key].objects, after[&key].bytes), (42, before.bytes), "{key:?}");
    }
    m.fs().setxattr(file, b"user.new", &[3; 3000], SetXattr::default(), &USER).unwrap();
    assert_eq!(synced(&m, "one more")[&(OwnerKind::Project, 9)].objects, 43);
    let mut value = Vec::new();
    m.fs().getxattr(file, b"user.7", &mut value).unwrap();
    assert_eq!(value, Prng::new(7).random_bytes(3000));
}

#[test]
fn rewritten_files_are_counted_as_they_are_stored() {
    let m = Machine::new(43, &[("recordsize", "16K"), ("compression", "off")]);
    let root = m.fs().root();
    let file = m.fs().file(root, "file").ino;
    m.fs().put(file, 0, &b"text that repeats ".repeat(30_000));
    let before = synced(&m, "plain")[&(OwnerKind::User, USER.uid)];
    let compression = Some("zstd-3".parse().unwrap());
    let spec = RewriteSpec { root: file, recursive: false, compression, record_size: Some(64 << 10) };
    m.fs().rewrite().begin(&spec).unwrap();
    let job = m.fs().rewrite();
    for _ in 0..1000 {
        let step = job.step(1).unwrap();
        synced(&m, "in between");
        if step == JobStep::NothingToDo {
            break;
        }
    }
    let after = synced(&m, "rewritten")[&(OwnerKind::User, USER.uid)];
    assert_eq!(after.objects, 1);
    assert!(after.bytes < before.bytes / 4, "{before:?} {after:?}");
}

/// Objects of an older version are counted when they are stored next, and by a walk. None is subtracted that was
/// not added.
#[test]
fn an_older_pool_is_counted_by_a_walk() {
    let mut m = Machine::without_features(44);
    let root = m.fs().root();
    for at in 0..200 {
        let file = m.fs().create(root, format!("file{at}").as_bytes(), 0o644, &user(at % 5)).unwrap().ino;
        m.fs().put(file, 0, &Prng::new(at.into()).random_bytes(2000));
    }
    m.fs().sync().unwrap();
    let set = m.fs().dataset().object_set().clone();
    assert_eq!(set.owner_epoch(), None);
    assert!(!m.fs().dataset().count_owners().unwrap(), "the feature is disabled");
    m.pool().enable(&[Feature::Owners]).unwrap();
    // Destroyed and changed before they are counted.
    for at in 0..20 {
        m.fs().unlink(root, format!("file{at}").as_bytes()).unwrap();
    }
    m.fs().forget_all();
    let changed = m.fs().ino(root, "file33").unwrap();
    chown(m.fs(), changed, Some(77), None).unwrap();
    let some = synced(&m, "some are counted");
    assert_eq!(some[&(OwnerKind::User, 77)].objects, 1);
    assert!(!set.owner_epoch().unwrap().is_complete);
    drop(set);
    m.crash();
    assert!(m.fs().dataset().count_owners().unwrap(), "a second pass must find none");
    m.fs().unlink(root, b"file44").unwrap();
    while m.fs().dataset().count_owners().unwrap() {}
    let all = synced(&m, "all are counted");
    let users: u64 = (0..5).map(|uid| all[&(OwnerKind::User, uid)].objects).sum();
    // With the root directory, which is one of user 0.
    assert_eq!(users, 200 - 20 - 1 - 1 + 1);
    m.remount();
    assert!(m.fs().dataset().object_set().owner_epoch().unwrap().is_complete, "it is stored");
    assert!(!m.fs().dataset().count_owners().unwrap());
    assert_exact(&m, "remounted");
}

/// Damage of limits and counts costs these, not the files.
#[test]
fn a_data_set_with_damaged_limits_can_be_mounted() {
    let mut m = Machine::new(54, &[]);
    let root = m.fs().root();
    for uid in 0..300 {
        m.fs().create(root, format!("file{uid}").as_bytes(), 0o644, &user(uid * 7919)).unwrap();
        limit(&m, &format!("userobjquota@{}", uid * 7919), 1);
    }
    m.fs().sync().unwrap();
    let more = |m: &Machine| m.fs().create(root, b"more", 0o644, &user(7919)).map(drop);
    assert_eq!(more(&m), Err(Errno::EDQUOT));
    let set = m.fs().dataset().object_set().clone();
    let stored = |object: &std::sync::Arc<terrane_object::Object>| {
        let blocks = (0..object.block_count()).filter_map(|block| object.stored_pointer(block).unwrap());
        blocks.filter(|ptr| matches!(ptr, BlockPtr::Normal(_))).collect::<Vec<_>>()
    };
    let limits = m.fs().dataset().shared_master().lock().lookup_u64(b"userobjquota@").unwrap().unwrap();
    let limits = stored(&set.hold(terrane_wire::ObjectId(limits)).unwrap());
    let table = set.read_owner_table(OwnerKind::User, stored);
    drop(set);
    assert!(!limits.is_empty() && !table.is_empty());
    table.iter().for_each(|ptr| m.rot_block(ptr));
    m.remount();
    assert_eq!(m.fs().getattr(m.fs().lookup(root, b"file7").unwrap().ino).unwrap().uid, 7 * 7919);
    limits.iter().for_each(|ptr| m.rot_block(ptr));
    m.remount();
    assert_eq!(more(&m), Ok(()), "limits that cannot be read do not apply");
}

/// Without a table no commit would be possible. A new one counts everything again.
#[test]
fn a_damaged_table_is_begun_anew() {
    let mut m = Machine::new(45, &[]);
    let root = m.fs().root();
    let files: Vec<Ino> = (0..300)
        .map(|uid| {
            let file =
                m.fs().create(root, format!("file{uid}").as_bytes(), 0o644, &user(uid * 7919)).unwrap().ino;
            m.fs().put(file, 0, &Prng::new(uid.into()).random_bytes(600));
            file
        })
        .collect();
    let before = synced(&m, "made");
    assert_eq!(before.keys().filter(|(kind, _)| *kind == OwnerKind::User).count(), 300);
    let epoch = m.fs().dataset().object_set().owner_epoch().unwrap();
    m.remount();
    let set = m.fs().dataset().object_set().clone();
    let users = set.read_owner_table(OwnerKind::User, |table| {
        let blocks = (0..table.block_count()).filter_map(|block| table.stored_pointer(block).unwrap());
        blocks.filter(|ptr| matches!(ptr, BlockPtr::Normal(_))).collect::<Vec<_>>()
    });
    assert!(!users.is_empty());
    users.iter().for_each(|ptr| m.rot_block(ptr));
    m.fs().put(files[0], 0, &[7; 5000]);
    let after = synced(&m, "begun anew");
    assert!(after.len() < 10);
    let now = set.owner_epoch().unwrap();
    assert_eq!((now.epoch, now.is_complete), (epoch.epoch + 1, false));
    while m.fs().dataset().count_owners().unwrap() {}
    let all = synced(&m, "counted again");
    assert!(set.owner_epoch().unwrap().is_complete);
    let (root, first) = ((OwnerKind::User, 0), (OwnerKind::User, 7919));
    assert_eq!((all.len(), all[&first]), (before.len(), before[&first]));
    assert!(all.contains_key(&root));
}

#[test]
fn a_limit_of_bytes_stops_its_owner_and_nobody_else() {
    let mut m = Machine::new(46, &[("compression", "off"), ("recordsize", "16K")]);
    let root = m.fs().root();
    let (ann, bob) = (user(1), user(2));
    let chunk = Prng::new(1).random_bytes(256 << 10);
    limit(&m, "userquota@1", 4 << 20);
    let file = m.fs().create(root, b"ann", 0o644, &ann).unwrap().ino;
    let other = m.fs().create(root, b"bob", 0o644, &bob).unwrap().ino;
    let fill = |m: &Machine, file, until: u64| {
        (0..).find_map(|at| {
            write(m.fs(), file, at * chunk.len() as u64, &chunk).err().or((at > until).then_some(Errno::EIO))
        })
    };
    assert_eq!(fill(&m, file, 100), Some(Errno::EDQUOT));
    let full = synced(&m, "full")[&(OwnerKind::User, 1)].bytes;
    assert!((4 << 20..(5 << 20) + (256 << 10)).contains(&full), "{full}");
    assert_eq!(fill(&m, other, 40), Some(Errno::EIO), "bob has no limit");
    // A store through a mapping has succeeded before the write-back comes: it is kept, and counted.
    let back = WriteFlags { writes_back: true, ..WriteFlags::default() };
    assert_eq!(m.fs().write(file, 0, &[7; 4096], back), Ok(4096));
    // Everything that could need space is refused, in ann's name only.
    let edquot = Err(Errno::EDQUOT);
    assert_eq!(m.fs().create(root, b"more", 0o644, &ann).map(drop), edquot);
    assert_eq!(m.fs().mkdir(root, b"more", 0o755, &ann).map(drop), edquot);
    assert_eq!(m.fs().symlink(root, b"more", b"x", &ann).map(drop), edquot);
    assert_eq!(m.fs().tmpfile(root, 0o644, &ann).map(drop), edquot);
    assert_eq!(m.fs().setxattr(file, b"user.x", &[1; 100], SetXattr::default(), &ann), edquot);
    assert_eq!(m.fs().fallocate(file, 0, 64 << 20, 4096), edquot);
    assert_eq!(chown(m.fs(), other, Some(1), None), edquot, "she would get bob's file");
    assert_eq!(m.fs().getattr(other).unwrap().uid, 2);
    m.fs().create(root, b"of bob", 0o644, &bob).unwrap();
    // After a crash, the limit is as it was.
    m.fs().sync().unwrap();
    m.crash();
    assert_eq!(quotas(&m).list(), [(QuotaName::parse("userquota@1").unwrap(), 4 << 20)]);
    assert_eq!(write(m.fs(), file, 0, b"x"), edquot.map(|()| 0));
    // Less is always possible, and then there is space again.
    m.fs().rename(root, b"ann", root, b"anna", 0).unwrap();
    m.fs().size(file, 1 << 20).unwrap();
    assert_eq!(write(m.fs(), file, 1 << 20, b"x"), Ok(1), "what she freed counts at once");
    assert_eq!(fill(&m, file, 100), Some(Errno::EDQUOT));
    m.fs().unlink(root, b"anna").unwrap();
    m.fs().forget(file, u64::MAX);
    assert_eq!(synced(&m, "deleted").get(&(OwnerKind::User, 1)), None);
    // A higher limit holds at once, and none at all as well.
    let file = m.fs().create(root, b"again", 0o644, &ann).unwrap().ino;
    assert_eq!(fill(&m, file, 100), Some(Errno::EDQUOT));
    limit(&m, "userquota@1", 8 << 20);
    assert_eq!(write(m.fs(), file, 20 << 20, &chunk), Ok(256 << 10));
    limit(&m, "userquota@1", 0);
    assert!(!quotas(&m).has_limits());
    assert_eq!(fill(&m, file, 40), Some(Errno::EIO));
    assert_exact(&m, "the end");
}

#[test]
fn limits_of_objects_are_exact() {
    let m = Machine::new(47, &[]);
    let root = m.fs().root();
    limit(&m, "userobjquota@5", 10);
    limit(&m, "groupobjquota@6", 12);
    let make =
        |cred: &Cred, name: String| m.fs().create(root, name.as_bytes(), 0o644, cred).map(|attr| attr.ino);
    let (mine, ours) = (Cred { uid: 5, gid: 6, umask: 0 }, Cred { uid: 55, gid: 6, umask: 0 });
    let count =
        |cred: &Cred, of: &str| (0..100).take_while(|at| make(cred, format!("{of}{at}")).is_ok()).count();
    assert_eq!(count(&mine, "mine"), 10);
    assert_eq!(make(&mine, "more".into()), Err(Errno::EDQUOT));
    assert_eq!(count(&ours, "ours"), 2, "the group has 12");
    m.fs().unlink(root, b"mine3").unwrap();
    m.fs().forget(m.fs().lookup(root, b"ours0").unwrap().ino, 0);
    m.fs().forget_all();
    assert_eq!(count(&mine, "new"), 1);
    assert_eq!(synced(&m, "the end")[&(OwnerKind::Group, 6)].objects, 12);
}

/// Values in hidden directories are objects of the file's owner.
#[test]
fn limits_of_objects_bound_hidden_attributes() {
    let m = Machine::new(53, &[("xattr", "dir")]);
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.create(root, b"file", 0o644, &user(5)).unwrap().ino;
    fs.sync().unwrap();
    limit(&m, "userobjquota@5", 5);
    let set = |at: u64| fs.setxattr(file, format!("user.{at}").as_bytes(), &[7], SetXattr::default(), &USER);
    // The file, the hidden directory, and three values.
    assert_eq!((0..100).take_while(|at| set(*at).is_ok()).count(), 3);
    assert_eq!(set(9), Err(Errno::EDQUOT));
    set(1).expect("another value for a name");
    assert_eq!(synced(&m, "set")[&(OwnerKind::User, 5)].objects, 5);
    fs.removexattr(file, b"user.2").unwrap();
    set(9).expect("after another was removed");
}

/// What one txg takes beside the bytes that are written: zeros in records, and names.
#[test]
fn sparse_writes_and_names_exceed_a_limit_by_little() {
    let m = Machine::new(54, &[("compression", "off"), ("recordsize", "128K")]);
    let (fs, root) = (m.fs(), m.fs().root());
    let most = (4 << 20) + (1 << 20) + (512 << 10);
    limit(&m, "userquota@1", 4 << 20);
    let file = fs.create(root, b"file", 0o644, &user(1)).unwrap().ino;
    let ended = (1..400).find_map(|at| write(fs, file, at * (128 << 10) - 1, b"x").err());
    assert_eq!(ended, Some(Errno::EDQUOT));
    let sparse = synced(&m, "sparse")[&(OwnerKind::User, 1)].bytes;
    assert!((3 << 20..most).contains(&sparse), "{sparse}");
    limit(&m, "userquota@2", 4 << 20);
    let dir = fs.mkdir(root, b"dir", 0o755, &user(2)).unwrap().ino;
    let mut random = Prng::new(9);
    let ended = (0..40_000).find_map(|_| {
        let name: String = (0..125).map(|_| format!("{:02x}", random.random_bytes(1)[0])).collect();
        fs.create(dir, name.as_bytes(), 0o644, &user(2)).err()
    });
    assert_eq!(ended, Some(Errno::EDQUOT));
    let names = synced(&m, "names")[&(OwnerKind::User, 2)].bytes;
    assert!((3 << 20..most).contains(&names), "{names}");
}

#[test]
fn many_threads_exceed_a_limit_by_little() {
    let m = Machine::with_threads(48);
    let root = m.fs().root();
    limit(&m, "userquota@9", 8 << 20);
    let fs = m.fs();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let name = format!("file{thread}");
                let file = fs.create(root, name.as_bytes(), 0o644, &user(9)).unwrap().ino;
                let bytes = Prng::new(thread).random_bytes(128 << 10);
                let ended = (0..400).find_map(|at| write(fs, file, at * (128 << 10), &bytes).err());
                assert_eq!(ended, Some(Errno::EDQUOT));
            });
        }
    });
    let all = synced(&m, "full")[&(OwnerKind::User, 9)].bytes;
    assert!((8 << 20..(9 << 20) + (512 << 10)).contains(&all), "{all}");
}

#[test]
fn a_project_is_inherited_and_keeps_others_out() {
    let m = Machine::new(49, &[]);
    let (fs, root) = (m.fs(), m.fs().root());
    let tree = fs.dir(root, "tree").ino;
    let inherit = InodeFlags { project_inherit: true, ..InodeFlags::default() };
    fs.set_flags_and_project(tree, inherit, 42).unwrap();
    let (file, sub) = (fs.file(tree, "file").ino, fs.dir(tree, "sub").ino);
    let link = fs.symlink(tree, b"link", b"x", &USER).unwrap().ino;
    let below = fs.file(sub, "below").ino;
    assert_eq!([file, sub, link, below].map(|ino| fs.project(ino)), [Ok(42); 4]);
    assert_eq!((fs.inode_flags(sub), fs.inode_flags(file)), (Ok(inherit), Ok(InodeFlags::default())));
    let outside = fs.file(root, "outside").ino;
    let other = fs.dir(root, "other").ino;
    fs.set_flags_and_project(other, inherit, 43).unwrap();
    assert_eq!(fs.rename(root, b"outside", tree, b"in", 0), Err(Errno::EXDEV));
    assert_eq!(fs.link(outside, sub, b"in").map(drop), Err(Errno::EXDEV));
    assert_eq!(fs.rename(tree, b"file", other, b"in", 0), Err(Errno::EXDEV));
    assert_eq!(fs.rename(root, b"outside", tree, b"file", RENAME_EXCHANGE), Err(Errno::EXDEV));
    assert_eq!(fs.rename(tree, b"file", root, b"outside", RENAME_EXCHANGE), Err(Errno::EXDEV));
    fs.rename(tree, b"file", sub, b"file", 0).unwrap();
    fs.rename(sub, b"file", root, b"file", 0).unwrap();
    assert_eq!(fs.project(file), Ok(42), "it stays in its project");
    fs.rename(root, b"file", tree, b"file", 0).unwrap();
    // Of the same project now.
    chproj(fs, outside, 42).unwrap();
    fs.link(outside, tree, b"in").unwrap();
    // An immutable file keeps its project.
    fs.set_inode_flags(file, InodeFlags { immutable: true, ..InodeFlags::default() }).unwrap();
    assert_eq!(chproj(fs, file, 1), Err(Errno::EPERM));
    fs.set_flags_and_project(file, InodeFlags::default(), 1).unwrap();
    assert_eq!(fs.project(file), Ok(1));
    let all = synced(&m, "the end");
    assert_eq!(all[&(OwnerKind::Project, 42)].objects, 5);
    assert_eq!(all[&(OwnerKind::Project, 1)].objects, 1);
}

/// The project's attribute lies directly behind the numbers, whatever else the inode has.
#[test]
fn a_project_does_not_disturb_other_attributes() {
    let mut m = Machine::new(50, &[]);
    let root = m.fs().root();
    let file = m.fs().file(root, "file").ino;
    let values: Vec<Vec<u8>> = (0..4).map(|at| Prng::new(at).random_bytes(100 + 900 * at as usize)).collect();
    let names = ["user.a", "user.b", "user.c", "user.d"];
    for (name, value) in names.iter().zip(&values) {
        m.fs().setxattr(file, name.as_bytes(), value, SetXattr::default(), &USER).unwrap();
        chproj(m.fs(), file, value.len() as u32).unwrap();
        assert_eq!(synced(&m, name)[&(OwnerKind::Project, value.len() as u32)].objects, 1);
    }
    m.remount();
    for (name, value) in names.iter().zip(&values) {
        let mut found = Vec::new();
        m.fs().getxattr(file, name.as_bytes(), &mut found).unwrap();
        assert_eq!(found, *value, "{name}");
    }
    assert_eq!(m.fs().project(file), Ok(2800));
}

#[test]
fn statfs_of_a_project_shows_its_limit() {
    let m = Machine::new(51, &[("compression", "off")]);
    let (fs, root) = (m.fs(), m.fs().root());
    let tree = fs.dir(root, "tree").ino;
    let inherit = InodeFlags { project_inherit: true, ..InodeFlags::default() };
    fs.set_flags_and_project(tree, inherit, 42).unwrap();
    assert_eq!(fs.statfs_of(tree), fs.statfs());
    limit(&m, "projectquota@42", 8 << 20);
    limit(&m, "projectobjquota@42", 5);
    let file = fs.file(tree, "file").ino;
    fs.put(file, 0, &Prng::new(1).random_bytes(2 << 20));
    synced(&m, "written");
    let (whole, shown) = (fs.statfs_of(root), fs.statfs_of(tree));
    assert_eq!(whole, fs.statfs());
    assert_eq!(shown.blocks * u64::from(shown.block_size), 8 << 20);
    let free = shown.free * u64::from(shown.block_size);
    assert!((5 << 20..=6 << 20).contains(&free), "{free}");
    assert_eq!((shown.files, shown.files_free, shown.available), (5, 3, shown.free));
    limit(&m, "projectquota@42", 1 << 20);
    assert_eq!(fs.statfs_of(tree).free, 0);
    assert_eq!(write(fs, file, 0, b"x"), Err(Errno::EDQUOT));
}

/// The tables of owners take space in the commit, after all operations were admitted.
#[test]
fn a_commit_in_a_full_pool_has_space_for_the_tables() {
    let m = Machine::sized(52, &[], 32, 4 << 20);
    let (fs, root) = (m.fs(), m.fs().root());
    let own = |ino: Ino, id: u32| chown(fs, ino, Some(id), Some(id)).and_then(|()| chproj(fs, ino, id));
    let files: Vec<Ino> = (5..10_000)
        .map(|id| {
            let ino = fs.create(root, format!("file{id}").as_bytes(), 0o644, &user(1)).unwrap().ino;
            own(ino, id).unwrap();
            ino
        })
        .collect();
    let large = fs.file(root, "large").ino;
    let fill = |from: u64| {
        let is_full = |at: &u64| {
            write(fs, large, at << 17, &Prng::new(*at).random_bytes(1 << 17)) == Err(Errno::ENOSPC)
        };
        let end = (from..).find(is_full).unwrap();
        fs.sync().unwrap();
        end
    };
    let end = fill(0);
    let end = fill(end) << 17;
    for round in 1..3 {
        fs.size(large, end - round * (3 << 19)).unwrap();
        fs.sync().unwrap();
        let ids = 100_000 * round as u32..;
        let moved = files.iter().zip(ids).take_while(|(ino, id)| own(**ino, *id).is_ok()).count();
        assert!(moved > 1000, "{moved}");
        synced(&m, "moved");
    }
}
