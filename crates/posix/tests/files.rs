//! One test per rule about bytes, sizes, attributes and durability.

use crate::support::{LogLines, Machine, Short, USER};
use terrane_posix::{
    Errno, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, FILE_SIZE_MAX, SetAttr, SetTime, Time,
    WriteFlags,
};
use terrane_wire::Prng;

fn machine() -> Machine {
    Machine::new(2, &[("recordsize", "4K")])
}

#[test]
fn bytes_come_back_after_a_remount() {
    let mut m = Machine::new(3, &[]);
    let root = m.fs().root();
    let mut rng = Prng::new(1);
    for (i, len) in [0, 1, 511, 512, 513, 131_072, 131_073, 3_000_000].into_iter().enumerate() {
        let data = rng.random_bytes(len);
        let file = m.fs().file(root, &format!("f{i}")).ino;
        m.fs().put(file, 0, &data);
        assert!(m.fs().bytes(file) == data);
        m.remount();
        assert_eq!(m.fs().ino(root, &format!("f{i}")), Ok(file));
        assert!(m.fs().bytes(file) == data);
    }
}

#[test]
fn a_failed_read_is_logged_with_path_and_error() {
    let lines = LogLines::start();
    let m = machine();
    let file = m.fs().file(m.fs().root(), "rotten").ino;
    m.fs().put(file, 0, &Prng::new(1).random_bytes(8192));
    m.fs().sync().unwrap();
    m.rot(file, 1);
    assert_eq!(m.fs().read(file, 4096, 10, &mut Vec::new()), Err(Errno::EIO));
    let found = lines.that_contain(&format!("read failed: /rotten (inode {file}) at byte 4096: "));
    assert!(matches!(&found[..], [line] if line.contains("checksum")), "{found:?}");
}

#[test]
fn reads_end_at_the_end() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    fs.put(file, 0, b"0123456789");
    let read = |offset, len| {
        let mut out = b"x".to_vec();
        fs.read(file, offset, len, &mut out).map(|()| out)
    };
    assert_eq!(read(0, 4), Ok(b"x0123".to_vec()));
    assert_eq!(read(8, 4), Ok(b"x89".to_vec()));
    assert_eq!(read(10, 4), Ok(b"x".to_vec()));
    assert_eq!(read(u64::MAX, 4), Ok(b"x".to_vec()));
}

#[test]
fn unwritten_bytes_are_zero() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    fs.put(file, 0, b"a");
    fs.put(file, 1_000_000, b"z");
    let bytes = fs.bytes(file);
    assert_eq!((bytes.len(), bytes[0], bytes[1_000_000]), (1_000_001, b'a', b'z'));
    assert!(bytes[1..1_000_000].iter().all(|b| *b == 0));
    assert!(fs.getattr(file).unwrap().blocks <= 2 * 8 + 64, "holes take no space");
    assert_eq!(fs.seek_hole(file, 0), Ok(4096));
    assert_eq!(fs.seek_data(file, 4096), Ok(1_000_000 / 4096 * 4096));
    assert_eq!(fs.seek_hole(file, 1_000_000), Ok(1_000_001));
    assert_eq!(fs.seek_data(file, 1_000_001), Err(Errno::ENXIO));
    assert_eq!(fs.seek_hole(file, 1_000_001), Err(Errno::ENXIO));
    fs.size(file, 2_000_000).unwrap();
    assert_eq!(fs.seek_data(file, 1_500_000), Err(Errno::ENXIO));
    assert_eq!(fs.seek_hole(file, 1_500_000), Ok(1_500_000));
}

#[test]
fn a_file_cut_and_grown_shows_zeros() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    for len in [3u64, 600, 4096, 5000, 20_000] {
        let file = fs.file(root, &format!("f{len}")).ino;
        fs.put(file, 0, &vec![7; 20_000]);
        assert_eq!(fs.size(file, len).unwrap().size, len);
        fs.size(file, 30_000).unwrap();
        let bytes = fs.bytes(file);
        assert!(
            bytes[..len as usize].iter().all(|b| *b == 7) && bytes[len as usize..].iter().all(|b| *b == 0)
        );
    }
}

