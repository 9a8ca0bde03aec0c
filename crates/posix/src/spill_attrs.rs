//! Attributes that are not plain numbers: where they lie, and how they are added and removed.
//!
//! They follow the numbers in the bonus area, and move to the spill block when the bonus is full. Reading only
//! numbers never reads the spill block.

use crate::attr::Attributes;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::{Inode, State};
use terrane_format::Feature;
use terrane_object::{Object, ObjectError};
use terrane_pool::Tx;
use terrane_sa::{Attr, AttrList, Attrs};

/// All attributes of one inode.
pub(crate) struct AllAttributes<'a> {
    attrs: &'a Attributes,
    spill: Option<Attrs<'a>>,
}

impl<'a> AllAttributes<'a> {
    /// The bytes of an attribute, in the bonus area or the spill block.
    pub fn get(&self, attr: Attr) -> Option<&'a [u8]> {
        self.attrs.get(attr).or_else(|| self.spill.as_ref()?.get(attr))
    }

    /// The value of an attribute that is one number.
    pub fn number(&self, attr: Attr) -> Option<u64> {
        Some(u64::from_le_bytes(self.get(attr)?.try_into().ok()?))
    }
}

impl Fs {
    /// Calls `use_attributes` with all attributes of an inode. A leaf lock is held meanwhile, so it must not call
    /// this again.
    pub(crate) fn with_all_attributes<R>(
        &self,
        inode: &Inode,
        state: &State,
        use_attributes: impl FnOnce(&AllAttributes<'_>) -> R,
    ) -> Result<R, Errno> {
        let attrs = &state.attrs;
        let Some(raw) = self.set.spill_of(inode.object())? else {
            return Ok(use_attributes(&AllAttributes { attrs, spill: None }));
        };
        let table = self.layouts.table();
        let spill = Attrs::decode(&raw, &table)
            .map_err(|error| error.within(format_args!("object {}, spill block", inode.ino)))?;
        Ok(use_attributes(&AllAttributes { attrs, spill: Some(spill) }))
    }

    /// The number of the hidden directory of an object that is being destroyed, if any. The inode need not be loaded.
    /// A failed read is an error. After damage there is no number.
    pub(crate) fn xattr_dir_number(&self, object: &Object) -> Result<Option<u64>, Errno> {
        let table = self.layouts.table();
        let number = |raw: &[u8]| Attrs::decode(raw, &table).map(|attrs| attrs.u64(Attr::XATTR));
        let spill = || object.spill().map(|spill| spill.map(|raw| number(&raw)));
        let found = match number(&object.bonus()) {
            Ok(None) => spill().and_then(|found| Ok(found.transpose()?.flatten())),
            found => found.map_err(ObjectError::from),
        };
        match found {
            Err(error) if error.is_transient() => Err(error.into()),
            Err(error) => {
                log::error!("space leaked: extended attributes of object {}, if any: {error}", object.id());
                Ok(None)
            }
            found => Ok(found?),
        }
    }

    /// All attributes with the current numbers, to be changed and stored.
    pub(crate) fn attr_list(&self, inode: &Inode, state: &mut State) -> Result<AttrList, Errno> {
        let Some(raw) = self.set.spill_of(inode.object())? else { return state.attrs.current_list(None) };
        let table = self.layouts.table();
        let spill = Attrs::decode(&raw, &table)
            .map_err(|error| error.within(format_args!("object {}, spill block", inode.ino)))?;
        state.attrs.current_list(Some(&spill))
    }

    /// Before a list is stored, by a holder of the txg: notes what versions without extended attributes would lose.
    pub(crate) fn note_attr_uses(&self, list: &AttrList) {
        if [Attr::XATTR, Attr::DXATTR].iter().any(|attr| list.get(*attr).is_some()) {
            self.set.pool().note_use(Feature::Xattr);
        }
    }

    /// Stores a list from [`attr_list`](Self::attr_list) in bonus and spill. `EFBIG`: it does not fit, and nothing
    /// changed. The caller holds the inode's lock and has reserved space for a spill block.
    pub(crate) fn store_attrs(
        &self,
        tx: &Tx,
        inode: &Inode,
        state: &mut State,
        list: &AttrList,
    ) -> Result<(), Errno> {
        let object = inode.object();
        self.note_attr_uses(list);
        let encoded = self.layouts.encode(tx, list, object.bonus_max())?;
        let spill = encoded.spill.map(|spill| spill.into_bytes());
        let bytes = encoded.bonus.as_bytes().len() + spill.as_ref().map_or(0, Vec::len);
        self.dnode_sizing.note_stored_size(tx, object, bytes);
        object.set_attributes(tx, encoded.bonus.as_bytes().to_vec(), spill)?;
        state.attrs.set_bonus(encoded.bonus);
        if object.has_unstored_spill() {
            inode.note_blocks_changed();
        }
        self.touch(tx, inode);
        Ok(())
    }
}
