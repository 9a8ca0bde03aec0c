//! An ordered set of numbers whose upper halves are hashes: a sparse array in hash order.
//!
//! Hashes are spread evenly, so a hash estimates the position of its element among all others. `hash * homes / 2^32`
//! is its *home*. Elements lie in one array in numeric order, with gaps between them. Each lies at its home, or after
//! it by as little as the elements before it allow. So a lookup ends close to where it begins. An insertion moves
//! only the elements before the next gap, not half of the array. Listing is a sequential read, and building needs no
//! sort. A tree offers none of that for the same memory: `decisions/0017-an-index-in-hash-order.md`.
//!
//! An attacker can choose names whose hashes are all neighbours. Then there is one long run: lookups gallop through
//! it, and an insertion costs as much as in a sorted array. Changes return how many elements they moved, so that
//! [`Elements`](crate::elements::Elements) can choose another structure.
//!
//! Invariants:
//! * Elements ascend, gaps left out.
//! * No element is before its home, and there is no gap between an element and its home.

/// A gap. No element has this value, because its hash would have more bits than hashes have.
const GAP: u64 = u64::MAX;
/// Elements per 32 homes: after a build; the limit above which the array grows; after a resize; the limit below which
/// it shrinks.
const LOAD_BUILT: usize = 27;
const LOAD_FULL: usize = 28;
const LOAD_GROWN: usize = 22;
const LOAD_EMPTY: usize = 10;
const LOAD_UNIT: usize = 32;
const HOMES_MIN: usize = 8;
/// Cells that are added at a time after the homes.
const CELLS_ADDED: usize = 4;
/// Cells that are compared one by one. Almost all elements lie no further from their homes.
const STEPS_MAX: usize = 16;

#[derive(Clone, Debug, Default)]
pub struct Ordered {
    /// `homes` cells, then as many as the last elements were displaced past them. Beyond the homes, the last cell
    /// is never a gap.
    cells: Vec<u64>,
    homes: usize,
    count: usize,
}

impl Ordered {
    /// Builds the set from elements in any order. They must be distinct, and none [`u64::MAX`].
    pub fn build(elements: &[u64]) -> Ordered {
        let mut ordered = Ordered::for_elements(elements.len());
        for element in elements {
            ordered.put(*element);
        }
        ordered
    }

    /// An empty set for `count` elements that are [`put`](Ordered::put) next.
    pub fn for_elements(count: usize) -> Ordered {
        Ordered::with_homes(homes_for(count, LOAD_BUILT))
    }

    fn with_homes(homes: usize) -> Ordered {
        Ordered { cells: vec![GAP; homes], homes, count: 0 }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Memory of the set in bytes.
    pub fn bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u64>()
    }

    /// The invariants of the cells.
    pub fn check(&self) -> Result<(), String> {
        let (mut count, mut last, mut gap) = (0, None, None);
        for (cell, element) in self.cells.iter().copied().enumerate() {
            if element == GAP {
                gap = Some(cell);
                continue;
            }
            let home = self.home(element);
            if home > cell || gap.is_some_and(|gap| gap >= home) {
                return Err(format!("{element:#x} of home {home} lies at {cell}, behind a gap at {gap:?}"));
            }
            if last.replace(element).is_some_and(|last| last >= element) {
                return Err(format!("{element:#x} at {cell} follows {last:x?}"));
            }
            count += 1;
        }
        let end = self.cells.len();
        if count != self.count || end < self.homes || end > self.homes && gap == Some(end - 1) {
            return Err(format!(
                "{count} elements in {end} places, counted {} in {}",
                self.count, self.homes
            ));
        }
        Ok(())
    }

    fn home(&self, element: u64) -> usize {
        home(element, self.homes)
    }

    fn at(&self, cell: usize) -> u64 {
        self.cells.get(cell).copied().unwrap_or(GAP)
    }

    /// The first cell with the element or a larger one, or the gap where the element would lie.
    fn find_cell(&self, element: u64) -> usize {
        self.first_from(self.home(element), element)
    }

    /// As [`find_cell`](Self::find_cell), from a cell on that is not before the element's home. From there on, elements
    /// after a gap are larger, so the cells are sorted for this question.
    fn first_from(&self, from: usize, element: u64) -> usize {
        if let Some(cell) = (from..from + STEPS_MAX).find(|cell| self.at(*cell) >= element) {
            return cell;
        }
        let (mut low, mut step) = (from + STEPS_MAX, STEPS_MAX);
        while self.at(low + step) < element {
            low += step;
            step *= 2;
        }
        let end = (low + step).min(self.cells.len());
        low + self.cells.get(low..end).unwrap_or(&[]).partition_point(|held| *held < element)
    }

