//! Victim selection: which full zone is emptied next.
//!
//! *Greedy* takes the zone with the least live share. On skewed data that is wasteful. Cold zones with a little garbage become the
//! emptiest only slowly, and keep their garbage meanwhile. Hot zones are copied right before they would have died by themselves.
//! *Cost-benefit* weighs benefit against cost. The benefit is the free share times the time it will stay free, which the zone's age
//! predicts. The cost is what must be written: `(1 - u) * age / u`. Rosenblum and Ousterhout (1992) divide by `1 + u`, because they
//! read the whole segment. Here only live blocks are read, and copying is the cost. On uniform data both choose alike.
//!
//! A zone's age is the time since it was full, not that of its data. By the age of their data, zones of survivors would be the oldest
//! of all once they are written, and be moved again with little garbage. In the simulator that costs four times as much on 95/5 and on
//! zipf.
//!
//! If old blocks die at the same rate as young ones, age tells nothing, and cost-benefit chooses as greedy does (`DeathRates`).
//!
//! The index is a flat list, and a choice scans all of it. Ages change with every byte written, so no order stays valid. One
//! subtraction and one product for each of 100,000 zones take less time than reading one block.
//!
//! Invariant ([`Candidates::check`]): each zone is listed once, with the weight that its live bytes give it.

use super::death_rates::DeathRates;
use std::collections::HashMap;
use terrane_wire::ZoneSeq;

/// How victims are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VictimPolicy {
    /// By benefit and cost: see the [module](self).
    #[default]
    CostBenefit,
    /// The least live share: for comparison.
    Greedy,
}

impl VictimPolicy {
    /// All policies.
    pub const ALL: [VictimPolicy; 2] = [VictimPolicy::CostBenefit, VictimPolicy::Greedy];

    /// The name for users.
    pub fn name(self) -> &'static str {
        match self {
            VictimPolicy::CostBenefit => "cost-benefit",
            VictimPolicy::Greedy => "greedy",
        }
    }

    /// The policy with this name for users.
    pub fn from_name(name: &str) -> Option<VictimPolicy> {
        VictimPolicy::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// Zones with less than this fraction of garbage are chosen only if nothing else can be done.
const GARBAGE_DIVISOR: f64 = 32.0;
/// The weight of a zone with that much garbage.
const LEAST_WEIGHT: f64 = 1.0 / (GARBAGE_DIVISOR - 1.0);

/// Zones are scored in stretches of this size. Only the stretch of the best score is scanned again.
const SCAN_ZONES: usize = 512;
/// Scores compared at once, for SIMD.
const SIMD_WIDTH: usize = 8;

/// The full zones that may be emptied.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    indices: HashMap<ZoneSeq, usize>,
    seqs: Vec<ZoneSeq>,
    capacities: Vec<u64>,
    live_bytes: Vec<u64>,
    /// `(1 - u) / u` of each.
    weights: Vec<f64>,
    /// When the zone became full, by the clock.
    full_since: Vec<f64>,
    death_rates: DeathRates,
}

fn weight(live: u64, capacity: u64) -> f64 {
    capacity.saturating_sub(live) as f64 / live.max(1) as f64
}

impl Candidates {
    /// Adds a zone that became full, or was full at import. `capacity` and `live` are bytes; space never written counts as garbage,
    /// because emptying the zone frees it. `since` is when the zone became full, by the [`Clock`](super::Clock), both for user data and
    /// for survivors. With the survivors' birth instead, old survivors would be moved for ever. 0: unknown. A zone that is already
    /// listed gets the new numbers.
    pub fn insert(&mut self, seq: ZoneSeq, live: u64, capacity: u64, since: u64) {
        self.death_rates.note_time(since);
        if let Some(&at) = self.indices.get(&seq) {
            (self.live_bytes[at], self.capacities[at]) = (live, capacity);
            (self.weights[at], self.full_since[at]) = (weight(live, capacity), since as f64);
            return;
        }
        self.indices.insert(seq, self.seqs.len());
        self.seqs.push(seq);
        self.capacities.push(capacity);
        self.live_bytes.push(live);
        self.weights.push(weight(live, capacity));
        self.full_since.push(since as f64);
    }

