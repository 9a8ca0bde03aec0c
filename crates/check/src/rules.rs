//! Checks objects and names: every object has a name, every name has its object, and the counts agree.

use crate::attributes::{self, Inode, has_only_zaps, is_xattr_name, listed_names};
use crate::report::{Report, Stage, kind};
use crate::walk::Walk;
use std::collections::BTreeMap;
use std::sync::Arc;

use terrane_dataset::stored::{NamedObject, contradictions, objects_of_tree};
use terrane_dataset::zaps::PROGRAM_ROOTS;
use terrane_dataset::{
    Dataset, ENTRIES_OF_TREE, ENTRY_WORD_COUNT, ENTRY_WORDS_MAX, MASTER, Naming, ObjectStore, ObjectZap,
    POOL_DIRECTORY, QuotaName,
};
use terrane_format::Feature;
use terrane_object::dnode::Dnode;
use terrane_object::{ObjectKind, ObjectSet, ObjectSets};
use terrane_posix::{XATTR_SIZE_MAX, mode};
use terrane_sa::{LayoutTable, ZplAttrs};
use terrane_wire::ObjectId;
use terrane_zap::{Cursor, Entry, Match, Value, Zap};

/// Entries read at a time.
const BATCH: usize = 512;
/// The file type takes the 4 highest bits of an entry's value, the object's number the lowest ones.
const KIND_SHIFT: u32 = 60;
/// The blocks that a ZAP may have, so that a forged dnode does not make a check run for ever: 2^24 of at
/// least 512 bytes.
const ZAP_BLOCKS_MAX: u64 = 1 << 24;

/// What the check keeps of an object.
struct ObjectInfo {
    id: u64,
    parent: u64,
    size: u64,
    links: u32,
    /// Names that lead to it.
    name_count: u32,
    /// Names of directories in it.
    subdirs: u32,
    kind: ObjectKind,
    /// The structure of the dataset itself names it.
    is_structural: bool,
    /// The attributes could not be read: there is nothing to compare.
    is_unreadable: bool,
    /// A hidden directory, or a value in one.
    is_xattr: bool,
    path_state: PathState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PathState {
    Unvisited,
    /// On the path that is being walked.
    OnPath,
    Visited,
}

impl ObjectInfo {
    fn is_dir(&self) -> bool {
        self.kind == ObjectKind::Directory
    }

    fn has_attributes(&self) -> bool {
        matches!(
            self.kind,
            ObjectKind::Directory | ObjectKind::File | ObjectKind::Symlink | ObjectKind::Special
        )
    }

    fn is_zap(&self) -> bool {
        matches!(
            self.kind,
            ObjectKind::Directory | ObjectKind::Zap | ObjectKind::Master | ObjectKind::DeleteQueue
        )
    }

    fn is_structural(&self) -> bool {
        self.is_structural
    }
}

/// The objects of one set.
pub(crate) struct ObjectChecker {
    set: Arc<ObjectSet>,
    /// Decodes attributes; `None`: the set has none, or the layouts cannot be read.
    layouts: Option<LayoutTable>,
    /// How its directories normalise names.
    naming: Naming,
    /// In ascending order, because dnodes are walked so.
    infos: Vec<ObjectInfo>,
    /// Inodes that name a hidden directory, and its number.
    xattr_dirs: Vec<(u64, u64)>,
    /// Inodes, in ascending order, that may name one: not all of their attributes could be read.
    partial: Vec<u64>,
}

impl ObjectChecker {
    pub fn new(set: &Arc<ObjectSet>, layouts: Option<LayoutTable>) -> Self {
        ObjectChecker {
            set: Arc::clone(set),
            layouts,
            naming: Naming::BYTES,
            infos: Vec::new(),
            xattr_dirs: Vec::new(),
            partial: Vec::new(),
        }
    }

    fn at(&self, id: u64) -> String {
        format!("object set {} object {id}", self.set.id())
    }

    fn find(&mut self, id: u64) -> Option<&mut ObjectInfo> {
        let at = self.infos.binary_search_by_key(&id, |info| info.id).ok()?;
        self.infos.get_mut(at)
    }

