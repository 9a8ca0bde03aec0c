//! What the properties `xattr`, `acltype` and `dnodesize` say of an object's attributes.
//!
//! They decide about what is written from now on, never about what is there: an extended attribute is found
//! wherever it was put, and a dnode keeps its size for life. Their numbers are those of OpenZFS.
//!
//! Whether there are extended attributes and access control lists at all is agreed upon with the kernel when a data set is mounted. If a
//! list were obeyed here and not there, a file would be open to those whom only the list keeps out. So that much of a change waits
//! until the data set is opened again.

use terrane_object::dnode::{SLOT_BYTES, SLOTS_MAX};

pub(crate) const XATTR: &str = "xattr";
pub(crate) const ACL_TYPE: &str = "acltype";
pub(crate) const DNODE_SIZE: &str = "dnodesize";

/// A number's first word is how it is shown, another is taken too.
pub(crate) const XATTR_WORDS: [(&str, u64); 4] = [("off", 0), ("dir", 1), ("sa", 2), ("on", 2)];
/// 1 would be NFSv4's, which Linux does not know.
pub(crate) const ACL_WORDS: [(&str, u64); 3] = [("off", 0), ("posix", 2), ("posixacl", 2)];
/// All but the first two in bytes.
pub(crate) const DNODE_WORDS: [(&str, u64); 7] = [
    ("legacy", 0),
    ("auto", 1),
    ("1k", 1 << 10),
    ("2k", 2 << 10),
    ("4k", 4 << 10),
    ("8k", 8 << 10),
    ("16k", 16 << 10),
];

/// Where new extended attributes go: the property `xattr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrHome {
    /// Beside the other attributes, in the dnode or its spill, as long as they fit.
    Sa,
    /// In a hidden directory of the file, each a file of its own.
    Dir,
    /// Nowhere: nothing is set, and nothing is found.
    Off,
}

/// Which access control lists there are: the property `acltype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclType {
    Posix,
    /// None: those that are stored are neither shown nor obeyed.
    Off,
}

/// How large the dnodes of new files and directories are: the property `dnodesize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnodeSize {
    /// As whoever makes the object thinks best.
    Auto,
    /// So many slots of 512 bytes, 1 to 32.
    Slots(u8),
}

impl XattrHome {
    pub(crate) fn from_stored(stored: u64) -> Self {
        match stored {
            0 => XattrHome::Off,
            1 => XattrHome::Dir,
            _ => XattrHome::Sa,
        }
    }
}

impl AclType {
    pub(crate) fn from_stored(stored: u64) -> Self {
        if stored == 0 { AclType::Off } else { AclType::Posix }
    }
}

impl DnodeSize {
    pub(crate) fn from_stored(stored: u64) -> Self {
        match stored {
            0 => DnodeSize::Slots(1),
            1 => DnodeSize::Auto,
            bytes => {
                let slots = u8::try_from(bytes / SLOT_BYTES as u64).unwrap_or(SLOTS_MAX);
                DnodeSize::Slots(slots.clamp(1, SLOTS_MAX))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_dnodesize_means_so_many_bytes() {
        let slots = DNODE_WORDS.map(|(_, number)| DnodeSize::from_stored(number));
        let wanted = [1, 2, 4, 8, 16, 32].map(DnodeSize::Slots);
        assert_eq!((slots[0], slots[1], &slots[2..]), (wanted[0], DnodeSize::Auto, &wanted[1..]));
    }
}