#[test]
fn files_end_before_2_to_the_63() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    let write = |offset, data: &[u8]| fs.write(file, offset, data, WriteFlags::default());
    assert_eq!(write(FILE_SIZE_MAX - 3, b"12345"), Ok(3));
    assert_eq!(fs.getattr(file).unwrap().size, FILE_SIZE_MAX);
    assert_eq!(write(FILE_SIZE_MAX, b"1"), Err(Errno::EFBIG));
    assert_eq!(write(u64::MAX, b"1"), Err(Errno::EFBIG));
    assert_eq!(fs.size(file, FILE_SIZE_MAX + 1), Err(Errno::EFBIG));
    assert_eq!(fs.fallocate(file, 0, FILE_SIZE_MAX, 1), Err(Errno::EFBIG));
    assert_eq!(fs.fallocate(file, FALLOC_KEEP_SIZE, u64::MAX, 2), Err(Errno::EFBIG));
    let mut out = Vec::new();
    fs.read(file, FILE_SIZE_MAX - 3, 10, &mut out).unwrap();
    assert_eq!(out, b"123");
    assert_eq!(
        fs.write(file, 0, b"x", WriteFlags { append: true, ..WriteFlags::default() }),
        Err(Errno::EFBIG)
    );
}

#[test]
fn appends_find_the_end_themselves() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    let append = WriteFlags { append: true, ..WriteFlags::default() };
    for _ in 0..3 {
        assert_eq!(fs.write(file, 0, b"line\n", append), Ok(5));
    }
    assert_eq!(fs.bytes(file), b"line\nline\nline\n");
    assert_eq!(fs.write(file, 0, &vec![1; 3 << 20], append), Ok(1 << 20), "one piece, not three");
}

#[test]
fn small_files_have_small_blocks_and_large_files_the_record_size() {
    let m = Machine::new(4, &[("recordsize", "16K"), ("compression", "off")]);
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    let block = || m.fs().dataset().object_set().hold(terrane_wire::ObjectId(file)).unwrap().block_size();
    fs.put(file, 0, &[1; 700]);
    assert_eq!(block(), 1024);
    fs.put(file, 700, &[2; 5000]);
    assert_eq!(block(), 6144);
    fs.put(file, 5700, &[3; 50_000]);
    assert_eq!(block(), 16_384);
    let bytes = fs.bytes(file);
    assert!(bytes[..700] == [1; 700] && bytes[700..5700] == [2; 5000] && bytes[5700..] == [3; 50_000]);
    fs.truncate_on_open(file).unwrap();
    fs.put(file, 0, b"small again");
    assert_eq!(block(), 512);
    let sparse = fs.file(root, "s").ino;
    fs.size(sparse, 1 << 30).unwrap();
    fs.put(sparse, 0, b"x");
    let object = m.fs().dataset().object_set().hold(terrane_wire::ObjectId(sparse)).unwrap();
    assert_eq!(object.block_size(), 16_384);
}

/// The data set's record size takes each value in turn. It applies to later files; existing ones keep theirs.
#[test]
fn records_of_every_size_hold_what_was_written() {
    let mut m = Machine::sized(5, &[], 64, 64 << 20);
    let mut files = Vec::new();
    for shift in 9..=24 {
        let record = 1usize << shift;
        m.fs().dataset().set("recordsize", &record.to_string()).unwrap();
        for compression in ["off", "zstd-1"] {
            m.fs().dataset().set("compression", compression).unwrap();
            let file = m.fs().file(m.fs().root(), &format!("{compression} {shift}")).ino;
            let len = record * 2 + 700;
            let mut bytes = match compression {
                "off" => Prng::new(shift).random_bytes(len),
                _ => b"a line of text that repeats, ".repeat(len.div_ceil(29))[..len].to_vec(),
            };
            let put = |at: usize, piece: &[u8]| {
                for (n, part) in piece.chunks(1 << 20).enumerate() {
                    m.fs().put(file, (at + (n << 20)) as u64, part);
                }
            };
            put(0, &bytes);
            m.fs().sync().unwrap();
            // Across the boundary of two records, and in the middle of one.
            for (at, piece) in [(record - 300, &[7; 600][..]), (record + 400, b"in the middle")] {
                put(at, piece);
                bytes[at..at + piece.len()].copy_from_slice(piece);
            }
            // Before the property changes again.
            m.fs().sync().unwrap();
            files.push((file, record, compression, bytes));
        }
    }
    m.remount();
    for (file, record, compression, bytes) in &files {
        let what = format!("records of {record}, {compression}");
        assert!(m.fs().bytes(*file) == *bytes, "{what}");
        let object = m.fs().dataset().object_set().hold(terrane_wire::ObjectId(*file)).unwrap();
        assert_eq!(object.block_size() as usize, *record, "{what}");
        assert_eq!(object.block_count() as usize, bytes.len().div_ceil(*record), "{what}");
        let (stored, len) = (m.fs().getattr(*file).unwrap().blocks as usize * 512, bytes.len());
        if *compression == "off" {
            // The last record is stored at its length, not at the record size. Each record adds 128 bytes of
            // pointer, twice.
            let pointers = object.block_count() as usize * 256 + (64 << 10);
            assert!((len..len + pointers).contains(&stored), "{what}: {stored} for {len}");
        } else if *record >= 16 << 10 {
            assert!(stored < len / 4, "{what}: {stored} for {len}");
        }
    }
}