    /// Updates the live bytes of a zone. Unlisted zones are ignored.
    pub fn set_live(&mut self, seq: ZoneSeq, live: u64) {
        if let Some(&at) = self.indices.get(&seq) {
            self.death_rates.note_death(self.full_since[at], self.live_bytes[at].saturating_sub(live));
            self.live_bytes[at] = live;
            self.weights[at] = weight(live, self.capacities[at]);
        }
    }

    /// Removes a zone that is being emptied or is not a victim any more. False: it was not listed.
    pub fn remove(&mut self, seq: ZoneSeq) -> bool {
        let Some(at) = self.indices.remove(&seq) else { return false };
        self.seqs.swap_remove(at);
        self.capacities.swap_remove(at);
        self.live_bytes.swap_remove(at);
        self.weights.swap_remove(at);
        self.full_since.swap_remove(at);
        if let Some(moved) = self.seqs.get(at) {
            self.indices.insert(*moved, at);
        }
        true
    }

    /// Whether a zone is listed.
    pub fn contains(&self, seq: ZoneSeq) -> bool {
        self.indices.contains_key(&seq)
    }

    /// Number of listed zones.
    pub fn len(&self) -> usize {
        self.seqs.len()
    }

    /// Whether no zone is listed.
    pub fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    /// Samples the zones if it is due at `now` user bytes, to learn whether age is predictive.
    pub fn sample(&mut self, now: u64) {
        self.death_rates.note_time(now);
        // An estimate: zones of a drive are alike.
        let capacity = self.capacities.first().copied().unwrap_or(0).saturating_mul(self.seqs.len() as u64);
        self.death_rates
            .sample(capacity, self.live_bytes.iter().copied().zip(self.full_since.iter().copied()));
    }

    /// The zone to empty at `now` user bytes; among equals the lowest sequence number. Zones with less than a 32nd of garbage are
    /// chosen only if
    /// `must`, zones without garbage never. Scans every zone.
    pub fn choose(&self, policy: VictimPolicy, now: u64, is_forced: bool) -> Option<ZoneSeq> {
        // The weight falls as the live share grows, so a largest live share is a least weight.
        let least = if is_forced { f64::MIN_POSITIVE } else { LEAST_WEIGHT };
        // A zone filled right now needs an age above 0: among the youngest the emptiest should win.
        let now = now as f64 + 1.0;
        match policy {
            VictimPolicy::CostBenefit if self.death_rates.age_is_predictive() => {
                self.best(least, |weight, since| {
                    let age = now - since;
                    weight * if age > 1.0 { age } else { 1.0 }
                })
            }
            VictimPolicy::CostBenefit | VictimPolicy::Greedy => self.best(least, |weight, _| weight),
        }
    }

    /// The zones that [`Candidates::choose`] would name one after the other at `now` user bytes if nothing changed, the first `count` of
    /// them. Scans every zone.
    pub fn upcoming(&self, policy: VictimPolicy, now: u64, count: usize) -> Vec<ZoneSeq> {
        let by_age = policy == VictimPolicy::CostBenefit && self.death_rates.age_is_predictive();
        let score = |(weight, since): (&f64, &f64)| match by_age {
            true => weight * (now as f64 + 1.0 - since).max(1.0),
            false => *weight,
        };
        let zones = self.weights.iter().zip(&self.full_since).zip(&self.seqs);
        let worth = zones.filter(|((weight, _), _)| **weight >= LEAST_WEIGHT);
        let mut scored: Vec<(f64, ZoneSeq)> = worth.map(|(of, seq)| (score(of), *seq)).collect();
        let better = |a: &(f64, ZoneSeq), b: &(f64, ZoneSeq)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if scored.len() > count {
            scored.select_nth_unstable_by(count, better);
            scored.truncate(count);
        }
        scored.sort_unstable_by(better);
        scored.into_iter().map(|(_, seq)| seq).collect()
    }

