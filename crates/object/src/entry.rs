//! Entry of an object set in the meta object set: the bonus of the object that stands for it.
//!
//! It starts with the root pointer, which every sync replaces. Then comes the set's [`Identity`], which the
//! sync never changes, including fields that later versions add. Sets created before the feature `datasets`
//! have only a root.

use terrane_format::BlockPtr;
use terrane_wire::{Corrupt, ObjectId, Txg, layout};

layout! {
    /// Identity of an object set. `FORMAT.md` section "The meta object set".
    ObjsetInfo, 32 bytes {
        /// Size of this structure, with fields of later versions.
        0  bytes: u32,
        /// 0, else an unknown feature.
        4  flags: u32,
        /// A random number, not 0.
        8  guid: u64,
        /// The txg that created the set, or gave an older set its identity. Not 0.
        16 created: Txg,
        /// Object of the meta object set with the set's free queue. Not 0.
        24 free_queue: ObjectId,
    }
}

/// Identity of an object set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A random number, not 0; unique over all pools.
    pub guid: u64,
    /// Txg that created the set. For a set older than this field, the txg that assigned the guid.
    pub created: Txg,
    /// Object of the meta object set that stores this set's free queue.
    pub free_queue: ObjectId,
}

impl Identity {
    pub(crate) fn encode(&self) -> [u8; ObjsetInfo::SIZE] {
        let Identity { guid, created, free_queue } = *self;
        ObjsetInfo { bytes: ObjsetInfo::SIZE as u32, flags: 0, guid, created, free_queue }.encode()
    }
}

/// Parses a set's root and identity. `None`: it has no identity yet.
pub(crate) fn parse_entry(bonus: &[u8], id: ObjectId) -> Result<(BlockPtr, Option<Identity>), Corrupt> {
    let at = format!("object set {id}, root in the meta object set");
    let (root, info) = bonus.split_at_checked(BlockPtr::SIZE).unwrap_or((bonus, &[]));
    let root = BlockPtr::parse(root, &at)?;
    if info.is_empty() {
        return Ok((root, None));
    }
    let found = ObjsetInfo::decode(info)
        .filter(|found| (ObjsetInfo::SIZE..=info.len()).contains(&(found.bytes as usize)))
        .ok_or_else(|| Corrupt::new(&at, "size of the identity", ObjsetInfo::SIZE, info.len()))?;
    if found.flags != 0 {
        let flags = format_args!("{:#x}, an unknown feature", found.flags);
        return Err(Corrupt::new(&at, "flags of the identity", 0, flags));
    }
    let ObjsetInfo { guid, created, free_queue, .. } = found;
    if guid == 0 || created == Txg(0) || free_queue == ObjectId(0) {
        let words = format_args!("{guid:#x}, txg {created}, object {free_queue}");
        return Err(Corrupt::new(&at, "guid, txg and free queue", "not 0", words));
    }
    Ok((root, Some(Identity { guid, created, free_queue })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mos_change::patched;
    use terrane_format::block_ptr::Hole;

    const IDENTITY: Identity = Identity { guid: 77, created: Txg(5), free_queue: ObjectId(4) };

    fn root(birth: u64) -> BlockPtr {
        BlockPtr::Hole(Hole { kind: 3, level: 0, lsize: 3072, birth: Txg(birth) })
    }

    fn entry(info: &[u8]) -> Result<(BlockPtr, Option<Identity>), Corrupt> {
        parse_entry(&[&root(9).encode()[..], info].concat(), ObjectId(2))
    }

    #[test]
    fn an_entry_comes_back_with_and_without_an_identity() {
        assert_eq!(entry(&[]).unwrap(), (root(9), None));
        let info = IDENTITY.encode();
        assert_eq!(entry(&info).unwrap(), (root(9), Some(IDENTITY)));
        for len in 1..info.len() {
            assert!(entry(&info[..len]).is_err(), "{len}");
        }
        for len in 0..BlockPtr::SIZE {
            assert!(parse_entry(&root(9).encode()[..len], ObjectId(2)).is_err(), "{len}");
        }
    }

    /// A later version adds a field, and an older one commits: the field is still there.
    #[test]
    fn another_root_keeps_unknown_fields() {
        let mut info = [&IDENTITY.encode()[..], &[1, 2, 3, 4, 5]].concat();
        info[0] += 5;
        let bonus = patched(&[&root(9).encode()[..], &info].concat(), 0, &root(12).encode());
        assert_eq!(parse_entry(&bonus, ObjectId(2)).unwrap(), (root(12), Some(IDENTITY)));
        assert_eq!(bonus[BlockPtr::SIZE..], info);
        assert_eq!(patched(&root(9).encode(), 0, &root(12).encode()), root(12).encode());
    }

    #[test]
    fn invalid_identities_are_refused() {
        let lies = [
            ObjsetInfo { bytes: 31, ..ObjsetInfo::decode(&IDENTITY.encode()).unwrap() },
            ObjsetInfo { bytes: 33, ..ObjsetInfo::decode(&IDENTITY.encode()).unwrap() },
            ObjsetInfo { flags: 1, ..ObjsetInfo::decode(&IDENTITY.encode()).unwrap() },
            ObjsetInfo { guid: 0, ..ObjsetInfo::decode(&IDENTITY.encode()).unwrap() },
            ObjsetInfo { created: Txg(0), ..ObjsetInfo::decode(&IDENTITY.encode()).unwrap() },
            ObjsetInfo { free_queue: ObjectId(0), ..ObjsetInfo::decode(&IDENTITY.encode()).unwrap() },
        ];
        for lie in lies {
            assert!(entry(&lie.encode()).is_err(), "{lie:?}");
        }
    }
}