#[test]
fn writing_and_giving_away_clears_set_id_bits() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    let chmod =
        |mode| fs.setattr(file, &SetAttr { mode: Some(mode), ..SetAttr::default() }, &USER).unwrap().mode;
    let mode = || fs.getattr(file).unwrap().mode;
    assert_eq!(chmod(0o6755), 0o106_755);
    fs.put(file, 0, b"x");
    assert_eq!(mode(), 0o106_755, "only where the kernel says so");
    fs.write(file, 0, b"x", WriteFlags { kill_suidgid: true, ..WriteFlags::default() }).unwrap();
    assert_eq!(mode(), 0o100_755);
    assert_eq!(chmod(0o6745), 0o106_745);
    fs.setattr(file, &SetAttr { uid: Some(5), ..SetAttr::default() }, &USER).unwrap();
    assert_eq!(mode(), 0o102_745, "without group execution the bit means locking");
    chmod(0o4755);
    let cut = SetAttr { size: Some(0), kill_suidgid: true, ..SetAttr::default() };
    assert_eq!(fs.setattr(file, &cut, &USER).unwrap().mode, 0o100_755);
    chmod(0o6755);
    let both = SetAttr { gid: Some(3), mode: Some(0o6711), ..SetAttr::default() };
    assert_eq!(fs.setattr(file, &both, &USER).unwrap().mode, 0o106_711);
    let dir = fs.dir(root, "d").ino;
    fs.setattr(dir, &SetAttr { mode: Some(0o2755), ..SetAttr::default() }, &USER).unwrap();
    assert_eq!(
        fs.setattr(dir, &SetAttr { gid: Some(9), ..SetAttr::default() }, &USER).unwrap().mode,
        0o042_755
    );
}

#[test]
fn copies_into_a_file_and_changes_of_its_space_clear_set_id_bits_whoever_makes_them() {
    use terrane_posix::{FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE};
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let (file, from) = (fs.file(root, "f").ino, fs.file(root, "from").ino);
    fs.put(file, 0, &[7; 10_000]);
    fs.put(from, 0, b"what is copied");
    let went_after = |change: &dyn Fn() -> Result<(), Errno>| {
        let set = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
        fs.setattr(file, &set, &USER).unwrap();
        assert!(!fs.take_set_ids_cleared(file));
        change().unwrap();
        let cleared = fs.take_set_ids_cleared(file);
        assert!(!fs.take_set_ids_cleared(file), "said once");
        (cleared, fs.getattr(file).unwrap().mode & 0o7777)
    };
    for mode in [
        0,
        FALLOC_KEEP_SIZE,
        FALLOC_ZERO_RANGE,
        FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE,
        FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE,
    ] {
        assert_eq!(went_after(&|| fs.fallocate(file, mode, 20, 100)), (true, 0o755), "mode {mode}");
    }
    assert_eq!(went_after(&|| fs.copy_range(from, 0, file, 5, 4).map(drop)), (true, 0o755));
    let kill = WriteFlags { kill_suidgid: true, ..WriteFlags::default() };
    assert_eq!(went_after(&|| fs.write(file, 0, b"x", kill).map(drop)), (true, 0o755));
    assert_eq!(went_after(&|| fs.write(file, 0, b"x", WriteFlags::default()).map(drop)), (false, 0o6755));
    assert_eq!(
        went_after(&|| fs.copy_range(from, 99, file, 5, 4).map(drop)),
        (false, 0o6755),
        "nothing to copy"
    );
}

