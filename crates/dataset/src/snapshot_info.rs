//! Stored form of a snapshot: the bonus of the object of the MOS that stands for it.
//!
//! It begins with the root pointer of the object set in the state that the snapshot shows. The sync of the txg that takes the snapshot
//! writes that pointer.

use terrane_format::BlockPtr;
use terrane_object::Account;
use terrane_wire::{Corrupt, ObjectId, Txg, layout};

layout! {
    /// Follows the root pointer in the bonus of a snapshot. `FORMAT.md` section 8.7.
    SnapshotRow, 96 bytes {
        /// Size of this structure, with fields of later versions.
        0  bytes: u32,
        /// 0, else an unknown feature.
        4  flags: u32,
        /// A random number, not 0.
        8  guid: u64,
        /// The txg that it shows. Not 0.
        16 created: Txg,
        /// Time of its creation in nanoseconds since 1970.
        24 time_ns: u64,
        /// First part of its dead list, an object of the meta object set. Not 0.
        32 dead_list: ObjectId,
        /// The object set whose state it is. Zone directories name it as the owner of the blocks that it wrote.
        40 set: ObjectId,
        /// Bytes of all blocks of the set: all copies, in whole granules.
        48 used: u64,
        /// Bytes of the records of files before compression.
        56 logical: u64,
        /// The same after compression.
        64 physical: u64,
        /// Must be 0.
        72 reserved: [u64; 3],
    }
}

/// What is stored of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The object of the MOS that stands for it.
    pub id: ObjectId,
    /// Root of its object set. A hole while the txg that takes it is open.
    pub root: BlockPtr,
    /// A random number, not 0; unique over all pools.
    pub guid: u64,
    /// The txg that it shows.
    pub created: Txg,
    /// Time of its creation in nanoseconds since 1970.
    pub time_ns: u64,
    /// First part of its dead list, an object of the MOS: blocks that left the data set since the snapshot before it.
    pub dead_list: ObjectId,
    /// The object set whose state it is.
    pub set: ObjectId,
    /// Sums of the blocks that it refers to, without its header.
    pub referenced: Account,
}

/// Offset of the structure in the bonus.
const AT: usize = BlockPtr::SIZE;
/// Offset of the three sums in the bonus.
pub(crate) const REFERENCED_AT: usize = AT + 48;

/// The sums as stored.
pub(crate) fn encode_referenced(account: &Account) -> Vec<u8> {
    [account.used_bytes, account.logical_bytes, account.physical_bytes]
        .iter()
        .flat_map(|sum| sum.to_le_bytes())
        .collect()
}

impl SnapshotInfo {
    /// Device space of all blocks that it refers to, its header included.
    pub fn referenced_bytes(&self) -> u64 {
        self.referenced.used_bytes.saturating_add(self.root.allocated_bytes())
    }

    /// The whole bonus.
    pub fn encode(&self) -> Vec<u8> {
        let row = SnapshotRow {
            bytes: SnapshotRow::SIZE as u32,
            flags: 0,
            guid: self.guid,
            created: self.created,
            time_ns: self.time_ns,
            dead_list: self.dead_list,
            set: self.set,
            used: self.referenced.used_bytes,
            logical: self.referenced.logical_bytes,
            physical: self.referenced.physical_bytes,
            reserved: [0; 3],
        };
        [&self.root.encode()[..], &row.encode()].concat()
    }

    /// Parses the bonus of the object `id`. `newest`: the newest txg that the snapshot can show.
    pub fn parse(bonus: &[u8], id: ObjectId, newest: Txg) -> Result<SnapshotInfo, Corrupt> {
        let at = format!("snapshot, object {id} of the meta object set");
        let (root, row) = bonus.split_at_checked(AT).unwrap_or((bonus, &[]));
        let root = BlockPtr::parse(root, &at)?;
        let found = SnapshotRow::decode(row)
            .filter(|found| (SnapshotRow::SIZE..=row.len()).contains(&(found.bytes as usize)))
            .ok_or_else(|| Corrupt::new(&at, "size of the bonus", SnapshotRow::SIZE, row.len()))?;
        if found.flags != 0 || found.reserved != [0; 3] {
            let words = format_args!("{:#x}, {:?}", found.flags, found.reserved);
            return Err(Corrupt::new(&at, "flags and reserved words", 0, words));
        }
        let SnapshotRow { guid, created, time_ns, dead_list, set, .. } = found;
        if guid == 0 || created == Txg(0) || dead_list == ObjectId(0) {
            let words = format_args!("{guid:#x}, txg {created}, object {dead_list}");
            return Err(Corrupt::new(&at, "guid, txg and dead list", "not 0", words));
        }
        if created > newest {
            return Err(Corrupt::new(&at, "txg", format_args!("at most {newest}"), created));
        }
        let referenced =
            Account { used_bytes: found.used, logical_bytes: found.logical, physical_bytes: found.physical };
        Ok(SnapshotInfo { id, root, guid, created, time_ns, dead_list, set, referenced })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_format::block_ptr::Hole;

    #[test]
    fn infos_come_back_and_lies_are_refused() {
        let root = BlockPtr::Hole(Hole { kind: 3, level: 0, lsize: 3072, birth: Txg(9) });
        let referenced = Account { used_bytes: 3, logical_bytes: 4, physical_bytes: 5 };
        let info = SnapshotInfo {
            id: ObjectId(4),
            root,
            guid: 1,
            created: Txg(2),
            time_ns: 7,
            dead_list: ObjectId(8),
            set: ObjectId(2),
            referenced,
        };
        assert_eq!(SnapshotInfo::parse(&info.encode(), ObjectId(4), Txg(2)).unwrap(), info);
        assert!(SnapshotInfo::parse(&info.encode(), ObjectId(4), Txg(1)).is_err(), "of the future");
        assert!(info.encode()[REFERENCED_AT..].starts_with(&encode_referenced(&referenced)));
        for forged in [
            SnapshotInfo { guid: 0, ..info.clone() },
            SnapshotInfo { created: Txg(0), ..info.clone() },
            SnapshotInfo { dead_list: ObjectId(0), ..info.clone() },
        ] {
            assert!(SnapshotInfo::parse(&forged.encode(), ObjectId(4), Txg(9)).is_err());
        }
        for at in [AT, AT + 4, AT + 88] {
            let mut forged = info.encode();
            forged[at] ^= 1;
            assert!(SnapshotInfo::parse(&forged, ObjectId(4), Txg(9)).is_err(), "{at}");
        }
        for len in 0..info.encode().len() {
            assert!(SnapshotInfo::parse(&info.encode()[..len], ObjectId(4), Txg(9)).is_err(), "{len}");
        }
    }
}
