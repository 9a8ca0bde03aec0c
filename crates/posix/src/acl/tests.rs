#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use super::*;
use proptest::prelude::*;

/// Tag, permissions, id: an entry in the terms of acl(5).
type Row = (u16, u16, u32);

fn value(rows: &[Row]) -> Vec<u8> {
    let mut raw = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in rows {
        raw.extend(tag.to_le_bytes());
        raw.extend(permissions.to_le_bytes());
        raw.extend(id.to_le_bytes());
    }
    raw
}

fn rows(raw: &[u8]) -> Vec<Row> {
    let number = |at: &[u8]| at.iter().rev().fold(0u32, |number, byte| number << 8 | u32::from(*byte));
    let row = |entry: &[u8]| (number(&entry[..2]) as u16, number(&entry[2..4]) as u16, number(&entry[4..]));
    raw[HEADER_BYTES..].chunks(ENTRY_BYTES).map(row).collect()
}

fn acl(rows: &[Row]) -> Acl {
    Acl::parse(&value(rows)).unwrap().unwrap()
}

fn judged(rows: &[Row]) -> Result<(), Errno> {
    Acl::parse(&value(rows)).map(|acl| assert!(acl.is_some()))
}

const N: u32 = NO_ID;
const MINIMAL: [Row; 3] = [(OWNER, 6, N), (GROUP, 4, N), (OTHER, 0, N)];
const FULL: [Row; 6] =
    [(OWNER, 6, N), (NAMED_USER, 7, 1000), (GROUP, 4, N), (NAMED_GROUP, 2, 50), (MASK, 5, N), (OTHER, 1, N)];

#[test]
fn values_equal_those_of_other_file_systems() {
    // Set by `setfacl -m u:1000:rw` on a file with mode 0644 on ext4, read with getfattr.
    let stored =
        b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\
        \x10\0\x06\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
    let acl = Acl::parse(stored).unwrap().unwrap();
    assert_eq!(acl.permissions(), 0o664, "the mask is what the group bits show");
    assert!(!acl.is_minimal());
    assert_eq!(acl.to_bytes(), stored);
}

#[test]
fn a_value_without_entries_is_no_acl() {
    assert_eq!(Acl::parse(b""), Ok(None));
    assert_eq!(Acl::parse(&value(&[])), Ok(None));
}

#[test]
fn the_version_is_checked_before_the_length() {
    assert_eq!(Acl::parse(&[2, 0, 0]), Err(Errno::EINVAL));
    for version in [0u32, 1, 3, 0x0200_0000] {
        assert_eq!(Acl::parse(&version.to_le_bytes()), Err(Errno::EOPNOTSUPP));
        assert_eq!(Acl::parse(&[&version.to_le_bytes()[..], b"x"].concat()), Err(Errno::EOPNOTSUPP));
    }
    let whole = value(&MINIMAL);
    for len in HEADER_BYTES + 1..whole.len() {
        assert_eq!(Acl::parse(&whole[..len]), Err(Errno::EINVAL), "{len} bytes");
    }
    assert_eq!(Acl::parse(&[&whole[..], b"x"].concat()), Err(Errno::EINVAL));
}

#[test]
fn an_acl_has_one_of_each_and_a_mask_if_entries_are_named() {
    for rows in [&MINIMAL[..], &FULL[..]] {
        assert_eq!(judged(rows), Ok(()));
        for at in 0..rows.len() {
            let is_named = matches!(rows[at].0, NAMED_USER | NAMED_GROUP);
            let without = [&rows[..at], &rows[at + 1..]].concat();
            assert_eq!(judged(&without).is_ok(), is_named, "without {:?}", rows[at]);
            let twice = [&rows[..=at], &rows[at..]].concat();
            assert_eq!(judged(&twice).is_ok(), is_named, "{:?} twice", rows[at]);
        }
    }
    assert_eq!(judged(&[(OWNER, 6, N), (GROUP, 4, N), (MASK, 2, N), (OTHER, 0, N)]), Ok(()));
}

#[test]
fn named_entries_need_an_id_and_others_lose_theirs() {
    for at in [1, 3] {
        let mut rows = FULL;
        rows[at].2 = N;
        assert_eq!(judged(&rows), Err(Errno::EINVAL));
    }
    for at in [0, 2, 4, 5] {
        let mut rows = FULL;
        rows[at].2 = 7;
        assert_eq!(acl(&rows), acl(&FULL));
    }
}

#[test]
fn invalid_entries_are_refused() {
    for at in 0..FULL.len() {
        for permissions in [8, 0x0100, u16::MAX] {
            let mut rows = FULL;
            rows[at].1 = permissions;
            assert_eq!(judged(&rows), Err(Errno::EINVAL));
        }
        for tag in [0, 3, 64, 0x0100] {
            let mut rows = FULL;
            rows[at].0 = tag;
            assert_eq!(judged(&rows), Err(Errno::EINVAL));
        }
    }
}

