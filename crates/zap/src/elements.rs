//! The elements of an index: in hash order, or in a tree if their hashes crowd together.
//!
//! [`Ordered`] needs hashes that are spread evenly, and an attacker can choose names whose hashes are neighbours. They
//! form one run, and each change moves up to all of it. So the first change that moves more than [`MOVED_MAX`]
//! elements converts them to a `BTreeSet`. That costs as much as a few such changes, and no later change depends on
//! the hashes.
//!
//! Random hashes form no such run in 400 simulated arrays of 16,000 at their fullest. If they ever do, lookups become
//! slower and stay correct.

use crate::ordered::{self, Ordered};
use std::collections::{BTreeSet, btree_set};

/// A change that moves more elements shows a crowd.
const MOVED_MAX: usize = 1024;
/// With so few elements, a tree becomes an array again. They can form a long run only after many insertions, which pay
/// for the next conversion.
const TREE_MIN: usize = MOVED_MAX / 2;
/// A node of the tree has at least 5 elements. It takes 112 bytes with the allocator's overhead, or 208 if it has
/// children, as at most one in six has.
const TREE_NODE_ELEMENTS_MIN: usize = 5;
const TREE_NODE_BYTES: usize = 128;

/// A set of distinct numbers, none [`u64::MAX`], whose upper halves are hashes.
#[derive(Clone, Debug)]
pub enum Elements {
    /// Evenly spread.
    HashOrder(Ordered),
    /// A crowd.
    Tree(BTreeSet<u64>),
}

impl Default for Elements {
    fn default() -> Elements {
        Elements::HashOrder(Ordered::default())
    }
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

    // So that a whole walk asks only once which form it reads.
    fn fold<B, F: FnMut(B, u64) -> B>(self, first: B, each: F) -> B {
        match self {
            Iter::HashOrder(elements) => elements.fold(first, each),
            Iter::Tree(elements) => elements.copied().fold(first, each),
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
