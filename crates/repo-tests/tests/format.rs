//! FORMAT.md and the code agree.
//!
//! A table of the page begins with a line "Structure `Name`, N bytes:". If the code's type is reachable, it is compared with the type's
//! `ROWS`, which the compiler computed. Every declaration in the sources is compared as text.

use std::collections::BTreeMap;
use terrane_format::Place;
use terrane_format::block_ptr::BlockPtrPhys;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::cache_device::{BatchEntry, BatchHead, CacheHead};
use terrane_format::directory::PartTrailer;
use terrane_format::label::LabelHead;
use terrane_format::log_device::{LogDeviceHead, LogZoneHead};
use terrane_format::uberblock::UberblockPhys;
use terrane_format::zone_header::{ZONE_MAGIC, ZoneHeader};
use terrane_object::dnode::{DnodeHead, ObjsetHead};
use terrane_object::entry::ObjsetInfo;
use terrane_object::owner_header::OwnersInfo;
use terrane_object::queued_subtree::QueueEntry;
use terrane_repo_tests::{files, read, root, short};
use terrane_wire::Row;

/// Size of the structure, and (offset, size, name, type) of each field.
type Table = (usize, Vec<(usize, usize, String, String)>);

fn tables() -> BTreeMap<String, Table> {
    let page = read(root().join("FORMAT.md"));
    let mut tables = BTreeMap::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(rest) = line.strip_prefix("Structure `") else { continue };
        let (name, rest) = rest.split_once('`').expect("a closing backtick");
        let size = rest.trim_start_matches(", ").split(' ').next().unwrap_or_default();
        let mut rows = Vec::new();
        lines.next_if(|line| line.is_empty());
        while let Some(line) = lines.next_if(|line| line.starts_with('|')) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let (Some(Ok(offset)), [_, size, name, kind, ..]) =
                (cells.first().map(|cell| cell.parse()), cells.as_slice())
            else {
                continue;
            };
            let plain = |cell: &str| cell.trim_matches('`').to_string();
            rows.push((offset, size.parse().expect("a size"), plain(name), plain(kind)));
        }
        let size = size.parse().unwrap_or_else(|_| panic!("the size of {name}: {line}"));
        assert!(tables.insert(name.to_string(), (size, rows)).is_none(), "{name} has two tables");
    }
    tables
}

fn compiled(size: usize, rows: &[Row]) -> Table {
    (
        size,
        rows.iter().map(|row| (row.offset, row.size, row.name.to_string(), row.kind.to_string())).collect(),
    )
}

/// `layout!` declarations of the sources: name, table, file. A field's size follows from the next offset.
fn declared() -> Vec<(String, Table, String)> {
    let mut found = Vec::new();
    for path in files("crates", ".rs") {
        let file = short(&path);
        // FUSE's structures go between processes, not to disk. The crate `wire` defines the macro itself.
        if !file.contains("/src/") || file.starts_with("crates/fuse") || file.starts_with("crates/wire") {
            continue;
        }
        let text = read(&path);
        let mut lines = text.lines().map(str::trim);
        while let Some(line) = lines.next() {
            if !(line.ends_with("layout! {")) || line.starts_with("//") {
                continue;
            }
            let head = lines.by_ref().find(|line| !line.starts_with("//")).expect("a declaration");
            let (name, rest) = head.split_once(',').unwrap_or_else(|| panic!("{file}: {head}"));
            let size: usize =
                rest.trim().split(' ').next().and_then(|word| word.parse().ok()).expect("a size");
            let mut fields: Vec<(usize, String, String)> = Vec::new();
            for line in lines.by_ref().take_while(|line| *line != "}").filter(|line| !line.starts_with("//"))
            {
                let (offset, field) = line.split_once(' ').expect("offset and field");
                let (name, kind) = field.trim().split_once(": ").expect("name and type");
                fields.push((
                    offset.parse().expect("an offset"),
                    name.to_string(),
                    kind.trim_end_matches(',').to_string(),
                ));
            }
            let ends: Vec<usize> = fields.iter().skip(1).map(|field| field.0).chain([size]).collect();
            let rows = fields
                .into_iter()
                .zip(ends)
                .map(|((at, name, kind), end)| (at, end - at, name, kind))
                .collect();
            found.push((name.to_string(), (size, rows), file.clone()));
        }
    }
    found
}

