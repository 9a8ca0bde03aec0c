//! What data sets and snapshots take, for listings.

use super::{Datasets, SpaceUsage};
use crate::error::DatasetError;
use crate::node::zap;
use crate::props::load_creation;
use terrane_object::Account;

/// What a data set takes, in bytes, as of the last commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetUsage {
    /// With snapshots and all data sets below.
    pub used: u64,
    /// All data sets below.
    pub children: u64,
    /// What can still be written to it.
    pub available: u64,
    /// Sums of the head. `None`: it is not counted.
    pub account: Option<Account>,
    /// Its head and its snapshots.
    pub space: SpaceUsage,
}

impl Datasets {
    /// What a data set takes. It is opened for it.
    pub fn usage(&self, path: &str) -> Result<DatasetUsage, DatasetError> {
        let branch = self.branch(path)?;
        let space = self.space(path)?;
        let children = branch.children().iter().map(|child| child.used_bytes()).fold(0, u64::saturating_add);
        let pool = self.objects.mos().usage();
        Ok(DatasetUsage {
            used: space.by_dataset.saturating_add(space.by_snapshots).saturating_add(children),
            children,
            available: branch.limit_usage(pool).available_bytes,
            account: self.objects.account(self.node(path)?.set)?,
            space,
        })
    }

    /// When a data set was created, in seconds since 1970. `None`: not known, as of a root data set.
    pub fn creation(&self, path: &str) -> Result<Option<u64>, DatasetError> {
        load_creation(&zap(self.objects.mos(), self.node(path)?.props)?)
    }
}
