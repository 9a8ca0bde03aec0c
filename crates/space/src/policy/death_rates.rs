//! Measures whether the age of a zone predicts how soon its blocks will die.
//!
//! Cost-benefit waits longer for old zones than for young ones, because what has lived long mostly lives on. If blocks die at the same
//! rate at any age (random whole files, uniform overwrites), waiting only keeps garbage. With a few files per zone, where chance leaves
//! some zones nearly empty, greedy then copies a tenth less. So deaths are counted by the age of their zone, beside the bytes alive at
//! that age and the time they lived. The death rates of the younger and the older half of all lived time are compared.

/// Age classes per doubling.
const CLASSES_PER_DOUBLING: f64 = 4.0;
/// Ages are told apart up to 2^64 bytes.
const AGE_CLASSES: usize = 64 * CLASSES_PER_DOUBLING as usize;
/// Zones are sampled each time users have written this fraction of the zones' capacity. Old samples decay by the same fraction.
const SAMPLE_DIVISOR: u64 = 16;
/// Age is predictive if the younger half dies this many times as fast as the older one.
const PREDICTIVE_RATIO: f64 = 1.5;

/// Deaths in the younger and in the older half of all lived time. Zero if nothing lived.
fn halves(died: &[f64], lived: &[f64]) -> (f64, f64) {
    let half = lived.iter().sum::<f64>() / 2.0;
    if half == 0.0 {
        return (0.0, 0.0);
    }
    let (mut young, mut before) = (0.0, 0.0);
    for (deaths, lived_bytes) in died.iter().zip(lived) {
        // The middle age class is split so that the halves are equal.
        let share = ((half - before) / lived_bytes.max(1.0)).clamp(0.0, 1.0);
        (young, before) = (young + deaths * share, before + lived_bytes);
    }
    (young, died.iter().sum::<f64>() - young)
}

#[derive(Clone, Debug)]
pub(super) struct DeathRates {
    /// Bytes that died since the last sample, by age.
    died: Vec<f64>,
    /// Decayed sums of bytes that died young and old, split at the median age of each sample.
    young: f64,
    old: f64,
    now: u64,
    sampled_at: u64,
    age_is_predictive: bool,
}

impl Default for DeathRates {
    fn default() -> DeathRates {
        DeathRates {
            died: vec![0.0; AGE_CLASSES],
            young: 0.0,
            old: 0.0,
            now: 0,
            sampled_at: 0,
            age_is_predictive: true,
        }
    }
}

fn age_class(age: f64) -> usize {
    ((age.max(1.0).log2() * CLASSES_PER_DOUBLING) as usize).min(AGE_CLASSES - 1)
}

impl DeathRates {
    pub fn note_time(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// Notes that `bytes` died in a zone that became full at `since`.
    pub fn note_death(&mut self, since: f64, bytes: u64) {
        self.died[age_class(self.now as f64 - since)] += bytes as f64;
    }

    /// Takes a sample if it is due: live bytes of each zone, and when it became full. `capacity` is that of all zones, in bytes.
    pub fn sample(&mut self, capacity: u64, zones: impl Iterator<Item = (u64, f64)>) {
        if self.now - self.sampled_at < capacity / SAMPLE_DIVISOR {
            return;
        }
        let passed = (self.now - std::mem::replace(&mut self.sampled_at, self.now)) as f64;
        // Live bytes, times the user bytes written meanwhile.
        let mut lived = vec![0.0; AGE_CLASSES];
        for (live, since) in zones {
            let age = self.now as f64 - since;
            let seen = passed.min(age);
            // The zone's age in the middle of the interval. Its deaths were counted as they came.
            lived[age_class(age - seen / 2.0)] += live as f64 * seen;
        }
        let (young, old) = halves(&self.died, &lived);
        let kept = 1.0 - 1.0 / SAMPLE_DIVISOR as f64;
        (self.young, self.old) = (self.young * kept + young, self.old * kept + old);
        self.died.fill(0.0);
        let is_known = self.young + self.old >= capacity as f64 / SAMPLE_DIVISOR as f64;
        self.age_is_predictive = !is_known || self.young > PREDICTIVE_RATIO * self.old;
    }

    pub fn age_is_predictive(&self) -> bool {
        self.age_is_predictive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hundred zones of 1,000 bytes. One is refilled for each thousand user bytes. `death` gives the deaths by age.
    fn rates_after(death: impl Fn(u64) -> u64) -> DeathRates {
        let mut rates = DeathRates::default();
        let mut zones: Vec<(u64, u64)> = (0..100).map(|nth| (1000, nth * 1000)).collect();
        for round in 100..1000u64 {
            let now = round * 1000;
            rates.note_time(now);
            for (live, since) in &mut zones {
                let died = death(now - *since).min(*live);
                *live -= died;
                rates.note_death(*since as f64, died);
            }
            let emptiest = zones.iter_mut().min_by_key(|(live, _)| *live).unwrap();
            *emptiest = (1000, now);
            rates.sample(100_000, zones.iter().map(|(live, since)| (*live, *since as f64)));
        }
        rates
    }

    #[test]
    fn age_is_not_predictive_for_random_deaths() {
        const ZONE: u64 = 1_000_000;
        let mut rates = DeathRates::default();
        // Two hundred zones are filled while nothing dies. Then users write a quarter of a zone at a time, and the collector moves the
        // rest. So zones live for four samples.
        let mut zones: Vec<(u64, u64)> = (1..=200).map(|nth| (ZONE, nth * ZONE)).collect();
        for filled in 0..2000u64 {
            let now = 200 * ZONE + filled * (ZONE / 4);
            rates.note_time(now);
            for (live, since) in &mut zones {
                let died = *live / 800;
                *live -= died;
                rates.note_death(*since as f64, died);
            }
            let emptiest = zones.iter_mut().min_by_key(|(live, _)| *live).unwrap();
            *emptiest = (ZONE, now);
            rates.sample(200 * ZONE, zones.iter().map(|(live, since)| (*live, *since as f64)));
            assert!(filled < 150 || !rates.age_is_predictive(), "{filled}: {} {}", rates.young, rates.old);
        }
        let ratio = rates.young / rates.old;
        assert!((0.7..1.25).contains(&ratio), "each is as old as it was: {ratio}");
        assert_eq!(halves(&[1.0, 2.0, 3.0], &[2.0, 4.0, 2.0]), (2.0, 4.0));
    }

    #[test]
    fn age_is_predictive_where_the_young_die() {
        assert!(DeathRates::default().age_is_predictive(), "nothing is known");
        assert!(rates_after(|age| if age < 20_000 { 40 } else { 1 }).age_is_predictive());
        assert!(!rates_after(|_| 10).age_is_predictive());
        assert!(
            !rates_after(|age| if age < 20_000 { 2 } else { 20 }).age_is_predictive(),
            "only the old die"
        );
    }
}