    /// Takes an object as the walk meets it. True: a file without a name, which may be a copy in preparation
    /// for another object.
    pub fn add_object(&mut self, report: &mut Report, id: ObjectId, dnode: &Dnode) -> bool {
        report.counts.objects += 1;
        let mut info = ObjectInfo {
            id: id.0,
            parent: 0,
            size: 0,
            links: 0,
            name_count: 0,
            subdirs: 0,
            kind: dnode.kind,
            is_structural: false,
            is_unreadable: true,
            is_xattr: false,
            path_state: PathState::Unvisited,
        };
        if let (true, Some(layouts)) = (info.has_attributes(), &self.layouts) {
            match attributes::read_inode(report, (&self.set, id), dnode, layouts) {
                Some(Inode { zpl, xattr_dir, is_xattr, is_partial }) => {
                    (info.is_unreadable, info.is_xattr) = (false, is_xattr);
                    if !dnode.spill.is_hole() || xattr_dir.is_some() || zpl.dxattr.is_some() {
                        report.add_use(Feature::Xattr);
                    }
                    self.check_attributes(report, &mut info, &zpl, dnode);
                    self.xattr_dirs.extend(xattr_dir.map(|xattr_dir| (id.0, xattr_dir)));
                    self.partial.extend(is_partial.then_some(id.0));
                }
                None => self.partial.push(id.0),
            }
        } else if !dnode.spill.is_hole() && !info.has_attributes() {
            report.add(
                kind::SPILL,
                self.at(id.0),
                "only in objects with attributes",
                format_args!("a {:?}", dnode.kind),
            );
        }
        if info.is_zap() && dnode.block_count == 1 && !self.set.is_meta() {
            // An unreadable or foreign block is reported elsewhere.
            let block = self.set.hold(id).and_then(|object| object.read_block(0));
            if block.is_ok_and(|block| terrane_zap::is_tiny(&block).unwrap_or(false)) {
                report.add_use(Feature::TinyZap);
            }
        }
        let is_second_copy = info.kind == ObjectKind::File && !info.is_unreadable && info.links == 0;
        self.infos.push(info);
        is_second_copy
    }

    fn check_attributes(&self, report: &mut Report, info: &mut ObjectInfo, zpl: &ZplAttrs, dnode: &Dnode) {
        (info.parent, info.size) = (zpl.parent, zpl.size);
        let at = self.at(info.id);
        match u32::try_from(zpl.links) {
            Ok(links) => info.links = links,
            Err(_) => {
                info.is_unreadable = true;
                report.add(kind::LINKS, &at, "below 2^32", zpl.links);
            }
        }
        let bits = u32::try_from(zpl.mode).unwrap_or(0) & mode::S_IFMT;
        let wanted = match bits {
            mode::S_IFDIR => ObjectKind::Directory,
            mode::S_IFREG => ObjectKind::File,
            mode::S_IFLNK => ObjectKind::Symlink,
            mode::S_IFSOCK | mode::S_IFBLK | mode::S_IFCHR | mode::S_IFIFO => ObjectKind::Special,
            _ => {
                report.add(kind::ATTRIBUTES, &at, "a mode with a file type", format_args!("{:#o}", zpl.mode));
                return;
            }
        };
        if wanted != dnode.kind {
            report.add(kind::OBJECT_KIND, &at, format_args!("{wanted:?}"), format_args!("{:?}", dnode.kind));
        }
        match dnode.kind {
            ObjectKind::File => {
                report.counts.files += u64::from(!info.is_xattr);
                if info.is_xattr && zpl.size > XATTR_SIZE_MAX as u64 {
                    report.add(kind::SIZE, &at, format_args!("at most {XATTR_SIZE_MAX}"), zpl.size);
                }
                let blocks = zpl.size.div_ceil(u64::from(dnode.block_bytes).max(1));
                if dnode.block_count > blocks {
                    report.add(kind::BLOCK_COUNT, &at, format_args!("at most {blocks}"), dnode.block_count);
                }
            }
            ObjectKind::Directory => report.counts.directories += u64::from(!info.is_xattr),
            ObjectKind::Symlink => {
                if let Some(target) = &zpl.symlink {
                    report.expect(kind::SIZE, &at, target.len() as u64, zpl.size);
                }
            }
            _ => {}
        }
    }

