//! An attribute list: the values from which a buffer is encoded.
//!
//! The order is part of the stored layout. It follows OpenZFS's rule, so that layouts stay few: a new attribute goes
//! to the end, a replaced one keeps its place, a removed one leaves no gap.

use crate::attr::Attr;
use crate::layout::header_bytes;
use terrane_wire::Field;

/// Attribute, offset of its value in the list's bytes, length of its value.
type Item = (Attr, usize, usize);

/// Values in the order in which they will be stored.
#[derive(Clone, Debug, Default)]
pub struct AttrList {
    items: Vec<Item>,
    /// All values in one allocation. The old bytes of a replaced value stay until the list is dropped.
    values: Vec<u8>,
}

impl AttrList {
    /// An empty list. Its capacity of 20 attributes and 256 bytes of values is enough for a usual file.
    pub fn new() -> Self {
        // Enough for a usual file: each create makes one list.
        AttrList::with_capacity(256)
    }

    pub(crate) fn with_capacity(value_bytes: usize) -> Self {
        AttrList { items: Vec::with_capacity(20), values: Vec::with_capacity(value_bytes) }
    }

    /// Replaces a value in its place, or appends it.
    pub fn set(&mut self, attr: Attr, value: &[u8]) {
        let Some(item) = self.items.iter_mut().find(|(a, ..)| *a == attr) else {
            return self.push(attr, value);
        };
        *item = (attr, self.values.len(), value.len());
        self.values.extend_from_slice(value);
    }

    /// Replaces a value in its place, or inserts it behind another attribute; at the end if the list lacks that one.
    pub fn set_behind(&mut self, other: Attr, attr: Attr, value: &[u8]) {
        let is_new = self.get(attr).is_none();
        self.set(attr, value);
        let place = self.items.iter().position(|(a, ..)| *a == other);
        if let Some(place) = place.filter(|_| is_new) {
            // It was appended.
            self.items.get_mut(place + 1..).into_iter().for_each(|behind| behind.rotate_right(1));
        }
    }

    /// Sets a value of one number, as 8 little-endian bytes; see [`set`](Self::set).
    pub fn set_u64(&mut self, attr: Attr, value: u64) {
        self.set(attr, &value.to_le_bytes());
    }

    /// Sets a value of two numbers, such as a time: seconds, nanoseconds.
    pub fn set_pair(&mut self, attr: Attr, pair: [u64; 2]) {
        let mut value = [0; 16];
        pair.put(&mut value);
        self.set(attr, &value);
    }

    /// Removes an attribute, if it is in the list.
    pub fn remove(&mut self, attr: Attr) {
        self.items.retain(|(a, ..)| *a != attr);
    }

    /// The bytes of a value; `None` if the list lacks the attribute.
    pub fn get(&self, attr: Attr) -> Option<&[u8]> {
        self.iter().find(|(a, _)| *a == attr).map(|(_, value)| value)
    }

    /// Attributes in the list.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the list has no attribute. Its layout is then [`LAYOUT_EMPTY`](crate::layout::LAYOUT_EMPTY).
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The key for [`LayoutTable::find`](crate::LayoutTable::find).
    pub fn order(&self) -> impl Iterator<Item = Attr> + Clone {
        self.items.iter().map(|(attr, ..)| *attr)
    }

    /// Attributes and the bytes of their values, in the order in which they will be stored.
    pub fn iter(&self) -> impl Iterator<Item = (Attr, &[u8])> {
        AttrSlice::from(self).iter()
    }

    /// The first `count` attributes and the rest: as [`count_in_bonus`](crate::count_in_bonus) decides, the bonus and
    /// the spill block. A `count` past the end means all.
    pub fn split_at(&self, count: usize) -> (AttrSlice<'_>, AttrSlice<'_>) {
        let (first, others) = self.items.split_at(count.min(self.items.len()));
        (AttrSlice { items: first, values: &self.values }, AttrSlice { items: others, values: &self.values })
    }

