//! An index of a micro or tiny ZAP in memory, with 8 bytes per entry.
//!
//! An element is the top 32 bits of the masked hash, the collision differentiator (16 bits) and the slot (16 bits).
//! So numeric order is cursor order. [`Elements`] keeps them.
//!
//! Invariant: elements point at used slots; they describe the block as its ZAP last left it.

use crate::elements::Elements;
use crate::slots::Slots;
use terrane_wire::Corrupt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    elements: Elements,
}

/// A decoded element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexedSlot {
    /// The masked hash.
    pub hash: u64,
    pub cd: u16,
    pub slot: u16,
}

impl IndexedSlot {
    fn of(element: u64) -> Self {
        let [h0, h1, h2, h3, c0, c1, s0, s1] = element.to_be_bytes();
        IndexedSlot {
            hash: u64::from(u32::from_be_bytes([h0, h1, h2, h3])) << 32,
            cd: u16::from_be_bytes([c0, c1]),
            slot: u16::from_be_bytes([s0, s1]),
        }
    }
}

fn element(hash: u64, cd: u16, slot: u16) -> u64 {
    hash & !u64::from(u32::MAX) | u64::from(cd) << 16 | u64::from(slot)
}

impl Index {
    pub fn build(slots: &Slots<'_>) -> Result<Index, Corrupt> {
        let mut elements = Vec::with_capacity(slots.slot_count());
        slots.for_each_hash(|hash, cd, slot| elements.push(element(hash, cd, slot)))?;
        Ok(Index { elements: Elements::build(&elements) })
    }

    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Memory of the index in bytes.
    pub fn bytes(&self) -> usize {
        self.elements.bytes()
    }

    /// The invariants of the elements.
    pub fn check(&self) -> Result<(), Corrupt> {
        self.elements.check().map_err(|found| Corrupt::new("index", "elements", "in hash order", found))
    }

