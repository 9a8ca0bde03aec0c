//! Unit types: numbers of different kinds are different types. A zone's index on a device is not the sequence number
//! of its filling.

macro_rules! unit {
    ($(#[$meta:meta])* $name:ident($inner:ty)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl crate::Field for $name {
            const SIZE: usize = <$inner as crate::Field>::SIZE;
            #[inline]
            fn get(raw: &[u8]) -> Option<Self> {
                <$inner as crate::Field>::get(raw).map($name)
            }
            #[inline]
            fn put(&self, raw: &mut [u8]) {
                self.0.put(raw);
            }
        }
    };
}

unit! {
    /// A transaction group. 0 is before the first one.
    Txg(u64)
}
unit! {
    /// A logical zone's sequence number: one filling, unique in the pool and never reused. It has 36 bits; 0 names no
    /// zone.
    ZoneSeq(u64)
}
unit! {
    /// A physical zone's index on its device, from 0.
    ZoneIdx(u32)
}
unit! {
    /// A device's index in its pool, from 0.
    DeviceIdx(u16)
}
unit! {
    /// An object's number in its object set. 0 is the object that holds the dnodes of all others.
    ObjectId(u64)
}
unit! {
    /// An object set's number in its pool. 0 is the meta object set.
    ObjsetId(u64)
}
unit! {
    /// A block's index in its object, in units of the object's block size, from 0.
    BlockNo(u64)
}

impl ObjectId {
    /// Bits of an object number. A field of 64 bits may use the bits above: a directory entry for the type of its
    /// object, a FUSE node id for its tree.
    pub const BITS: u32 = 48;
    /// The bits of an object number in such a field.
    pub const MASK: u64 = (1 << ObjectId::BITS) - 1;
}

impl Txg {
    /// The txg that syncs after this one: the number plus 1.
    pub fn next(self) -> Txg {
        // The number may come from a damaged structure.
        Txg(self.0.saturating_add(1))
    }

    /// The txg `count` earlier, but not below 0.
    pub fn minus(self, count: u64) -> Txg {
        Txg(self.0.saturating_sub(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_txgs_do_not_overflow() {
        assert_eq!(Txg(7).next(), Txg(8));
        assert_eq!(Txg(u64::MAX).next(), Txg(u64::MAX));
        assert_eq!(Txg(1).minus(2), Txg(0));
    }
}
