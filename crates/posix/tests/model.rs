//! Random operations compared with a simple correct model: [`terrane_oracle`]. Every answer is compared, error
//! numbers included. The whole tree is compared after each batch, each remount and each crash.

use crate::support::{Machine, Short, USER};
use terrane_oracle::{Model, Node};
use terrane_posix::{
    FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Fs, Ino, RENAME_EXCHANGE, RENAME_NOREPLACE, WriteFlags,
};
use terrane_wire::Prng;

struct Run {
    machine: Machine,
    model: Model,
    rng: Prng,
}

impl Run {
    fn new(seed: u64) -> Run {
        let machine = Machine::new(seed, &[("recordsize", "4K")]);
        let model = Model::new(machine.fs().root());
        Run { machine, model, rng: Prng::new(seed) }
    }

    fn any_dir(&mut self) -> Ino {
        let dirs = self.model.dirs();
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

    /// One to six words, mostly three; some end with zeros.
    fn any_words(&mut self) -> Vec<u64> {
        let count = *self.rng.one_of(&[1, 2, 3, 3, 3, 3, 6]);
        (0..count).map(|_| if self.rng.below(4) == 0 { 0 } else { self.rng.next_u64() }).collect()
    }

    fn any_file(&mut self) -> Option<Ino> {
        let files = self.model.files();
        (!files.is_empty()).then(|| *self.rng.one_of(&files))
    }

    /// Compares file system and model, including the objects that wait for their last reference to go.
    fn compare(&self) {
        let compared = self.model.compare(self.machine.fs());
        compared.and_then(|()| self.model.compare_unlinked(self.machine.fs())).unwrap();
    }

    fn step(&mut self) {
        let fs = std::sync::Arc::clone(self.machine.fs());
        let (dir, name) = (self.any_dir(), self.any_name());
        let raw = name.as_bytes();
        match self.rng.below(24) {
            20..23 => {
                let words = self.any_words();
                assert_eq!(
                    fs.set_entry_words(dir, raw, &words),
                    self.model.set_words(dir, &name, &words),
                    "words {words:x?} of {name} in {dir}"
                );
            }
            23 => assert_eq!(
                fs.remove_entry_words(dir, raw),
                self.model.set_words(dir, &name, &[]),
                "no words of {name} in {dir}"
            ),
            0..3 => {
                let expected = self.model.may_add(dir, &name);
                let words = if self.rng.below(2) == 0 { Vec::new() } else { self.any_words() };
                let made = match fs.with_entry_words(&words) {
                    Ok(with_words) => with_words.create(dir, raw, 0o644, &USER),
                    Err(_) => fs.create(dir, raw, 0o644, &USER),
                };
                assert_eq!(made.map(drop), expected, "create {name} in {dir}");
                if let Ok(attr) = made {
                    self.model.add_node(dir, &name, attr.ino, Node::file(0o644));
                    let set = self.model.set_words(dir, &name, &words);
                    assert_eq!(set.is_err(), words.is_empty());
                }
            }
            3..5 => {
                let expected = self.model.may_add(dir, &name);
                let made = fs.mkdir(dir, raw, 0o755, &USER);
                assert_eq!(made.map(drop), expected, "mkdir {name} in {dir}");
                if let Ok(attr) = made {
                    self.model.add_node(dir, &name, attr.ino, Node::dir(dir, 0o755));
                }
            }
            5 => {
                let len = *self.rng.one_of(&[1, 50, 160, 161, 3000]);
                let target: Vec<u8> = self.rng.random_bytes(len).into_iter().map(|b| b | 1).collect();
                let expected = self.model.may_add(dir, &name);
                let made = fs.symlink(dir, raw, &target, &USER);
                assert_eq!(made.map(drop), expected, "symlink {name} in {dir}");
                if let Ok(attr) = made {
                    self.model.add_node(dir, &name, attr.ino, Node::link(target));
                }
            }
            6 => {
                let Some(ino) = self.any_file() else { return };
                let expected = self.model.add_link(ino, dir, &name);
                assert_eq!(fs.link(ino, dir, raw).map(drop), expected, "link {ino} to {name} in {dir}");
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
                let open: Vec<Ino> = self.model.lookups.keys().copied().collect();
                if !open.is_empty() {
                    let ino = *self.rng.one_of(&open);
                    fs.forget(ino, self.model.lookups[&ino]);
                    self.model.forget(ino);
                }
            }
        }
    }

    fn change_file(&mut self, fs: &Fs, ino: Ino) {
        let (mut at, mut len) = (self.rng.below(20_000), self.rng.below(9_000));
        // Whole records are shared by copies.
        let is_aligned = self.rng.below(2) == 0;
        if is_aligned {
            (at, len) = (at / 4096 * 4096, len.next_multiple_of(4096));
        }
        match self.rng.below(5) {
            0 | 1 => {
                let data = self.rng.random_bytes(len as usize);
                let append = self.rng.below(3) == 0;
                let flags = WriteFlags { append, ..WriteFlags::default() };
                assert_eq!(fs.write(ino, at, &data, flags), Ok(len as u32));
                if append {
                    self.model.append(ino, &data);
                } else {
                    self.model.write(ino, at, &data);
                }
            }
            2 => {
                fs.size(ino, at).unwrap();
                self.model.resize(ino, at);
            }
            3 => {
                let punched = fs.fallocate(ino, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, at, len);
                assert_eq!(punched, self.model.punch(ino, at..at + len), "punch {at} {len} in {ino}");
            }
            _ => {
                let Some(source) = self.any_file() else { return };
                let into = if is_aligned { self.rng.below(5) * 4096 } else { self.rng.below(20_000) };
                let copied = fs.copy_range(source, at, ino, into, len);
                assert_eq!(
                    copied,
                    self.model.copy(source, at..at + len, ino, into),
                    "copy {source} to {ino}"
                );
            }
        }
    }
}

/// The given seeds, or `SEED=first-last`.
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
            run.compare();
            if batch % 3 == 2 {
                run.machine.remount();
                run.model = run.model.after_remount();
                run.compare();
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
            let kept = run.model.clone();
            let txg = run.machine.objects().mos().open_txg();
            for _ in 0..run.rng.below(40) {
                run.step();
            }
            if run.machine.objects().mos().open_txg() != txg {
                // The pool committed by itself in between.
                continue;
            }
            run.machine.crash();
            run.model = kept.after_remount();
            run.compare();
        }
    }
}