    /// Checks the structure of a ZAP of the set; `each` gets its entries.
    fn check_zap_structure(
        &self,
        report: &mut Report,
        id: u64,
        each: &mut dyn FnMut(&mut Report, &Entry),
    ) -> Option<u64> {
        let at = self.at(id);
        let object = match self.set.hold(ObjectId(id)) {
            Ok(object) => object,
            Err(error) => {
                report.add(kind::UNREADABLE, &at, "an object", error);
                return None;
            }
        };
        if object.block_count() > ZAP_BLOCKS_MAX {
            report.add(kind::ZAP, &at, format_args!("at most {ZAP_BLOCKS_MAX} blocks"), object.block_count());
            return None;
        }
        let store = ObjectStore::reader(&object);
        let zap = match Zap::open(&store) {
            Ok(zap) => zap,
            Err(error) => {
                report.add(kind::ZAP, &at, "one that can be opened", error);
                return None;
            }
        };
        match zap.check(&store) {
            Ok(found) => {
                for corrupt in &found.damage {
                    report.damage(kind::ZAP, &corrupt.clone().within(&at));
                }
                if let Some(what) = found.unsupported {
                    report.add(kind::ZAP, &at, "of a known form", what);
                }
            }
            Err(error) => report.add(kind::ZAP, &at, "readable", error),
        }
        let mut cursor = Cursor::START;
        let mut count = 0;
        loop {
            let entries = match zap.list(&store, cursor, BATCH) {
                Ok(entries) => entries,
                Err(error) => {
                    report.add(kind::ZAP, &at, "one that can be listed", error);
                    return None;
                }
            };
            for entry in &entries {
                count += 1;
                each(report, entry);
            }
            match entries.last() {
                Some(last) if entries.len() == BATCH => {
                    let next = last.cursor_after();
                    if next <= cursor {
                        report.add(kind::ZAP, &at, "listed in ascending order", "out of order");
                        return None;
                    }
                    cursor = next;
                }
                _ => return Some(count),
            }
        }
    }

    /// Checks that everything in the meta object set is named by the pool directory, or is the free queue of
    /// a set that is.
    pub fn check_pool_directory(&mut self, report: &mut Report, objects: &Arc<ObjectSets>) {
        let mut named = vec![POOL_DIRECTORY.0];
        // What names an object, without entries that lead to the tree of data sets.
        let mut namers = BTreeMap::from([(POOL_DIRECTORY.0, "the pool".to_string())]);
        self.check_zap_structure(report, POOL_DIRECTORY.0, &mut |_, entry| {
            named.extend(entry.value.first_integer());
            let leads_to_tree = entry.key.name().is_some_and(|name| ENTRIES_OF_TREE.contains(&name));
            if let Some(id) = entry.value.first_integer().filter(|_| !leads_to_tree) {
                namers.insert(id, "the pool directory".to_string());
            }
        });
        match objects_of_tree(objects) {
            Ok(of_tree) => {
                named.extend(of_tree.iter().map(|named| named.id.0));
                of_tree.into_iter().for_each(|named| self.check_named(report, named, &mut namers));
            }
            Err(error) => report.add(kind::DATASETS, "meta object set", "readable", error),
        }
        // If the tree cannot be read, that was reported.
        for found in contradictions(objects).unwrap_or_default() {
            report.add(kind::DATASETS, found.at, found.expected, found.found);
        }
        let is_set =
            |id: &&u64| self.infos.iter().any(|info| info.id == **id && info.kind == ObjectKind::Objset);
        // A set whose identity cannot be read could not be opened, and is reported.
        let queue =
            |id: &u64| objects.identity(ObjectId(*id)).ok().flatten().map(|identity| identity.free_queue.0);
        named.sort_unstable();
        named.dedup();
        let queues: Vec<u64> = named.iter().filter(is_set).filter_map(queue).collect();
        named.extend(queues);
        // The header of the set names it.
        named.extend(objects.shared().object().map(|id| id.0));
        for id in named {
            let at = self.at(id);
            match self.find(id) {
                Some(info) => info.is_structural = true,
                None => report.add(kind::ENTRY, "pool directory", "an existing object", at),
            }
        }
        for info in &self.infos {
            if info.is_zap() && info.id != POOL_DIRECTORY.0 {
                self.check_zap_structure(report, info.id, &mut |_, _| {});
            }
            if !info.is_structural {
                report.add(kind::ORPHAN, self.at(info.id), "in the pool directory", "nowhere");
            }
        }
    }

