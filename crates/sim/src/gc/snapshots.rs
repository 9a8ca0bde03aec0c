//! Snapshots without data: which of the blocks that users have freed they hold.
//!
//! A block that the head frees is *held* if it was born no later than the newest snapshot. It then goes to the dead list of the head.
//! A new snapshot takes that list over. So a snapshot's list has the blocks that died between the snapshot before it and itself. When
//! a snapshot is destroyed, its successor's list is scanned: blocks that were born after the predecessor are held by no other snapshot,
//! and are freed. The others stay on that list, which also takes over the list of the destroyed snapshot.
//!
//! Time is the number of bytes that users wrote, as in [`terrane_space::policy`]. So *hourly* is a number of bytes.

use std::collections::BTreeMap;
use std::str::FromStr;
use terrane_format::Addr;

/// Most classes of a [`Schedule`].
const CLASSES_MAX: usize = 4;

/// A class of kept snapshots: `count` of those whose number is a multiple of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Snapshots that are kept.
    pub count: u64,
    /// The interval: one of this many snapshots belongs to the class.
    pub of: u64,
}

/// Which snapshots are kept: `1000`, or `48,90x24,6x720` as sanoid keeps hourly, daily and monthly ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    classes: [Class; CLASSES_MAX],
}

impl FromStr for Retention {
    type Err = String;

    fn from_str(text: &str) -> Result<Retention, String> {
        let expected = || format!("expected at most {CLASSES_MAX} of COUNT or COUNTxINTERVALS, found {text}");
        let mut retention = Retention::default();
        let mut classes = retention.classes.iter_mut();
        for part in text.split(',') {
            let (count, of) = part.split_once('x').unwrap_or((part, "1"));
            let number = |text: &str| text.parse().ok().filter(|number| (1..=1_000_000).contains(number));
            let class = number(count).zip(number(of)).map(|(count, of)| Class { count, of });
            *classes.next().ok_or_else(expected)? = class.ok_or_else(expected)?;
        }
        Ok(retention)
    }
}

impl Retention {
    /// Whether the snapshot `number` is kept when `newest` was taken last. Numbers begin at 1.
    fn keeps(&self, number: u64, newest: u64) -> bool {
        self.classes.iter().any(|class| {
            class.of > 0
                && number.is_multiple_of(class.of)
                && newest / class.of - number / class.of < class.count
        })
    }
}

/// When snapshots are taken, and how many are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Bytes that users write between two snapshots.
    pub every_bytes: u64,
    /// What is kept.
    pub retention: Retention,
}

/// A block that a snapshot holds, or held until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// Its address.
    pub addr: Addr,
    /// Its stored size.
    pub granules: u32,
    /// The txg of its birth.
    pub birth: u32,
}

struct Snapshot {
    txg: u32,
    dead: Vec<HeldBlock>,
}

/// The snapshots of a pool, by number.
pub struct Snapshots {
    schedule: Schedule,
    taken: u64,
    kept: BTreeMap<u64, Snapshot>,
    head_dead: Vec<HeldBlock>,
    held_granules: u64,
}

impl Snapshots {
    /// No snapshots yet.
    pub fn new(schedule: Schedule) -> Snapshots {
        Snapshots { schedule, taken: 0, kept: BTreeMap::new(), head_dead: Vec::new(), held_granules: 0 }
    }

    /// Whether the next snapshot is due after users wrote this many bytes.
    pub fn is_due(&self, user_bytes: u64) -> bool {
        user_bytes / self.schedule.every_bytes > self.taken
    }

    /// The txg of the newest snapshot; 0: there is none. It holds the blocks that were born up to it.
    pub fn newest_txg(&self) -> u32 {
        self.kept.values().next_back().map_or(0, |snapshot| snapshot.txg)
    }

    /// Number of snapshots.
    pub fn count(&self) -> u64 {
        self.kept.len() as u64
    }

    /// Granules of blocks that only snapshots hold.
    pub fn held_granules(&self) -> u64 {
        self.held_granules
    }

    /// Removes a block from the head. Returns whether a snapshot holds it.
    pub fn hold(&mut self, block: HeldBlock) -> bool {
        let is_held = block.birth <= self.newest_txg();
        if is_held {
            self.head_dead.push(block);
            self.held_granules += u64::from(block.granules);
        }
        is_held
    }