#[test]
fn attributes_are_set_and_kept() {
    let mut m = machine();
    let root = m.fs().root();
    let file = m.fs().file(root, "f");
    let set = SetAttr {
        mode: Some(0o40_123),
        uid: Some(u32::MAX - 1),
        gid: Some(8),
        atime: Some(SetTime::At(Time { secs: -5, nanos: 999_999_999 })),
        mtime: Some(SetTime::At(Time { secs: 1 << 40, nanos: 1 })),
        ..SetAttr::default()
    };
    let after = m.fs().setattr(file.ino, &set, &USER).unwrap();
    assert_eq!((after.mode, after.uid, after.gid), (0o100_123, u32::MAX - 1, 8));
    assert_eq!(after.atime, Time { secs: -5, nanos: 999_999_999 });
    assert_eq!(after.mtime, Time { secs: 1 << 40, nanos: 1 });
    assert!(after.ctime > file.ctime && after.btime == file.btime);
    m.remount();
    assert_eq!(m.fs().getattr(file.ino), Ok(after));
    let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let after = m.fs().setattr(file.ino, &now, &USER).unwrap();
    assert_eq!(after.mtime, after.ctime);
    let given = SetAttr { ctime: Some(Time { secs: 9, nanos: 0 }), ..SetAttr::default() };
    assert_eq!(m.fs().setattr(file.ino, &given, &USER).unwrap().ctime.secs, 9);
}

#[test]
fn writes_and_cuts_leave_their_time() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    let changed = |change: &dyn Fn()| {
        let before = fs.getattr(file).unwrap();
        change();
        let after = fs.getattr(file).unwrap();
        (after.mtime > before.mtime, after.ctime > before.ctime)
    };
    assert_eq!(changed(&|| fs.put(file, 0, &[1; 9000])), (true, true));
    assert_eq!(
        changed(&|| {
            fs.size(file, 9000).unwrap();
        }),
        (true, true),
        "also to the same size"
    );
    assert_eq!(changed(&|| fs.truncate_on_open(file).unwrap()), (true, true));
    assert_eq!(changed(&|| fs.fallocate(file, 0, 0, 10).unwrap()), (true, true));
    assert_eq!(changed(&|| fs.fallocate(file, FALLOC_KEEP_SIZE, 0, 99).unwrap()), (false, false));
    assert_eq!(changed(&|| drop(fs.bytes(file))), (false, false));
    let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(
        changed(&|| {
            fs.setattr(file, &chmod, &USER).unwrap();
        }),
        (false, true)
    );
}

