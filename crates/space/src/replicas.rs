//! Replicas: where the bytes of a logical zone lie.
//!
//! A logical zone is one filling. It lies on one physical zone, or on several with the same content. Only this module knows how many.
//! Readers ask for bytes of the logical zone and get them from any replica; all other code asks about devices. Today each zone has one
//! replica, which takes no memory beside its row.

use std::fmt;
use terrane_format::record::Home;
use terrane_wire::DeviceIdx;

/// The physical zones that hold a filling, at least one, in read order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    only: Home,
}

// There are millions of rows.
const _: () = assert!(size_of::<Replicas>() == size_of::<Home>());

impl Replicas {
    /// A filling with one replica.
    pub fn one(home: Home) -> Replicas {
        Replicas { only: home }
    }

    /// The replica that is read first. Bootstrap blocks and reports name it.
    pub fn first(&self) -> Home {
        self.only
    }

    /// All replicas, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = Home> + use<> {
        std::iter::once(self.only)
    }

    /// The replica on a device.
    pub fn on_device(&self, device: DeviceIdx) -> Option<Home> {
        self.iter().find(|home| home.device == device)
    }
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, home) in self.iter().enumerate() {
            let before = if nth == 0 { "" } else { ", " };
            write!(f, "{before}{home}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_wire::ZoneIdx;

    #[test]
    fn replicas_are_found_by_their_devices() {
        let home = Home { device: DeviceIdx(2), zone: ZoneIdx(7) };
        let replicas = Replicas::one(home);
        assert_eq!((replicas.first(), replicas.iter().collect::<Vec<_>>()), (home, vec![home]));
        assert_eq!((replicas.on_device(DeviceIdx(2)), replicas.on_device(DeviceIdx(0))), (Some(home), None));
        assert_eq!(replicas.to_string(), home.to_string());
    }
}
