//! The space that data sets and snapshots use, for listings.

use super::{Datasets, SpaceUsage};
use crate::error::DatasetError;
use crate::mos_zap::zap;
use crate::props::load_creation;
use terrane_object::Account;

/// The space that a data set uses, in bytes, as of the last commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetUsage {
    /// With snapshots and all data sets below.
    pub used: u64,
    /// Used by all data sets below, or reserved for them.
    pub children: u64,
    /// Reserved for the head and not used yet.
    pub ref_reservation: u64,
    /// Space that can still be written.
    pub available: u64,
    /// Sums of the head. `None`: it is not counted.
    pub account: Option<Account>,
    /// Its head and its snapshots.
    pub space: SpaceUsage,
}

impl Datasets {
    /// The space that a data set uses. Its object set is opened for that.
    pub fn usage(&self, path: &str) -> Result<DatasetUsage, DatasetError> {
        let space = self.space(path)?;
        let _tree = self.tree.lock();
        let branch = self.branch(path)?;
        let children = branch.children();
        let children = children.iter().map(|child| child.charge(None).bytes).fold(0, u64::saturating_add);
        let ref_reservation = branch.charge(None).head_slack;
        let pool = self.objects.mos().usage();
        Ok(DatasetUsage {
            used: [space.by_dataset, space.by_snapshots, children, ref_reservation]
                .into_iter()
                .fold(0, u64::saturating_add),
            children,
            ref_reservation,
            available: branch.limit_usage(pool).available_bytes,
            account: self.objects.account(self.node(path)?.set)?,
            space,
        })
    }

    /// When a data set was created, in seconds since 1970. `None`: not stored, as for the root data set.
    pub fn creation(&self, path: &str) -> Result<Option<u64>, DatasetError> {
        let _tree = self.tree.lock();
        load_creation(&zap(self.objects.mos(), self.node(path)?.props)?)
    }
}