    pub(crate) fn push(&mut self, attr: Attr, value: &[u8]) {
        self.items.push((attr, self.values.len(), value.len()));
        self.values.extend_from_slice(value);
    }
}

/// The attributes of one buffer, borrowed from a list.
#[derive(Clone, Copy, Debug)]
pub struct AttrSlice<'a> {
    items: &'a [Item],
    values: &'a [u8],
}

impl<'a> AttrSlice<'a> {
    /// Attributes in the slice.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the slice has no attribute. In the second half of [`split_at`](AttrList::split_at), that means no spill block.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The key for [`LayoutTable::find`](crate::LayoutTable::find).
    pub fn order(&self) -> impl Iterator<Item = Attr> + Clone + use<'a> {
        self.items.iter().map(|(attr, ..)| *attr)
    }

    /// Attributes and the bytes of their values, in the order in which they will be stored.
    pub fn iter(&self) -> impl Iterator<Item = (Attr, &'a [u8])> + use<'a> {
        let values = self.values;
        self.items
            .iter()
            .map(move |&(attr, start, len)| (attr, values.get(start..start + len).unwrap_or(&[])))
    }

    /// Size of the encoded buffer, if `var_count` of the attributes have a variable length.
    pub(crate) fn stored_bytes(&self, var_count: usize) -> usize {
        self.items.iter().fold(header_bytes(var_count), |end, (.., len)| end.next_multiple_of(8) + len)
    }
}

impl<'a> From<&'a AttrList> for AttrSlice<'a> {
    fn from(list: &'a AttrList) -> Self {
        AttrSlice { items: &list.items, values: &list.values }
    }
}

/// Two lists are equal if they hold the same values in the same order.
impl PartialEq for AttrList {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for AttrList {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_value_is_inserted_behind_another_once() {
        let order = |list: &AttrList| list.order().map(|attr| attr.0).collect::<Vec<_>>();
        let mut list = AttrList::new();
        (1..4).for_each(|attr| list.set_u64(Attr(attr), attr.into()));
        list.set_behind(Attr(1), Attr(9), &[9]);
        assert_eq!(order(&list), [1, 9, 2, 3]);
        list.set_behind(Attr(3), Attr(9), &[8]);
        list.set_behind(Attr(3), Attr(7), &[7]);
        list.set_behind(Attr(99), Attr(6), &[6]);
        assert_eq!(order(&list), [1, 9, 2, 3, 7, 6]);
        let value = |attr| list.get(Attr(attr)).map(<[u8]>::to_vec);
        assert_eq!((value(9), value(7), value(6)), (Some(vec![8]), Some(vec![7]), Some(vec![6])));
        assert_eq!(list.get(Attr(2)), Some(&2u64.to_le_bytes()[..]));
    }

    proptest! {
        #[test]
        fn behaves_like_a_vector_of_pairs(ops in prop::collection::vec((0u16..6, prop::option::of(prop::collection::vec(any::<u8>(), 0..9))), 0..40)) {
            let (mut list, mut model) = (AttrList::new(), Vec::<(Attr, Vec<u8>)>::new());
            for (attr, value) in ops {
                let attr = Attr(attr);
                let index = model.iter().position(|(a, _)| *a == attr);
                match (value, index) {
                    (Some(value), Some(at)) => { list.set(attr, &value); model[at].1 = value; }
                    (Some(value), None) => { list.set(attr, &value); model.push((attr, value)); }
                    (None, Some(at)) => { list.remove(attr); model.remove(at); }
                    (None, None) => list.remove(attr),
                }
                let seen: Vec<_> = list.iter().map(|(a, v)| (a, v.to_vec())).collect();
                prop_assert_eq!(&seen, &model);
                prop_assert_eq!(list.get(attr), model.iter().find(|(a, _)| *a == attr).map(|(_, v)| &v[..]));
            }
        }
    }
}
