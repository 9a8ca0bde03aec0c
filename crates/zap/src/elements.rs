//! The elements of an index: in hash order, or in a tree if their hashes crowd together.
//!
//! [`Ordered`] needs hashes that are spread evenly, and an attacker can choose names whose hashes are neighbours. They
//! form one run, and each change moves up to all of it. So the first change that moves more than [`MOVED_MAX`]
//! elements converts them to a `BTreeSet`. That costs as much as a few such changes, and no later change depends on
//! the hashes.
//!
//! Hashes of other names lead there about once in twenty directories of the largest size, and never in smaller ones.
//! Their lookups are then slower, and still correct.

use crate::ordered::{self, Ordered};
use std::collections::{BTreeSet, btree_set};

/// A change that moves more elements shows a crowd.
const MOVED_MAX: usize = 1024;
/// With so few elements, a tree becomes an array again. They can form a long run only after many insertions, which pay
/// for the next conversion.
const TREE_MIN: usize = MOVED_MAX / 2;
/// A node of the tree has at least 5 elements and takes at most 208 bytes, with its links and the allocator's
/// overhead.
const TREE_NODE_ELEMENTS_MIN: usize = 5;
const TREE_NODE_BYTES: usize = 112;

/// A set of distinct numbers, none [`u64::MAX`], whose upper halves are hashes.
#[derive(Clone, Debug)]
pub enum Elements {
    /// Evenly spread.
    HashOrder(Ordered),
    /// A crowd.
    Tree(BTreeSet<u64>),
}

impl Elements {
    /// Builds the set from distinct elements in any order.
    pub fn build(elements: &[u64]) -> Elements {
        let mut ordered = Ordered::for_elements(elements.len());
        for (at, element) in elements.iter().enumerate() {
            if ordered.put(*element) > MOVED_MAX {
                let rest = elements.get(at + 1..).unwrap_or(&[]);
                return Elements::Tree(ordered.from(0).chain(rest.iter().copied()).collect());
            }
        }
        Elements::HashOrder(ordered)
    }

    pub fn len(&self) -> usize {
        match self {
            Elements::HashOrder(ordered) => ordered.len(),
            Elements::Tree(tree) => tree.len(),
        }
    }

    /// Memory of the set in bytes; of a tree, at most.
    pub fn bytes(&self) -> usize {
        match self {
            Elements::HashOrder(ordered) => ordered.bytes(),
            Elements::Tree(tree) => tree.len().div_ceil(TREE_NODE_ELEMENTS_MIN) * TREE_NODE_BYTES,
        }
    }

    /// The invariants of the array, if it is one.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Elements::HashOrder(ordered) => ordered.check(),
            Elements::Tree(tree) if tree.len() <= TREE_MIN => Err(format!("a tree of {}", tree.len())),
            Elements::Tree(_) => Ok(()),
        }
    }

    /// Elements from this one on.
    pub fn from(&self, first: u64) -> Iter<'_> {
        match self {
            Elements::HashOrder(ordered) => Iter::HashOrder(ordered.from(first)),
            Elements::Tree(tree) => Iter::Tree(tree.range(first..)),
        }
    }

    pub fn insert(&mut self, element: u64) {
        match self {
            Elements::HashOrder(ordered) => {
                if ordered.insert(element) > MOVED_MAX {
                    self.become_tree();
                }
            }
            Elements::Tree(tree) => drop(tree.insert(element)),
        }
    }

    /// Returns false if there was no such element.
    pub fn remove(&mut self, element: u64) -> bool {
        match self {
            Elements::HashOrder(ordered) => {
                let moved = ordered.remove(element);
                if moved.is_some_and(|moved| moved > MOVED_MAX) {
                    self.become_tree();
                }
                moved.is_some()
            }
            Elements::Tree(tree) => {
                let removed = tree.remove(&element);
                if tree.len() <= TREE_MIN {
                    let rest: Vec<u64> = tree.iter().copied().collect();
                    *self = Elements::HashOrder(Ordered::build(&rest));
                }
                removed
            }
        }
    }

    fn become_tree(&mut self) {
        *self = Elements::Tree(self.from(0).collect());
    }
}

/// Elements in order.
pub enum Iter<'a> {
    /// Of an array.
    HashOrder(ordered::Iter<'a>),
    /// Of a tree.
    Tree(btree_set::Range<'a, u64>),
}

impl Iterator for Iter<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        match self {
            Iter::HashOrder(elements) => elements.next(),
            Iter::Tree(elements) => elements.next().copied(),
        }
    }
}

/// The form depends on history, so it is not compared.
impl PartialEq for Elements {
    fn eq(&self, other: &Elements) -> bool {
        self.len() == other.len() && self.from(0).eq(other.from(0))
    }
}

impl Eq for Elements {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        fn behaves_like_a_sorted_set(
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
            let mut elements = Elements::build(&[]);
            scattered.iter().for_each(|element| elements.insert(*element));
            assert!(is_tree(&elements), "{spread:?} inserted");
            // In ascending order nothing moves before the first removal.
            scattered.sort_unstable();
            let mut elements = Elements::build(&[]);
            scattered.iter().for_each(|element| elements.insert(*element));
            scattered.iter().take(2).for_each(|element| assert!(elements.remove(*element)));
            assert!(is_tree(&elements), "{spread:?} removed from");
            let (last, others) = scattered[2..].split_at(TREE_MIN);
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
