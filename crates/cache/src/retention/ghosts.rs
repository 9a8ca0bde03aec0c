//! Names of evicted blocks, in eight bytes each.
//!
//! A ghost holds a *tag* of 32 bits, not the key, in a table of buckets of one cache line. A new ghost replaces the oldest in its
//! bucket, so no list, index or free slot is needed. Two names with one tag are confused: one block in some ten thousand enters with
//! the uses of another, which does no harm.
//!
//! Invariants ([`Ghosts::check`]): the bytes of each part and the count match the table, a tag is at most once in its bucket, and a
//! bucket is sorted newest first.

/// Ghosts per bucket.
const WAYS: usize = 8;
/// Fewest buckets of a table.
const BUCKETS_MIN: usize = 8;
const BYTES_BITS: u32 = 29;
const MAIN_BIT: u32 = 1 << BYTES_BITS;
const USES_SHIFT: u32 = BYTES_BITS + 1;

/// The tag of a key hash. The highest bits are the best mixed.
pub fn tag(key_hash: u64) -> u32 {
    (key_hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// A ghost, from the highest bit: uses (2), whether it left the main part (1), bytes (29, saturating). All 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    tag: u32,
    bits: u32,
}

impl Slot {
    fn is_none(self) -> bool {
        self.bits == 0
    }

    fn ghost(self) -> Ghost {
        Ghost {
            bytes: self.bits & (MAIN_BIT - 1),
            from_main: self.bits & MAIN_BIT != 0,
            uses: (self.bits >> USES_SHIFT) as u8,
        }
    }
}

/// What is known of an evicted block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ghost {
    pub bytes: u32,
    /// It left the main part, not the window.
    pub from_main: bool,
    /// At most 3.
    pub uses: u8,
}

#[derive(Clone, Debug, Default)]
pub struct Ghosts {
    buckets: Vec<[Slot; WAYS]>,
    /// Bytes of ghosts from the window, and from the main part.
    bytes: [u64; 2],
    count: usize,
    /// The bucket that is trimmed next.
    hand: usize,
}

impl Ghosts {
    /// Bytes of blocks that left the window, or the main part.
    pub fn bytes(&self, of_main: bool) -> u64 {
        self.bytes[usize::from(of_main)]
    }

    /// Memory in bytes.
    pub fn memory(&self) -> usize {
        self.buckets.capacity() * size_of::<[Slot; WAYS]>()
    }

    /// Resizes the table for `count` ghosts. If it shrinks, the oldest of a bucket are dropped.
    pub fn set_slots(&mut self, count: usize) {
        let buckets = count.div_ceil(WAYS).max(BUCKETS_MIN);
        if buckets == self.buckets.len() {
            return;
        }
        let mut table = Vec::new();
        table.reserve_exact(buckets);
        table.resize(buckets, [Slot::default(); WAYS]);
        let old = std::mem::replace(self, Ghosts { buckets: table, ..Ghosts::default() });
        // Oldest first, in insertion order.
        for age in (0..WAYS).rev() {
            old.buckets.iter().map(|bucket| bucket[age]).filter(|slot| !slot.is_none()).for_each(|slot| {
                self.put_slot(slot);
            });
        }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.buckets.len() * WAYS
    }