#[test]
fn what_chattr_forbids_is_refused_to_everybody() {
    use terrane_posix::{FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, InodeFlags, SetXattr};
    let mut m = machine();
    let (file, dir, sub) = {
        let (fs, root) = (m.fs(), m.fs().root());
        let dir = fs.dir(root, "dir").ino;
        (fs.file(dir, "file").ino, dir, fs.dir(dir, "sub").ino)
    };
    m.fs().put(file, 0, b"bytes");
    let fs = m.fs();
    let root = fs.root();
    let flags = |immutable, append_only| InodeFlags { immutable, append_only, ..InodeFlags::default() };
    let set = |ino, flags| fs.set_inode_flags(ino, flags).unwrap();
    // Changes of the file and its names. Refused ones must change nothing.
    let write = |offset| fs.write(file, offset, b"more", WriteFlags::default()).map(drop);
    let touch = |mtime| {
        let set = SetAttr { mtime: Some(mtime), ..SetAttr::default() };
        fs.setattr(file, &set, &USER).map(drop)
    };
    type Change<'a> = &'a dyn Fn() -> Result<(), Errno>;
    let others: [(&str, Change<'_>); 10] = [
        ("write", &|| write(2)),
        ("cut", &|| fs.setattr(file, &SetAttr { size: Some(2), ..SetAttr::default() }, &USER).map(drop)),
        ("chmod", &|| {
            fs.setattr(file, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, &USER).map(drop)
        }),
        ("chown", &|| fs.setattr(file, &SetAttr { uid: Some(1), ..SetAttr::default() }, &USER).map(drop)),
        ("utimes", &|| touch(SetTime::At(Time::default()))),
        ("punch", &|| fs.fallocate(file, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, 2)),
        ("setxattr", &|| fs.setxattr(file, b"user.x", b"y", SetXattr::default(), &USER)),
        ("link", &|| fs.link(file, root, b"link").map(drop)),
        ("rename", &|| fs.rename(dir, b"file", root, b"moved", 0)),
        ("unlink", &|| fs.unlink(dir, b"file")),
    ];
    for flags in [flags(true, false), flags(false, true), flags(true, true)] {
        set(file, flags);
        assert_eq!(fs.inode_flags(file), Ok(flags));
        for (what, change) in &others {
            assert_eq!(change(), Err(Errno::EPERM), "{what} with {flags:?}");
        }
        let adds = if flags.immutable { Err(Errno::EPERM) } else { Ok(()) };
        assert_eq!(write(fs.getattr(file).unwrap().size), adds, "{flags:?}");
        assert_eq!((touch(SetTime::Now), fs.fallocate(file, 0, 0, 20)), (adds, adds));
        assert_eq!(&fs.bytes(file)[..5], b"bytes");
    }
    set(file, InodeFlags::default());
    // Flags of a directory.
    for flags in [flags(true, false), flags(false, true)] {
        set(dir, flags);
        let adds = if flags.immutable { Err(Errno::EPERM) } else { Ok(()) };
        let name = format!("{flags:?}");
        assert_eq!(fs.create(dir, name.as_bytes(), 0o644, &USER).map(drop), adds);
        assert_eq!(fs.mkdir(dir, format!("{name}2").as_bytes(), 0o755, &USER).map(drop), adds);
        assert_eq!(fs.link(file, dir, format!("{name}3").as_bytes()).map(drop), adds);
        assert_eq!(fs.unlink(dir, b"file"), Err(Errno::EPERM));
        assert_eq!(fs.rmdir(dir, b"sub"), Err(Errno::EPERM));
        assert_eq!(fs.rename(dir, b"file", root, b"out", 0), Err(Errno::EPERM));
        fs.file(root, &name);
        assert_eq!(
            fs.rename(root, name.as_bytes(), dir, b"file", 0),
            Err(Errno::EPERM),
            "it would replace one"
        );
        assert_eq!(
            fs.create(sub, name.as_bytes(), 0o644, &USER).map(drop),
            Ok(()),
            "what is in it is its own"
        );
    }
    // Flags persist; one of them is inherited.
    set(dir, InodeFlags { no_dump: true, ..flags(false, true) });
    let new = fs.file(dir, "new").ino;
    assert_eq!(fs.inode_flags(new), Ok(InodeFlags { no_dump: true, ..InodeFlags::default() }));
    let link = fs.symlink(root, b"symlink", b"x", &USER).unwrap().ino;
    assert_eq!(fs.inode_flags(link), Err(Errno::ENOTTY));
    m.remount();
    assert_eq!(m.fs().inode_flags(dir), Ok(InodeFlags { no_dump: true, ..flags(false, true) }));
}

#[test]
fn access_times_follow_the_mount_and_the_file() {
    use terrane_posix::{AccessTimes, InodeFlags, ReadOptions};
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let (file, dir) = (fs.file(root, "f").ino, fs.dir(root, "d").ino);
    fs.put(file, 0, b"x");
    let atime = |ino| fs.getattr(ino).unwrap().atime;
    let renews = |quiet| {
        let before = [file, dir].map(atime);
        let how = ReadOptions { keeps_atime: quiet, no_prefetch: false };
        fs.read_as(file, 0, 1, how, &mut Vec::new()).unwrap();
        fs.readdir_as(dir, 0, how, &mut |_| true).unwrap();
        [file, dir].map(|ino| atime(ino) > before[usize::from(ino == dir)])
    };
    let said = |times, property| {
        fs.set_access_times(times);
        fs.dataset().set("atime", property).unwrap();
    };
    said(AccessTimes::Always, "off");
    assert_eq!((renews(false), renews(true)), ([true; 2], [false; 2]), "strictatime, and O_NOATIME");
    said(AccessTimes::Never, "on");
    assert_eq!(renews(false), [false; 2], "noatime");
    said(AccessTimes::NeverForDirectories, "on");
    assert_eq!(renews(false), [true, false], "nodiratime");
    said(AccessTimes::NeverForDirectories, "off");
    assert_eq!(renews(false), [false; 2]);
    said(AccessTimes::AsProperty, "on");
    assert_eq!(renews(false), [true; 2]);
    said(AccessTimes::Always, "on");
    fs.set_inode_flags(file, InodeFlags { no_access_time: true, ..InodeFlags::default() }).unwrap();
    assert_eq!(renews(false), [false, true], "chattr +A");
    fs.set_inode_flags(dir, InodeFlags { no_access_time: true, ..InodeFlags::default() }).unwrap();
    assert_eq!(renews(false), [false; 2]);
    assert!(fs.inode_flags(fs.file(dir, "inherits").ino).unwrap().no_access_time);
}

#[test]
fn access_times_follow_the_property() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    fs.put(file, 0, b"x");
    let read = || {
        let before = fs.getattr(file).unwrap().atime;
        fs.bytes(file);
        fs.getattr(file).unwrap().atime > before
    };
    let set = |value| fs.dataset().set("atime", value).unwrap();
    assert_eq!([read(), read(), read()], [true, false, false], "once after a change");
    // A day later: reads compare with the current time, so the file's times are moved into the past. Its last
    // change is before the last read.
    let ago = |days: i64| {
        let Time { secs, .. } = fs.file(root, &format!("clock{days}")).ctime;
        Time { secs: secs - days * 24 * 3600 - 1, nanos: 0 }
    };
    for (read_days, renewed) in [(0, false), (1, true)] {
        let (read_at, changed_at) = (SetTime::At(ago(read_days)), ago(10 + read_days));
        let (atime, mtime) = (Some(read_at), Some(SetTime::At(changed_at)));
        fs.setattr(file, &SetAttr { atime, mtime, ctime: Some(changed_at), ..SetAttr::default() }, &USER)
            .unwrap();
        assert_eq!(read(), renewed);
    }
    set("on");
    assert_eq!([read(), read()], [true, true]);
    set("off");
    fs.put(file, 0, b"y");
    assert!(!read());
    set("relatime");
    assert!(read());
    let dir = fs.dir(root, "d").ino;
    let link = fs.symlink(root, b"l", b"t", &USER).unwrap();
    let before = fs.getattr(dir).unwrap().atime;
    fs.names(dir);
    fs.readlink(link.ino).unwrap();
    assert!(fs.getattr(dir).unwrap().atime > before && fs.getattr(link.ino).unwrap().atime > link.atime);
}

