//! Source of zones for a txg: the next empty one that takes writes, with a new sequence number.

use crate::pool::Pool;
use std::sync::Arc;
use terrane_device::{Device, ZoneState};
use terrane_format::record::{OpenedZone, ZoneClass};
use terrane_space::alloc::Allocator;
use terrane_space::zones::Zone;
use terrane_store::PoolError;
use terrane_store::append::WriteBuffer;
use terrane_store::append::ZoneSource;
use terrane_wire::{DeviceIdx, Txg, ZoneSeq};

pub(super) struct Source<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// Its empty zones.
    pub alloc: &'a mut Allocator,
    /// The txg that opens the zones.
    pub txg: Txg,
}

impl ZoneSource for Source<'_> {
    fn empty_zones(&self, open: &[DeviceIdx]) -> usize {
        self.alloc.empty_where(&|device| self.pool.store.devices.may_open(device, open))
    }

    fn open_zone(
        &mut self,
        class: ZoneClass,
        special: bool,
        open: &[DeviceIdx],
    ) -> Result<(OpenedZone, Arc<WriteBuffer>), PoolError> {
        let mut later = Vec::new();
        let found = loop {
            let avoid = self.alloc.device_to_avoid(class);
            let usable = |device| self.pool.store.devices.may_open(device, open);
            let Some(home) = self.alloc.pop(special, avoid, &usable) else { break None };
            let device = self.pool.store.devices.get(home.device)?;
            if self.alloc.take_unclean(home)
                && let Err(error) = device.reset(home.zone)
            {
                if self.pool.store.devices.zone_takes_writes(home) {
                    log::warn!("{home} skipped: reset failed, retried later: {error}");
                    later.push(home);
                } else {
                    log::warn!("{home} retired: reset failed: {error}");
                }
                continue;
            }
            match device.report(home.zone) {
                Ok(report) if report.state == ZoneState::Empty && report.capacity > 0 => {
                    break Some((home, report.capacity));
                }
                other => log::warn!("{home} retired: expected an empty zone, found {other:?}"),
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
        self.alloc.note_opened(class, home.device);
        let write_buffer = Arc::<WriteBuffer>::default();
        let mut zone = Zone::new(class, home, capacity, self.txg);
        zone.unwritten = Some(write_buffer.clone());
        self.pool.store.tables.write().insert(seq, zone);
        Ok((OpenedZone { seq, class, home, capacity }, write_buffer))
    }
}