    /// Checks that an object that the tree of data sets names is of the right kind, and that nothing else names it.
    fn check_named(&mut self, report: &mut Report, named: NamedObject, namers: &mut BTreeMap<u64, String>) {
        let NamedObject { id, kind: expected, by } = named;
        let at = self.at(id.0);
        if let Some(info) = self.find(id.0)
            && info.kind != expected
        {
            let expected = format_args!("{expected:?}, as {by} says");
            report.add(kind::DATASETS, &at, expected, format_args!("{:?}", info.kind));
        }
        if let Some(other) = namers.insert(id.0, by.clone()) {
            report.add(
                kind::DATASETS,
                at,
                format_args!("named by {by} alone"),
                format_args!("also by {other}"),
            );
        }
    }

    /// Checks names, links and directories of a file system.
    pub fn check(&mut self, dataset: &Dataset, walk: &mut Walk<'_>) {
        self.naming = dataset.naming();
        let master = MasterEntries::of(dataset, walk.report);
        for id in master.objects() {
            let at = self.at(id);
            match self.find(id) {
                Some(info) => info.is_structural = true,
                None => walk.report.add(kind::ENTRY, "master ZAP", "an existing object", at),
            }
        }
        let total = self.infos.len() as u64;
        for at in 0..self.infos.len() {
            if at % 1024 == 0 {
                walk.report_progress(Stage::Names, at as u64, total);
            }
            self.check_zap(walk.report, at);
        }
        if let Some(queue) = master.delete_queue {
            self.check_delete_queue(walk.report, queue);
        }
        if let Some(reserved) = master.reserved {
            self.check_reserved(walk.report, reserved);
        }
        self.check_xattr_dirs(walk.report);
        self.check_links(walk.report, &master);
        self.check_paths_to_root(walk.report, master.root);
        walk.report_progress(Stage::Names, total, total);
    }

    /// Checks that a directory hashes its names by the dataset's naming.
    fn check_naming(&self, report: &mut Report, id: u64, naming: Naming) {
        let Ok(object) = self.set.hold(ObjectId(id)) else { return };
        let store = ObjectStore::reader(&object);
        // A directory without a block has hashed none, and one that cannot be opened is reported elsewhere.
        let Some(norm) =
            Zap::open(&store).and_then(|zap| zap.norm(&store)).ok().filter(|_| object.block_count() > 0)
        else {
            return;
        };
        let (expected, found) = (naming.norm().to_u64(), norm.to_u64());
        if expected != found {
            let expected = format_args!("normalization {expected:#x} of the data set");
            report.add(kind::ZAP, self.at(id), expected, format_args!("{found:#x}"));
        }
    }