    /// The zone with the greatest score among those of at least this weight; among equals the lowest sequence number.
    fn best(&self, least: f64, score: impl Fn(f64, f64) -> f64) -> Option<ZoneSeq> {
        let score = |weight: f64, since: f64| if weight < least { 0.0 } else { score(weight, since) };
        let greater = |a: f64, b: f64| if b > a { b } else { a };
        let stretches = || self.weights.chunks(SCAN_ZONES).zip(self.full_since.chunks(SCAN_ZONES));
        let best_of = |(weights, since): (&[f64], &[f64])| {
            // Several at a time, which the compiler vectorizes.
            let mut best = [0.0; SIMD_WIDTH];
            let pairs = weights.chunks_exact(SIMD_WIDTH).zip(since.chunks_exact(SIMD_WIDTH));
            for (weights, since) in pairs {
                for (best, (weight, since)) in best.iter_mut().zip(weights.iter().zip(since)) {
                    *best = greater(*best, score(*weight, *since));
                }
            }
            let rest = weights.len() / SIMD_WIDTH * SIMD_WIDTH;
            let rest =
                weights[rest..].iter().zip(&since[rest..]).map(|(weight, since)| score(*weight, *since));
            best.into_iter().chain(rest).fold(0.0, greater)
        };
        let bests: Vec<f64> = stretches().map(best_of).collect();
        let best = bests.iter().copied().fold(0.0, greater);
        if best == 0.0 {
            return None;
        }
        // The zone itself is needed only in the stretch of the best score.
        let found = stretches().zip(self.seqs.chunks(SCAN_ZONES)).zip(&bests).filter(|(_, of)| **of == best);
        let found = found.flat_map(|(((weights, since), seqs), _)| weights.iter().zip(since).zip(seqs));
        found.filter(|((weight, since), _)| score(**weight, **since) == best).map(|(_, seq)| *seq).min()
    }

    /// The zone with the fewest live bytes, if they are at most `1 / part` of its capacity; among equals the lowest sequence number.
    /// Scans every zone.
    pub fn nearly_empty(&self, divisor: u64) -> Option<ZoneSeq> {
        let zones = self.seqs.iter().zip(self.live_bytes.iter().zip(&self.capacities));
        let nearly_empty = zones.filter(|(_, (live, capacity))| live.saturating_mul(divisor) <= **capacity);
        nearly_empty.min_by_key(|(seq, (live, _))| (**live, **seq)).map(|(seq, _)| *seq)
    }

