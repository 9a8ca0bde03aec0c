//! Structures of fixed layout: one declaration gives the struct, its offsets, its codec and its rows in FORMAT.md.
//!
//! `layout!` makes a struct whose fields have explicit offsets. The compiler refuses gaps and overlaps. A test
//! compares `ROWS` with FORMAT.md, so the page cannot drift from the code.

/// A value of fixed size in stored bytes. All integers are little-endian.
pub trait Field: Sized {
    /// Bytes that every stored value of this type takes.
    const SIZE: usize;
    /// Reads the value from exactly `SIZE` bytes; `None` for any other length.
    fn get(raw: &[u8]) -> Option<Self>;
    /// Writes the value into exactly `SIZE` bytes; does nothing for any other length.
    fn put(&self, raw: &mut [u8]);
}

/// A row of a structure's table in FORMAT.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Bytes from the start of the structure.
    pub offset: usize,
    /// Bytes of the field.
    pub size: usize,
    /// The field's name in the struct, and in the table of FORMAT.md.
    pub name: &'static str,
    /// The field's type as it is written in Rust.
    pub kind: &'static str,
}

macro_rules! int_field {
    ($($int:ty),*) => {$(
        impl Field for $int {
            const SIZE: usize = size_of::<$int>();
            #[inline]
            fn get(raw: &[u8]) -> Option<Self> {
                Some(<$int>::from_le_bytes(raw.try_into().ok()?))
            }
            #[inline]
            fn put(&self, raw: &mut [u8]) {
                if raw.len() == Self::SIZE {
                    raw.copy_from_slice(&self.to_le_bytes());
                }
            }
        }
    )*};
}
int_field!(u8, u16, u32, u64, i64);

impl<T: Field + Copy + Default, const N: usize> Field for [T; N] {
    const SIZE: usize = T::SIZE * N;
    #[inline]
    fn get(raw: &[u8]) -> Option<Self> {
        if raw.len() != Self::SIZE {
            return None;
        }
        let mut out = [T::default(); N];
        for (slot, piece) in out.iter_mut().zip(raw.chunks_exact(T::SIZE)) {
            *slot = T::get(piece)?;
        }
        Some(out)
    }
    #[inline]
    fn put(&self, raw: &mut [u8]) {
        if raw.len() == Self::SIZE {
            for (value, piece) in self.iter().zip(raw.chunks_exact_mut(T::SIZE)) {
                value.put(piece);
            }
        }
    }
}

/// Declares a stored structure of fixed layout, with `SIZE`, `ROWS`, `decode` and `encode`.
///
/// ```
/// terrane_wire::layout! {
///     /// Written once, when the zone is opened.
///     ZoneHeader, 16 bytes {
///         0 magic: [u8; 8],
///         8 seq: u64,
///     }
/// }
/// let header = ZoneHeader { magic: *b"TERRANEZ", seq: 7 };
/// assert_eq!(ZoneHeader::decode(&header.encode()), Some(header));
/// assert_eq!(ZoneHeader::decode(&[0; 15]), None);
/// ```
///
/// A gap, an overlap and a wrong size are errors of the compiler:
/// ```compile_fail
/// terrane_wire::layout! { Gap, 16 bytes { 0 first: u32, 8 second: u64 } }
/// ```
/// ```compile_fail
/// terrane_wire::layout! { Overlap, 12 bytes { 0 first: u64, 4 second: u64 } }
/// ```
/// ```compile_fail
/// terrane_wire::layout! { Short, 16 bytes { 0 first: u64 } }
/// ```
#[macro_export]
macro_rules! layout {
    ($(#[$meta:meta])* $name:ident, $size:literal bytes { $( $(#[$field_meta:meta])* $offset:literal $field:ident : $kind:ty ),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $kind, )*
        }

        const _: () = {
            let mut next = 0usize;
            $(
                assert!(next == $offset, "a gap or an overlap before this field");
                next += <$kind as $crate::Field>::SIZE;
            )*
            assert!(next == $size, "the fields do not fill the structure");
        };

        impl $name {
            /// Size of the stored structure in bytes.
            pub const SIZE: usize = $size;
            /// One row for each field, as FORMAT.md shows them.
            pub const ROWS: &'static [$crate::Row] = &[ $( $crate::Row {
                offset: $offset,
                size: <$kind as $crate::Field>::SIZE,
                name: stringify!($field),
                kind: stringify!($kind),
            } ),* ];

            /// Splits the first `SIZE` bytes into fields, and validates no value. `None` if there are fewer bytes.
            pub fn decode(raw: &[u8]) -> Option<Self> {
                <Self as $crate::Field>::get(raw.get(..$size)?)
            }

            /// The stored form: fields little-endian at their offsets. Every byte belongs to a field.
            pub fn encode(&self) -> [u8; $size] {
                let mut raw = [0u8; $size];
                <Self as $crate::Field>::put(self, &mut raw);
                raw
            }
        }

        impl $crate::Field for $name {
            const SIZE: usize = $size;
            fn get(raw: &[u8]) -> Option<Self> {
                if raw.len() != $size {
                    return None;
                }
                Some($name { $( $field: <$kind as $crate::Field>::get(
                    raw.get($offset..$offset + <$kind as $crate::Field>::SIZE)?)? ),* })
            }
            fn put(&self, raw: &mut [u8]) {
                if raw.len() == $size {
                    $( if let Some(place) = raw.get_mut($offset..$offset + <$kind as $crate::Field>::SIZE) {
                        <$kind as $crate::Field>::put(&self.$field, place);
                    } )*
                }
            }
        }
    };
}
