//! The structures that were not chosen.

use crate::{Structure, allocated};

/// One sorted array that grows by an eighth.
#[derive(Default)]
pub struct SortedArray {
    elements: Vec<u64>,
}

impl Structure for SortedArray {
    const NAME: &'static str = "sorted array";

    fn build(elements: &[u64]) -> Self {
        let mut elements = elements.to_vec();
        elements.sort_unstable();
        SortedArray { elements }
    }

    fn insert(&mut self, element: u64) {
        if self.elements.len() == self.elements.capacity() {
            self.elements.reserve_exact(self.elements.len() / 8 + 4);
        }
        let place = self.elements.partition_point(|held| *held < element);
        self.elements.insert(place, element);
    }

    fn remove(&mut self, element: u64) {
        let place = self.elements.binary_search(&element).expect("it is there");
        self.elements.remove(place);
    }

    fn first_from(&self, element: u64) -> Option<u64> {
        self.elements.get(self.elements.partition_point(|held| *held < element)).copied()
    }

    fn sum_in_order(&self) -> u64 {
        self.elements.iter().fold(0, |sum, element| sum.wrapping_add(*element))
    }

    fn bytes(&self) -> usize {
        allocated(self.elements.capacity() * 8)
    }
}

/// Elements of a leaf of 512 bytes, which also has their count.
const LEAF_ELEMENTS: usize = 63;
/// Elements per leaf after a build, so that not every leaf splits at once.
const LEAF_BUILT: usize = 58;

struct Leaf {
    count: usize,
    elements: [u64; LEAF_ELEMENTS],
}

impl Leaf {
    fn of(elements: &[u64]) -> Box<Leaf> {
        let mut leaf = Leaf { count: elements.len(), elements: [0; LEAF_ELEMENTS] };
        leaf.elements[..elements.len()].copy_from_slice(elements);
        Box::new(leaf)
    }

    fn held(&self) -> &[u64] {
        &self.elements[..self.count]
    }
}

/// A tree of two levels: leaves of 512 bytes, and one array with the first element of each.
#[derive(Default)]
pub struct Leaves {
    firsts: Vec<u64>,
    #[expect(clippy::vec_box, reason = "a leaf that splits must not move all others")]
    leaves: Vec<Box<Leaf>>,
}

impl Leaves {
    fn leaf_of(&self, element: u64) -> usize {
        self.firsts.partition_point(|first| *first <= element).saturating_sub(1)
    }
}

impl Structure for Leaves {
    const NAME: &'static str = "leaves 512";

    fn build(elements: &[u64]) -> Self {
        let mut sorted = elements.to_vec();
        sorted.sort_unstable();
        Leaves {
            firsts: sorted.chunks(LEAF_BUILT).map(|leaf| leaf[0]).collect(),
            leaves: sorted.chunks(LEAF_BUILT).map(Leaf::of).collect(),
        }
    }

    fn insert(&mut self, element: u64) {
        if self.leaves.is_empty() {
            self.firsts.push(element);
            self.leaves.push(Leaf::of(&[element]));
            return;
        }
        let mut at = self.leaf_of(element);
        if self.leaves[at].count == LEAF_ELEMENTS {
            let right = Leaf::of(&self.leaves[at].held()[LEAF_ELEMENTS / 2..]);
            self.leaves[at].count = LEAF_ELEMENTS / 2;
            self.firsts.insert(at + 1, right.elements[0]);
            self.leaves.insert(at + 1, right);
            at += usize::from(element >= self.firsts[at + 1]);
        }
        let leaf = &mut self.leaves[at];
        let place = leaf.held().partition_point(|held| *held < element);
        leaf.elements.copy_within(place..leaf.count, place + 1);
        leaf.elements[place] = element;
        leaf.count += 1;
        self.firsts[at] = leaf.elements[0];
    }

    fn remove(&mut self, element: u64) {
        let at = self.leaf_of(element);
        let leaf = &mut self.leaves[at];
        let place = leaf.held().binary_search(&element).expect("it is there");
        leaf.elements.copy_within(place + 1..leaf.count, place);
        leaf.count -= 1;
        if leaf.count == 0 {
            self.leaves.remove(at);
            self.firsts.remove(at);
        }
    }

    fn first_from(&self, element: u64) -> Option<u64> {
        let at = self.leaf_of(element);
        let leaf = self.leaves.get(at)?.held();
        let here = leaf.get(leaf.partition_point(|held| *held < element)).copied();
        here.or_else(|| self.leaves.get(at + 1).map(|leaf| leaf.elements[0]))
    }

    fn sum_in_order(&self) -> u64 {
        self.leaves.iter().flat_map(|leaf| leaf.held()).fold(0, |sum, element| sum.wrapping_add(*element))
    }

    fn bytes(&self) -> usize {
        let leaf = allocated(size_of::<Leaf>());
        allocated(self.firsts.capacity() * 8)
            + allocated(self.leaves.capacity() * 8)
            + self.leaves.len() * leaf
    }
}

const FREE: u64 = u64::MAX;

/// A hash table with linear probing, at most 7/8 full, and sorted for every listing.
#[derive(Default)]
pub struct Hashed {
    places: Vec<u64>,
    count: usize,
}

impl Hashed {
    fn of(count: usize) -> Self {
        Hashed { places: vec![FREE; (count * 8 / 7 + 2).next_power_of_two()], count: 0 }
    }

    /// The low bits of the 28 hash bits, mixed: the high ones define the order.
    fn home(&self, element: u64) -> usize {
        ((element >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.places.len() - 1)
    }

    fn probe(&self, element: u64) -> impl Iterator<Item = usize> + use<> {
        let (home, mask) = (self.home(element), self.places.len() - 1);
        (0..=mask).map(move |step| (home + step) & mask)
    }

    fn put(&mut self, element: u64) {
        let place = self.probe(element).find(|place| self.places[*place] == FREE).expect("never full");
        self.places[place] = element;
        self.count += 1;
    }
}

impl Structure for Hashed {
    const NAME: &'static str = "hash table";

    fn build(elements: &[u64]) -> Self {
        let mut table = Hashed::of(elements.len());
        elements.iter().for_each(|element| table.put(*element));
        table
    }

    fn insert(&mut self, element: u64) {
        if (self.count + 1) * 8 > self.places.len() * 7 {
            let old = std::mem::replace(self, Hashed::of(self.count * 8 / 7 + 2));
            old.places.into_iter().filter(|held| *held != FREE).for_each(|held| self.put(held));
        }
        self.put(element);
    }

    fn remove(&mut self, element: u64) {
        let mut hole = self.probe(element).find(|place| self.places[*place] == element).expect("it is there");
        let mask = self.places.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let held = self.places[at];
            if held == FREE {
                break;
            }
            if (at.wrapping_sub(self.home(held)) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.places[hole] = held;
                hole = at;
            }
        }
        self.places[hole] = FREE;
        self.count -= 1;
    }

    /// Only an element with the same hash can be found.
    fn first_from(&self, element: u64) -> Option<u64> {
        let held = self.probe(element).map(|place| self.places[place]).take_while(|held| *held != FREE);
        held.filter(|held| held >> 32 == element >> 32).min()
    }

    fn sum_in_order(&self) -> u64 {
        let mut sorted: Vec<u64> = self.places.iter().copied().filter(|held| *held != FREE).collect();
        sorted.sort_unstable();
        sorted.into_iter().fold(0, u64::wrapping_add)
    }

    fn bytes(&self) -> usize {
        allocated(self.places.capacity() * 8)
    }
}
