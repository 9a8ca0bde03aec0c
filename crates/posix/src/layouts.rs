//! The SA layouts of a data set: which attributes its inodes have, in which order.
//!
//! All inodes of one shape share a layout. A new shape gets a layout in the transaction that stores its first
//! inode. Txgs are strictly ordered: an operation joins one only after all have left the one before. So no
//! inode is durable before its layout.

use crate::attr::orders;
use crate::errno::Errno;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::sync::Arc;
use terrane_dataset::{ObjectZap, ZapError};
use terrane_object::ObjectError;
use terrane_pool::Tx;
use terrane_sa::{Attr, AttrList, AttrSlice, Layout, LayoutTable, Registry, SaBuffer, count_in_bonus};
use terrane_wire::Corrupt;
use terrane_zap::ValueRef;

/// Blocks of the LAYOUTS ZAP that a new layout changes: header, leaves, pointers.
const META_BLOCKS: u32 = 6;

/// Leaf locks; the ZAP's is taken before the table's.
pub(crate) struct Layouts {
    table: RwLock<LayoutTable>,
    zap: Mutex<ObjectZap>,
}

/// The attributes of one inode, as stored.
pub(crate) struct Encoded {
    pub bonus: SaBuffer,
    /// Attributes that do not fit the bonus area.
    pub spill: Option<SaBuffer>,
}

impl Layouts {
    /// Loads the attribute registry and the layouts from their ZAPs.
    pub fn load(registry: &ObjectZap, layouts: ObjectZap) -> Result<Self, ZapError> {
        let mut rows = Vec::new();
        for entry in registry.entries()? {
            if let (Some(name), Some(word)) = (entry.key.name(), entry.value.first_integer()) {
                rows.push((name.to_vec(), word));
            }
        }
        let mut stored = Vec::new();
        for entry in layouts.entries()? {
            let numbers =
                entry.value.ints().into_iter().map(|number| u16::try_from(number).unwrap_or(u16::MAX));
            stored.push((entry.key.name().unwrap_or_default().to_vec(), numbers.collect::<Vec<u16>>()));
        }
        let registry = Registry::load(rows).map_err(ObjectError::from)?;
        let table = LayoutTable::load(registry, stored).map_err(ObjectError::from)?;
        Ok(Layouts { table: RwLock::new(table), zap: Mutex::new(layouts) })
    }

    /// The layouts that every data set starts with.
    pub fn first() -> Result<LayoutTable, Corrupt> {
        let mut table = LayoutTable::new(Registry::built_in());
        for order in orders() {
            table.add(&order).map_err(|error| Corrupt::new("SA layouts", "layout", "valid", error))?;
        }
        Ok(table)
    }

    /// Adds a layout to the LAYOUTS ZAP.
    pub fn store(zap: &mut ObjectZap, tx: &Tx, layout: &Layout) -> Result<(), ZapError> {
        zap.add(tx, layout.zap_name().as_bytes(), ValueRef::U16s(&layout.zap_value()))
    }

    /// Locks the table for readers.
    pub fn table(&self) -> RwLockReadGuard<'_, LayoutTable> {
        self.table.read()
    }

    /// The layout of this order; created and stored if there is none.
    fn of(&self, tx: &Tx, list: AttrSlice<'_>) -> Result<Arc<Layout>, Errno> {
        if let Some(layout) = self.table.read().find(list.order()) {
            return Ok(Arc::clone(layout));
        }
        let mut zap = self.zap.lock();
        let order: Vec<Attr> = list.order().collect();
        let (layout, grown) = {
            let table = self.table.read();
            if let Some(layout) = table.find(list.order()) {
                return Ok(Arc::clone(layout));
            }
            let mut grown = table.clone();
            (grown.add(&order)?, grown)
        };
        tx.reserve_more(META_BLOCKS);
        Layouts::store(&mut zap, tx, &layout)?;
        *self.table.write() = grown;
        Ok(layout)
    }

    /// Lays attributes out over a bonus area of `bonus_max` bytes and, if needed, a spill block. `EFBIG`: they
    /// do not fit both, and nothing changed.
    pub fn encode(&self, tx: &Tx, list: &AttrList, bonus_max: usize) -> Result<Encoded, Errno> {
        let in_bonus = count_in_bonus(list, self.table.read().registry(), bonus_max)?;
        if in_bonus == list.len() {
            return Ok(Encoded { bonus: SaBuffer::encode(&self.of(tx, list.into())?, list)?, spill: None });
        }
        let (near, far) = list.split_at(in_bonus);
        let bonus = SaBuffer::encode(&self.of(tx, near)?, near)?;
        let spill = SaBuffer::encode(&self.of(tx, far)?, far)?;
        Ok(Encoded { bonus, spill: Some(spill) })
    }
}