    /// Memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        let listed = size_of::<(ZoneSeq, u64, u64, f64, f64)>();
        self.seqs.capacity() * listed + self.indices.capacity() * (size_of::<(ZoneSeq, usize)>() + 1)
    }

    /// Checks the invariant above.
    pub fn check(&self) -> Result<(), String> {
        let lists = [self.capacities.len(), self.live_bytes.len(), self.weights.len(), self.full_since.len()];
        if lists.iter().any(|len| *len != self.seqs.len()) || self.indices.len() != self.seqs.len() {
            return Err(format!(
                "{} zones listed, found {lists:?} and {}",
                self.seqs.len(),
                self.indices.len()
            ));
        }
        for (at, seq) in self.seqs.iter().enumerate() {
            let found = (self.indices.get(seq), self.weights[at]);
            let expected = (Some(&at), weight(self.live_bytes[at], self.capacities[at]));
            if found != expected {
                return Err(format!("zone {seq}: expected {expected:?}, found {found:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// (live, capacity, since)
    type Model = BTreeMap<ZoneSeq, (u64, u64, u64)>;

    fn naive(model: &Model, policy: VictimPolicy, now: u64, must: bool) -> Option<ZoneSeq> {
        let mut best: Option<(f64, ZoneSeq)> = None;
        for (seq, &(live, capacity, since)) in model {
            let free = capacity.saturating_sub(live);
            if free == 0 || (!must && free * 32 < capacity) {
                continue;
            }
            let (free, rest) = (free as f64, live.max(1) as f64);
            let age = (now.saturating_sub(since) + 1) as f64;
            let score = free / rest * if policy == VictimPolicy::Greedy { 1.0 } else { age };
            if best.is_none_or(|(least, _)| score > least) {
                best = Some((score, *seq));
            }
        }
        best.map(|(_, seq)| seq)
    }

    proptest! {
        #[test]
        fn the_index_chooses_as_a_plain_scan_does(
            steps in prop::collection::vec((0u8..4, 1u64..24, 0u64..=64, 0u64..1000), 1..120),
            now in 0u64..2000,
        ) {
            let (mut index, mut model) = (Candidates::default(), Model::new());
            for (what, seq, live, since) in steps {
                let seq = ZoneSeq(seq);
                match what {
                    0 | 1 => {
                        index.insert(seq, live << 20, 64 << 20, since);
                        model.insert(seq, (live << 20, 64 << 20, since));
                    }
                    2 => {
                        index.set_live(seq, live << 20);
                        if let Some(zone) = model.get_mut(&seq) { zone.0 = live << 20; }
                    }
                    _ => prop_assert_eq!(index.remove(seq), model.remove(&seq).is_some()),
                }
                prop_assert_eq!(index.check(), Ok(()));
                prop_assert_eq!(index.len(), model.len());
            }
            for policy in VictimPolicy::ALL {
                let mut rest = model.clone();
                let in_turn = std::iter::from_fn(|| {
                    naive(&rest, policy, now, false).inspect(|seq| assert!(rest.remove(seq).is_some()))
                });
                let in_turn: Vec<_> = in_turn.take(3).collect();
                prop_assert_eq!(index.upcoming(policy, now, 3), in_turn, "{:?}", policy);
                for must in [false, true] {
                    prop_assert_eq!(index.choose(policy, now, must), naive(&model, policy, now, must), "{:?} {}", policy, must);
                }
            }
        }
    }

    #[test]
    fn full_zones_are_never_victims_and_nearly_full_ones_only_if_forced() {
        let mut index = Candidates::default();
        index.insert(ZoneSeq(1), 64, 64, 0);
        assert_eq!(index.choose(VictimPolicy::CostBenefit, 9, true), None);
        index.insert(ZoneSeq(2), 63, 64, 0);
        for policy in VictimPolicy::ALL {
            assert_eq!(index.choose(policy, 9, false), None);
            assert_eq!(index.choose(policy, 9, true), Some(ZoneSeq(2)));
        }
        index.set_live(ZoneSeq(2), 62);
        assert_eq!(index.choose(VictimPolicy::Greedy, 9, false), Some(ZoneSeq(2)));
    }

    #[test]
    fn nearly_empty_zones_are_found_by_their_live_share() {
        let mut index = Candidates::default();
        index.insert(ZoneSeq(1), 3, 64, 0);
        assert_eq!(index.nearly_empty(32), None);
        index.insert(ZoneSeq(4), 2, 64, 0);
        index.insert(ZoneSeq(3), 2, 64, 9);
        assert_eq!(index.nearly_empty(32), Some(ZoneSeq(3)));
        index.set_live(ZoneSeq(4), 0);
        assert_eq!(index.nearly_empty(32), Some(ZoneSeq(4)));
        index.remove(ZoneSeq(4));
        index.set_live(ZoneSeq(3), 3);
        assert_eq!(index.nearly_empty(32), None);
    }

    #[test]
    fn cost_benefit_prefers_old_garbage_to_more_young_garbage() {
        let mut index = Candidates::default();
        index.insert(ZoneSeq(1), 48, 64, 0);
        index.insert(ZoneSeq(2), 32, 64, 900);
        assert_eq!(index.choose(VictimPolicy::CostBenefit, 1000, false), Some(ZoneSeq(1)));
        assert_eq!(index.choose(VictimPolicy::Greedy, 1000, false), Some(ZoneSeq(2)));
    }

    #[test]
    fn names_come_back() {
        for policy in VictimPolicy::ALL {
            assert_eq!(VictimPolicy::from_name(policy.name()), Some(policy));
        }
        assert_eq!(VictimPolicy::from_name("oldest"), None);
    }
}