#[test]
fn fallocate_allocates_punches_and_zeroes() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    fs.put(file, 0, &[9; 20_000]);
    let size = || fs.getattr(file).unwrap().size;
    const PUNCH: u32 = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE;
    fs.fallocate(file, PUNCH, 4000, 9000).unwrap();
    let bytes = fs.bytes(file);
    assert!(bytes[..4000].iter().chain(&bytes[13_000..]).all(|b| *b == 9));
    assert!(bytes[4000..13_000].iter().all(|b| *b == 0));
    assert_eq!(fs.seek_hole(file, 0), Ok(4096));
    assert_eq!(fs.seek_data(file, 4096), Ok(12_288));
    fs.fallocate(file, PUNCH, 19_000, 50_000).unwrap();
    assert_eq!(size(), 20_000);
    fs.fallocate(file, FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE, 18_000, 50_000).unwrap();
    assert_eq!(size(), 20_000);
    fs.fallocate(file, FALLOC_ZERO_RANGE, 17_000, 5000).unwrap();
    assert_eq!(size(), 22_000);
    fs.fallocate(file, FALLOC_KEEP_SIZE, 0, 99_000).unwrap();
    assert_eq!(size(), 22_000);
    fs.fallocate(file, 0, 10, 99_000).unwrap();
    assert_eq!(size(), 99_010);
    assert!(fs.bytes(file)[17_000..].iter().all(|b| *b == 0) && fs.bytes(file)[..4000] == [9; 4000]);
    for mode in [FALLOC_PUNCH_HOLE, 0x08, 0x20, 0x40, FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE] {
        assert_eq!(fs.fallocate(file, mode, 0, 1), Err(Errno::EOPNOTSUPP), "{mode:#x}");
    }
    assert_eq!(fs.fallocate(file, 0, 0, 0), Err(Errno::EINVAL));
    assert_eq!(fs.fallocate(root, 0, 0, 1), Err(Errno::EISDIR));
    assert_eq!(fs.fallocate(file, 0, 0, 1 << 60), Err(Errno::ENOSPC), "more than there is");
}

