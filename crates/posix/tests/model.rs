//! Random operations beside the plainest thing that is right: maps of maps. Every answer is compared, error
//! numbers included, and the whole tree after each batch, after each remount and after each crash.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod support;

use std::collections::BTreeMap;
use support::{Machine, Short, USER};
use terrane_posix::{
    Errno, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Fs, Ino, RENAME_EXCHANGE, RENAME_NOREPLACE, WriteFlags,
};
use terrane_wire::Dice;

#[derive(Clone, Debug, PartialEq)]
enum Content {
    File(Vec<u8>),
    Link(Vec<u8>),
    Dir { names: BTreeMap<String, Ino>, parent: Ino },
}

#[derive(Clone, Debug, PartialEq)]
struct Node {
    content: Content,
    nlink: u32,
    mode: u32,
}

/// What the tree should be. Nodes are known by the numbers the real one gave them.
#[derive(Clone, Debug)]
struct Model {
    root: Ino,
    nodes: BTreeMap<Ino, Node>,
    /// Lookups that the kernel would hold.
    open: BTreeMap<Ino, u64>,
}

type Outcome = Result<(), Errno>;

impl Model {
    fn new(root: Ino) -> Model {
        let content = Content::Dir { names: BTreeMap::new(), parent: root };
        Model {
            root,
            nodes: BTreeMap::from([(root, Node { content, nlink: 2, mode: 0o040_755 })]),
            open: BTreeMap::new(),
        }
    }

    fn names(&mut self, dir: Ino) -> &mut BTreeMap<String, Ino> {
        match &mut self.nodes.get_mut(&dir).unwrap().content {
            Content::Dir { names, .. } => names,
            _ => panic!("{dir} is no directory"),
        }
    }

    fn find(&mut self, dir: Ino, name: &str) -> Option<Ino> {
        self.names(dir).get(name).copied()
    }

    fn is_dir(&self, ino: Ino) -> bool {
        matches!(self.nodes[&ino].content, Content::Dir { .. })
    }

    fn is_live_dir(&self, ino: Ino) -> bool {
        self.is_dir(ino) && self.nodes[&ino].nlink > 0
    }

    fn links(&mut self, ino: Ino) -> &mut u32 {
        &mut self.nodes.get_mut(&ino).unwrap().nlink
    }

    fn added(&mut self, dir: Ino, name: &str, ino: Ino, node: Node) {
        assert!(self.nodes.insert(ino, node).is_none(), "number {ino} is in use");
        if self.is_dir(ino) {
            *self.links(dir) += 1;
        }
        self.names(dir).insert(name.to_string(), ino);
        *self.open.entry(ino).or_default() += 1;
    }

    fn may_add(&mut self, dir: Ino, name: &str) -> Outcome {
        match (self.is_live_dir(dir), self.find(dir, name)) {
            (false, _) => Err(Errno::ENOENT),
            (true, Some(_)) => Err(Errno::EEXIST),
            (true, None) => Ok(()),
        }
    }

    fn unlinked(&mut self, dir: Ino, ino: Ino) {
        if self.is_dir(ino) {
            *self.links(dir) -= 1;
            *self.links(ino) = 0;
        } else {
            *self.links(ino) -= 1;
        }
        self.collect(ino);
    }

    /// Nobody knows it any more.
    fn collect(&mut self, ino: Ino) {
        if self.nodes[&ino].nlink == 0 && !self.open.contains_key(&ino) {
            self.nodes.remove(&ino);
        }
    }

    fn forget(&mut self, ino: Ino) {
        self.open.remove(&ino);
        self.collect(ino);
    }

    fn remove(&mut self, dir: Ino, name: &str, wants_dir: bool) -> Outcome {
        let ino = self.find(dir, name).ok_or(Errno::ENOENT)?;
        match (self.is_dir(ino), wants_dir) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            (true, true) if !self.names(ino).is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.names(dir).remove(name);
        self.unlinked(dir, ino);
        Ok(())
    }

