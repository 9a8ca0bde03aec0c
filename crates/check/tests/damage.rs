//! One damaged structure at a time: in blocks, in counts, in the accounting of space.
//!
//! `named_findings` has the rules of names and attributes.

use crate::forge::{
    ACCOUNT_AT, BLOCK_COUNT_AT, FILE_BYTES, HIGH_WATER_AT, OBJECTS_AT, ROOT_AT, Sound, USED_AT,
};
use crate::forge::{add, metadata, patch};
use std::collections::BTreeSet;
use terrane_check::report::FINDINGS_MAX;
use terrane_check::usage::{Purpose, usage};
use terrane_check::{Finding, Progress, Report, Stage, check, kind};
use terrane_dataset::Dataset;
use terrane_format::block_ptr::Normal;
use terrane_format::{BlockPtr, Owner};
use terrane_object::ObjectKind;
use terrane_object::dnode::{SLOT_BYTES, SMALL_INDIRECT_BYTES};
use terrane_sim::machine::{Machine, Plan};
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, Prng};

const COST: Cost = Cost { write_bytes: 1 << 20, meta_blocks: 128, ..Cost::NOTHING };

/// Expects exactly these kinds, in any order. `terrane check` exits with 1 for a report that is not clean.
fn expect(report: &Report, kinds: &[&str]) {
    let mut found: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
    let mut kinds = kinds.to_vec();
    found.sort_unstable();
    kinds.sort_unstable();
    assert_eq!(found, kinds, "{report}");
    assert_eq!(report.findings_count, kinds.len() as u64, "{report}");
    assert_eq!(report.is_clean(), kinds.is_empty());
    assert!(kinds.iter().all(|kind| report.has(kind)));
}

/// The only finding of this kind.
fn only<'r>(report: &'r Report, kind: &str) -> &'r Finding {
    let mut found = report.findings.iter().filter(|finding| finding.kind == kind);
    let (first, second) = (found.next(), found.next());
    assert!(second.is_none(), "{report}");
    first.unwrap_or_else(|| panic!("no {kind}: {report}"))
}

fn normal(ptr: BlockPtr) -> Normal {
    let BlockPtr::Normal(normal) = ptr else { panic!("a stored block: {ptr:?}") };
    normal
}

/// Damages one copy of a block on the device.
fn rot(sound: &Sound, block: &Normal, copy: usize) {
    let (_, home, offset) = sound.import().pool.locate(block.addrs[copy], block.psize).unwrap();
    sound.device.rot(home.zone, offset + 7, &[0x40]).unwrap();
}

#[test]
fn a_sound_pool_has_no_findings() {
    let sound = Sound::new();
    let report = sound.check();
    expect(&report, &[]);
    assert_eq!((report.counts.directories, report.counts.files), (2, 2), "the root is a directory");
    assert!(report.counts.objects > 4 && report.counts.blocks > 10, "{report}");
    assert_eq!(report.explained_zones, 0);
    assert!(report.to_string().starts_with("0 findings; "), "{report}");
    // The walk reaches what the pool counts as live.
    assert_eq!(report.counts.bytes, sound.import().pool.status().live_bytes);
}

/// The canary of all tests that forge: writing every block of the way anew is not itself a finding.
#[test]
fn rewritten_blocks_are_no_finding() {
    let sound = Sound::new();
    let (before, first) = (sound.check().counts, sound.first);
    let report = sound.after_dnode(first, |_, _| {});
    expect(&report, &[]);
    assert_eq!(report.counts.objects, before.objects);
}

#[test]
fn a_damaged_record_is_found_in_its_tree_and_in_its_zone() {
    let sound = Sound::new();
    let block = normal(sound.root_of(sound.first));
    rot(&sound, &block, 0);
    let report = sound.check();
    expect(&report, &[kind::COPY, kind::CRC]);
    let at = format!("object set {} object {}", sound.set, sound.first);
    assert!(only(&report, kind::COPY).location.starts_with(&at), "{report}");
    assert_eq!(only(&report, kind::COPY).expected, "whole");
}

