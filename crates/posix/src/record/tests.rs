//! Every kind of record to bytes and back, and bytes that are no records.

use super::*;
use std::collections::BTreeSet;
use terrane_wire::Prng;

const NOW: Time = Time { secs: -1, nanos: 999_999_999 };

/// Every kind, with the extremes of each field.
fn samples() -> Vec<Record<'static>> {
    let cred = Cred { uid: u32::MAX, gid: 0, umask: 0o777 };
    let new = NewInode { ino: ObjectId::MASK, generation: u64::MAX, dnode_slots: 32 };
    let small = NewInode { ino: 1, generation: 0, dnode_slots: 1 };
    let long: &'static [u8] = &[b'n'; NAME_MAX];
    let words = EntryWords::from_slice(&[0, u64::MAX, 3, 4, 5, 0]).unwrap();
    let file = NewFile::regular(0o7777, &cred);
    let device = NewFile { bits: mode::S_IFCHR | 1, rdev: Some(u32::MAX), target: None, cred };
    let link = NewFile::symlink(&[b't'; SYMLINK_MAX], &cred).unwrap();
    let (ino, dir, name) = (7, 8, &b"name"[..]);
    let how = SetXattr { create: true, replace: false, kill_sgid: true };
    let at = Time { secs: i64::MAX, nanos: 0 };
    let set = SetAttr {
        mode: Some(0o7777),
        uid: Some(u32::MAX),
        gid: Some(0),
        size: Some(u64::MAX),
        atime: Some(SetTime::At(at)),
        mtime: Some(SetTime::Now),
        ctime: Some(NOW),
        kill_suidgid: true,
    };
    let times = SetAttr { mtime: Some(SetTime::At(NOW)), atime: Some(SetTime::Now), ..SetAttr::default() };
    let max = FILE_SIZE_MAX;
    vec![
        Record::CreateFile { dir, name, words, file, new },
        Record::CreateFile { dir, name: long, words: EntryWords::NONE, file: device, new: small },
        Record::CreateFile { dir, name, words: EntryWords::NONE, file: link, new },
        Record::CreateTmpfile { dir, file, new },
        Record::Link { ino, dir, name, words },
        Record::Remove { dir, name: long, wants_dir: true, ino },
        Record::Remove { dir, name, wants_dir: false, ino },
        Record::Rename { dir, name, new_dir: 1, new_name: long, flags: 2, whiteout: None, moved: ino },
        Record::Rename {
            dir,
            name,
            new_dir: 1,
            new_name: name,
            flags: u32::MAX,
            whiteout: Some((cred, new)),
            moved: ino,
        },
        Record::SetAttributes { ino, set },
        Record::SetAttributes { ino, set: times },
        Record::SetAttributes { ino, set: SetAttr::default() },
        Record::PutXattr { ino, name: b"user.a/b", value: b"", how, placement: XattrPlacement::Sa },
        Record::PutXattr {
            ino,
            name: b"trusted.x",
            value: &[3; XATTR_SIZE_MAX],
            how: SetXattr::default(),
            placement: XattrPlacement::Dir,
        },
        Record::RemoveXattr { ino, name: b"security.capability" },
        Record::SetAcl { ino, is_default: true, acl: Some(Cow::Borrowed(b"acl")), kill_sgid: false },
        Record::SetAcl { ino, is_default: false, acl: None, kill_sgid: true },
        Record::SetInodeFlags { ino, flags: u64::MAX, project: Some(u32::MAX) },
        Record::SetInodeFlags { ino, flags: 0, project: None },
        Record::SetHint { ino, hint: Hint::Extreme, as_xattr: None },
        Record::SetHint { ino, hint: Hint::NotSet, as_xattr: Some(HintXattr { is_set: true, how }) },
        Record::SetEntryWords { dir, name, words },
        Record::Write { ino, offset: max - 4, data: b"data", kill_suidgid: true },
        Record::TruncateOnOpen { ino },
        Record::ZeroRange { ino, range: 0..max, punches: true, keeps_size: false },
        Record::Reserve { ino, range: max - 1..max, extends: true },
        Record::StoreAccessTime { ino, at },
        Record::Clone { ino: 9, from: 8, range: 4096..8192, into: 0 },
    ]
}

fn stored(record: &Record<'_>, now: Time) -> Vec<u8> {
    let mut writer = Writer::new();
    record.write(now, &mut writer);
    writer.into_bytes()
}