    fn is_below(&self, dir: Ino, above: Ino) -> bool {
        let mut at = dir;
        loop {
            if at == above {
                return true;
            }
            match self.nodes[&at].content {
                Content::Dir { parent, .. } if at != self.root => at = parent,
                _ => return false,
            }
        }
    }

    fn set_parent(&mut self, ino: Ino, from: Ino, to: Ino) {
        if let Content::Dir { parent, .. } = &mut self.nodes.get_mut(&ino).unwrap().content {
            *parent = to;
            *self.links(from) -= 1;
            *self.links(to) += 1;
        }
    }

    fn rename(&mut self, dir: Ino, name: &str, new_dir: Ino, new_name: &str, flags: u32) -> Outcome {
        let source = self.find(dir, name).ok_or(Errno::ENOENT)?;
        let target = self.find(new_dir, new_name);
        if target.is_some() && flags == RENAME_NOREPLACE {
            return Err(Errno::EEXIST);
        }
        if target.is_none() && flags == RENAME_EXCHANGE {
            return Err(Errno::ENOENT);
        }
        if self.is_dir(source) && dir != new_dir && self.is_below(new_dir, source) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = target {
            if self.is_dir(target) && dir != new_dir && self.is_below(dir, target) {
                return Err(if flags == RENAME_EXCHANGE { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
            if target == source {
                return Ok(());
            }
            if flags == RENAME_EXCHANGE {
                self.names(dir).insert(name.to_string(), target);
                self.names(new_dir).insert(new_name.to_string(), source);
                self.set_parent(source, dir, new_dir);
                self.set_parent(target, new_dir, dir);
                return Ok(());
            }
            match (self.is_dir(source), self.is_dir(target)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.names(target).is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        } else if !self.is_live_dir(new_dir) {
            return Err(Errno::ENOENT);
        }
        self.names(dir).remove(name);
        self.names(new_dir).insert(new_name.to_string(), source);
        self.set_parent(source, dir, new_dir);
        if let Some(target) = target {
            self.unlinked(new_dir, target);
        }
        Ok(())
    }

    /// Like a remount: what has no name is gone.
    fn closed(&mut self) {
        self.open.clear();
        self.nodes.retain(|_, node| node.nlink > 0);
    }

    fn compare(&mut self, fs: &Fs) {
        let inos: Vec<Ino> = self.nodes.keys().copied().collect();
        for ino in inos {
            let node = self.nodes[&ino].clone();
            let attr = fs.getattr(ino).unwrap();
            assert_eq!((attr.nlink, attr.mode), (node.nlink, node.mode), "inode {ino}");
            match &node.content {
                Content::File(bytes) => {
                    assert_eq!(attr.size, bytes.len() as u64, "size of {ino}");
                    assert!(fs.bytes(ino) == *bytes, "content of {ino}");
                }
                Content::Link(target) => assert_eq!(fs.readlink(ino).as_ref(), Ok(target)),
                Content::Dir { names, parent } => {
                    assert_eq!(attr.size, names.len() as u64 + 2, "entries of {ino}");
                    let mut seen = BTreeMap::new();
                    fs.readdir(ino, 2, &mut |entry| {
                        let kind = u32::from(entry.kind) << 12;
                        assert_eq!(
                            kind,
                            self.nodes[&entry.ino].mode & 0o170_000,
                            "type of an entry of {ino}"
                        );
                        seen.insert(String::from_utf8(entry.name.to_vec()).unwrap(), entry.ino).is_none()
                    })
                    .unwrap();
                    assert_eq!(&seen, names, "names in {ino}");
                    if node.nlink > 0 {
                        assert_eq!(fs.ino(ino, ".."), Ok(*parent));
                    }
                    for (name, child) in names {
                        assert_eq!(fs.ino(ino, name), Ok(*child));
                    }
                }
            }
        }
        let waiting = self.nodes.values().filter(|node| node.nlink == 0).count();
        assert_eq!(fs.unlinked_count(), Ok(waiting));
    }
}

struct Run {
    machine: Machine,
    model: Model,
    rng: Dice,
}

impl Run {
    fn new(seed: u64) -> Run {
        let machine = Machine::new(seed, &[("recordsize", "4K")]);
        let model = Model::new(machine.fs().root());
        Run { machine, model, rng: Dice::new(seed) }
    }

    fn any_dir(&mut self) -> Ino {
        let dirs: Vec<Ino> = self.model.nodes.keys().copied().filter(|ino| self.model.is_dir(*ino)).collect();
        *self.rng.one_of(&dirs)
    }

    fn any_name(&mut self) -> String {
        let short = self.rng.below(7);
        if self.rng.below(8) == 0 {
            format!("a longer name that no small slot can hold, number {short}")
        } else {
            format!("n{short}")
        }
    }

    fn any_file(&mut self) -> Option<Ino> {
        let files: Vec<Ino> = self
            .model
            .nodes
            .iter()
            .filter(|(_, n)| matches!(n.content, Content::File(_)))
            .map(|(i, _)| *i)
            .collect();
        (!files.is_empty()).then(|| *self.rng.one_of(&files))
    }

    fn content(&mut self, ino: Ino) -> &mut Vec<u8> {
        match &mut self.model.nodes.get_mut(&ino).unwrap().content {
            Content::File(bytes) => bytes,
            _ => panic!("{ino} is no file"),
        }
    }

    fn step(&mut self) {
        let fs = std::sync::Arc::clone(self.machine.fs());
        let (dir, name) = (self.any_dir(), self.any_name());
        let raw = name.as_bytes();
        match self.rng.below(20) {
            0..3 => {
                let expected = self.model.may_add(dir, &name);
                let made = fs.create(dir, raw, 0o644, &USER);
                assert_eq!(made.map(drop), expected, "create {name} in {dir}");
                if let Ok(attr) = made {
                    let node = Node { content: Content::File(Vec::new()), nlink: 1, mode: 0o100_644 };
                    self.model.added(dir, &name, attr.ino, node);
                }
            }
            3..5 => {
                let expected = self.model.may_add(dir, &name);
                let made = fs.mkdir(dir, raw, 0o755, &USER);
                assert_eq!(made.map(drop), expected, "mkdir {name} in {dir}");
                if let Ok(attr) = made {
                    let content = Content::Dir { names: BTreeMap::new(), parent: dir };
                    self.model.added(dir, &name, attr.ino, Node { content, nlink: 2, mode: 0o040_755 });
                }
            }
            5 => {
                let len = *self.rng.one_of(&[1, 50, 160, 161, 3000]);
                let target: Vec<u8> = self.rng.noise(len).into_iter().map(|b| b | 1).collect();
                let expected = self.model.may_add(dir, &name);
                let made = fs.symlink(dir, raw, &target, &USER);
                assert_eq!(made.map(drop), expected, "symlink {name} in {dir}");
                if let Ok(attr) = made {
                    self.model.added(
                        dir,
                        &name,
                        attr.ino,
                        Node { content: Content::Link(target), nlink: 1, mode: 0o120_777 },
                    );
                }
            }
            6 => {
                let Some(ino) = self.any_file() else { return };
                let mut expected = self.model.may_add(dir, &name);
                if expected.is_ok() && self.model.nodes[&ino].nlink == 0 {
                    expected = Err(Errno::ENOENT);
                }
                assert_eq!(fs.link(ino, dir, raw).map(drop), expected, "link {ino} to {name} in {dir}");
                if expected.is_ok() {
                    *self.model.links(ino) += 1;
                    self.model.names(dir).insert(name, ino);
                    *self.model.open.entry(ino).or_default() += 1;
                }
            }
            7..9 => assert_eq!(
                fs.unlink(dir, raw),
                self.model.remove(dir, &name, false),
                "unlink {name} in {dir}"
            ),
            9 => assert_eq!(fs.rmdir(dir, raw), self.model.remove(dir, &name, true), "rmdir {name} in {dir}"),
            10..14 => {
                let (new_dir, new_name) = (self.any_dir(), self.any_name());
                let flags = *self.rng.one_of(&[0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]);
                assert_eq!(
                    fs.rename(dir, raw, new_dir, new_name.as_bytes(), flags),
                    self.model.rename(dir, &name, new_dir, &new_name, flags),
                    "rename {name} in {dir} to {new_name} in {new_dir}, flags {flags}"
                );
            }
            14..18 => {
                let Some(ino) = self.any_file() else { return };
                self.change_file(&fs, ino);
            }
            _ => {
                let open: Vec<Ino> = self.model.open.keys().copied().collect();
                if !open.is_empty() {
                    let ino = *self.rng.one_of(&open);
                    fs.forget(ino, self.model.open[&ino]);
                    self.model.forget(ino);
                }
            }
        }
    }

    fn change_file(&mut self, fs: &Fs, ino: Ino) {
        let (at, len) = (self.rng.below(20_000), self.rng.below(9_000));
        let (from, to) = (at as usize, (at + len) as usize);
        match self.rng.below(5) {
            0 | 1 => {
                let data = self.rng.noise(len as usize);
                let append = self.rng.below(3) == 0;
                let flags = WriteFlags { append, ..WriteFlags::default() };
                assert_eq!(fs.write(ino, at, &data, flags), Ok(len as u32));
                let bytes = self.content(ino);
                let from = if append { bytes.len() } else { from };
                if !data.is_empty() {
                    bytes.resize(bytes.len().max(from + data.len()), 0);
                    bytes[from..from + data.len()].copy_from_slice(&data);
                }
            }
            2 => {
                fs.size(ino, at).unwrap();
                self.content(ino).resize(from, 0);
            }
            3 => {
                let punched = fs.fallocate(ino, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, at, len);
                assert_eq!(punched, if len == 0 { Err(Errno::EINVAL) } else { Ok(()) });
                let bytes = self.content(ino);
                let size = bytes.len();
                bytes[from.min(size)..to.min(size)].fill(0);
            }
            _ => {
                let Some(source) = self.any_file() else { return };
                let data = self.content(source).clone();
                let into = self.rng.below(20_000);
                let there = (data.len() as u64).saturating_sub(at).min(len);
                let copied = fs.copy_range(source, at, ino, into, len);
                if source == ino && at.abs_diff(into) < len {
                    return assert_eq!(copied, Err(Errno::EINVAL));
                }
                assert_eq!(copied, Ok(there));
                if there > 0 {
                    let (into, there) = (into as usize, there as usize);
                    let bytes = self.content(ino);
                    bytes.resize(bytes.len().max(into + there), 0);
                    bytes[into..into + there].copy_from_slice(&data[from..from + there]);
                }
            }
        }
    }
}

/// Those of the test, or `SEED=first-last`.
fn seeds(default: std::ops::RangeInclusive<u64>) -> std::ops::RangeInclusive<u64> {
    let Ok(wanted) = std::env::var("SEED") else { return default };
    let (first, last) = wanted.split_once('-').unwrap_or((&wanted, &wanted));
    first.parse().unwrap()..=last.parse().unwrap()
}

#[test]
fn behaves_like_maps_of_maps() {
    for seed in seeds(1..=12) {
        println!("SEED={seed}");
        let mut run = Run::new(seed);
        for batch in 0..12 {
            for _ in 0..60 {
                run.step();
            }
            run.model.compare(run.machine.fs());
            if batch % 3 == 2 {
                run.machine.remount();
                run.model.closed();
                run.model.compare(run.machine.fs());
            }
        }
    }
}

#[test]
fn a_crash_goes_back_to_the_last_sync() {
    for seed in seeds(101..=106) {
        println!("SEED={seed}");
        let mut run = Run::new(seed);
        for _ in 0..10 {
            for _ in 0..40 {
                run.step();
            }
            run.machine.fs().sync().unwrap();
            let mut kept = run.model.clone();
            let group = run.machine.objects().mos().open_txg();
            for _ in 0..run.rng.below(40) {
                run.step();
            }
            if run.machine.objects().mos().open_txg() != group {
                // The pool committed by itself, in the middle.
                continue;
            }
            run.machine.crash();
            kept.closed();
            kept.compare(run.machine.fs());
            run.model = kept;
        }
    }
}