    /// Elements from (hash, cd) on, in order.
    pub fn from(&self, hash: u64, cd: u16) -> impl Iterator<Item = IndexedSlot> + use<'_> {
        self.elements.from(element(hash, cd, 0)).map(IndexedSlot::of)
    }

    /// All elements with this hash, in the order of their differentiators.
    pub fn colliders(&self, hash: u64) -> impl Iterator<Item = IndexedSlot> + use<'_> {
        self.from(hash, 0).take_while(move |i| i.hash == hash)
    }

    pub fn insert(&mut self, hash: u64, cd: u16, slot: u16) {
        self.elements.insert(element(hash, cd, slot));
    }

    pub fn remove(&mut self, indexed: IndexedSlot) {
        self.elements.remove(element(indexed.hash, indexed.cd, indexed.slot));
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::Elements;
    use crate::ordered::Ordered;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Hashes that are spread as those of names, or that are all close together: at the beginning, in the middle, at
    /// the very end.
    fn elements() -> impl Strategy<Value = Vec<u64>> {
        let spread = prop_oneof![
            Just((0, u64::MAX)),
            Just((0, 0xffff << 36)),
            Just((0x7777 << 48, 0xff << 36)),
            Just((0xffff << 48, 0xfff << 36)),
        ];
        (spread, 1..600usize).prop_flat_map(|((base, mask), count)| {
            let one = (any::<u32>(), 0..4u64, 0..600u64);
            let element = move |(hash, cd, slot): (u32, u64, u64)| {
                (base | (u64::from(hash) << 32 & mask)) >> 36 << 36 | cd << 16 | slot
            };
            prop::collection::vec(one.prop_map(element), count)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn behaves_like_a_sorted_set(all in elements(), removed in any::<prop::sample::Index>(), seed in any::<u64>()) {
            let (built, added) = all.split_at(removed.index(all.len() + 1));
            let mut model: BTreeSet<u64> = built.iter().copied().collect();
            let distinct: Vec<u64> = model.iter().rev().copied().collect();
            let mut ordered = Ordered::build(&distinct);
            prop_assert_eq!(ordered.check(), Ok(()));
            for element in added {
                if model.insert(*element) {
                    ordered.insert(*element);
                    prop_assert_eq!(ordered.check(), Ok(()));
                }
                let first = element.rotate_left(7) ^ seed;
                prop_assert_eq!(ordered.from(first).next(), model.range(first..).next().copied());
            }
            prop_assert!(ordered.from(0).eq(model.iter().copied()));
            let again = Ordered::build(&model.iter().copied().collect::<Vec<_>>());
            prop_assert!(ordered.from(0).eq(again.from(0)));
            let mut order: Vec<u64> = model.iter().copied().collect();
            order.sort_by_key(|element| element.wrapping_mul(seed | 1));
            for (k, element) in order.iter().enumerate() {
                prop_assert!(ordered.remove(*element).is_some());
                prop_assert_eq!(ordered.remove(*element), None);
                model.remove(element);
                prop_assert_eq!(ordered.check(), Ok(()));
                if k % 16 == 0 {
                    prop_assert!(ordered.from(*element).eq(model.range(*element..).copied()));
                }
            }
            prop_assert_eq!(ordered.len(), 0);
            prop_assert!(ordered.bytes() <= 160);
        }
    }

    /// A multiplicative generator in place of hashes; 28 of its bits count.
    #[test]
    fn memory_stays_near_eight_bytes_an_element() {
        let element = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 36 << 36 | n;
        for count in [100, 2_000, 16_000] {
            let all: Vec<u64> = (0..count as u64).map(element).collect();
            let built = Ordered::build(&all);
            assert!(built.bytes() <= count * 10, "{} bytes for {count} built", built.bytes());
            let mut grown = Ordered::build(&all[..count / 2]);
            for (k, element) in all.iter().enumerate().skip(count / 2) {
                grown.insert(*element);
                assert!(grown.bytes() <= (k + 1) * 12, "{} bytes for {}", grown.bytes(), k + 1);
            }
            for (k, element) in all.iter().enumerate().take(count - 50) {
                grown.remove(*element);
                assert!(grown.bytes() <= (count - k) * 30, "{} bytes for {}", grown.bytes(), count - k);
            }
        }
    }

    #[test]
    fn numbers_between_the_hashes_have_a_place_too() {
        let ordered = Ordered::build(&[5 << 60, 15 << 60]);
        assert_eq!(ordered.from(u64::MAX).next(), None);
        assert_eq!(ordered.from(u64::MAX - 1).next(), None);
        assert_eq!(ordered.from(6 << 60).next(), Some(15 << 60));
        assert_eq!(Ordered::default().from(0).next(), None);
        assert_eq!([u64::MAX, 0].map(|element| Ordered::default().remove(element)), [None, None]);
    }

    /// Hashes of 28 bits: spread, at one value, at neighbouring values, and at the end of all.
    #[derive(Clone, Copy, Debug)]
    enum Spread {
        Even,
        OneHash,
        Neighbours,
        End,
    }

    impl Spread {
        fn element(self, number: u64) -> u64 {
            let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            match self {
                Spread::Even => scattered >> 36 << 36 | number,
                Spread::OneHash => 0x1234_5670 << 32 | number << 16 | scattered >> 48,
                Spread::Neighbours => 0x7777 << 48 | (scattered & 0xfff) << 36 | number,
                Spread::End => 0xffff << 48 | (scattered & 0xff) << 40 | number,
            }
        }
    }

    fn spreads() -> impl Strategy<Value = Spread> {
        prop_oneof![Just(Spread::Even), Just(Spread::OneHash), Just(Spread::Neighbours), Just(Spread::End)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_crowd_behaves_like_a_sorted_set(
            crowds in prop::collection::vec((spreads(), 1..4000u64), 1..4),
            built in any::<prop::sample::Index>(),
            seed in any::<u64>(),
        ) {
            let mut all: BTreeSet<u64> = BTreeSet::new();
            for (spread, count) in crowds {
                all.extend((0..count).map(|number| spread.element(number)));
            }
            let mut order: Vec<u64> = all.iter().copied().collect();
            order.sort_by_key(|element| element.wrapping_mul(seed | 1));
            let (built, added) = order.split_at(built.index(order.len() + 1));
            let mut model: BTreeSet<u64> = built.iter().copied().collect();
            let mut elements = Elements::build(built);
            prop_assert_eq!(elements.check(), Ok(()));
            for (n, element) in added.iter().enumerate() {
                model.insert(*element);
                elements.insert(*element);
                let first = element.rotate_left(7) ^ seed;
                prop_assert_eq!(elements.from(first).next(), model.range(first..).next().copied());
                if n % 256 == 0 {
                    prop_assert_eq!(elements.check(), Ok(()));
                    prop_assert!(elements.from(0).eq(model.iter().copied()));
                }
            }
            prop_assert_eq!(&elements, &Elements::build(&order));
            order.sort_by_key(|element| element.wrapping_mul(seed.rotate_left(9) | 1));
            for (n, element) in order.iter().enumerate() {
                prop_assert!(elements.remove(*element) && !elements.remove(*element));
                model.remove(element);
                prop_assert_eq!(elements.len(), model.len());
                if n % 256 == 0 {
                    prop_assert_eq!(elements.check(), Ok(()));
                    prop_assert!(elements.from(*element).eq(model.range(*element..).copied()));
                }
            }
            prop_assert!(elements.bytes() <= 160);
        }
    }

    fn is_tree(elements: &Elements) -> bool {
        matches!(elements, Elements::Tree(_))
    }

    #[test]
    fn a_crowd_becomes_a_tree_and_others_never_do() {
        let crowd = |spread: Spread| (0..16_000).map(move |number| spread.element(number));
        for spread in [Spread::OneHash, Spread::Neighbours, Spread::End] {
            let mut scattered: Vec<u64> = crowd(spread).collect();
            scattered.sort_by_key(|element| element.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            assert!(is_tree(&Elements::build(&scattered)), "{spread:?} built");
            let mut elements = Elements::default();
            scattered.iter().for_each(|element| elements.insert(*element));
            assert!(is_tree(&elements), "{spread:?} inserted");
            // In ascending order nothing moves before the first removal.
            scattered.sort_unstable();
            let mut elements = Elements::default();
            scattered.iter().for_each(|element| elements.insert(*element));
            scattered.iter().take(2).for_each(|element| assert!(elements.remove(*element)));
            assert!(is_tree(&elements), "{spread:?} removed from");
            let (last, others) = scattered[2..].split_at(512);
            others.iter().for_each(|element| assert!(elements.remove(*element)));
            assert!(!is_tree(&elements) && elements.from(0).eq(last.iter().copied()));
            assert!(elements.bytes() <= last.len() * 30);
        }
        for count in [100, 2_000, 16_000] {
            let even: Vec<u64> = (0..count).map(|number| Spread::Even.element(number)).collect();
            let mut elements = Elements::build(&even[..even.len() / 2]);
            even[even.len() / 2..].iter().for_each(|element| elements.insert(*element));
            even.iter().step_by(3).for_each(|element| assert!(elements.remove(*element)));
            assert!(!is_tree(&elements));
        }
    }

    #[test]
    fn a_directory_without_a_crowd_pays_nothing() {
        assert_eq!(size_of::<Elements>(), size_of::<Ordered>());
    }
}