#[test]
fn values_that_a_kernel_cannot_read_are_refused() {
    let with = |users| {
        let mut rows = FULL.to_vec();
        rows.splice(1..2, (0..users).map(|id| (NAMED_USER, 7, id)));
        Acl::parse(&value(&rows)).map(|acl| acl.unwrap().to_bytes().len())
    };
    assert_eq!(with(506), Ok(4092));
    assert_eq!(with(507), Err(Errno::E2BIG));
}

#[test]
fn the_mode_of_a_list_is_its_classes() {
    assert_eq!(acl(&MINIMAL).permissions(), 0o640);
    assert_eq!(acl(&FULL).permissions(), 0o651);
    let mut changed = acl(&FULL);
    changed.set_permissions(0o7777_3024);
    assert_eq!(changed.permissions(), 0o024);
    assert_eq!(rows(&changed.to_bytes())[2], (GROUP, 4, N), "the group keeps what the mask hides");
    assert_eq!(acl(&MINIMAL).for_new(0o777), acl(&MINIMAL));
    assert_eq!(acl(&FULL).for_new(0o600).permissions(), 0o600);
}

/// A caller. User 0 owns the file, and group 0 is its group. Bit n of `groups`: member of group n.
#[derive(Clone, Copy, Debug)]
struct Caller {
    user: u32,
    groups: u32,
}

impl Caller {
    fn is_in(self, group: u32) -> bool {
        self.groups >> group & 1 == 1
    }

    /// Shift of the mode bits that apply to this caller if no named entry does.
    fn shift(self) -> u32 {
        match (self.user, self.is_in(0)) {
            (0, _) => 6,
            (_, true) => 3,
            (_, false) => 0,
        }
    }
}

fn everybody() -> impl Iterator<Item = Caller> {
    (0..4).flat_map(|user| (0..8).map(move |groups| Caller { user, groups }))
}

/// The access check algorithm of acl(5), step by step. Also returns the shift of the mode bits that bound it.
fn decide(rows: &[Row], who: Caller, wanted: u16) -> (bool, u32) {
    let of = |tag| rows.iter().filter(move |row| row.0 == tag);
    let grants = |row: &Row| row.1 & wanted == wanted;
    let mask_grants = of(MASK).all(grants);
    if who.user == 0 {
        return (of(OWNER).all(grants), 6);
    }
    if let Some(named) = of(NAMED_USER).find(|row| row.2 == who.user) {
        return (grants(named) && mask_grants, 3);
    }
    let mut of_groups =
        of(GROUP).filter(|_| who.is_in(0)).chain(of(NAMED_GROUP).filter(|row| who.is_in(row.2))).peekable();
    if of_groups.peek().is_some() {
        return (of_groups.any(grants) && mask_grants, 3);
    }
    (of(OTHER).all(grants), 0)
}

fn may(rows: &[Row], who: Caller, wanted: u16) -> bool {
    decide(rows, who, wanted).0
}

fn bits_grant(bits: u32, shift: u32, wanted: u16) -> bool {
    (bits >> shift) as u16 & wanted == wanted
}

/// Valid rows, including minimal ones.
fn any_valid() -> impl Strategy<Value = Vec<Row>> {
    let named = |tag| {
        prop::collection::vec((0u16..8, 1u32..4), 0..3).prop_map(move |some| {
            some.into_iter().map(move |(permissions, id)| (tag, permissions, id)).collect::<Vec<Row>>()
        })
    };
    let mask = prop::option::of(0u16..8);
    (0u16..8, named(NAMED_USER), 0u16..8, named(NAMED_GROUP), mask, 0u16..8).prop_map(
        |(owner, users, group, groups, mask, other)| {
            let needs_mask = !users.is_empty() || !groups.is_empty();
            let mask = mask.or(needs_mask.then_some(6));
            let mut rows = vec![(OWNER, owner, N)];
            rows.extend(users);
            rows.push((GROUP, group, N));
            rows.extend(groups);
            rows.extend(mask.map(|mask| (MASK, mask, N)));
            rows.push((OTHER, other, N));
            rows
        },
    )
}

