//! Source of zones for a txg: the next empty one that takes writes, with a new sequence number.

use crate::pool::Pool;
use std::sync::Arc;
use terrane_device::{Device, ZoneState};
use terrane_format::record::{Class, Opened};
use terrane_space::alloc::Allocator;
use terrane_space::zones::Zone;
use terrane_store::PoolError;
use terrane_store::append::Gather;
use terrane_store::append::ZoneSource;
use terrane_wire::{DeviceIdx, Txg, ZoneSeq};

pub(super) struct Source<'a> {
    pub pool: &'a Pool,
    pub alloc: &'a mut Allocator,
    pub txg: Txg,
}

impl ZoneSource for Source<'_> {
    fn empty_zones(&self, open: &[DeviceIdx]) -> usize {
        self.alloc.empty_where(&|device| self.pool.store.devices.may_open(device, open))
    }

    fn open_zone(
        &mut self,
        class: Class,
        special: bool,
        open: &[DeviceIdx],
    ) -> Result<(Opened, Arc<Gather>), PoolError> {
        let mut later = Vec::new();
        let found = loop {
            let apart_from = self.alloc.apart_from(class);
            let usable = |device| self.pool.store.devices.may_open(device, open);
            let Some(home) = self.alloc.pop(special, apart_from, &usable) else { break None };
            let device = self.pool.store.devices.get(home.device)?;
            if self.alloc.take_unclean(home)
                && let Err(error) = device.reset(home.zone)
            {
                if self.pool.store.devices.take_writes(home) {
                    log::warn!("{home}: {error}; it is tried again later");
                    later.push(home);
                } else {
                    log::warn!("{home}: {error}; the zone is left aside");
                }
                continue;
            }
            match device.report(home.zone) {
                Ok(report) if report.state == ZoneState::Empty && report.capacity > 0 => {
                    break Some((home, report.capacity));
                }
                other => log::warn!("{home}: expected an empty zone, found {other:?}; it is left aside"),
            }
        };
        later.into_iter().for_each(|home| self.alloc.put_unclean(home));
        let (home, capacity) = found.ok_or(PoolError::NoSpace { need: 1, free: 0 })?;
        // The last commit raised the lease. Before the first commit, import has left enough numbers.
        let seq = ZoneSeq(self.alloc.next_seq);
        if seq.0 >= self.alloc.lease_seq {
            return Err(PoolError::Failed { reason: "the lease of zone sequence numbers ran out".into() });
        }
        self.alloc.next_seq += 1;
        self.alloc.opened(class, home.device);
        let gather = Arc::<Gather>::default();
        let mut zone = Zone::new(class, home, capacity, self.txg);
        zone.unwritten = Some(gather.clone());
        self.pool.store.tables.write().insert(seq, zone);
        Ok((Opened { seq, class, home, capacity }, gather))
    }
}
