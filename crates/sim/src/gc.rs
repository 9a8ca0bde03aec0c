//! Pools of any size without data: the write amplification of placement and of the choice of victims.
//!
//! A [`trace`] says what users do. [`accounting`] is a pool's accounting, driven by the pool's own policy
//! code. This module runs one on the other. It fills the pool, lets several capacities be overwritten until
//! write amplification is steady, and then measures. Times and lifetimes are in bytes that users write, as in
//! [`terrane_space::policy`].

pub mod accounting;
pub mod command;
mod index_bound;
pub mod report;
pub mod snapshots;
pub mod trace;

use accounting::Accounting;
use index_bound::IndexBound;
use report::Report;
use snapshots::{HeldBlock, Schedule, Snapshots};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use terrane_format::{Addr, GRANULE, granule_bytes};
use terrane_space::policy::{Age, Layout, LifetimePredictor, Placement, SimilarityKey, VictimPolicy};
use terrane_store::append::BATCH_BYTES;
use terrane_wire::Prng;
use terrane_wire::Txg;
use trace::{Event, Trace};

/// A pool, and the policy under test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Zones of the pool, which has no anchors.
    pub zones: u32,
    /// Bytes of a zone.
    pub zone_bytes: u64,
    /// Bytes that users write in one txg.
    pub txg_bytes: u64,
    /// Bytes of blocks per directory part.
    pub batch_bytes: u64,
    /// Open zones for which space is kept, for metadata, data and survivors.
    pub slots: u32,
    /// Most open zones, with extra slots for data; 0 is no limit.
    pub open_max: u32,
    /// Slots for survivors, by age.
    pub ages: u32,
    /// How victims are chosen.
    pub victim: VictimPolicy,
    /// Bytes of metadata written per byte of users' data, in each of two copies.
    pub metadata: f64,
    /// Survivors go to the slots of users' data.
    pub mixed: bool,
    /// The trace's lifetime hints are used.
    pub hints: bool,
    /// Lifetimes are inferred from overwrites and survivors' ages.
    pub infer: bool,
    /// And, for new files, from similar files.
    pub learn_from_similar: bool,
    /// Reclaimed zones are packed, as when the limit of the relocation index is reached.
    pub packed: bool,
    /// Bound of the relocation index in bytes, as in a pool; 0: none.
    pub index_bytes_max: u64,
    /// When snapshots are taken.
    pub snapshots: Option<Schedule>,
}

