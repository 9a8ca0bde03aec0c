//! A ZAP of the other byte order, served from a copy in little-endian order.

use super::Zap;
use crate::byte_order;
use crate::convert;
use crate::error::Error;
use crate::store::{MemStore, Store};
use std::sync::OnceLock;

/// The copy of a ZAP in little-endian order.
#[derive(Debug)]
pub(crate) struct SwappedCopy {
    pub zap: Box<Zap>,
    pub store: MemStore,
}

/// The byte order of a ZAP, and its copy if it is swapped.
#[derive(Debug, Default)]
pub(crate) struct ByteOrder {
    pub is_swapped: bool,
    copied: OnceLock<SwappedCopy>,
}

impl ByteOrder {
    pub fn of(block_0: &[u8]) -> Self {
        ByteOrder { is_swapped: byte_order::is_swapped(block_0), copied: OnceLock::new() }
    }

    pub fn drop_copy(&mut self) {
        self.copied = OnceLock::new();
    }
}

/// Returns from the function with the result of this method on the copy, if the ZAP is of the other byte order.
macro_rules! delegate_to_copy {
    ($zap:ident, $store:ident, $method:ident($($argument:expr),*)) => {
        if $zap.byte_order.is_swapped {
            let copied = $zap.copied($store)?;
            return copied.zap.$method(&copied.store, $($argument),*).map_err(Error::lift);
        }
    };
}
pub(crate) use delegate_to_copy;

impl Zap {
    pub(crate) fn copied<S: Store + ?Sized>(&self, store: &S) -> Result<&SwappedCopy, Error<S::Error>> {
        if let Some(copied) = self.byte_order.copied.get() {
            return Ok(copied);
        }
        let in_our_order = byte_order::copy(store)?;
        let zap = Box::new(Zap::open_with(&in_our_order, self.options).map_err(Error::lift)?);
        Ok(self.byte_order.copied.get_or_init(|| SwappedCopy { zap, store: in_our_order }))
    }

    /// Rewrites the ZAP in little-endian order before its first change, if it is of the other order.
    pub(crate) fn convert_byte_order<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
    ) -> Result<(), Error<S::Error>> {
        if !self.byte_order.is_swapped {
            return Ok(());
        }
        let copy = &self.copied(store)?.store;
        if copy.block_count() > 1 {
            let found = format!("{} blocks", copy.block_count());
            return Err(Error::Unsupported { what: "a change to a fat ZAP of the other byte order", found });
        }
        convert::install(store, copy)?;
        self.byte_order = ByteOrder::default();
        Ok(())
    }
}
