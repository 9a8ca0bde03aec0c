//! Where the data sets of a pool are to be mounted at boot.

use crate::boot_mounts::{BootMount, PoolMounts};
use crate::dataset_name::full_name;
use crate::failure::Outcome;
use crate::open_pool::OpenPool;
use crate::registry::Registry;
use std::path::PathBuf;
use std::sync::Arc;
use terrane_dataset::props::Key;
use terrane_dataset::{Branch, DatasetError};
use terrane_device::Device;

/// Records where the data sets of an open pool belong. An error fails no command.
pub fn record_boot_mounts(open_pool: &OpenPool) {
    let pool = open_pool.pool.name();
    let recorded = Registry::of_this_user().and_then(|registry| {
        // `mount` finds the data sets of other pools by no name.
        let known = registry.pools()?.remove(&pool);
        match known.is_some_and(|known| known == open_pool.path || device_paths(open_pool).contains(&known)) {
            true => registry.record_boot_mounts(&pool, || boot_mounts_of(open_pool)),
            false => Ok(()),
        }
    });
    if let Err(failure) = recorded {
        log::warn!("pool {pool}: mounts at boot not recorded: {failure}");
    }
}

/// Where the data sets of an open pool belong.
pub fn boot_mounts_of(open_pool: &OpenPool) -> Outcome<PoolMounts> {
    let mut devices = device_paths(open_pool);
    // No unit can name such a path, and it would keep the others out of the list.
    devices.retain(|path| path.to_str().is_some());
    let mut mounts = Vec::new();
    add_mounts(&open_pool.pool.name(), &open_pool.datasets.branch("")?, &mut mounts)?;
    Ok(PoolMounts { devices, mounts })
}

/// Where the devices of the pool are. A boot waits for log devices that are disks, which an import after a crash needs. It does not
/// depend on the file system that has the file of one.
fn device_paths(open_pool: &OpenPool) -> Vec<PathBuf> {
    let path = |device: &Arc<dyn Device>| PathBuf::from(&device.info().name);
    let members = open_pool.pool.device_handles();
    let of_log = open_pool.pool.log_device_handles();
    let disks = of_log.iter().map(path).filter(|path| path.starts_with("/dev"));
    members.iter().map(path).chain(disks).collect()
}

/// Adds the data set and those below it. None of them has to be opened for that.
fn add_mounts(pool: &str, branch: &Arc<Branch>, mounts: &mut Vec<BootMount>) -> Result<(), DatasetError> {
    let value = |name| {
        let key = Key::find(name)?;
        branch.effective(&key).map(|found| key.print(&found.value)).transpose()
    };
    let dir = value("mountpoint")?.filter(|dir| dir.starts_with('/'));
    if let Some(dir) = dir
        && value("canmount")?.as_deref() == Some("on")
    {
        mounts.push(BootMount { name: full_name(pool, &branch.path()), dir });
    }
    branch.children().iter().try_for_each(|child| add_mounts(pool, child, mounts))
}
