//! Extended attributes in random workloads: names and lengths that use every home, and every change between
//! homes.
//!
//! The model does not know of homes, so its expected values do not depend on them. The objects can be
//! [asked](xattr_place) for the home of an attribute, in tests that prove that a workload uses them all.

use crate::machine::USER;
use crate::workload::{NAMES, Workload};
use std::sync::Arc;
use terrane_object::ObjectError;
use terrane_oracle::{Content, Failure, Node, ensure, failed};
use terrane_posix::{ACL_ACCESS, ACL_DEFAULT, Acl, Fs, Ino, SetAttr, SetXattr};
use terrane_wire::ObjectId;

/// Lengths of values that lie in the bonus area, in a wider one, in the spill block, in the hidden directory.
const LENGTHS: [u64; 12] = [0, 8, 40, 90, 140, 400, 600, 3000, 20_000, 32 << 10, (32 << 10) + 1, 64 << 10];

/// Where an attribute lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum XattrPlace {
    /// There is no such attribute, or no such object.
    Nowhere,
    /// In the bonus area of the dnode.
    Bonus,
    /// In the spill block of the dnode.
    Spill,
    /// In the hidden attribute directory.
    XattrDir,
}

/// The names are unique, so it is enough to search the bytes of a list for them.
pub fn xattr_place(fs: &Fs, ino: Ino, name: &str) -> Result<XattrPlace, Failure> {
    let inside = |bytes: &[u8]| bytes.windows(name.len()).any(|found| found == name.as_bytes());
    let object = match fs.dataset().object_set().hold(ObjectId(ino)) {
        Ok(object) => object,
        Err(ObjectError::NotFound(_)) => return Ok(XattrPlace::Nowhere),
        Err(error) => return Err(Failure(format!("object {ino}: {error}"))),
    };
    if inside(&object.bonus()) {
        return Ok(XattrPlace::Bonus);
    }
    if object.spill().map_err(failed("spill"))?.is_some_and(|spill| inside(&spill)) {
        return Ok(XattrPlace::Spill);
    }
    match fs.getxattr(ino, name.as_bytes(), &mut Vec::new()) {
        Ok(()) => Ok(XattrPlace::XattrDir),
        Err(_) => Ok(XattrPlace::Nowhere),
    }
}

/// An access control list as an attribute's value: the owner, some users by number, the group, perhaps a
/// mask, others.
pub(crate) fn acl_of(users: u32, mut permissions: impl FnMut() -> u16) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let mut raw = 2u32.to_le_bytes().to_vec();
    let named = (0..users).map(|user| (0x02, 1000 + user));
    let mask = (users > 0).then_some((0x10, NOBODY));
    for (tag, id) in [(0x01u16, NOBODY)]
        .into_iter()
        .chain(named)
        .chain([(0x04, NOBODY)])
        .chain(mask)
        .chain([(0x20, NOBODY)])
    {
        raw.extend_from_slice(&tag.to_le_bytes());
        raw.extend_from_slice(&permissions().to_le_bytes());
        raw.extend_from_slice(&id.to_le_bytes());
    }
    raw
}