#[test]
fn every_kind_comes_back() {
    let mut kinds = BTreeSet::new();
    for record in samples() {
        let raw = stored(&record, NOW);
        kinds.insert(raw[0]);
        let (now, parsed) = Record::parse(&raw).unwrap();
        assert_eq!(now, NOW);
        assert_eq!(format!("{parsed:?}"), format!("{record:?}"));
        assert_eq!(stored(&parsed, now), raw);
        assert!(record.bytes_min() <= raw.len());
    }
    assert_eq!(kinds, (kind::CREATE_FILE..=kind::CLONE).collect());
}

#[test]
fn a_cut_or_a_longer_record_is_refused() {
    for record in samples() {
        let mut raw = stored(&record, NOW);
        for cut in (0..raw.len()).filter(|cut| *cut < 400 || cut % 997 == 0) {
            assert!(Record::parse(&raw[..cut]).is_err(), "{record} cut at {cut}");
        }
        raw.push(0);
        assert!(Record::parse(&raw).is_err(), "{record} with a byte behind it");
    }
}

#[test]
fn no_bytes_make_the_parser_panic() {
    let mut rng = Prng::new(1);
    for record in samples() {
        let raw = stored(&record, NOW);
        // Names and values may have any bytes.
        for at in 0..raw.len().min(if raw.len() > 1000 { 24 } else { 400 }) {
            for byte in (0..8).map(|bit| raw[at] ^ 1 << bit).chain([0, 1, 127, 128, 255]) {
                let mut rotten = raw.clone();
                rotten[at] = byte;
                // What parses is written as it was read, apart from numbers that have longer forms.
                if let Ok((now, parsed)) = Record::parse(&rotten) {
                    let again = stored(&parsed, now);
                    let (then, parsed_again) = Record::parse(&again).unwrap();
                    assert_eq!((then, format!("{parsed:?}")), (now, format!("{parsed_again:?}")));
                }
            }
        }
        for _ in 0..500 {
            let len = 1 + rng.below(60) as usize;
            let mut junk = rng.random_bytes(len);
            junk[0] = raw[0];
            let _ = Record::parse(&junk);
        }
    }
}

#[test]
fn what_an_operation_does_not_take_is_refused() {
    let (ino, name) = (7, &b"name"[..]);
    let file = NewFile::regular(0o644, &Cred::default());
    let create = |file, new| Record::CreateFile { dir: 1, name, words: EntryWords::NONE, file, new };
    let new = NewInode { ino, generation: 1, dnode_slots: 1 };
    let write = |offset| Record::Write { ino, offset, data: b"data", kill_suidgid: false };
    let reserve = |range| Record::Reserve { ino, range, extends: false };
    for bad in [
        create(NewFile { bits: 0o644, ..file }, new),
        create(NewFile { bits: mode::S_IFLNK, ..file }, new),
        create(file, NewInode { ino: 0, ..new }),
        create(file, NewInode { ino: 1 << 48, ..new }),
        create(file, NewInode { dnode_slots: 0, ..new }),
        create(file, NewInode { dnode_slots: 33, ..new }),
        Record::Remove { dir: 0, name, wants_dir: false, ino },
        Record::Remove { dir: 1, name: b"", wants_dir: false, ino },
        Record::Remove { dir: 1, name: &[b'n'; NAME_MAX + 1], wants_dir: false, ino },
        Record::Remove { dir: 1, name: b"a\0", wants_dir: false, ino },
        write(FILE_SIZE_MAX - 3),
        write(u64::MAX),
        reserve(5..5),
        reserve(Range { start: 6, end: 5 }),
        reserve(0..FILE_SIZE_MAX + 1),
    ] {
        assert!(matches!(Record::parse(&stored(&bad, NOW)), Err(NoRecord::Damaged { .. })), "{bad}");
    }
    let late = Time { secs: 0, nanos: 1_000_000_000 };
    assert!(Record::parse(&stored(&write(0), late)).is_err());
    for kind in [0, kind::CLONE + 1, 0x80, 255] {
        assert_eq!(Record::parse(&[kind, 0, 0]).unwrap_err(), NoRecord::UnknownKind(kind));
    }
    let mut raw = stored(&write(0), NOW);
    assert!(!Record::was_without_acls(&raw));
    Record::mark_without_acls(&mut raw);
    assert!(Record::was_without_acls(&raw) && Record::parse(&raw).is_ok());
}
