//! The tables of owners as the header of an object set stores them.
//!
//! Three dnodes, of which the first has the state of all in its bonus. What they count is told by
//! [`owners`](crate::owners).

use crate::dnode::{BLOCK_BYTES_MIN, Dnode, SLOT_BYTES};
use crate::kind::ObjectKind;
use std::sync::Arc;
use terrane_wire::{Corrupt, ObjectId, Txg, layout};

layout! {
    /// State of the tables, in the bonus of the first one. `FORMAT.md` section "Tables of owners".
    OwnersInfo, 16 bytes {
        /// Size of this structure, with fields of later versions.
        0  bytes: u32,
        /// Epoch of the tables, 1 to 255.
        4  epoch: u32,
        /// bit 0: every object with owners is counted
        8  flags: u32,
        /// Ignored.
        12 reserved: u32,
    }
}

/// Flag of [`OwnersInfo`].
const COMPLETE: u32 = 1;
/// Number of the first table's object; the others are below it.
const FIRST_TABLE: u64 = u64::MAX - 2;

/// Whom a table counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnerKind {
    /// Users, by uid.
    User,
    /// Groups of users, by gid.
    Group,
    /// Projects, by project id.
    Project,
}

impl OwnerKind {
    /// All kinds, in the order of their tables.
    pub const ALL: [OwnerKind; 3] = [OwnerKind::User, OwnerKind::Group, OwnerKind::Project];

    /// The object number of its table, far above all others.
    pub fn table_id(self) -> ObjectId {
        ObjectId(FIRST_TABLE - self as u64)
    }

    /// The kind whose table has this object number.
    pub fn of_table(id: ObjectId) -> Option<OwnerKind> {
        OwnerKind::ALL.into_iter().find(|kind| kind.table_id() == id)
    }
}

/// State of a set's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerEpoch {
    /// In the dnodes of objects that the tables count. Not 0.
    pub epoch: u8,
    /// Every object with owners is counted.
    pub is_complete: bool,
}

impl OwnerEpoch {
    /// The state of the first tables of a set. `is_complete`: it has no objects yet.
    pub(crate) fn first(is_complete: bool) -> OwnerEpoch {
        OwnerEpoch { epoch: 1, is_complete }
    }

    /// The state of new tables that replace these.
    pub(crate) fn next(self) -> OwnerEpoch {
        OwnerEpoch { epoch: self.epoch.checked_add(1).unwrap_or(1), is_complete: false }
    }

    fn encode(self) -> Vec<u8> {
        let info = OwnersInfo {
            bytes: OwnersInfo::SIZE as u32,
            epoch: self.epoch.into(),
            flags: if self.is_complete { COMPLETE } else { 0 },
            reserved: 0,
        };
        info.encode().to_vec()
    }

    fn parse(raw: &[u8], at: &str) -> Result<OwnerEpoch, Corrupt> {
        let info = OwnersInfo::decode(raw)
            .filter(|info| (OwnersInfo::SIZE..=raw.len()).contains(&(info.bytes as usize)))
            .ok_or_else(|| Corrupt::new(at, "size of the tables' state", OwnersInfo::SIZE, raw.len()))?;
        let epoch = u8::try_from(info.epoch).ok().filter(|epoch| *epoch != 0);
        let epoch = epoch.ok_or_else(|| Corrupt::new(at, "epoch of the tables", "1 to 255", info.epoch))?;
        if info.flags & !COMPLETE != 0 {
            return Err(Corrupt::new(at, "flags of the tables", "known ones", info.flags));
        }
        Ok(OwnerEpoch { epoch, is_complete: info.flags & COMPLETE != 0 })
    }
}

/// The tables as the header stores them.
#[derive(Clone, Debug)]
pub struct OwnerHeader {
    /// Their state.
    pub epoch: OwnerEpoch,
    /// Their dnodes, in the order of [`OwnerKind::ALL`].
    pub tables: [Dnode; 3],
}

impl OwnerHeader {
    /// A table without entries.
    pub(crate) fn empty_table() -> Dnode {
        Dnode::new(ObjectKind::Zap, 1, BLOCK_BYTES_MIN, Txg(0))
    }

    /// Appends the three pieces to a header.
    pub(crate) fn encode_into(&self, raw: &mut Vec<u8>) {
        for (kind, table) in OwnerKind::ALL.into_iter().zip(&self.tables) {
            let bonus = if kind == OwnerKind::User { self.epoch.encode() } else { Vec::new() };
            raw.extend_from_slice(&Dnode { bonus: Arc::new(bonus), ..table.clone() }.encode());
        }
    }

    /// Parses the pieces of a header; `None`: there are no tables.
    pub(crate) fn parse(raw: &[u8], at: &str) -> Result<Option<OwnerHeader>, Corrupt> {
        let table = |index: usize| -> Result<Option<Dnode>, Corrupt> {
            let piece = raw.get(index * SLOT_BYTES..(index + 1) * SLOT_BYTES).unwrap_or(&[]);
            let found = Dnode::parse(piece, &at)?;
            match &found {
                Some(dnode) if dnode.kind != ObjectKind::Zap || dnode.slots != 1 => {
                    let what = "dnode of a table of owners";
                    Err(Corrupt::new(at, what, "a ZAP of one slot", format_args!("{:?}", dnode.kind)))
                }
                _ => Ok(found),
            }
        };
        match (table(0)?, table(1)?, table(2)?) {
            (None, None, None) => Ok(None),
            (Some(users), Some(groups), Some(projects)) => {
                let epoch = OwnerEpoch::parse(&users.bonus, at)?;
                Ok(Some(OwnerHeader { epoch, tables: [users, groups, projects] }))
            }
            _ => Err(Corrupt::new(at, "tables of owners", "three or none", "one or two")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dnode::{OBJSET_BYTES, ObjsetHeader};

    #[test]
    fn tables_in_the_header_come_back_and_lies_are_refused() {
        let mut header = ObjsetHeader::empty();
        assert!(ObjsetHeader::parse(&header.encode(), "here").unwrap().owners.is_none());
        let table = |used| Dnode { used, ..OwnerHeader::empty_table() };
        let epoch = OwnerEpoch { epoch: 7, is_complete: true };
        header.owners = Some(OwnerHeader { epoch, tables: [table(16), table(32), table(48)] });
        let raw = header.encode();
        assert_eq!(raw.len(), OBJSET_BYTES);
        let parse = |raw: &[u8]| ObjsetHeader::parse(raw, "here").map(|header| header.owners);
        let found = parse(&raw).unwrap().unwrap();
        assert_eq!((found.epoch, found.tables.map(|table| table.used)), (epoch, [16, 32, 48]));
        let bonus = 3 * SLOT_BYTES + 192;
        for (at, value, why) in [
            (bonus, 15, "size of the tables' state"),
            (bonus + 4, 0, "epoch of the tables"),
            (bonus + 5, 1, "epoch of the tables"),
            (bonus + 8, 3, "flags of the tables"),
            (4 * SLOT_BYTES, 0, "three or none"),
            (5 * SLOT_BYTES, 6, "a ZAP of one slot"),
        ] {
            let mut lie = raw.clone();
            lie[at] = value;
            let error = parse(&lie).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }

    #[test]
    fn an_epoch_is_never_0() {
        let mut epoch = OwnerEpoch::first(true);
        let mut all = Vec::new();
        for _ in 0..256 {
            all.push(epoch.epoch);
            epoch = epoch.next();
        }
        assert!(!all.contains(&0));
        assert_eq!((all[0], all[254], all[255]), (1, 255, 1));
        assert!(!epoch.is_complete);
    }
}
