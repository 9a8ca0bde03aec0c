//! What `terrane debug` shows: the structures of the format, as JSON.
//!
//! Everything is read through the same functions that the file system uses, so the output is what the file
//! system sees.

mod anchors;
mod attributes;
mod block;
mod explain;
mod map;
mod objects;
mod space;
mod stat;
mod zaps;
mod zones;

pub use anchors::{newest_uberblock, uberblocks};
pub use block::{BlockRow, Wanted, block};
pub use explain::explain;
pub use map::zone_map;
pub use objects::{dnode, dnodes, tree};
pub use space::space;
pub use stat::{resolve, stat};
pub use zaps::{zap, zap_blocks};
pub use zones::{zone, zones};

use crate::dataset_name::full_name;
use crate::open_pool::OpenPool;
use serde::Serialize;
use terrane_format::Owner;
use terrane_format::features::{Feature, Features};
use terrane_format::label::Label;
use terrane_object::objset::HEADER;
use terrane_store::errors::DamagedBlock;

/// Maximum rows of one answer, so that a huge object does not need a huge answer.
const ROWS_MAX: usize = 100_000;

/// Names of the features that are enabled or active. Those of other versions come last.
pub fn feature_names(label: &Label) -> Vec<String> {
    let Features { incompatible, read_only_compatible, compatible } = &label.features;
    let listed = [incompatible, read_only_compatible, compatible].into_iter().flatten();
    let others = listed.filter(|name| Feature::from_name(name).is_none()).cloned();
    label.features.known().map(|feature| feature.row().name.to_owned()).chain(others).collect()
}

/// A block that cannot be read.
#[derive(Serialize)]
pub struct DamagedRow {
    /// The data set of its file.
    dataset: Option<String>,
    /// The path of its file, if it belongs to one.
    path: Option<String>,
    owner: String,
    reason: String,
}

/// Blocks that could not be read, with the paths of their files.
pub fn damaged(open_pool: &OpenPool, blocks: &[DamagedBlock]) -> Vec<DamagedRow> {
    let row = |damaged: &DamagedBlock| {
        let found = match damaged.owner {
            Owner::Block { objset, object, .. } if object != 0 && object < HEADER => {
                open_pool.fs_of_set(objset).map(|(dataset, fs)| (dataset, fs.path_of(object)))
            }
            _ => None,
        };
        let (dataset, path) = found.unzip();
        let dataset = dataset.map(|path| full_name(&open_pool.pool.name(), &path));
        let owner = terrane_store::reports::owner_text(damaged.owner);
        DamagedRow { dataset, path, owner, reason: damaged.reason.clone() }
    };
    blocks.iter().map(row).collect()
}

fn addr_text(addr: terrane_format::Addr) -> String {
    format!("{}:{:#x}", addr.seq(), addr.offset())
}

/// A place on a device: device:zone:offset.
fn place_text(home: terrane_format::record::Home, offset: u64) -> String {
    format!("{}:{}:{offset:#x}", home.device, home.zone)
}