    /// Checks a ZAP; if it is a directory, also its entries and their objects.
    fn check_zap(&mut self, report: &mut Report, at: usize) {
        let Some(info) = self.infos.get(at).filter(|info| info.is_zap()) else { return };
        let &ObjectInfo { id, size, is_unreadable, is_xattr, parent, .. } = info;
        let is_dir = info.is_dir();
        if !is_dir {
            self.check_zap_structure(report, id, &mut |_, _| {});
            return;
        }
        let naming = if is_xattr { Naming::BYTES } else { self.naming };
        self.check_naming(report, id, naming);
        let mut listed = match &self.layouts {
            Some(layouts) if is_xattr => listed_names(&self.set, ObjectId(parent), layouts),
            _ => Vec::new(),
        };
        listed.sort_unstable();
        let mut infos = std::mem::take(&mut self.infos);
        let mut subdirs = 0;
        let here = self.at(id);
        let count = self.check_zap_structure(report, id, &mut |report, entry| {
            let name = entry.key.name().map(String::from_utf8_lossy).unwrap_or_default();
            let at = format!("{here} name {name:?}");
            let Some(value) = entry.value.first_integer() else {
                report.add(kind::ENTRY, at, "an object's number", "none");
                return;
            };
            check_entry_words(report, &at, &entry.value, is_xattr);
            if !entry.key.name().is_some_and(|name| naming.accepts(name)) {
                report.add(kind::ENTRY, &at, "valid UTF-8", "other bytes");
            }
            if entry.conflict && naming.matching() == Match::Normalized {
                report.add(kind::ENTRY, &at, "unique after normalization", "one of several");
            }
            let key = entry.key.name().unwrap_or_default();
            let may_be = if is_xattr { is_xattr_name(key) } else { is_file_name(key) };
            if !may_be {
                report.add(kind::ENTRY, &at, "a valid name", "an invalid one");
            }
            if listed.binary_search_by(|listed| listed.as_slice().cmp(key)).is_ok() {
                report.add(kind::XATTRS, &at, "stored once", "also in the inode's list");
            }
            let (target, found) = (value & ObjectId::MASK, value >> KIND_SHIFT);
            let index = infos.binary_search_by_key(&target, |info| info.id).ok();
            let Some(info) = index.and_then(|index| infos.get_mut(index)) else {
                report.add(kind::ENTRY, at, "an existing object", target);
                return;
            };
            info.name_count = info.name_count.saturating_add(1);
            if !info.is_unreadable && info.is_xattr != is_xattr {
                let words = |is_xattr| if is_xattr { "an extended attribute" } else { "a file" };
                report.add(kind::ENTRY, &at, format_args!("of {}", words(is_xattr)), words(info.is_xattr));
            }
            let fits = match info.kind {
                _ if is_xattr => found == 8 && info.kind == ObjectKind::File,
                ObjectKind::Directory => found == 4,
                ObjectKind::File => found == 8,
                ObjectKind::Symlink => found == 10,
                // Fifo, character device, block device, socket.
                ObjectKind::Special => matches!(found, 1 | 2 | 6 | 12),
                _ => false,
            };
            if !fits {
                report.add(
                    kind::ENTRY,
                    &at,
                    format_args!("of a {:?}", info.kind),
                    format_args!("type {found}"),
                );
            }
            if info.is_dir() || is_xattr {
                subdirs += u32::from(info.is_dir());
                if !info.is_unreadable {
                    report.expect(kind::PARENT, format_args!("{at}, object {target}"), id, info.parent);
                }
            }
        });
        self.infos = infos;
        if let Some(info) = self.infos.get_mut(at) {
            info.subdirs = subdirs;
        }
        if let (Some(count), false) = (count, is_unreadable) {
            report.expect(kind::SIZE, &here, count.saturating_add(2), size);
            if is_xattr && count == 0 {
                report.add(kind::HIDDEN, &here, "absent or not empty", "empty");
            }
        }
    }

    /// Checks that what an inode names as its hidden directory is one, and its own.
    fn check_xattr_dirs(&mut self, report: &mut Report) {
        for (owner, number) in std::mem::take(&mut self.xattr_dirs) {
            let at = self.at(owner);
            match self.find(number) {
                Some(info) if info.is_dir() && (info.is_unreadable || info.is_xattr) => {
                    info.name_count = info.name_count.saturating_add(1);
                    if !info.is_unreadable {
                        let dir = format!("{at}, hidden directory {number}");
                        report.expect(kind::PARENT, dir, owner, info.parent);
                    }
                }
                Some(info) => {
                    let found = format!("object {number}, a {:?}", info.kind);
                    report.add(kind::HIDDEN, at, "a hidden directory", found);
                }
                None => report.add(kind::HIDDEN, at, "an existing object", number),
            }
        }
    }