#[test]
fn copies_are_equal_and_do_not_overlap() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let data = Prng::new(5).random_bytes(2_500_000);
    let (from, to) = (fs.file(root, "from").ino, fs.file(root, "to").ino);
    fs.put(from, 0, &data);
    assert_eq!(fs.copy_range(from, 100, to, 7, 2_400_000), Ok(2_400_000));
    assert!(fs.bytes(to)[7..] == data[100..2_400_100] && fs.bytes(to)[..7] == [0; 7]);
    assert_eq!(fs.copy_range(from, 2_400_000, to, 0, 1 << 30), Ok(100_000), "to the end of what there is");
    assert_eq!(fs.copy_range(from, 3_000_000, to, 0, 10), Ok(0));
    assert_eq!(fs.copy_range(from, 0, from, 50, 100), Err(Errno::EINVAL));
    assert_eq!(fs.copy_range(from, 0, from, 3_000_000, 1000), Ok(1000));
    assert!(fs.bytes(from)[3_000_000..] == data[..1000]);
    let small = fs.file(root, "small").ino;
    fs.put(small, 0, b"0123456789");
    assert_eq!(fs.copy_range(small, 2, small, 10, 8), Ok(8));
    assert_eq!(fs.copy_range(small, 10, small, 30, 15), Ok(8), "what it wrote itself is not copied");
    assert_eq!(fs.copy_range(root, 0, to, 0, 1), Err(Errno::EISDIR));
}

#[test]
fn fsync_keeps_what_was_done() {
    let mut m = machine();
    let root = m.fs().root();
    let file = m.fs().file(root, "f").ino;
    m.fs().put(file, 0, b"kept");
    m.fs().fsync(file, false).unwrap();
    m.fs().put(file, 0, b"lost");
    m.crash();
    assert_eq!(m.fs().ino(root, "f"), Ok(file));
    assert_eq!(m.fs().bytes(file), b"kept");
    m.fs().put(file, 0, b"more");
    m.fs().forget_all();
    m.fs().fsync(file, true).unwrap();
    m.crash();
    assert_eq!(m.fs().bytes(file), b"more", "also of an inode that was read again meanwhile");
    let dir = m.fs().dir(root, "d").ino;
    m.fs().fsync(dir, false).unwrap();
    m.fs().file(dir, "x");
    m.fs().fsync(dir, false).unwrap();
    m.crash();
    assert_eq!(m.fs().names(dir), ["x"]);
}

#[test]
fn a_crash_leaves_all_of_an_operation_or_nothing() {
    let mut m = machine();
    let root = m.fs().root();
    let file = m.fs().file(root, "f").ino;
    m.fs().sync().unwrap();
    m.fs().rename(root, b"f", root, b"g", 0).unwrap();
    m.fs().link(file, root, b"h").unwrap();
    m.fs().dir(root, "d");
    m.crash();
    assert_eq!(m.fs().names(root), ["f"]);
    let attr = m.fs().getattr(file).unwrap();
    assert_eq!((attr.nlink, m.fs().getattr(root).unwrap().nlink), (1, 2));
}

#[test]
fn statfs_adds_up() {
    let m = machine();
    let stat = m.fs().statfs();
    assert!(stat.blocks >= stat.free && stat.free == stat.available && stat.name_max == 255);
    assert!(stat.files > stat.files_free && stat.files_free > 0);
}

#[test]
fn a_file_is_named_by_its_path() {
    let m = machine();
    let (fs, root) = (m.fs(), m.fs().root());
    let dir = fs.dir(root, "a directory");
    let file = fs.file(fs.dir(dir.ino, "deeper").ino, "file");
    assert_eq!(fs.path_of(file.ino), format!("/a directory/deeper/file (inode {})", file.ino));
    assert_eq!(fs.path_of(root), format!("/ (inode {root})"));
    fs.unlink(fs.lookup(dir.ino, b"deeper").unwrap().ino, b"file").unwrap();
    assert_eq!(fs.path_of(file.ino), format!("(no name)  (inode {})", file.ino));
}