/// A name, and what it changes.
type PolicyPreset = (&'static str, fn(&mut Setting));

/// The policies that a comparison puts side by side.
pub const POLICIES: [PolicyPreset; 6] = [
    ("greedy-mixed", |s| (s.victim, s.mixed, s.ages) = (VictimPolicy::Greedy, true, 1)),
    ("greedy", |s| (s.victim, s.ages) = (VictimPolicy::Greedy, 1)),
    ("cost-benefit", |s| s.ages = 1),
    ("hints", |s| (s.hints, s.ages) = (true, 1)),
    ("inferred", |s| (s.infer, s.learn_from_similar) = (true, true)),
    ("both", |s| (s.hints, s.infer, s.learn_from_similar) = (true, true, true)),
];

impl Setting {
    /// A pool that chooses victims by cost-benefit, without hints or inference.
    pub fn new(zones: u32, zone_bytes: u64) -> Setting {
        let layout = Layout::new(u64::from(zones), 0).expect("no limit of open zones");
        let survivors: BTreeSet<usize> = Age::ALL.into_iter().map(|age| layout.survivors(age)).collect();
        Setting {
            zones,
            zone_bytes,
            txg_bytes: zone_bytes / 2,
            batch_bytes: BATCH_BYTES.min(zone_bytes),
            slots: layout.slots() as u32,
            open_max: 0,
            ages: survivors.len() as u32,
            victim: VictimPolicy::CostBenefit,
            metadata: 0.0,
            mixed: false,
            hints: false,
            infer: false,
            learn_from_similar: false,
            packed: false,
            index_bytes_max: 0,
            snapshots: None,
        }
    }

    /// Bytes of all zones.
    pub fn pool_bytes(&self) -> u64 {
        u64::from(self.zones) * self.zone_bytes
    }

    /// A pool under the policy of that name, one of [`POLICIES`].
    pub fn with_policy(mut self, name: &str) -> Option<Setting> {
        let (_, choose) = POLICIES.iter().find(|(known, _)| *known == name)?;
        choose(&mut self);
        Some(self)
    }
}

#[derive(Clone, Copy)]
struct Block {
    addr: Addr,
    birth: u32,
    granules: u32,
}

struct Object {
    blocks: Vec<Block>,
    placement: Placement,
    key: SimilarityKey,
    born_at: u64,
}

/// A trace on a pool.
pub struct Simulation {
    /// The pool.
    pub accounting: Accounting,
    objects: HashMap<u64, Object>,
    /// Live blocks of a recording, by their recorded names. `txgs` maps its txgs to those of this pool.
    recorded: HashMap<u64, Block>,
    txgs: BTreeMap<Txg, Txg>,
    predictor: LifetimePredictor,
    snapshots: Option<Snapshots>,
    bound: IndexBound,
    /// File and number of each block of the head, if the index has a bound.
    owners: HashMap<Addr, (u64, u32)>,
    seen_txgs: u64,
}

impl Simulation {
    /// An empty pool. `None`: no layout has so few slots.
    pub fn new(setting: Setting) -> Option<Simulation> {
        Some(Simulation {
            accounting: Accounting::new(setting)?,
            objects: HashMap::new(),
            recorded: HashMap::new(),
            txgs: BTreeMap::new(),
            predictor: LifetimePredictor::new(usize::MAX),
            snapshots: setting.snapshots.map(Snapshots::new),
            bound: IndexBound::default(),
            owners: HashMap::new(),
            seen_txgs: 0,
        })
    }

    /// Bytes of live blocks, of objects and of snapshots.
    pub fn live_bytes(&self) -> u64 {
        self.accounting.tables.live
    }

    /// Number of snapshots, and the bytes that only they hold.
    pub fn held(&self) -> (u64, u64) {
        self.snapshots.as_ref().map_or((0, 0), |held| (held.count(), held.held_granules() * GRANULE))
    }

    /// `None`: the pool is full.
    pub fn step(&mut self, event: Event) -> Option<()> {
        match event {
            Event::Create { object, directory, name, hint, size } => {
                let key = SimilarityKey::new(directory, name.as_bytes());
                let setting = self.accounting.setting;
                let expected_life_bytes = if setting.infer && setting.learn_from_similar {
                    self.predictor.predict(key)
                } else {
                    None
                };
                self.predictor.note_created(key);
                let placement = Placement {
                    file: object + 1,
                    hint,
                    burst_bytes: size.min(setting.txg_bytes),
                    is_closed: size <= setting.txg_bytes / 4,
                    replaced_birth: Txg(0),
                    expected_life_bytes,
                };
                let born_at = self.accounting.clock.now();
                self.objects.insert(object, Object { blocks: Vec::new(), placement, key, born_at });
            }
            Event::Write { object, block, bytes } => self.write_block(object, block, granule_bytes(bytes))?,
            Event::Delete { object } => {
                let Some(dead) = self.objects.remove(&object) else { return Some(()) };
                self.predictor.note_died(dead.key, self.accounting.clock.now() - dead.born_at);
                dead.blocks.into_iter().for_each(|block| self.release(block));
            }
            Event::Born { name, bytes, placement } => {
                let setting = self.accounting.setting;
                let expected =
                    placement.expected_life_bytes.filter(|_| setting.infer && setting.learn_from_similar);
                let replaces = self.txgs.get(&placement.replaced_birth).copied().unwrap_or(Txg(0));
                let placement =
                    Placement { replaced_birth: replaces, expected_life_bytes: expected, ..placement };
                let bytes = granule_bytes(bytes);
                let addr = self.accounting.write(bytes, &placement)?;
                self.remember(name, addr, bytes)?;
            }
            Event::Copied { name, bytes, copy } => {
                let bytes = granule_bytes(bytes);
                let addr = self.accounting.write_copy(copy, bytes)?;
                self.remember(name, addr, bytes)?;
            }
            Event::Freed { name } => {
                // Others were born before the recording began, or belong to the pool's own accounting.
                if let Some(block) = self.recorded.remove(&name) {
                    self.release(block);
                }
            }
            Event::Committed { txg, written_bytes } => {
                self.txgs.insert(txg, self.accounting.txg());
                self.accounting.written_bytes = self.accounting.written_bytes.max(written_bytes);
                self.accounting.end_txg()?;
            }
        }
        if self
            .snapshots
            .as_ref()
            .is_some_and(|snapshots| snapshots.is_due(self.accounting.totals.user_bytes))
        {
            self.take_snapshot()?;
        }
        if self.accounting.totals.txgs != self.seen_txgs {
            self.seen_txgs = self.accounting.totals.txgs;
            self.keep_index_bound()?;
        }
        Some(())
    }

    fn write_block(&mut self, object: u64, block: u32, bytes: u64) -> Option<()> {
        let Some(known) = self.objects.get_mut(&object) else { return Some(()) };
        let at = block as usize;
        let old = known.blocks.get(at).copied();
        let replaces = old.map_or(Txg(0), |old| Txg(u64::from(old.birth)));
        let placement = Placement { replaced_birth: replaces, ..known.placement };
        let addr = self.accounting.write(bytes, &placement)?;
        let birth = u32::try_from(self.accounting.txg().0).ok()?;
        let new = Block { addr, birth, granules: u32::try_from(bytes / GRANULE).ok()? };
        match old {
            Some(_) => known.blocks[at] = new,
            None => known.blocks.push(new),
        }
        if self.accounting.setting.index_bytes_max > 0 {
            self.owners.insert(addr, (object, block));
        }
        if let Some(old) = old {
            self.release(old);
        }
        Some(())
    }

    /// Removes a block from the head. The block is freed unless a snapshot holds it.
    fn release(&mut self, Block { addr, birth, granules }: Block) {
        self.owners.remove(&addr);
        let held = HeldBlock { addr, granules, birth };
        if !self.snapshots.as_mut().is_some_and(|snapshots| snapshots.hold(held)) {
            self.accounting.free(addr, u64::from(granules) * GRANULE);
        }
    }

    /// Commits the open txg, and takes a snapshot of its state.
    fn take_snapshot(&mut self) -> Option<()> {
        let txg = u32::try_from(self.accounting.txg().0).ok()?;
        self.accounting.end_txg()?;
        let free = self.snapshots.as_mut().map(|snapshots| snapshots.take(txg));
        for block in free.into_iter().flatten() {
            self.accounting.free(block.addr, u64::from(block.granules) * GRANULE);
        }
        Some(())
    }

    fn remember(&mut self, name: u64, addr: Addr, bytes: u64) -> Option<()> {
        let birth = u32::try_from(self.accounting.txg().0).ok()?;
        let granules = u32::try_from(bytes / GRANULE).ok()?;
        self.recorded.insert(name, Block { addr, birth, granules });
        Some(())
    }
}

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// Seed of the trace.
    pub seed: u64,
    /// Capacities of the pool that are written before the measurement, and during it.
    pub warm_up: f64,
    /// Capacities of the pool that are written during the measurement.
    pub measured: f64,
}

