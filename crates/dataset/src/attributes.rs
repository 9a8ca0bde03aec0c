//! Properties of attributes: `xattr`, `acltype` and `dnodesize`.
//!
//! They apply to later writes, never to existing data. An extended attribute is found wherever it is stored,
//! and a dnode keeps its size for life. The stored numbers are those of OpenZFS.
//!
//! Whether extended attributes and ACLs exist at all is agreed with the kernel at mount. If only we obeyed an
//! ACL and the kernel did not, a file would be open to users whom only the ACL keeps out. So this part of a
//! change waits until the data set is opened again.

use terrane_object::dnode::{SLOT_BYTES, SLOTS_MAX};

pub(crate) const XATTR: &str = "xattr";
pub(crate) const ACL_TYPE: &str = "acltype";
pub(crate) const DNODE_SIZE: &str = "dnodesize";

/// The first word of a number is the printed one; others are accepted too.
pub(crate) const XATTR_WORDS: [(&str, u64); 4] = [("off", 0), ("dir", 1), ("sa", 2), ("on", 2)];
/// 1 would be NFSv4 ACLs, which Linux does not support.
pub(crate) const ACL_WORDS: [(&str, u64); 3] = [("off", 0), ("posix", 2), ("posixacl", 2)];
/// All but the first two are in bytes.
pub(crate) const DNODE_WORDS: [(&str, u64); 7] = [
    ("legacy", 0),
    ("auto", 1),
    ("1k", 1 << 10),
    ("2k", 2 << 10),
    ("4k", 4 << 10),
    ("8k", 8 << 10),
    ("16k", 16 << 10),
];

/// Place of new extended attributes: the property `xattr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrPlacement {
    /// In the attribute list of the dnode or its spill, while they fit.
    Sa,
    /// In a hidden directory of the file, each in its own object.
    Dir,
    /// Disabled: none can be set or read.
    Off,
}

/// Supported ACLs: the property `acltype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclType {
    /// POSIX ACLs.
    Posix,
    /// None: stored ACLs are neither shown nor obeyed.
    Off,
}

/// Size of the dnodes of new files and directories: the property `dnodesize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnodeSize {
    /// Chosen by the layer that creates the object.
    Auto,
    /// Number of slots of 512 bytes, 1 to 32.
    Slots(u8),
}

impl XattrPlacement {
    pub(crate) fn from_stored(stored: u64) -> Self {
        match stored {
            0 => XattrPlacement::Off,
            1 => XattrPlacement::Dir,
            _ => XattrPlacement::Sa,
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
