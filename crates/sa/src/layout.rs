//! Layouts: which attributes a buffer holds, in which order.
//!
//! A buffer names its layout by number. A dataset's table is stored as a ZAP (decimal number -> attribute numbers)
//! and grows by first use. Number 2 is the first combination that a file of this dataset had. The same attributes in
//! another order are another layout.
//!
//! Whatever follows from the order alone is computed once, when a layout enters the table. So a lookup is an addition
//! and not a walk: `stat` of a cold file decodes one buffer.

use crate::attr::{Attr, SwapClass};
use crate::error::SaError;
use crate::registry::{AttrInfo, Registry};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use terrane_wire::Corrupt;

/// The layout without attributes. Every table has it, and no ZAP stores it.
pub const LAYOUT_EMPTY: u16 = 1;
/// First number of a stored layout. (0 is a form older than system attributes; Terrane never writes it.)
pub const LAYOUT_FIRST: u16 = 2;
/// The header has 10 bits for the number.
pub const LAYOUT_MAX: u16 = 1023;
/// The header stores its size in units of 8 bytes, in 6 bits.
const HEADER_BYTES_MAX: usize = 63 * 8;
const NO_SLOT: u8 = u8::MAX;

/// The position of an attribute, as far as the layout alone fixes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub attr: Attr,
    /// Its number in the dataset.
    pub number: u16,
    /// Fixed length in bytes; `None` if the header has the length.
    pub len: Option<u16>,
    /// Bytes of the attributes of fixed length before this one, each rounded up to 8.
    pub fixed_before: usize,
    /// Attributes of variable length before this one.
    pub vars_before: usize,
}

/// One layout. Two are equal if number and order are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    number: u16,
    slots: Vec<Slot>,
    var_count: usize,
    header_bytes: usize,
    /// Index in `slots` of each built-in attribute, so that a lookup is one load.
    by_attr: [u8; 32],
}

impl Layout {
    fn new(number: u16, order: &[Attr], registry: &Registry) -> Result<Self, SaError> {
        let mut slots = Vec::new();
        let mut by_attr = [NO_SLOT; 32];
        let (mut fixed_before, mut vars_before) = (0usize, 0usize);
        for &attr in order {
            let info = registry.get(attr).ok_or(SaError::Unregistered(attr))?;
            if slots.iter().any(|slot: &Slot| slot.attr == attr) {
                return Err(SaError::Duplicate(attr));
            }
            let index =
                u8::try_from(slots.len()).ok().filter(|&i| i != NO_SLOT).ok_or(SaError::TooManyAttributes)?;
            if let Some(entry) = by_attr.get_mut(usize::from(attr.0)) {
                *entry = index;
            }
            slots.push(Slot { attr, number: info.number, len: info.len, fixed_before, vars_before });
            match info.len {
                Some(len) => fixed_before += usize::from(len).next_multiple_of(8),
                None => vars_before += 1,
            }
        }
        let header_bytes = header_bytes(vars_before);
        if header_bytes > HEADER_BYTES_MAX {
            return Err(SaError::TooManyAttributes);
        }
        Ok(Layout { number, slots, var_count: vars_before, header_bytes, by_attr })
    }

    /// Its number in the headers of buffers, 1 to [`LAYOUT_MAX`].
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The attributes in stored order.
    pub fn order(&self) -> impl ExactSizeIterator<Item = Attr> {
        self.slots.iter().map(|slot| slot.attr)
    }

    /// Header size of each buffer of this layout: 8 bytes, and more from the second variable attribute on.
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Key in the LAYOUTS ZAP.
    pub fn zap_name(&self) -> String {
        self.number.to_string()
    }

    /// Value in the LAYOUTS ZAP.
    pub fn zap_value(&self) -> Vec<u16> {
        self.slots.iter().map(|slot| slot.number).collect()
    }

    pub(crate) fn var_count(&self) -> usize {
        self.var_count
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub(crate) fn slot(&self, attr: Attr) -> Option<&Slot> {
        match self.by_attr.get(usize::from(attr.0)) {
            Some(&index) => self.slots.get(usize::from(index)),
            None => self.slots.iter().find(|slot| slot.attr == attr),
        }
    }
}

/// Header size of a buffer with `var_count` variable attributes. Magic, layout and one length fit into 8 bytes; the
/// other lengths follow.
pub(crate) fn header_bytes(var_count: usize) -> usize {
    8 + (2 * var_count.saturating_sub(1)).next_multiple_of(8)
}

/// The layouts of one dataset, and the registry of their attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutTable {
    registry: Registry,
    layouts: BTreeMap<u16, Arc<Layout>>,
}

impl LayoutTable {
    /// The table of a new dataset: only the empty layout.
    pub fn new(registry: Registry) -> Self {
        let empty =
            Layout::new(LAYOUT_EMPTY, &[], &registry).expect("an empty order has no invalid attribute");
        LayoutTable { registry, layouts: BTreeMap::from([(LAYOUT_EMPTY, Arc::new(empty))]) }
    }