impl Workload {
    /// Sets, replaces or removes one attribute or list, changes the mode, or sends new attributes to another
    /// home.
    pub(crate) fn act_on_attributes(&mut self, ino: Ino, names: &[&'static str]) -> Result<(), Failure> {
        let fs = Arc::clone(self.machine.fs());
        let name = self.rng.pick(names).unwrap_or("user.a");
        match self.rng.below(15) {
            12 => self.act_on_mode(ino),
            13 | 14 => self.act_on_acls(ino),
            0 => self.set_random_property("xattr", &["sa", "dir"]),
            1 => self.set_random_property("dnodesize", &["auto", "legacy", "1k", "2k"]),
            2..5 => {
                let mut model = self.model.clone();
                let expected = model.remove_xattr(ino, name);
                let found = fs.removexattr(ino, name.as_bytes());
                if self.expect_same(&format!("remove attribute {name} of {ino}"), found, expected)?.is_some()
                {
                    self.model = model;
                    self.touch(ino);
                }
                Ok(())
            }
            _ => {
                let at = self.rng.below(LENGTHS.len() as u64) as usize;
                // Mostly short ones; all lengths at the edge of a home.
                let at = if self.rng.one_in(2) { at / 2 } else { at };
                let most = LENGTHS.get(at).copied().unwrap_or(0);
                let len = if self.rng.one_in(3) { most } else { self.rng.below(most + 1) };
                let mut value = self.rng.sample_bytes(len as usize);
                if name == "user.g" {
                    // Blocks of zeros are holes.
                    value.fill(0);
                }
                let how = SetXattr {
                    create: self.rng.one_in(6),
                    replace: self.rng.one_in(6),
                    ..SetXattr::default()
                };
                let mut model = self.model.clone();
                let expected = model.set_xattr(ino, name, &value, how);
                let found = fs.setxattr(ino, name.as_bytes(), &value, how, &USER);
                if self
                    .expect_same(&format!("set attribute {name} of {ino}, {len} bytes"), found, expected)?
                    .is_some()
                {
                    self.model = model;
                    self.touch(ino);
                }
                let compared = self.model.compare_xattrs(&fs, ino);
                if self.machine.is_alive() { compared } else { Ok(()) }
            }
        }
    }

    fn act_on_mode(&mut self, ino: Ino) -> Result<(), Failure> {
        let fs = Arc::clone(self.machine.fs());
        let is_link = matches!(self.model.nodes.get(&ino).map(|node| &node.content), Some(Content::Link(_)));
        let bits = 0o600 | self.rng.below(0o200) as u32;
        let change = SetAttr { mode: Some(bits), ..SetAttr::default() };
        if !is_link && self.expect_same("chmod", fs.setattr(ino, &change, &USER), Ok(()))?.is_some() {
            self.model.chmod(ino, bits);
            self.touch(ino);
        }
        Ok(())
    }

    /// Sets or removes one of the two lists; a list of base entries alone goes into the mode.
    fn act_on_acls(&mut self, ino: Ino) -> Result<(), Failure> {
        let fs = Arc::clone(self.machine.fs());
        let name = if self.rng.one_in(2) { ACL_ACCESS } else { ACL_DEFAULT };
        // A list of 30 named users has 284 bytes.
        let users = self.rng.pick(&[0, 1, 2, 30]).unwrap_or(0);
        let raw = acl_of(users, || self.rng.below(8) as u16);
        let acl = if self.rng.one_in(3) { None } else { Acl::parse(&raw).map_err(failed("an ACL"))? };
        let mut model = self.model.clone();
        let expected = model.set_acl(ino, name, acl.as_ref());
        let found = match &acl {
            Some(acl) => fs.setxattr(ino, name, &acl.to_bytes(), SetXattr::default(), &USER),
            None => fs.removexattr(ino, name),
        };
        let what = format!("{} of {ino}, {users} users: {}", name.escape_ascii(), acl.is_some());
        if self.expect_same(&what, found, expected)?.is_some() {
            // Removing a list that does not exist succeeds, and is no change that a sync would have to keep.
            let changes = self.model.nodes.get(&ino) != model.nodes.get(&ino);
            self.model = model;
            if changes {
                self.touch(ino);
            }
        }
        let compared = self.model.compare_xattrs(&fs, ino);
        if self.machine.is_alive() { compared } else { Ok(()) }
    }

    fn set_random_property(&mut self, property: &str, words: &[&str]) -> Result<(), Failure> {
        let word = self.rng.pick(words).unwrap_or("");
        let set = self.machine.fs().dataset().set(property, word);
        let may_fail =
            !self.machine.is_alive() || set.as_ref().is_err_and(|error| error.to_string().contains("space"));
        ensure(set.is_ok() || may_fail, || format!("{property}={word}: {set:?}"))
    }

    /// Files with attributes in every home, one of them with a wide dnode: for images that are to be damaged.
    /// `many`: also a hidden directory that is destroyed in pieces.
    pub(crate) fn xattrs_in_all_places(&mut self, many: bool) -> Result<(), Failure> {
        let fs = Arc::clone(self.machine.fs());
        let root = self.model.root;
        for (name, width, lengths) in [
            ("bonus", "legacy", &[20][..]),
            ("spill", "legacy", &[300, 1000]),
            ("wide", "1k", &[300]),
            ("hidden", "legacy", &[20, 40_000, 50]),
        ] {
            fs.dataset().set("dnodesize", width).map_err(failed("dnodesize"))?;
            let made = fs.create(root, name.as_bytes(), 0o644, &USER);
            let ino = made.map_err(failed("create"))?.ino;
            self.model.add_node(root, name, ino, Node::file(0o644));
            for (at, len) in lengths.iter().enumerate() {
                let name = NAMES.get(at).copied().unwrap_or("user.z");
                // Long values that compress well: a test that flips every bit of the image has fewer of them.
                let value = if *len > 2000 { vec![7; *len] } else { self.rng.sample_bytes(*len) };
                let set = fs.setxattr(ino, name.as_bytes(), &value, SetXattr::default(), &USER);
                set.map_err(failed("set attribute"))?;
                let expected = self.model.set_xattr(ino, name, &value, SetXattr::default());
                ensure(expected.is_ok(), || format!("{name}: {expected:?}"))?;
            }
        }
        let Some(ino) = self.model.find(root, "hidden").filter(|_| many) else { return Ok(()) };
        fs.dataset().set("xattr", "dir").map_err(failed("xattr"))?;
        for number in 0..40 {
            let name = format!("user.one of many that are hidden, {number}");
            let set = fs.setxattr(ino, name.as_bytes(), b"a short value", SetXattr::default(), &USER);
            set.map_err(failed("set attribute"))?;
            let expected = self.model.set_xattr(ino, &name, b"a short value", SetXattr::default());
            ensure(expected.is_ok(), || format!("{name}: {expected:?}"))?;
        }
        Ok(())
    }

    /// Only attributes, of a file, a directory, a link and the root directory. Each is removed now and then,
    /// sometimes while it is open, and created again.
    pub(crate) fn act_on_few_files(&mut self) -> Result<(), Failure> {
        let fs = Arc::clone(self.machine.fs());
        let root = self.model.root;
        let name = self.rng.pick(&["file", "dir", "link"]).unwrap_or("file");
        let known: Vec<Ino> = self.model.nodes.keys().copied().collect();
        let there = self.model.find(root, name);
        match (there, self.rng.below(16)) {
            (Some(ino), 0) => {
                let found = if self.model.is_dir(ino) {
                    fs.rmdir(root, name.as_bytes())
                } else {
                    fs.unlink(root, name.as_bytes())
                };
                let mut model = self.model.clone();
                let expected = model.remove(root, name, name == "dir");
                if self.expect_same(&format!("remove {name}"), found, expected)?.is_some() {
                    self.model = model;
                }
                Ok(())
            }
            (Some(_), 1) => {
                let open: Vec<Ino> = self.model.lookups.keys().copied().collect();
                if let Some(ino) = self.rng.pick(&open) {
                    fs.forget(ino, self.model.lookups.get(&ino).copied().unwrap_or(0));
                    self.model.forget(ino);
                }
                Ok(())
            }
            (None, _) => {
                let raw = name.as_bytes();
                let (made, node) = match name {
                    "dir" => (fs.mkdir(root, raw, 0o755, &USER), Node::dir(root, 0o755)),
                    "link" => {
                        let target = vec![b't'; 150];
                        let made = fs.symlink(root, raw, &target, &USER);
                        (made, Node::link(target))
                    }
                    _ => {
                        let node = Node::file(0o644);
                        (fs.create(root, raw, 0o644, &USER), node)
                    }
                };
                if let Some(attr) = self.expect_same(&format!("make {name}"), made, Ok(()))? {
                    self.model.add_node(root, name, attr.ino, node);
                    self.touch(attr.ino);
                }
                Ok(())
            }
            _ => {
                let ino = self.rng.pick(&known).unwrap_or(root);
                // With few names the list is soon short again.
                self.act_on_attributes(ino, &NAMES[..3])
            }
        }
    }
}