/// How often the relocation index is sampled during a measurement.
const SAMPLES: u32 = 32;

/// Fills a pool by a trace, warms it up, measures. `None`: the pool ran full.
pub fn run(setting: Setting, trace: &mut dyn Trace, measure: Measure) -> Option<Report> {
    let started = std::time::Instant::now();
    let mut rng = Prng::new(measure.seed);
    let mut run = Simulation::new(setting)?;
    while let Some(event) = trace.fill(&mut rng) {
        run.step(event)?;
    }
    let mut go_on = |run: &mut Simulation, capacities: f64| {
        let more = (capacities * setting.pool_bytes() as f64) as u64;
        let end = run.accounting.totals.user_bytes.saturating_add(more);
        while run.accounting.totals.user_bytes < end {
            let Some(event) = trace.next(&mut rng) else { break };
            run.step(event)?;
        }
        Some(())
    };
    go_on(&mut run, measure.warm_up)?;
    let before = run.accounting.totals;
    let mut largest = run.accounting.index();
    for _ in 0..SAMPLES {
        go_on(&mut run, measure.measured / f64::from(SAMPLES))?;
        let now = run.accounting.index();
        if now.bytes() > largest.bytes() {
            largest = now;
        }
    }
    Some(Report::new(&run, before, largest, started.elapsed()))
}

#[cfg(test)]
mod tests;
