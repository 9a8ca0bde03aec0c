//! Parsing of known messages, and of random bytes, which must not panic.

use super::*;
use crate::reply::{DirReply, Reply};

/// A linear congruential generator (Knuth's MMIX constants): enough to reach odd shapes, and reproducible.
struct Lcg(u64);

impl Lcg {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn message(opcode: u32, nodeid: u64, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(InHeader::SIZE + body.len()).unwrap();
    let header = InHeader {
        len,
        opcode,
        unique: 8,
        nodeid,
        uid: 1000,
        gid: 100,
        pid: 42,
        extension_units: 0,
        padding: 0,
    };
    let mut raw = header.encode().to_vec();
    raw.extend_from_slice(body);
    raw
}

const EXT: Dialect = Dialect { setxattr_ext: true };

#[test]
fn golden_lookup() {
    let raw: &[u8] = &[
        45, 0, 0, 0, 1, 0, 0, 0, // length, LOOKUP
        0x0e, 0, 0, 0, 0, 0, 0, 0, // unique
        1, 0, 0, 0, 0, 0, 0, 0, // the root directory
        0xe8, 3, 0, 0, 100, 0, 0, 0, // uid 1000, gid 100
        42, 0, 0, 0, 0, 0, 0, 0, // pid, no extensions
        b'n', b'a', b'm', b'e', 0,
    ];
    let (header, request) = Request::parse(raw, EXT).unwrap();
    let expected = Header { opcode: 1, unique: 14, nodeid: 1, uid: 1000, gid: 100, pid: 42 };
    assert_eq!((header, request), (expected, Request::Lookup { name: b"name" }));
    assert!(!header.is_resent());
}

#[test]
fn golden_init_has_flags_in_two_words() {
    let mut body = vec![7, 0, 0, 0, 45, 0, 0, 0, 0, 0, 2, 0];
    body.extend_from_slice(&(0x4000_0001u32).to_le_bytes());
    body.extend_from_slice(&(0x80u32).to_le_bytes());
    body.extend_from_slice(&[0; 44]);
    let raw = message(26, 0, &body);
    let (_, request) = Request::parse(&raw, Dialect::default()).unwrap();
    let flags = init::HAS_RESEND | init::INIT_EXT | init::ASYNC_READ;
    assert_eq!(request, Request::Init { major: 7, minor: 45, max_readahead: 131_072, flags });
    // Before 7.36 there was no second word, and its bytes are undefined.
    body[15] = 0;
    let raw = message(26, 0, &body[..16]);
    let (_, request) = Request::parse(&raw, Dialect::default()).unwrap();
    assert_eq!(
        request,
        Request::Init { major: 7, minor: 45, max_readahead: 131_072, flags: init::ASYNC_READ }
    );
}

#[test]
fn golden_write_takes_as_much_data_as_it_says() {
    let wire =
        WriteWire { fh: 0, offset: 4096, size: 5, write_flags: 4, lock_owner: 9, flags: 0x8001, padding: 0 };
    let mut body = wire.encode().to_vec();
    body.extend_from_slice(b"bytes and more");
    let raw = message(16, 77, &body);
    let (header, request) = Request::parse(&raw, EXT).unwrap();
    let expected = WriteIn { offset: 4096, write_flags: write::KILL_SUIDGID, flags: 0x8001, data: b"bytes" };
    assert_eq!((header.nodeid, request), (77, Request::Write(expected)));
    let short = message(16, 77, &body[..WriteWire::SIZE + 4]);
    assert!(matches!(Request::parse(&short, EXT), Err(ParseError::Body { opcode: Opcode::Write, .. })));
}

#[test]
fn renames_links_and_xattrs_find_their_strings() {
    let raw =
        message(45, 5, &[&[6, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..], b"old\0new\0"].concat());
    let expected = Request::Rename { name: b"old", new_dir: 6, new_name: b"new", flags: 1 };
    assert_eq!(Request::parse(&raw, EXT).unwrap().1, expected);
    let raw = message(6, 5, b"link\0../target/of it\0");
    let expected = Request::Symlink { name: b"link", target: b"../target/of it" };
    assert_eq!(Request::parse(&raw, EXT).unwrap().1, expected);

    let value = [&3u32.to_le_bytes()[..], &1u32.to_le_bytes(), &[0; 8], b"user.a\0val"].concat();
    let raw = message(21, 5, &value);
    let expected = SetXattrIn { name: b"user.a", value: b"val", flags: 1, setxattr_flags: 0 };
    assert_eq!(Request::parse(&raw, EXT).unwrap().1, Request::Setxattr(expected));
    let raw = message(21, 5, &[&value[..8], &value[16..]].concat());
    assert_eq!(Request::parse(&raw, Dialect::default()).unwrap().1, Request::Setxattr(expected));
}

#[test]
fn names_that_are_paths_are_refused() {
    for bad in [&b"\0"[..], b"a/b\0", b".\0", b"..\0", b"no end", b""] {
        let raw = message(Opcode::Unlink.number(), 1, bad);
        assert!(Request::parse(&raw, EXT).is_err(), "{bad:?}");
    }
    // Exported file systems look these up.
    for dot in [&b".\0"[..], b"..\0"] {
        assert!(Request::parse(&message(1, 1, dot), EXT).is_ok());
    }
}

#[test]
fn forgets_come_in_batches() {
    let pairs = [ForgetOne { nodeid: 3, nlookup: 1 }, ForgetOne { nodeid: 4, nlookup: 9 }];
    let mut body = BatchForgetIn { count: 2, dummy: 0 }.encode().to_vec();
    pairs.iter().for_each(|pair| body.extend_from_slice(&pair.encode()));
    let raw = message(42, 0, &body);
    let (_, request) = Request::parse(&raw, EXT).unwrap();
    let Request::BatchForget(list) = request else { panic!("{request:?}") };
    assert_eq!(list.iter().collect::<Vec<_>>(), pairs);
    assert!(request.has_no_reply());
    body[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Request::parse(&message(42, 0, &body), EXT).is_err());
}

#[test]
fn extensions_are_cut_off_and_cannot_eat_the_header() {
    let mut raw = message(1, 1, b"name\0___12345678");
    raw[36] = 1;
    assert_eq!(Request::parse(&raw, EXT).unwrap().1, Request::Lookup { name: b"name" });
    raw[36] = 200;
    assert!(matches!(Request::parse(&raw, EXT), Err(ParseError::Length { .. })));
    raw[0] = 1;
    assert!(matches!(Request::parse(&raw, EXT), Err(ParseError::Length { .. })));
}

#[test]
fn every_operation_has_its_own_number() {
    for opcode in Opcode::ALL {
        assert_eq!(Opcode::from_number(opcode.number()), Some(*opcode));
    }
    assert_eq!(Opcode::from_number(7), None);
    assert_eq!(Request::parse(&message(54, 1, b""), EXT), Err(ParseError::UnknownOpcode(54)));
}

#[test]
fn no_bytes_make_the_parser_panic() {
    let mut rng = Lcg(0x7e77_a2e5);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..200_000 {
        let opcode = u32::try_from(rng.below(56)).unwrap();
        let len = usize::try_from(rng.below(120)).unwrap();
        let mut body: Vec<u8> = (0..len).map(|_| rng.next().to_le_bytes()[0]).collect();
        // Mostly small numbers and zeros: lengths that nearly fit, and strings that end.
        if rng.below(2) == 0 {
            let mask = [0u8, 0x0f, 0x61][usize::try_from(rng.below(3)).unwrap()];
            body.iter_mut().for_each(|byte| *byte &= mask);
        }
        let mut raw = message(opcode, rng.next(), &body);
        if rng.below(8) == 0 {
            let at = usize::try_from(rng.below(raw.len() as u64)).unwrap();
            raw[at] = rng.next().to_le_bytes()[0];
        }
        raw.truncate(usize::try_from(rng.below(300)).unwrap().max(1));
        let dialect = Dialect { setxattr_ext: rng.below(2) == 0 };
        match Request::parse(&raw, dialect) {
            Ok((_, request)) => {
                accepted += 1;
                let _ = (request.may_wait(), request.has_no_reply());
                if let Request::BatchForget(list) = request {
                    assert!(list.iter().count() * ForgetOne::SIZE <= raw.len());
                }
            }
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!(accepted > 10_000 && refused > 10_000, "one-sided: {accepted} accepted, {refused} refused");
}

#[test]
fn a_truncated_request_is_refused_at_every_length_of_its_fixed_part() {
    for opcode in Opcode::ALL {
        let whole = message(opcode.number(), 1, &[1u8; 400]);
        let _ = Request::parse(&whole, EXT);
        for len in 0..whole.len() {
            let mut raw = whole[..len].to_vec();
            if len >= 4 {
                raw[..4].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
            }
            let _ = Request::parse(&raw, EXT);
        }
    }
}

#[test]
fn sealed_replies_announce_their_length() {
    let mut reply = Reply::new();
    reply.bytes(b"1234");
    let expected = [20, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, b'1', b'2', b'3', b'4'];
    assert_eq!(reply.seal(7, Ok(())), expected);
    // An error drops the payload; -2 is ENOENT.
    let expected = [16, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 7, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(reply.seal(7, Err(terrane_posix::Errno(libc::ENOENT))), expected);
    // A number that the kernel would not accept becomes EIO.
    assert_eq!(reply.seal(7, Err(terrane_posix::Errno(70_000)))[4], 0xfb);
    assert!(reply.is_empty());
}

#[test]
fn golden_dirents_are_padded_to_eight_bytes() {
    let mut reply = Reply::new();
    let mut dir = DirReply::new(&mut reply, 64);
    assert!(dir.entry(0x11, 0x22, 4, b"abc"));
    assert!(dir.entry(0x12, 0x23, 8, b"12345678"));
    assert!(!dir.entry(0x13, 0x24, 8, b"x"), "64 bytes are full");
    let expected = [
        0x11, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, b'a', b'b', b'c', 0, 0,
        0, 0, 0, //
        0x12, 0, 0, 0, 0, 0, 0, 0, 0x23, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, b'1', b'2', b'3', b'4',
        b'5', b'6', b'7', b'8',
    ];
    assert_eq!(reply.payload(), expected);
}

#[test]
fn entries_with_attributes_fit_or_leave_nothing_behind() {
    let entry = EntryOut::decode(&[7; EntryOut::SIZE]).unwrap();
    let need = EntryOut::SIZE + Dirent::SIZE + 8;
    for room in 0..2 * need + 8 {
        let mut reply = Reply::new();
        let mut dir = DirReply::new(&mut reply, room);
        let added = (0..3).filter(|next| dir.entry_plus(&entry, 5, *next, 4, b"name")).count();
        assert_eq!((added, reply.len()), (room / need, room / need * need));
    }
}