    fn check_delete_queue(&mut self, report: &mut Report, queue: u64) {
        let mut entries = Vec::new();
        self.check_zap_structure(report, queue, &mut |report, entry| {
            let name = entry.key.name().map(String::from_utf8_lossy).unwrap_or_default();
            let value = entry.value.first_integer().unwrap_or(0);
            report.expect(kind::DELETE_QUEUE, "name of an entry", format!("{value:x}"), name.into_owned());
            entries.push(value);
        });
        for id in entries {
            let at = self.at(id);
            match self.find(id) {
                None => report.add(kind::DELETE_QUEUE, at, "an existing object", "none"),
                Some(info) => {
                    info.is_structural = true;
                    if info.is_xattr {
                        report.add(kind::DELETE_QUEUE, &at, "an inode", "an extended attribute");
                    }
                    if !info.is_unreadable && info.links != 0 {
                        report.add(kind::DELETE_QUEUE, at, "without links", info.links);
                    }
                }
            }
        }
    }

    /// Versions that do not know this table leave entries of files that were removed or replaced.
    fn check_reserved(&mut self, report: &mut Report, reserved: u64) {
        self.check_zap_structure(report, reserved, &mut |report, entry| {
            let name = entry.key.name().map(String::from_utf8_lossy).unwrap_or_default();
            let number = u64::from_str_radix(&name, 16).ok().map(|ino| format!("{ino:x}"));
            if number.as_deref() != Some(&name) {
                report.add(kind::RESERVED, "name of an entry", "a number in hexadecimal", &name);
            }
            let words = if entry.value.int_size() == 8 { entry.value.ints() } else { Vec::new() };
            if !terrane_posix::is_reservation(&words) {
                let found = format_args!("{} integers that are no reservation", entry.value.num_ints());
                report.add(kind::RESERVED, format_args!("entry '{name}'"), "a valid reservation", found);
            }
        });
    }

    fn check_links(&self, report: &mut Report, master: &MasterEntries) {
        let root = master.root;
        for info in &self.infos {
            let at = self.at(info.id);
            if !info.has_attributes() {
                let is_program_zap = master.has_program_zaps && info.kind == ObjectKind::Zap;
                if !info.is_structural() && !is_program_zap {
                    report.add(kind::ORPHAN, at, "in the master ZAP", "nowhere");
                }
                continue;
            }
            if info.name_count == 0 && !info.is_structural() {
                let expected = match info.is_xattr && info.is_dir() {
                    // The inode that may name it cannot be read, and is reported.
                    true if self.partial.binary_search(&info.parent).is_ok() => continue,
                    true => "in the attributes of its inode",
                    false => "in a directory or the delete queue",
                };
                report.add(kind::ORPHAN, at, expected, "nowhere");
                continue;
            }
            let is_root = root == Some(info.id);
            if is_root {
                report.expect(kind::PARENT, &at, info.id, info.parent);
            }
            if info.is_unreadable {
                continue;
            }
            if info.is_dir() {
                let expected =
                    if info.name_count == 0 && !is_root { 0 } else { info.subdirs.saturating_add(2) };
                report.expect(kind::LINKS, &at, expected, info.links);
                if info.name_count > u32::from(!is_root) {
                    report.add(kind::LINKS, &at, "one name", info.name_count);
                }
            } else {
                report.expect(kind::LINKS, &at, info.name_count, info.links);
            }
        }
    }