#[test]
fn the_page_has_the_compilers_rows() {
    let tables = tables();
    for (name, table) in [
        ("Place", compiled(Place::SIZE, Place::ROWS)),
        ("BlockPtrPhys", compiled(BlockPtrPhys::SIZE, BlockPtrPhys::ROWS)),
        ("LabelHead", compiled(LabelHead::SIZE, LabelHead::ROWS)),
        ("CacheHead", compiled(CacheHead::SIZE, CacheHead::ROWS)),
        ("LogDeviceHead", compiled(LogDeviceHead::SIZE, LogDeviceHead::ROWS)),
        ("LogZoneHead", compiled(LogZoneHead::SIZE, LogZoneHead::ROWS)),
        ("BatchHead", compiled(BatchHead::SIZE, BatchHead::ROWS)),
        ("BatchEntry", compiled(BatchEntry::SIZE, BatchEntry::ROWS)),
        ("UberblockPhys", compiled(UberblockPhys::SIZE, UberblockPhys::ROWS)),
        ("BootPtr", compiled(BootPtr::SIZE, BootPtr::ROWS)),
        ("ZoneHeader", compiled(ZoneHeader::SIZE, ZoneHeader::ROWS)),
        ("PartTrailer", compiled(PartTrailer::SIZE, PartTrailer::ROWS)),
        ("DnodeHead", compiled(DnodeHead::SIZE, DnodeHead::ROWS)),
        ("ObjsetHead", compiled(ObjsetHead::SIZE, ObjsetHead::ROWS)),
        ("OwnersInfo", compiled(OwnersInfo::SIZE, OwnersInfo::ROWS)),
        ("ObjsetInfo", compiled(ObjsetInfo::SIZE, ObjsetInfo::ROWS)),
        ("QueueEntry", compiled(QueueEntry::SIZE, QueueEntry::ROWS)),
    ] {
        assert_eq!(tables.get(name), Some(&table), "FORMAT.md: {name}");
    }
}

#[test]
fn every_structure_of_the_code_is_on_the_page() {
    let (tables, declared) = (tables(), declared());
    assert!(declared.len() >= 12, "the scan finds the declarations: {declared:?}");
    for (name, table, file) in &declared {
        assert_eq!(tables.get(name), Some(table), "{name} of {file} has this table in FORMAT.md");
    }
    for name in tables.keys() {
        assert!(
            declared.iter().any(|(declared, ..)| declared == name),
            "FORMAT.md describes {name}, which does not exist"
        );
    }
}

/// Numbers in prose, with the constant that each must equal.
#[test]
fn numbers_of_the_page_are_those_of_the_code() {
    use terrane_format::{addr, block_ptr, label, record, seal, uberblock};
    use terrane_object::dnode;
    use terrane_pool::create;
    let page = read(root().join("FORMAT.md"));
    let magic = |word: u64| format!("`{}`", String::from_utf8(word.to_le_bytes().to_vec()).unwrap());
    for text in [
        magic(label::LABEL_MAGIC),
        magic(uberblock::UBERBLOCK_MAGIC),
        magic(ZONE_MAGIC),
        magic(terrane_format::directory::PART_MAGIC),
        magic(record::RECORD_MAGIC),
        magic(dnode::OBJSET_MAGIC),
        format!("A granule is {} bytes", addr::GRANULE),
        format!("{} bits of offset", addr::OFFSET_BITS),
        format!("first {} KiB of an anchor", label::LABEL_BYTES >> 10),
        format!("first {} MiB of an anchor", label::ANCHOR_BYTES_MAX >> 20),
        format!("format version is {}", label::FORMAT_VERSION),
        format!("{} bytes of BLAKE3", seal::SEAL_BYTES),
        format!("1 to {} bytes of payload", block_ptr::EMBEDDED_BYTES_MAX),
        format!("at most {} MiB", block_ptr::BLOCK_BYTES_MAX >> 20),
        format!(
            "{} pointers to an indirect block of {} KiB",
            dnode::INDIRECT_BYTES / 128,
            dnode::INDIRECT_BYTES >> 10
        ),
        format!("{} to one of {} KiB", dnode::SMALL_INDIRECT_BYTES / 128, dnode::SMALL_INDIRECT_BYTES >> 10),
        format!("{} slots to a block of dnodes", dnode::SLOTS_PER_BLOCK),
        format!("header block has {} bytes", dnode::OBJSET_BYTES),
        format!("attributes take, at most {}", dnode::SPILL_BYTES_MAX),
        format!("fewer than {} zones", create::ZONES_MIN),
    ] {
        assert!(page.contains(&text), "FORMAT.md should say {text:?}");
    }
}
