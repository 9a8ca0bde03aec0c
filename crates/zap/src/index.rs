//! What a look at every slot of a micro or tiny ZAP found, in 8 bytes an entry.
//!
//! An element is the top 32 bits of the masked hash, the collision differentiator (16) and the slot (16), so that
//! plain number order is cursor order. A sorted array serves better than a tree here: a full micro ZAP
//! has 2047 elements, 16 KiB, and moving half of that on insert costs less than a tree's misses on each lookup.
//!
//! Invariant: elements are sorted and point at used slots; it describes the block as its ZAP last left it.

use crate::slots::Slots;
use terrane_wire::Corrupt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    elements: Vec<u64>,
}

/// One element, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Indexed {
    /// The masked hash.
    pub hash: u64,
    pub cd: u16,
    pub slot: u16,
}

impl Indexed {
    fn of(element: u64) -> Self {
        let [h0, h1, h2, h3, c0, c1, s0, s1] = element.to_be_bytes();
        Indexed {
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
        let mut elements = Vec::new();
        for used in slots.used_slots() {
            let (number, slot) = used?;
            let hash = slots.hash(slot.name());
            let cd = u16::try_from(slot.cd())
                .map_err(|_| Corrupt::new("block 0", "differentiator", "below 65536", slot.cd()))?;
            elements.push(element(hash, cd, number));
        }
        elements.sort_unstable();
        Ok(Index { elements })
    }

    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Elements from (hash, cd) on, in order.
    pub fn from(&self, hash: u64, cd: u16) -> impl Iterator<Item = Indexed> + use<'_> {
        let first = element(hash, cd, 0);
        let start = self.elements.partition_point(|e| *e < first);
        self.elements.get(start..).unwrap_or(&[]).iter().map(|e| Indexed::of(*e))
    }

    /// All elements with this hash, in the order of their differentiators.
    pub fn colliders(&self, hash: u64) -> impl Iterator<Item = Indexed> + use<'_> {
        self.from(hash, 0).take_while(move |i| i.hash == hash)
    }

    pub fn insert(&mut self, hash: u64, cd: u16, slot: u16) {
        let element = element(hash, cd, slot);
        let place = self.elements.partition_point(|e| *e < element);
        self.elements.insert(place, element);
    }

    pub fn remove(&mut self, indexed: Indexed) {
        if let Ok(place) = self.elements.binary_search(&element(indexed.hash, indexed.cd, indexed.slot)) {
            self.elements.remove(place);
        }
    }
}