    /// Checks that the parents of every named directory lead to the root.
    fn check_paths_to_root(&mut self, report: &mut Report, root: Option<u64>) {
        for start in 0..self.infos.len() {
            let mut path = Vec::new();
            // The parent of a hidden directory may be a file, whose own parent attribute means nothing.
            let is_start = |info: &ObjectInfo| info.is_dir() && !info.is_xattr;
            let mut at = Some(start).filter(|at| self.infos.get(*at).is_some_and(is_start));
            while let Some(here) = at {
                let Some(info) = self.infos.get_mut(here) else { break };
                match info.path_state {
                    PathState::Visited => break,
                    PathState::OnPath => {
                        let id = info.id;
                        report.add(kind::LOOP, self.at(id), "one", "a loop");
                        break;
                    }
                    PathState::Unvisited => {}
                }
                path.push(here);
                if Some(info.id) == root || info.name_count == 0 {
                    break;
                }
                info.path_state = PathState::OnPath;
                let parent = info.parent;
                at = self.infos.binary_search_by_key(&parent, |info| info.id).ok();
            }
            for here in path {
                if let Some(info) = self.infos.get_mut(here) {
                    info.path_state = PathState::Visited;
                }
            }
        }
    }
}

fn is_file_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// What the master ZAP names.
#[derive(Default)]
struct MasterEntries {
    root: Option<u64>,
    delete_queue: Option<u64>,
    reserved: Option<u64>,
    others: Vec<u64>,
    /// Programs keep ZAPs here that nothing else names.
    has_program_zaps: bool,
}

impl MasterEntries {
    fn of(dataset: &Dataset, report: &mut Report) -> MasterEntries {
        let mut entries = MasterEntries { others: vec![MASTER.0], ..MasterEntries::default() };
        let master = match dataset.master() {
            Ok(master) => master,
            Err(error) => {
                report.add(kind::UNREADABLE, "master ZAP", "an object", error);
                return entries;
            }
        };
        match master.lookup_u64(PROGRAM_ROOTS) {
            Ok(roots) => {
                entries.has_program_zaps = roots.is_some();
                entries.others.extend(roots);
            }
            Err(error) => report.add(kind::ZAP, "master ZAP", "readable", error),
        }
        if has_only_zaps(&master) {
            return entries;
        }
        let mut find = |zap: &ObjectZap, name: &str| match zap.lookup_u64(name.as_bytes()) {
            Ok(Some(id)) => Some(id),
            Ok(None) => {
                report.add(kind::ENTRY, "master ZAP", format_args!("with {name}"), "none");
                None
            }
            Err(error) => {
                report.add(kind::ZAP, "master ZAP", "readable", error);
                None
            }
        };
        // Only where files have reservations.
        if master.lookup_u64(RESERVED.as_bytes()).is_ok_and(|found| found.is_some()) {
            entries.reserved = find(&master, RESERVED);
        }
        let limits = QuotaName::prefixes();
        let limits: Vec<&str> =
            limits.filter(|name| master.lookup_u64(name.as_bytes()).is_ok_and(|zap| zap.is_some())).collect();
        entries.others.extend(limits.into_iter().filter_map(|name| find(&master, name)));
        find(&master, "VERSION");
        entries.root = find(&master, "ROOT");
        entries.delete_queue = find(&master, "DELETE_QUEUE");
        if let Some(id) = find(&master, "SA_ATTRS") {
            entries.others.push(id);
            if let Ok(zap) = dataset.open_zap(ObjectId(id)) {
                entries.others.extend(find(&zap, "REGISTRY"));
                entries.others.extend(find(&zap, "LAYOUTS"));
            }
        }
        entries
    }

    fn objects(&self) -> Vec<u64> {
        self.others.iter().copied().chain(self.root).chain(self.delete_queue).chain(self.reserved).collect()
    }
}

const RESERVED: &str = "RESERVED";

/// Checks the words beside a directory entry: as many as its first one says, and then zeros.
fn check_entry_words(report: &mut Report, at: &str, value: &Value, is_xattr: bool) {
    let words_max = if is_xattr { 1 } else { 1 + ENTRY_WORDS_MAX };
    let (int_size, count) = (value.int_size(), value.num_ints());
    if int_size != 8 || count > words_max {
        let found = format_args!("{count} integers of {int_size} bytes");
        return report.add(kind::ENTRY, at, format_args!("1 to {words_max} words"), found);
    }
    let words = value.ints();
    let counted = words.first().map_or(1, |first| ENTRY_WORD_COUNT.words(*first));
    if counted > count {
        return report.add(kind::ENTRY, at, format_args!("of {counted} words by its first one"), count);
    }
    if counted > 1 {
        report.add_use(Feature::EntryWords);
    }
    if let Some(word) = words.iter().skip(counted).find(|word| **word != 0) {
        report.add(kind::ENTRY, at, format_args!("of {counted} words and zeros"), format_args!("{word:#x}"));
    }
}