    /// Takes a snapshot of the state of this txg, and destroys snapshots that are no longer kept. Returns the blocks that this frees.
    pub fn take(&mut self, txg: u32) -> Vec<HeldBlock> {
        self.taken += 1;
        self.kept.insert(self.taken, Snapshot { txg, dead: std::mem::take(&mut self.head_dead) });
        let (retention, newest) = (self.schedule.retention, self.taken);
        let gone: Vec<u64> =
            self.kept.keys().copied().filter(|number| !retention.keeps(*number, newest)).collect();
        gone.into_iter().flat_map(|number| self.destroy(number)).collect()
    }

    fn destroy(&mut self, number: u64) -> Vec<HeldBlock> {
        let Some(gone) = self.kept.remove(&number) else { return Vec::new() };
        let before = self.kept.range(..number).next_back().map_or(0, |(_, snapshot)| snapshot.txg);
        let dead = match self.kept.range_mut(number..).next() {
            Some((_, next)) => &mut next.dead,
            None => &mut self.head_dead,
        };
        let free: Vec<HeldBlock> = dead.extract_if(.., |block| block.birth > before).collect();
        dead.extend(gone.dead);
        self.held_granules -= free.iter().map(|block| u64::from(block.granules)).sum::<u64>();
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use terrane_wire::{Prng, ZoneSeq};

    #[test]
    fn classes_keep_what_they_name() {
        let retention: Retention = "3,2x4".parse().unwrap();
        let kept: Vec<u64> = (1..=17).filter(|number| retention.keeps(*number, 17)).collect();
        assert_eq!(kept, [12, 15, 16, 17]);
        for wrong in ["", "0", "3x", "x3", "1,2,3,4,5", "3x0", "three"] {
            assert!(wrong.parse::<Retention>().is_err(), "{wrong}");
        }
    }

    /// Beside the plainest thing that is right: the set of births that each snapshot sees.
    #[test]
    fn a_block_is_free_when_no_snapshot_sees_it() {
        let schedule = Schedule { every_bytes: 1, retention: "5,3x7".parse().unwrap() };
        let mut snapshots = Snapshots::new(schedule);
        let mut rng = Prng::new(3);
        let (mut head, mut seen): (BTreeSet<u64>, BTreeMap<u64, BTreeSet<u64>>) = Default::default();
        let mut born: BTreeMap<u64, HeldBlock> = BTreeMap::new();
        let (mut next, mut freed, mut held_once) = (0, 0, 0);
        for txg in 1..400u32 {
            for _ in 0..rng.below(20) {
                let addr = Addr::new(ZoneSeq(1), next * 16);
                born.insert(next, HeldBlock { addr, granules: 1, birth: txg });
                head.insert(next);
                next += 1;
            }
            let sees = |seen: &BTreeMap<u64, BTreeSet<u64>>, name: u64| {
                seen.values().any(|names| names.contains(&name))
            };
            for name in head.clone() {
                if rng.below(8) == 0 {
                    head.remove(&name);
                    let is_held = snapshots.hold(born[&name]);
                    assert_eq!(is_held, sees(&seen, name), "{name} in {txg}");
                    held_once += u64::from(is_held);
                }
            }
            if rng.below(3) > 0 {
                continue;
            }
            let free = snapshots.take(txg);
            let newest = seen.keys().next_back().map_or(1, |number| number + 1);
            let before: BTreeSet<u64> =
                seen.values().flatten().copied().filter(|name| !head.contains(name)).collect();
            seen.insert(newest, head.clone());
            seen.retain(|number, _| schedule.retention.keeps(*number, newest));
            let expected: BTreeSet<u64> = before.into_iter().filter(|name| !sees(&seen, *name)).collect();
            let found: BTreeSet<u64> = free.iter().map(|block| u64::from(block.addr.granule())).collect();
            assert_eq!((found.len(), found), (free.len(), expected), "in {txg}");
            freed += free.len() as u64;
            assert_eq!(snapshots.count(), seen.len() as u64);
            assert_eq!(snapshots.held_granules(), held_once - freed);
        }
        assert!(freed > 500, "{freed}");
    }
}
