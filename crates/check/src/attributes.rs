//! Checks the attributes of an inode, wherever they lie.
//!
//! The bonus area and the spill block are two buffers of one list, and exactly one division of the list is
//! valid. Attributes that only look valid (a malformed list of names, an ACL that nothing could have set) are
//! found here as well, before a user meets them.

use crate::report::{Report, kind};
use std::sync::Arc;
use terrane_dataset::zaps::PROGRAM_ROOTS;
use terrane_dataset::{Dataset, ObjectZap};
use terrane_format::Owner;
use terrane_format::directory::SPILL;
use terrane_object::ObjectSet;
use terrane_object::dnode::Dnode;
use terrane_posix::{ACL_ACCESS, ACL_DEFAULT, Acl, FLAG_XATTR, NAME_MAX, mode};
use terrane_sa::{Attr, AttrList, Attrs, LayoutTable, NvList, Registry, ZplAttrs, count_in_bonus};
use terrane_store::PoolError;
use terrane_wire::{Corrupt, ObjectId};

/// The namespaces with which full names of extended attributes begin.
const PREFIXES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];

/// The attributes of one inode.
pub(crate) struct Inode {
    pub zpl: ZplAttrs,
    /// The hidden directory that it names.
    pub xattr_dir: Option<u64>,
    /// It is a hidden directory, or a value in one.
    pub is_xattr: bool,
    /// Some attributes could not be read: there may be more.
    pub is_partial: bool,
}

/// Whether an extended attribute can have this name.
pub(crate) fn is_xattr_name(name: &[u8]) -> bool {
    let has_more = |prefix: &&[u8]| name.starts_with(prefix) && name.len() > prefix.len();
    name.len() <= NAME_MAX && !name.contains(&0) && PREFIXES.iter().any(has_more)
}

/// The bytes of the spill block.
pub fn read_spill(set: &ObjectSet, id: ObjectId, dnode: &Dnode) -> Result<Option<Arc<Vec<u8>>>, PoolError> {
    if dnode.spill.is_hole() {
        return Ok(None);
    }
    let owner = Owner::Block { objset: set.id().0, object: id.0, level: 0, block: SPILL };
    set.pool().read(&dnode.spill, owner).map(Some)
}

/// Reads and checks the attributes of an object that has some. `None`: not even the fixed attributes can be
/// read.
pub(crate) fn read_inode(
    report: &mut Report,
    (set, id): (&ObjectSet, ObjectId),
    dnode: &Dnode,
    layouts: &LayoutTable,
) -> Option<Inode> {
    let at = format!("object set {} object {id}", set.id());
    let damage = |report: &mut Report, kind, corrupt: Corrupt| report.damage(kind, &corrupt.within(&at));
    let bonus = match Attrs::decode(&dnode.bonus, layouts) {
        Ok(bonus) => bonus,
        Err(corrupt) => {
            damage(report, kind::ATTRIBUTES, corrupt);
            return None;
        }
    };
    // The fixed attributes always lie in the bonus.
    let zpl = match ZplAttrs::from_attrs(&bonus) {
        Ok(zpl) => zpl,
        Err(corrupt) => {
            damage(report, kind::ATTRIBUTES, corrupt);
            return None;
        }
    };
    check_owners(report, &at, set, dnode, &zpl);
    let mut is_partial = false;
    let list = match read_spill(set, id, dnode) {
        Ok(None) => Ok(AttrList::from_attrs(&bonus)),
        Ok(Some(raw)) => Attrs::decode(&raw, layouts)
            .and_then(|spill| AttrList::from_bonus_and_spill(&bonus, &spill))
            .inspect(|list| check_division(report, &at, list, bonus.iter().count(), dnode, layouts)),
        // The walk has reported it.
        Err(_) => {
            is_partial = true;
            Ok(AttrList::from_attrs(&bonus))
        }
    };
    let list = list.unwrap_or_else(|corrupt| {
        damage(report, kind::SPILL, corrupt);
        is_partial = true;
        AttrList::from_attrs(&bonus)
    });
    if let Some(raw) = list.get(Attr::DXATTR) {
        match NvList::parse(raw) {
            Ok(xattrs) => check_xattrs(report, &at, &xattrs, &zpl),
            Err(corrupt) => damage(report, kind::XATTRS, corrupt),
        }
    }
    let is_xattr = zpl.flags & FLAG_XATTR != 0;
    if is_xattr && (list.get(Attr::DXATTR).is_some() || list.get(Attr::XATTR).is_some()) {
        report.add(kind::XATTRS, &at, "none in an extended attribute's inode", "some");
    }
    let xattr_dir = list.get(Attr::XATTR).and_then(|raw| Some(u64::from_le_bytes(raw.try_into().ok()?)));
    Some(Inode { zpl, xattr_dir, is_xattr, is_partial })
}

/// Owners are counted by what lies at fixed places: it must be what the layout says.
fn check_owners(report: &mut Report, at: &str, set: &ObjectSet, dnode: &Dnode, zpl: &ZplAttrs) {
    let show = |user, group, project| format!("user {user}, group {group}, project {project}");
    let expected = show(zpl.uid, zpl.gid, zpl.projid.unwrap_or(0));
    if zpl.uid.max(zpl.gid).max(zpl.projid.unwrap_or(0)) > u64::from(u32::MAX) {
        return report.add(kind::ATTRIBUTES, at, "ids below 2^32", expected);
    }
    match set.owners_of(dnode.kind, &dnode.bonus) {
        Some(found) => {
            let found = show(found.user.into(), found.group.into(), found.project.into());
            report.expect(kind::OWNERS, at, expected, found);
        }
        None => report.add(kind::OWNERS, at, expected, "no owners at their places"),
    }
}

