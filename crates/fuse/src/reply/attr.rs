//! Attributes, entries and statistics, in the kernel's layouts.

use super::Reply;
use crate::cache_policy::CachePolicy;
use crate::proto::{AttrOut, AttrWire, EntryOut, OpenOut, StatfsOut, StatxOut, StatxTime, statx};
use std::time::Duration;
use terrane_posix::{Attr, StatFs, Time};

fn wire(attr: &Attr) -> AttrWire {
    AttrWire {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.secs,
        mtime: attr.mtime.secs,
        ctime: attr.ctime.secs,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

const NO_ATTR: AttrWire = AttrWire {
    ino: 0,
    size: 0,
    blocks: 0,
    atime: 0,
    mtime: 0,
    ctime: 0,
    atimensec: 0,
    mtimensec: 0,
    ctimensec: 0,
    mode: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

/// The LOOKUP answer for a node that exists.
pub fn entry(attr: &Attr, nodeid: u64, policy: &CachePolicy) -> EntryOut {
    let attr_valid = policy.attr_of(attr);
    EntryOut {
        nodeid,
        generation: attr.generation,
        entry_valid: policy.entry.as_secs(),
        attr_valid: attr_valid.as_secs(),
        entry_valid_nsec: policy.entry.subsec_nanos(),
        attr_valid_nsec: attr_valid.subsec_nanos(),
        attr: wire(attr),
    }
}

/// No node: in LOOKUP's answer "no such name", valid for a time; in READDIRPLUS "a name without attributes".
pub fn no_entry(valid: Duration) -> EntryOut {
    EntryOut {
        nodeid: 0,
        generation: 0,
        entry_valid: valid.as_secs(),
        attr_valid: 0,
        entry_valid_nsec: valid.subsec_nanos(),
        attr_valid_nsec: 0,
        attr: NO_ATTR,
    }
}

/// The answer to GETATTR and SETATTR.
pub fn put_attr(reply: &mut Reply, attr: &Attr, policy: &CachePolicy) {
    let valid = policy.attr_of(attr);
    let out = AttrOut {
        attr_valid: valid.as_secs(),
        attr_valid_nsec: valid.subsec_nanos(),
        dummy: 0,
        attr: wire(attr),
    };
    reply.bytes(&out.encode());
}

/// The answer to OPEN and OPENDIR, and the second part of CREATE's: handle 0 and these flags.
pub fn put_open(reply: &mut Reply, open_flags: u32) {
    reply.bytes(&OpenOut { fh: 0, open_flags, backing_id: 0 }.encode());
}

/// The answer to STATX, with the birth time.
pub fn put_statx(reply: &mut Reply, attr: &Attr, policy: &CachePolicy) {
    let time = |time: Time| StatxTime { sec: time.secs, nsec: time.nanos, reserved: 0 };
    // A device number as FUSE carries it: 12 bits of major between the low 8 and the high 12 bits of minor.
    let (rdev_major, rdev_minor) =
        ((attr.rdev & 0xf_ff00) >> 8, (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xf_ff00));
    let valid = policy.attr_of(attr);
    let out = StatxOut {
        attr_valid: valid.as_secs(),
        attr_valid_nsec: valid.subsec_nanos(),
        flags: 0,
        spare: [0; 2],
        mask: statx::BASIC | statx::BTIME,
        blksize: attr.blksize,
        attributes: 0,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The type and permission bits of a mode are 16 bits.
        mode: u16::try_from(attr.mode & 0xffff).unwrap_or(0),
        spare0: 0,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        attributes_mask: 0,
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major,
        rdev_minor,
        dev_major: 0,
        dev_minor: 0,
        spare2: [0; 14],
    };
    reply.bytes(&out.encode());
}

/// The answer to STATFS.
pub fn put_statfs(reply: &mut Reply, figures: &StatFs) {
    let out = StatfsOut {
        blocks: figures.blocks,
        bfree: figures.free,
        bavail: figures.available,
        files: figures.files,
        ffree: figures.files_free,
        bsize: figures.block_size,
        namelen: figures.name_max,
        frsize: figures.block_size,
        padding: 0,
        spare: [0; 6],
    };
    reply.bytes(&out.encode());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> Attr {
        let time = |secs| Time { secs, nanos: 5 };
        Attr {
            ino: 9,
            generation: 3,
            mode: 0o20_644,
            nlink: 1,
            uid: 2,
            gid: 4,
            rdev: 0x1234_5678,
            size: 10,
            blocks: 8,
            blocks_known: true,
            blksize: 131_072,
            atime: time(-1),
            mtime: time(2),
            ctime: time(3),
            btime: time(4),
        }
    }

    #[test]
    fn a_node_is_shown_the_same_by_stat_and_statx() {
        let attr = attr();
        let policy = CachePolicy { attr: Duration::from_millis(1500), ..CachePolicy::default() };
        let mut reply = Reply::new();
        put_attr(&mut reply, &attr, &policy);
        let stat = AttrOut::decode(reply.payload()).unwrap();
        assert_eq!((stat.attr_valid, stat.attr_valid_nsec), (1, 500_000_000));
        assert_eq!((stat.attr.atime, stat.attr.ctimensec, stat.attr.mode), (-1, 5, 0o20_644));
        reply.clear();
        put_statx(&mut reply, &attr, &policy);
        assert_eq!(reply.len(), StatxOut::SIZE);
        let statx = StatxOut::decode(reply.payload()).unwrap();
        assert_eq!((statx.atime.sec, statx.btime.sec, statx.mode), (-1, 4, 0o20_644));
        assert_eq!((statx.rdev_major, statx.rdev_minor), (0x456, 0x12378));
        assert_eq!((statx.ino, statx.size, statx.blocks, statx.mask), (9, 10, 8, 0xfff));
        let entry = entry(&attr, 1, &policy);
        assert_eq!((entry.nodeid, entry.generation, entry.attr.ino), (1, 3, 9));
    }

    #[test]
    fn attributes_are_valid_for_a_short_time_while_bytes_are_not_stored() {
        let lifetimes = |policy: CachePolicy, blocks_known| {
            let attr = Attr { blocks_known, ..attr() };
            let entry = entry(&attr, 1, &policy);
            let mut reply = Reply::new();
            put_attr(&mut reply, &attr, &policy);
            let stat = AttrOut::decode(reply.payload()).unwrap();
            reply.clear();
            put_statx(&mut reply, &attr, &policy);
            let statx = StatxOut::decode(reply.payload()).unwrap();
            assert_eq!((stat.attr_valid, stat.attr_valid_nsec), (statx.attr_valid, statx.attr_valid_nsec));
            assert_eq!((stat.attr_valid, stat.attr_valid_nsec), (entry.attr_valid, entry.attr_valid_nsec));
            assert_eq!(entry.entry_valid, policy.entry.as_secs(), "names stay valid");
            Duration::new(stat.attr_valid, stat.attr_valid_nsec)
        };
        let policy = CachePolicy::default();
        assert_eq!(lifetimes(policy, true), policy.attr);
        assert_eq!(lifetimes(policy, false), crate::cache_policy::UNSTORED_ATTR);
        let shorter = CachePolicy { attr: Duration::from_millis(1), ..policy };
        assert_eq!(lifetimes(shorter, false), shorter.attr, "an option may ask for less");
    }
}