    /// Loads a stored table from the names and values of the LAYOUTS ZAP, in any order.
    pub fn load<N: AsRef<[u8]>, V: AsRef<[u16]>>(
        registry: Registry,
        entries: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, Corrupt> {
        let attrs: BTreeMap<u16, Attr> = registry.iter().map(|row| (row.number, row.attr)).collect();
        let mut table = LayoutTable::new(registry);
        for (name, value) in entries {
            let name = String::from_utf8_lossy(name.as_ref()).into_owned();
            let number = name.parse().ok().filter(|n: &u16| {
                (LAYOUT_FIRST..=LAYOUT_MAX).contains(n)
                    && !table.layouts.contains_key(n)
                    && n.to_string() == name
            });
            let number = number
                .ok_or_else(|| Corrupt::new("SA layouts", "name", "a unique number from 2 to 1023", &name))?;
            let damaged = |found: &dyn fmt::Display| {
                Corrupt::new(
                    format_args!("SA layout {number}"),
                    "order",
                    "unique registered attributes",
                    found,
                )
            };
            let order: Result<Vec<Attr>, Corrupt> = value
                .as_ref()
                .iter()
                .map(|number| attrs.get(number).copied().ok_or_else(|| damaged(number)))
                .collect();
            let layout = Layout::new(number, &order?, &table.registry).map_err(|error| damaged(&error))?;
            table.layouts.insert(number, Arc::new(layout));
        }
        Ok(table)
    }

    /// The registry that gives a layout's attributes their stored numbers and lengths.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Registers an attribute: [`Registry::add`].
    pub fn register(&mut self, name: &str, len: Option<u16>, swap: SwapClass) -> Result<&AttrInfo, SaError> {
        self.registry.add(name, len, swap)
    }

    /// The layout with this number.
    pub fn get(&self, number: u16) -> Option<&Arc<Layout>> {
        self.layouts.get(&number)
    }

    /// The layout with exactly this order. A caller tries this first: [`add`](Self::add) needs a write lock and an
    /// entry in the ZAP.
    pub fn find(&self, order: impl IntoIterator<Item = Attr, IntoIter: Clone>) -> Option<&Arc<Layout>> {
        let order = order.into_iter();
        // Nearly all orders begin with the same dozen attributes, so lengths differ sooner.
        let len = order.clone().count();
        self.layouts.values().find(|layout| layout.slots.len() == len && layout.order().eq(order.clone()))
    }

    /// Gives `order` a number, unless it has one. A new layout must be stored ([`Layout::zap_name`],
    /// [`Layout::zap_value`]) no later than the first buffer that names it.
    pub fn add(&mut self, order: &[Attr]) -> Result<Arc<Layout>, SaError> {
        if let Some(layout) = self.find(order.iter().copied()) {
            return Ok(Arc::clone(layout));
        }
        let last = self.layouts.keys().next_back().copied().unwrap_or(LAYOUT_EMPTY);
        if last >= LAYOUT_MAX {
            return Err(SaError::TooManyLayouts);
        }
        let layout = Arc::new(Layout::new(last + 1, order, &self.registry)?);
        self.layouts.insert(layout.number, Arc::clone(&layout));
        Ok(layout)
    }

    /// All layouts by number, the empty one first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Layout>> {
        self.layouts.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_grow_from_the_second_variable_attribute() {
        assert_eq!([0, 1, 2, 5, 6].map(header_bytes), [8, 8, 16, 16, 24]);
    }

    #[test]
    fn numbers_start_at_two_and_are_given_once() {
        let mut table = LayoutTable::new(Registry::built_in());
        let (ab, ba) = ([Attr::MODE, Attr::SIZE], [Attr::SIZE, Attr::MODE]);
        assert_eq!(table.find(ab), None);
        assert_eq!(table.add(&ab).unwrap().number(), 2);
        assert_eq!(table.add(&ba).unwrap().number(), 3);
        assert_eq!(table.add(&ab).unwrap().number(), 2);
        assert_eq!(table.add(&[]).unwrap().number(), 1);
        let stored: Vec<_> = table.iter().skip(1).map(|l| (l.zap_name(), l.zap_value())).collect();
        assert_eq!(stored, [("2".to_string(), vec![5, 6]), ("3".to_string(), vec![6, 5])]);
        assert_eq!(LayoutTable::load(Registry::built_in(), stored), Ok(table));
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let mut table = LayoutTable::new(Registry::built_in());
        assert_eq!(table.add(&[Attr(23)]).unwrap_err(), SaError::Unregistered(Attr(23)));
        assert_eq!(table.add(&[Attr::MODE, Attr::MODE]).unwrap_err(), SaError::Duplicate(Attr::MODE));
        for (name, value) in [
            ("1", vec![5]),
            ("02", vec![5]),
            ("1024", vec![5]),
            ("x", vec![]),
            ("2", vec![99]),
            ("2", vec![5, 5]),
        ] {
            assert!(LayoutTable::load(Registry::built_in(), [(name, &value)]).is_err(), "{name} {value:?}");
        }
        assert!(LayoutTable::load(Registry::built_in(), [("2", vec![5]), ("2", vec![6])]).is_err());
    }

    #[test]
    fn the_table_ends_at_ten_bits() {
        let many = (0..2000).map(|i| (format!("X{i}"), 23 + i));
        let registry = Registry::load(many).unwrap();
        let mut table = LayoutTable::new(registry);
        for i in 0..1022 {
            assert_eq!(table.add(&[Attr(23 + i)]).unwrap().number(), 2 + i);
        }
        assert_eq!(table.add(&[Attr(1500)]).unwrap_err(), SaError::TooManyLayouts);
        let all: Vec<Attr> = (23..400).map(Attr).collect();
        assert_eq!(
            LayoutTable::new(table.registry().clone()).add(&all).unwrap_err(),
            SaError::TooManyAttributes
        );
    }
}