    fn bucket_of(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.buckets.len() as u64) >> 32) as usize
    }

    /// Adds the ghost of an evicted block. Does nothing in a table without slots.
    pub fn put(&mut self, tag: u32, ghost: Ghost) {
        let bytes = ghost.bytes.clamp(1, MAIN_BIT - 1);
        let main = if ghost.from_main { MAIN_BIT } else { 0 };
        let what = bytes | main | u32::from(ghost.uses.min(3)) << USES_SHIFT;
        self.take(tag);
        self.put_slot(Slot { tag, bits: what });
    }

    fn put_slot(&mut self, slot: Slot) {
        let at = self.bucket_of(slot.tag);
        let Some(bucket) = self.buckets.get_mut(at) else { return };
        let oldest = bucket[WAYS - 1];
        bucket.copy_within(..WAYS - 1, 1);
        bucket[0] = slot;
        self.count_in(slot);
        self.count_out(oldest);
    }

    fn count_in(&mut self, slot: Slot) {
        self.bytes[usize::from(slot.ghost().from_main)] += u64::from(slot.ghost().bytes);
        self.count += 1;
    }

    fn count_out(&mut self, slot: Slot) {
        if !slot.is_none() {
            self.bytes[usize::from(slot.ghost().from_main)] -= u64::from(slot.ghost().bytes);
            self.count -= 1;
        }
    }

    /// Removes and returns the ghost of a returning block.
    pub fn take(&mut self, tag: u32) -> Option<Ghost> {
        let at = self.bucket_of(tag);
        let way = self.buckets.get(at)?.iter().position(|slot| slot.tag == tag && !slot.is_none())?;
        Some(self.remove(at, way).ghost())
    }

    fn remove(&mut self, bucket: usize, way: usize) -> Slot {
        let ways = &mut self.buckets[bucket];
        let slot = ways[way];
        ways.copy_within(way + 1.., way);
        ways[WAYS - 1] = Slot::default();
        self.count_out(slot);
        slot
    }

    /// Drops old ghosts of the larger part until all together stand for at most `bytes`.
    pub fn bound(&mut self, bytes: u64) {
        while self.bytes[0] + self.bytes[1] > bytes {
            let of_main = self.bytes[1] >= self.bytes[0];
            self.hand = (self.hand + 1) % self.buckets.len();
            let is_one = |slot: &Slot| !slot.is_none() && slot.ghost().from_main == of_main;
            if let Some(way) = self.buckets[self.hand].iter().rposition(is_one) {
                self.remove(self.hand, way);
            }
        }
    }

    /// Checks the invariants above.
    pub fn check(&self) -> Result<(), String> {
        let (mut bytes, mut count) = ([0, 0], 0);
        for (at, bucket) in self.buckets.iter().enumerate() {
            let len = bucket.iter().position(|slot| slot.is_none()).unwrap_or(WAYS);
            for (way, slot) in bucket.iter().enumerate().filter(|(_, slot)| !slot.is_none()) {
                let is_twice = bucket[..way].iter().any(|other| other.tag == slot.tag);
                if way >= len || is_twice || self.bucket_of(slot.tag) != at {
                    return Err(format!("bucket {at} should not hold {slot:?} at {way}, found {bucket:?}"));
                }
                bytes[usize::from(slot.ghost().from_main)] += u64::from(slot.ghost().bytes);
                count += 1;
            }
        }
        if (bytes, count) != (self.bytes, self.count) {
            return Err(format!(
                "ghosts and their bytes: expected {count} and {bytes:?}, found {} and {:?}",
                self.count, self.bytes
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ghost(bytes: u32) -> Ghost {
        Ghost { bytes, from_main: false, uses: 1 }
    }

    #[test]
    fn a_table_finds_nearly_as_many_ghosts_as_it_has_slots() {
        let mut ghosts = Ghosts::default();
        ghosts.put(1, ghost(1));
        assert_eq!((ghosts.take(1), ghosts.memory()), (None, 0), "no room yet");
        ghosts.set_slots(8000);
        (0..6000).for_each(|name| ghosts.put(tag(name), ghost(10)));
        assert_eq!(ghosts.bytes(false), 60_000, "names in a row are spread evenly");
        assert!(ghosts.memory() <= 8 * 8000);
        assert!((0..3000).all(|name| ghosts.take(tag(name)) == Some(ghost(10))));
        (10_000..26_000).for_each(|name| ghosts.put(tag(name), ghost(10)));
        let found = |names: std::ops::Range<u64>, ghosts: &mut Ghosts| {
            names.filter(|name| ghosts.take(tag(*name)).is_some()).count()
        };
        let mut again = ghosts.clone();
        assert_eq!(found(3000..6000, &mut again), 0);
        assert!(found(20_000..26_000, &mut again) > 5900, "{}", found(20_000..26_000, &mut ghosts.clone()));
        ghosts.set_slots(800);
        ghosts.check().unwrap();
        assert_eq!(found(0..26_000, &mut ghosts), 800, "each bucket is full");
    }

    proptest! {
        #[test]
        fn found_ghosts_were_added(
            steps in prop::collection::vec((0u64..200, 0u32..5000, 0u8..10), 1..600),
        ) {
            let mut ghosts = Ghosts::default();
            let mut model = std::collections::BTreeMap::new();
            for (name, bytes, what) in steps {
                match what {
                    0 => ghosts.set_slots(bytes as usize / 16),
                    1 => {
                        ghosts.bound(u64::from(bytes));
                        prop_assert!(ghosts.bytes(false) + ghosts.bytes(true) <= u64::from(bytes));
                    }
                    2..5 => {
                        let found = ghosts.take(tag(name));
                        prop_assert!(found.is_none() || found == model.remove(&name));
                    }
                    _ => {
                        let one = Ghost { bytes: bytes + 1, from_main: what > 6, uses: what % 4 };
                        ghosts.put(tag(name), one);
                        model.insert(name, one);
                    }
                }
                prop_assert_eq!(ghosts.check(), Ok(()));
            }
        }
    }
}