#[test]
fn one_damaged_copy_of_metadata_does_not_hide_the_other() {
    let sound = Sound::new();
    let header = normal(sound.import().pool.root());
    assert!(header.copies().count() >= 2);
    rot(&sound, &header, 1);
    let report = sound.check();
    expect(&report, &[kind::COPY, kind::CRC]);
    assert_eq!(report.counts.files, 2, "everything was walked by the other copy");
}

#[test]
fn a_directory_without_a_readable_copy_is_unreadable_and_its_names_are_missed() {
    let sound = Sound::new();
    let block = normal(sound.root_of(sound.root_directory()));
    (0..block.copies().count()).for_each(|copy| rot(&sound, &block, copy));
    let report = sound.check();
    assert!(report.has(kind::UNREADABLE), "{report}");
    let orphans = report.findings.iter().filter(|finding| finding.kind == kind::ORPHAN).count();
    assert_eq!(orphans, 3, "the directory and both files: {report}");
    assert!(!report.has(kind::LEAKED) && !report.has(kind::LIVE), "the space is known: {report}");
}

#[test]
fn a_freed_block_that_a_file_still_has_is_found() {
    let sound = Sound::new();
    let block = sound.root_of(sound.first);
    let freed = block.clone();
    let report = sound.after(move |group, root| {
        group.release(&freed);
        root.clone()
    });
    expect(&report, &[kind::LIVE, kind::UNLISTED]);
    let space = only(&report, kind::LIVE);
    let number = |text: &str| text.parse::<u64>().unwrap();
    assert_eq!(number(&space.expected) - number(&space.found), block.allocated_bytes());
    assert_eq!(only(&report, kind::UNLISTED).expected, format!("one, of {FILE_BYTES} bytes"));
}

#[test]
fn a_block_that_nothing_reaches_is_leaked() {
    let sound = Sound::new();
    let owner = Owner::Block { objset: sound.set, object: sound.first, level: 0, block: 7 };
    let report = sound.after(move |group, root| {
        let noise = Prng::new(5).random_bytes(FILE_BYTES);
        group.write(vec![metadata(noise, ObjectKind::File as u8, owner, 1)]).unwrap();
        root.clone()
    });
    // Both copies, each in a zone of its own.
    expect(&report, &[kind::LEAKED, kind::LEAKED, kind::LIVE, kind::LIVE]);
}

#[test]
fn a_block_that_two_files_claim_is_found() {
    let sound = Sound::new();
    let (claimed, lost) = (sound.root_of(sound.first), sound.root_of(sound.second));
    let second = sound.second;
    let report = sound.after_dnode(second, move |group, dnode| {
        group.release(&lost);
        patch(group, dnode, ROOT_AT, &mut |_, _| claimed.clone());
    });
    let shared = only(&report, kind::SHARED);
    assert_eq!((shared.expected.as_str(), shared.found.as_str()), ("once", "twice"), "{report}");
    // Its bytes are counted twice, its zone lists it once, and for one of the two files.
    let kinds: BTreeSet<_> = report.findings.iter().map(|finding| finding.kind).collect();
    let may_be = BTreeSet::from([kind::SHARED, kind::LIVE, kind::UNLISTED, kind::OWNER]);
    assert!(
        kinds.is_subset(&may_be) && kinds.contains(kind::LIVE) && kinds.contains(kind::UNLISTED),
        "{report}"
    );
}

/// Blocks are verified before the walk comes to them. What was found by one pointer says nothing about another.
#[test]
fn a_pointer_with_another_checksum_is_found_beside_a_good_one_to_the_same_block() {
    for of_first in [false, true] {
        let sound = Sound::new();
        let (good, wrong) = match of_first {
            true => (sound.second, sound.first),
            false => (sound.first, sound.second),
        };
        let (claimed, lost) = (normal(sound.root_of(good)), sound.root_of(wrong));
        let at = format!("object set {} object {wrong}", sound.set);
        let report = sound.after_dnode(wrong, move |group, dnode| {
            group.release(&lost);
            let mut claimed = claimed.clone();
            claimed.checksum[3] ^= 1;
            patch(group, dnode, ROOT_AT, &mut |_, _| BlockPtr::Normal(claimed.clone()));
        });
        assert!(only(&report, kind::COPY).location.starts_with(&at), "{report}");
    }
}

