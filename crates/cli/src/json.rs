//! JSON forms of other crates' types. A path is bytes, and JSON text is not: so it is a list of numbers.

/// For `#[serde(with = "json::path")]`.
pub mod path {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Ok(OsString::from_vec(Vec::deserialize(from)?).into())
    }
}

/// For `#[serde(with = "json::identities")]`: pairs of device and inode.
pub mod identities {
    use serde::{Deserialize, Deserializer, Serializer};
    use terrane_device::Identity;

    pub fn serialize<S: Serializer>(devices: &[Identity], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(devices.iter().map(|it| [it.device, it.inode]))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Identity>, D::Error> {
        let pairs: Vec<[u64; 2]> = Vec::deserialize(from)?;
        Ok(pairs.into_iter().map(|[device, inode]| Identity { device, inode }).collect())
    }
}