/// The same attributes always lie in the same buffers, whatever changes came before.
fn check_division(
    report: &mut Report,
    at: &str,
    list: &AttrList,
    in_bonus: usize,
    dnode: &Dnode,
    layouts: &LayoutTable,
) {
    match count_in_bonus(list, layouts.registry(), Dnode::bonus_max(dnode.slots)) {
        Ok(expected) if expected == list.len() => {
            report.add(kind::SPILL, at, "none, as the bonus holds all attributes", "one");
        }
        Ok(expected) => {
            let in_bonus = format!("{in_bonus} attributes before it");
            report.expect(kind::SPILL, at, format!("{expected} attributes before it"), in_bonus);
        }
        Err(error) => report.add(kind::SPILL, at, "a valid split of the attributes", error),
    }
}

fn check_xattrs(report: &mut Report, at: &str, xattrs: &NvList<'_>, zpl: &ZplAttrs) {
    if xattrs.is_empty() {
        report.add(kind::XATTRS, at, "absent or not empty", "an empty list");
    }
    let is_dir = zpl.mode & u64::from(mode::S_IFMT) == u64::from(mode::S_IFDIR);
    for (name, value) in xattrs.iter() {
        let shown = String::from_utf8_lossy(name);
        if !is_xattr_name(name) {
            report.add(
                kind::XATTRS,
                at,
                "names of a namespace, at most 255 bytes",
                format_args!("{shown:?}"),
            );
        }
        if name == ACL_ACCESS || name == ACL_DEFAULT {
            let at = format!("{at} {shown}");
            match Acl::parse(value) {
                Ok(Some(acl)) if name == ACL_ACCESS => check_access_acl(report, &at, &acl, zpl.mode),
                Ok(Some(_)) => {}
                _ => {
                    let found = format!("{} bytes that are no ACL", value.len());
                    report.add(kind::XATTRS, at, "an ACL", found);
                }
            }
        }
        if name == ACL_DEFAULT && !is_dir {
            report.add(kind::XATTRS, at, "a default ACL on directories only", "one");
        }
    }
}

/// The mode must show the most that the list allows.
fn check_access_acl(report: &mut Report, at: &str, acl: &Acl, mode: u64) {
    if acl.is_minimal() {
        report.add(kind::XATTRS, at, "none, as the mode expresses it", "a minimal ACL");
    }
    let permissions = |bits: u64| format!("the permissions {:03o}", bits & 0o777);
    report.expect(kind::XATTRS, at, permissions(mode), permissions(acl.permissions().into()));
}

/// The names in an inode's list; none if they cannot be read.
pub(crate) fn listed_names(set: &ObjectSet, id: ObjectId, layouts: &LayoutTable) -> Vec<Vec<u8>> {
    let names = || {
        let dnode = set.hold(id).ok()?.dnode();
        let spill = read_spill(set, id, &dnode).ok()?;
        let bonus = Attrs::decode(&dnode.bonus, layouts).ok()?;
        let spill = spill.as_ref().and_then(|raw| Attrs::decode(raw, layouts).ok());
        let raw = bonus.get(Attr::DXATTR).or_else(|| spill?.get(Attr::DXATTR))?;
        Some(NvList::parse(raw).ok()?.iter().map(|(name, _)| name.to_vec()).collect())
    };
    names().unwrap_or_default()
}

/// The SA layouts of a dataset, read again; nothing if it has no file system.
pub fn load_layouts(dataset: &Dataset) -> Result<Option<LayoutTable>, String> {
    let zap = |id: u64| dataset.open_zap(ObjectId(id)).map_err(|error| error.to_string());
    let entry = |zap: &ObjectZap, name: &str| match zap.lookup_u64(name.as_bytes()) {
        Ok(Some(id)) => Ok(id),
        Ok(None) => Err(format!("no entry {name}")),
        Err(error) => Err(error.to_string()),
    };
    let master = dataset.master().map_err(|error| error.to_string())?;
    if has_only_zaps(&master) {
        return Ok(None);
    }
    let attributes = zap(entry(&master, "SA_ATTRS")?)?;
    let registry = zap(entry(&attributes, "REGISTRY")?)?.entries().map_err(|error| error.to_string())?;
    let layouts = zap(entry(&attributes, "LAYOUTS")?)?.entries().map_err(|error| error.to_string())?;
    let rows =
        registry.iter().filter_map(|entry| Some((entry.key.name()?.to_vec(), entry.value.first_integer()?)));
    let registry = Registry::load(rows).map_err(|corrupt| corrupt.to_string())?;
    let orders = layouts.iter().map(|entry| {
        let numbers = entry.value.ints().into_iter().map(|number| u16::try_from(number).unwrap_or(u16::MAX));
        (entry.key.name().unwrap_or_default().to_vec(), numbers.collect::<Vec<u16>>())
    });
    let table = LayoutTable::load(registry, orders.collect::<Vec<_>>());
    table.map(Some).map_err(|corrupt| corrupt.to_string())
}

/// The entries of a file system in the master ZAP.
const FILE_SYSTEM_ENTRIES: [&str; 4] = ["VERSION", "ROOT", "DELETE_QUEUE", "SA_ATTRS"];

/// Whether the dataset holds only ZAPs of programs, and no file system. That requires that no entry of one is
/// left, or the remains would not be checked.
pub(crate) fn has_only_zaps(master: &ObjectZap) -> bool {
    let has = |name: &str| master.lookup_u64(name).map(|found| found.is_some());
    matches!(master.lookup_u64(PROGRAM_ROOTS), Ok(Some(_)))
        && FILE_SYSTEM_ENTRIES.iter().all(|name| matches!(has(name), Ok(false)))
}