/// Whether all of an object's content is embedded in its pointer.
fn is_embedded(m: &Machine, ino: u64) -> bool {
    m.fs().sync().unwrap();
    let object = m.fs().dataset().object_set().hold(terrane_wire::ObjectId(ino)).unwrap();
    matches!(object.dnode().root, terrane_format::BlockPtr::Embedded(_))
}

#[test]
fn contents_move_into_the_dnode_and_out_of_it() {
    let mut m = Machine::new(77, &[]);
    let root = m.fs().root();
    let noise: Vec<u8> = Prng::new(77).random_bytes(4096).into_iter().map(|byte| byte | 1).collect();
    let file = m.fs().file(root, "f").ino;
    // Incompressible content is embedded up to 112 bytes; compressible content if it compresses to 112 bytes.
    for (data, embedded) in [
        (&noise[..1], true),
        (&noise[..112], true),
        (&noise[..113], false),
        (&noise[..4096], false),
        (&noise[..50], true),
        (&b"a line of text that repeats\n".repeat(100)[..], true),
        (&noise[..200], false),
    ] {
        let len = data.len();
        m.fs().size(file, 0).unwrap();
        m.fs().put(file, 0, data);
        assert_eq!(is_embedded(&m, file), embedded, "{len} bytes");
        let blocks = m.fs().getattr(file).unwrap().blocks;
        // With 0 blocks it would look like a hole, and `tar --sparse` would store nothing.
        assert!(blocks > 0 && (blocks == 1 || !embedded), "{len} bytes in {blocks} blocks");
        m.fs().setxattr(file, b"user.beside", data, Default::default(), &USER).unwrap();
        assert_eq!(is_embedded(&m, file), embedded, "attributes take nothing from {len} bytes");
        m.fs().removexattr(file, b"user.beside").unwrap();
        m.fs().sync().unwrap();
        if embedded {
            m.crash()
        } else {
            m.remount()
        }
        assert!(m.fs().bytes(file) == data, "{len} bytes after a new mount");
    }
    let dir = m.fs().dir(root, "d").ino;
    m.fs().file(dir, "one");
    assert!(is_embedded(&m, dir), "a directory of one name as well");
    for at in 0..40 {
        m.fs().file(dir, &format!("another name {at}"));
    }
    assert!(!is_embedded(&m, dir));
}

#[test]
fn blocks_are_known_once_they_are_stored() {
    let m = Machine::new(78, &[]);
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.file(root, "f").ino;
    let shown = || {
        let attr = fs.getattr(file).unwrap();
        (attr.blocks, attr.blocks_known)
    };
    assert_eq!(shown(), (0, true), "an empty file has nothing to store");
    fs.put(file, 0, &[7; 1_000_000]);
    let (before, is_known) = shown();
    assert!(before > 1900 && !is_known, "{before}");
    fs.sync().unwrap();
    let (after, is_known) = shown();
    assert!((1..100).contains(&after) && is_known, "{after}");
    assert!(!fs.take_blocks_outdated(file), "a kernel expects that writing changes them");
    fs.size(file, 10).unwrap();
    assert!(!shown().1, "what is freed is still stored");
    fs.sync().unwrap();
    assert_eq!(shown(), (1, true));

    // Kernels do not expect that of extended attributes.
    let large = |seed: u64| {
        let value = Prng::new(seed).random_bytes(9000);
        fs.setxattr(file, b"user.large", &value, Default::default(), &USER).unwrap();
    };
    fs.setxattr(file, b"user.small", b"in the bonus area", Default::default(), &USER).unwrap();
    assert!(!fs.take_blocks_outdated(file) && shown().1, "no block changes");
    large(1);
    assert!(fs.take_blocks_outdated(file) && !fs.take_blocks_outdated(file), "told once");
    large(2);
    assert!(!fs.take_blocks_outdated(file), "the kernel has asked for nothing since");
    assert!(!shown().1);
    large(3);
    assert!(fs.take_blocks_outdated(file), "the kernel has the blocks of before");
    fs.sync().unwrap();
    let (with_spill, is_known) = shown();
    assert!(with_spill > 18 && is_known, "{with_spill}");
    fs.removexattr(file, b"user.large").unwrap();
    assert!(fs.take_blocks_outdated(file) && !shown().1);
    fs.sync().unwrap();
    assert_eq!(shown(), (1, true));
}