/// Valid rows with a few random changes.
fn any_rows() -> impl Strategy<Value = Vec<Row>> {
    let tag = prop::sample::select(vec![OWNER, NAMED_USER, GROUP, NAMED_GROUP, MASK, OTHER, 3]);
    let change = (any::<prop::sample::Index>(), tag, 0u16..9, prop::sample::select(vec![0, 5, N]), 0u8..4);
    (any_valid(), prop::collection::vec(change, 0..3)).prop_map(|(mut rows, changes)| {
        for (at, tag, permissions, id, kind) in changes {
            let at = at.index(rows.len() + 1);
            match kind {
                0 => rows.insert(at, (tag, permissions, id)),
                1 if at < rows.len() => drop(rows.remove(at)),
                2 if at < rows.len() => rows[at] = (tag, permissions, id),
                _ if at + 1 < rows.len() => rows.swap(at, at + 1),
                _ => {}
            }
        }
        rows
    })
}

/// The tags ascend in the required order of entries.
fn is_valid(rows: &[Row]) -> bool {
    let count = |tag| rows.iter().filter(|row| row.0 == tag).count();
    let named = count(NAMED_USER) + count(NAMED_GROUP);
    rows.is_sorted_by_key(|row| row.0)
        && [OWNER, GROUP, OTHER].iter().all(|tag| count(*tag) == 1)
        && (count(MASK) == 1 || count(MASK) == 0 && named == 0)
        && named + 3 + count(MASK) == rows.len()
        && rows.iter().all(|row| row.1 < 8 && (row.2 != N || !matches!(row.0, NAMED_USER | NAMED_GROUP)))
}

proptest! {
    #[test]
    fn exactly_the_valid_lists_are_accepted_and_come_back(rows in any_rows()) {
        let parsed = Acl::parse(&value(&rows));
        if rows.is_empty() {
            prop_assert_eq!(parsed, Ok(None));
        } else if is_valid(&rows) {
            let ids = |row: &Row| if matches!(row.0, NAMED_USER | NAMED_GROUP) { *row } else { (row.0, row.1, N) };
            let canonical: Vec<Row> = rows.iter().map(ids).collect();
            prop_assert_eq!(parsed.unwrap().unwrap().to_bytes(), value(&canonical));
        } else {
            prop_assert_eq!(parsed, Err(Errno::EINVAL));
        }
    }

    #[test]
    fn random_bytes_are_never_misread(tail in prop::collection::vec(any::<u8>(), 0..60)) {
        let raw = [&VERSION.to_le_bytes()[..], &tail].concat();
        if let Ok(Some(acl)) = Acl::parse(&raw) {
            prop_assert_eq!(acl.to_bytes().len(), raw.len());
        }
        prop_assert!(Acl::parse(&tail).is_ok() <= (tail.is_empty() || tail.starts_with(&VERSION.to_le_bytes())));
    }

    #[test]
    fn a_minimal_list_decides_as_its_mode(rows in any_valid()) {
        let acl = acl(&rows);
        prop_assert_eq!(acl.is_minimal(), rows.len() == 3);
        for who in everybody().filter(|_| acl.is_minimal()) {
            for wanted in 0..8 {
                prop_assert_eq!(may(&rows, who, wanted), bits_grant(acl.permissions(), who.shift(), wanted));
            }
        }
    }

    #[test]
    fn the_mode_bounds_what_a_list_decides(rows in any_valid()) {
        let bits = acl(&rows).permissions();
        for who in everybody() {
            for wanted in 0..8 {
                let (granted, shift) = decide(&rows, who, wanted);
                prop_assert!(granted <= bits_grant(bits, shift, wanted));
                prop_assert!(shift == 3 || granted == bits_grant(bits, shift, wanted));
            }
        }
    }

    #[test]
    fn chmod_bounds_everybody_by_the_bits_of_his_class(before in any_valid(), bits in 0u32..0o1000) {
        let mut acl = acl(&before);
        acl.set_permissions(bits);
        prop_assert_eq!(acl.permissions(), bits);
        let after = rows(&acl.to_bytes());
        let all = 7;
        let unmasked: Vec<Row> =
            before.iter().map(|row| if row.0 == MASK { (MASK, all, N) } else { *row }).collect();
        for who in everybody() {
            for wanted in 0..8 {
                let (granted, shift) = decide(&after, who, wanted);
                let by_bits = bits_grant(bits, shift, wanted);
                let is_hidden = shift == 3 && !acl.is_minimal();
                prop_assert_eq!(granted, by_bits && (!is_hidden || may(&unmasked, who, wanted)));
            }
        }
    }

    #[test]
    fn a_new_file_grants_what_both_the_list_and_the_bits_grant(default in any_valid(), bits in 0u32..0o10000) {
        let new = acl(&default).for_new(bits);
        prop_assert_eq!(new.permissions(), acl(&default).permissions() & bits);
        let made = rows(&new.to_bytes());
        for who in everybody() {
            for wanted in 0..8 {
                let (granted, shift) = decide(&default, who, wanted);
                prop_assert_eq!(may(&made, who, wanted), granted && bits_grant(bits, shift, wanted));
            }
        }
    }
}