/// Offset in a leaf of one entry: where its references are, the last byte.
fn references_at(leaf: &[u8]) -> usize {
    leaf.iter().rposition(|byte| *byte != 0).unwrap()
}

#[test]
fn shared_blocks_are_sound() {
    for clones in [1, 3] {
        let sound = Sound::new().with_clones(clones);
        expect(&sound.check(), &[]);
        let machine = sound.import();
        assert_eq!(machine.objects.shared().totals().references, clones as u64);
    }
}

#[test]
fn a_wrong_count_of_references_is_found() {
    for (more, expected) in [
        (1, "4 references, by the table of shared blocks"),
        (-1, "2 references, by the table of shared blocks"),
    ] {
        let sound = Sound::new().with_clones(2);
        let report = sound.after_table(2, move |leaf| {
            let at = references_at(leaf);
            leaf[at] = leaf[at].wrapping_add_signed(more);
        });
        // The sums say otherwise, too.
        expect(&report, &[kind::SHARED, kind::SHARED]);
        let block = report.findings.iter().find(|finding| finding.expected == expected);
        assert_eq!(block.unwrap().found, "3 references", "{report}");
    }
}

#[test]
fn an_entry_of_a_block_that_nobody_has_is_found() {
    let report = Sound::new().with_clones(1).after_table(2, |leaf| {
        // Another address, and the slot that says so.
        leaf[1] ^= 1;
    });
    // The leaf no longer agrees with its index.
    assert!(report.has(kind::UNREADABLE), "{report}");
}

#[test]
fn an_index_of_shared_blocks_without_leaves_is_found() {
    // Zeros are a hole, so the fill count is wrong as well.
    let report = Sound::new().with_clones(1).after_table(1, |index| index.fill(0));
    let found = only(&report, kind::UNREADABLE);
    assert!(found.found.contains("index block should be slots of leaves"), "{report}");
}

#[test]
fn wrong_sums_of_shared_blocks_are_found() {
    let report = Sound::new().with_clones(1).after_table(0, |head| add(head, 32, 16));
    expect(&report, &[kind::SHARED]);
    // A count that contradicts the leaves: the table cannot be used, and the pool only be read.
    let report = Sound::new().with_clones(1).after_table(0, |head| add(head, 8, 1));
    expect(&report, &[kind::UNREADABLE]);
}

#[test]
fn wrong_counts_in_the_header_are_found() {
    let report = Sound::new().after_header(|_, header| add(header, OBJECTS_AT, 1));
    expect(&report, &[kind::OBJECT_COUNT]);
    let counts = only(&report, kind::OBJECT_COUNT);
    let number = |text: &str| text.parse::<u64>().unwrap();
    assert_eq!(number(&counts.expected) + 1, number(&counts.found));

    let report = Sound::new().after_header(|_, header| add(header, ACCOUNT_AT, 16));
    expect(&report, &[kind::ACCOUNT]);
}

/// In a dnode: the epoch of the tables that count it.
const OWNER_EPOCH_AT: usize = 7;

#[test]
fn an_object_that_no_table_counts_is_found() {
    let sound = Sound::new();
    let first = sound.first;
    let report = sound.after_dnode(first, |_, dnode| dnode[OWNER_EPOCH_AT] = 0);
    // The object, and its user, group and project, who have less than their tables say.
    expect(&report, &[kind::OWNERS; 4]);
    assert!(report.findings.iter().any(|finding| finding.found == "not counted"), "{report}");
}

#[test]
fn a_high_water_below_an_object_is_found() {
    let report = Sound::new().after_header(|_, header| {
        header[HIGH_WATER_AT..HIGH_WATER_AT + 8].copy_from_slice(&1u64.to_le_bytes());
    });
    assert_eq!(only(&report, kind::HIGH_WATER).found, "1", "{report}");
}