    /// Elements from this one on.
    pub fn from(&self, first: u64) -> Iter<'_> {
        Iter(self.cells.get(self.find_cell(first)..).unwrap_or(&[]).iter())
    }

    /// Inserts an element that is not in the set, and returns how many others moved.
    pub fn insert(&mut self, element: u64) -> usize {
        if (self.count + 1) * LOAD_UNIT > self.homes * LOAD_FULL {
            self.resize(homes_for(self.count + 1, LOAD_GROWN));
        }
        self.put(element)
    }

    /// As [`insert`](Ordered::insert), without growing the array for it.
    pub fn put(&mut self, element: u64) -> usize {
        self.count += 1;
        let home = self.home(element);
        let (mut cell, mut carried) = (home, element);
        for held in self.cells.get_mut(home..).unwrap_or(&mut []).iter_mut().take(STEPS_MAX) {
            if *held == GAP {
                *held = carried;
                return cell - home;
            }
            if *held > carried {
                std::mem::swap(held, &mut carried);
            }
            cell += 1;
        }
        self.insert_displaced(cell, carried)
    }

    /// Inserts an element that has no gap near its home.
    fn insert_displaced(&mut self, from: usize, element: u64) -> usize {
        let cell = self.first_from(from, element);
        let rest = self.cells.get_mut(cell..).unwrap_or(&mut []);
        match rest.iter().position(|held| *held == GAP) {
            Some(gap) => {
                rest.copy_within(..gap, 1);
                if let Some(free) = rest.first_mut() {
                    *free = element;
                }
                gap
            }
            None => {
                let moved = rest.len();
                self.reserve_cells();
                self.cells.insert(cell, element);
                moved
            }
        }
    }

    /// Removes an element and returns how many others moved; `None` if there was no such element.
    pub fn remove(&mut self, element: u64) -> Option<usize> {
        let cell = self.find_cell(element);
        if element == GAP || self.at(cell) != element {
            return None;
        }
        let homes = self.homes;
        let rest = self.cells.get_mut(cell..).unwrap_or(&mut []);
        let moved = displaced(rest.get(1..).unwrap_or(&[]), cell + 1, homes);
        rest.copy_within(1..1 + moved, 0);
        if let Some(freed) = rest.get_mut(moved) {
            *freed = GAP;
        }
        while self.cells.len() > self.homes && self.cells.last() == Some(&GAP) {
            self.cells.pop();
        }
        self.count -= 1;
        if self.count * LOAD_UNIT < self.homes * LOAD_EMPTY && self.homes > HOMES_MIN {
            self.resize(homes_for(self.count, LOAD_GROWN));
        }
        Some(moved)
    }

    /// Reserves a few cells after the last: a vector would double by itself. A crowd that needs many gets more at a
    /// time, because each reservation may copy all cells.
    fn reserve_cells(&mut self) {
        if self.cells.len() == self.cells.capacity() {
            self.cells.reserve_exact(CELLS_ADDED.max((self.cells.len() - self.homes) / 4));
        }
    }

    /// Puts the same elements around other homes. They come in order, so each goes after the last.
    fn resize(&mut self, homes: usize) {
        let old = std::mem::replace(self, Ordered::with_homes(homes));
        let mut end = 0;
        for element in old.cells.into_iter().filter(|held| *held != GAP) {
            let cell = self.home(element).max(end);
            match self.cells.get_mut(cell) {
                Some(free) => *free = element,
                None => {
                    self.reserve_cells();
                    self.cells.push(element);
                }
            }
            end = cell + 1;
        }
        self.count = old.count;
    }
}

/// Elements in order.
pub struct Iter<'a>(std::slice::Iter<'a, u64>);

impl Iterator for Iter<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0.find(|held| **held != GAP).copied()
    }

    fn fold<B, F: FnMut(B, u64) -> B>(self, first: B, each: F) -> B {
        self.0.copied().filter(|held| *held != GAP).fold(first, each)
    }
}

fn homes_for(count: usize, load: usize) -> usize {
    (count * LOAD_UNIT / load).max(HOMES_MIN)
}

/// Where the element would lie if it were alone.
fn home(element: u64, homes: usize) -> usize {
    // Both factors fit in 32 bits, so the product cannot overflow: `wrapping_mul` only saves the check.
    ((element >> 32).wrapping_mul(homes as u64) >> 32) as usize
}

/// How many of the elements in cells from `first` on precede the first that is a gap or lies at its home.
fn displaced(cells: &[u64], first: usize, homes: usize) -> usize {
    cells.iter().zip(first..).take_while(|(held, cell)| **held != GAP && home(**held, homes) < *cell).count()
}
