//! Attributes that are no numbers: where they lie, and how they come and go.
//!
//! They follow the numbers in the bonus area, and go to the spill block when that is full. Whoever only wants numbers never reads
//! the spill block.

use crate::attr::Attributes;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::{Inode, State};
use terrane_object::Object;
use terrane_pool::Tx;
use terrane_sa::{Attr, AttrList, Attrs};

/// All attributes of one inode.
pub(crate) struct Look<'a> {
    attrs: &'a Attributes,
    spill: Option<Attrs<'a>>,
}

impl<'a> Look<'a> {
    pub fn get(&self, attr: Attr) -> Option<&'a [u8]> {
        self.attrs.get(attr).or_else(|| self.spill.as_ref()?.get(attr))
    }

    /// An attribute of one number.
    pub fn number(&self, attr: Attr) -> Option<u64> {
        Some(u64::from_le_bytes(self.get(attr)?.try_into().ok()?))
    }
}

impl Fs {
    /// Shows all attributes of an inode. A leaf lock is held meanwhile: `look` must not come back here.
    pub(crate) fn look<R>(
        &self,
        inode: &Inode,
        state: &State,
        look: impl FnOnce(&Look<'_>) -> R,
    ) -> Result<R, Errno> {
        let attrs = &state.attrs;
        let Some(raw) = inode.object().spill()? else { return Ok(look(&Look { attrs, spill: None })) };
        let table = self.layouts.table();
        let spill = Attrs::decode(&raw, &table)
            .map_err(|error| error.within(format_args!("object {}, spill block", inode.ino)))?;
        Ok(look(&Look { attrs, spill: Some(spill) }))
    }

    /// The hidden directory that an object nobody has loaded names.
    pub(crate) fn hidden_number(&self, object: &Object) -> Option<u64> {
        let table = self.layouts.table();
        let number = |raw: &[u8]| Attrs::decode(raw, &table).map(|attrs| attrs.u64(Attr::XATTR));
        let spill = || object.spill().map(|spill| spill.map(|raw| number(&raw)));
        let found = match number(&object.bonus()) {
            Ok(None) => spill().map_err(Errno::from).and_then(|found| Ok(found.transpose()?.flatten())),
            found => found.map_err(Errno::from),
        };
        found.unwrap_or_else(|errno| {
            log::error!("object {}: extended attributes, if it has any, stay behind: {errno}", object.id());
            None
        })
    }

    /// All attributes with the numbers as they are now, to be changed and stored.
    pub(crate) fn list_of(&self, inode: &Inode, state: &mut State) -> Result<AttrList, Errno> {
        let Some(raw) = inode.object().spill()? else { return state.attrs.list_now(None) };
        let table = self.layouts.table();
        let spill = Attrs::decode(&raw, &table)
            .map_err(|error| error.within(format_args!("object {}, spill block", inode.ino)))?;
        state.attrs.list_now(Some(&spill))
    }

    /// Stores a list that [`list_of`](Self::list_of) gave, wherever it fits. `EFBIG`: nowhere; nothing is changed. The caller holds
    /// the inode's lock and has reserved room for a spill block.
    pub(crate) fn store(
        &self,
        tx: &Tx,
        inode: &Inode,
        state: &mut State,
        list: &AttrList,
    ) -> Result<(), Errno> {
        let object = inode.object();
        let encoded = self.layouts.encode(tx, list, object.bonus_max())?;
        let spill = encoded.spill.map(|spill| spill.into_bytes());
        let bytes = encoded.bonus.as_bytes().len() + spill.as_ref().map_or(0, Vec::len);
        self.widths.note(tx, object, bytes);
        object.set_attributes(tx, encoded.bonus.as_bytes().to_vec(), spill)?;
        state.attrs.set_bonus(encoded.bonus);
        self.touch(tx, inode);
        Ok(())
    }
}