#[test]
fn wrong_counts_in_a_dnode_are_found() {
    let sound = Sound::new();
    let (set, first) = (sound.set, sound.first);
    let report = sound.after_dnode(first, |_, dnode| add(dnode, USED_AT, 16));
    expect(&report, &[kind::USED]);
    let used = only(&report, kind::USED);
    assert_eq!(used.location, format!("object set {set} object {first}"));
    assert_eq!((used.expected.as_str(), used.found.as_str()), ("4096", "4112"));

    let report = Sound::new().after_dnode(first, |_, dnode| add(dnode, BLOCK_COUNT_AT, 4));
    expect(&report, &[kind::BLOCK_COUNT]);
    assert_eq!(only(&report, kind::BLOCK_COUNT).expected, "at most 1");
    let report = Sound::new().after_dnode(first, |_, dnode| add(dnode, BLOCK_COUNT_AT, -1));
    expect(&report, &[kind::BLOCK_COUNT]);
    assert_eq!(only(&report, kind::BLOCK_COUNT).expected, "at least 1");
}

#[test]
fn a_wrong_fill_count_is_found() {
    let report = Sound::new().after_header(|group, header| {
        patch(group, header, SLOT_BYTES + ROOT_AT, &mut |_, tree| {
            let tree = normal(tree.clone());
            BlockPtr::Normal(Normal { fill: tree.fill + 1, ..tree })
        });
    });
    expect(&report, &[kind::FILL]);
}

#[test]
fn a_pointer_of_another_kind_or_txg_is_found() {
    let change = |change: fn(Normal) -> Normal| {
        let sound = Sound::new();
        let first = sound.first;
        sound.after_dnode(first, move |group, dnode| {
            patch(group, dnode, ROOT_AT, &mut |_, root| BlockPtr::Normal(change(normal(root.clone()))));
        })
    };
    let report = change(|root| Normal { kind: ObjectKind::Symlink as u8, ..root });
    expect(&report, &[kind::BLOCK_KIND]);
    // A pointer from a later txg than that which leads to it.
    let report = change(|root| Normal { logical_birth: terrane_wire::Txg(1 << 40), ..root });
    assert!(report.has(kind::BIRTH), "{report}");
    // More bytes than a record of the object has.
    let report = change(|root| Normal { lsize: 2 * root.lsize, ..root });
    assert!(report.has(kind::BLOCK_SIZE), "{report}");
}

/// The pointer has one copy where metadata has two, and the other was freed.
#[test]
fn a_lost_copy_of_metadata_is_found() {
    let sound = Sound::new();
    let root = sound.root_directory();
    let report = sound.after_dnode(root, |group, dnode| {
        let mut lost = 0;
        patch(group, dnode, ROOT_AT, &mut |group, root| {
            let root = normal(root.clone());
            let [kept, other, ..] = root.addrs;
            let copy = |addr| {
                let mut addrs = [terrane_format::Addr::from_raw(0); 3];
                addrs[0] = addr;
                BlockPtr::Normal(Normal { addrs, ..root.clone() })
            };
            lost = copy(other).allocated_bytes();
            group.release(&copy(other));
            copy(kept)
        });
        add(dnode, USED_AT, -lost.cast_signed());
    });
    expect(&report, &[kind::COPIES]);
    let copies = only(&report, kind::COPIES);
    assert_eq!((copies.expected.as_str(), copies.found.as_str()), ("2", "1"));
}

#[test]
fn a_block_that_its_zone_lists_for_another_file_is_found() {
    let sound = Sound::new();
    let (first, second) = (sound.first, sound.second);
    let other = Owner::Block { objset: sound.set, object: second, level: 0, block: 0 };
    let report = sound.after_dnode(first, move |group, dnode| {
        patch(group, dnode, ROOT_AT, &mut |group, root| {
            let noise = metadata(Prng::new(6).random_bytes(FILE_BYTES), root.kind(), other, 1);
            let new = group.write(vec![noise]).unwrap().remove(0);
            group.release(root);
            new
        });
        add(dnode, USED_AT, FILE_BYTES as i64);
    });
    // Two copies, as metadata has, so the sum of the set is too small.
    expect(&report, &[kind::ACCOUNT, kind::OWNER, kind::OWNER]);
}

#[test]
fn a_level_that_is_left_out_is_found() {
    const LEVELS_AT: usize = 2;
    let sound = Sound::new();
    let (set, first) = (sound.set, sound.first);
    let report = sound.after_dnode(first, move |group, dnode| {
        patch(group, dnode, ROOT_AT, &mut |group, root| {
            let mut pointers = root.encode().to_vec();
            pointers.resize(SMALL_INDIRECT_BYTES as usize, 0);
            let owner = Owner::Block { objset: set, object: first, level: 2, block: 0 };
            let new = group.write(vec![metadata(pointers, root.kind(), owner, 1)]).unwrap().remove(0);
            group.release(root);
            new
        });
        dnode[LEVELS_AT] = 3;
    });
    expect(&report, &[kind::LEVEL]);
    let level = only(&report, kind::LEVEL);
    assert_eq!((level.expected.as_str(), level.found.as_str()), ("1", "0"));
    assert!(level.location.ends_with("pointer 0"), "{report}");
}

#[test]
fn a_report_keeps_a_bounded_number_of_findings() {
    const GHOSTS: u64 = 1100;
    let machine = Machine::create(&Plan::small(3)).unwrap();
    let device = machine.export().unwrap();
    let machine = Machine::import(&device, 4, false).unwrap();
    let dataset = Dataset::open_root(&machine.objects).unwrap();
    let root = dataset.master().unwrap().lookup_u64(b"ROOT").unwrap().unwrap();
    for first in (0..GHOSTS).step_by(100) {
        let tx = dataset.object_set().begin(COST).unwrap();
        let mut names = dataset.open_zap(ObjectId(root)).unwrap();
        for number in first..first + 100 {
            names.add_u64(&tx, format!("ghost {number}").as_bytes(), 999_999 | 8 << 60).unwrap();
        }
    }
    machine.pool.commit().unwrap();
    let report = check(&machine.objects, &mut |_| {});
    // And the size of the directory, which does not count them.
    assert_eq!(report.findings_count, GHOSTS + 1);
    assert_eq!(report.findings.len(), FINDINGS_MAX);
    let text = report.to_string();
    assert!(text.contains("and 101 more\n1101 findings; "), "{}", &text[text.len().saturating_sub(200)..]);
}

#[test]
fn progress_goes_through_the_phases_and_never_back() {
    let sound = Sound::new();
    let mut told: Vec<Progress> = Vec::new();
    check(&sound.import().objects, &mut |progress| told.push(progress));
    let rank =
        |phase: Stage| [Stage::Blocks, Stage::Zones, Stage::Names].iter().position(|known| *known == phase);
    assert!(told.iter().all(|progress| progress.done <= progress.total), "{told:?}");
    assert!(told.is_sorted_by_key(|progress| (rank(progress.stage), progress.done)), "{told:?}");
    let last = told.last().unwrap();
    assert_eq!((last.stage, last.done), (Stage::Names, last.total));
}

#[test]
fn usage_adds_up_to_what_was_written() {
    let sound = Sound::new();
    let machine = sound.import();
    let used = usage(&machine.objects).unwrap();
    assert_eq!(used.live() + used.dead + used.overhead, used.claimed);
    let zones = machine.pool.zones();
    assert_eq!(used.claimed, zones.iter().map(|zone| zone.claimed).sum::<u64>());
    assert_eq!(used.live(), zones.iter().map(|zone| zone.live).sum::<u64>());
    let contents = used.shares[&Purpose::Contents];
    assert_eq!((contents.copies, contents.stored, contents.live), (2, 8192, 8192));
    assert!(used.shares[&Purpose::Names].copies >= 2, "{used:?}");
}
