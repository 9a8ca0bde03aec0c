//! Linux error numbers, and the only place where our errors become them.
//!
//! Callers see a number only. The reason behind an `EIO` is logged here, because this is the last place that
//! knows it.

use std::fmt;
use terrane_dataset::ZapError;
use terrane_object::ObjectError;
use terrane_sa::SaError;
use terrane_store::PoolError;
use terrane_wire::Corrupt;

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $number:literal),* $(,)?) => {
        impl Errno {
            $(
                /// The error number that Linux gives this name.
                pub const $name: Errno = Errno($number);
            )*

            /// The symbolic name, like `ENOENT`; `None` for a number that this crate never returns.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Errno::$name => Some(stringify!($name)),)*
                    Errno(_) => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, ENOENT = 2, EIO = 5, ENXIO = 6, E2BIG = 7, ENOMEM = 12, EACCES = 13, EBUSY = 16, EEXIST = 17, ENOTDIR = 20, EISDIR = 21,
    EXDEV = 18, EINVAL = 22, ENOTTY = 25, EFBIG = 27, ENOSPC = 28, EROFS = 30, EMLINK = 31, ERANGE = 34, ENAMETOOLONG = 36, ENOTEMPTY = 39, ELOOP = 40,
    ENODATA = 61, EOVERFLOW = 75, EILSEQ = 84, EOPNOTSUPP = 95, ESTALE = 116, EDQUOT = 122,
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errno {}

impl From<ObjectError> for Errno {
    fn from(error: ObjectError) -> Self {
        match &error {
            ObjectError::NotFound(_) => Errno::ESTALE,
            ObjectError::TooBig { .. } => Errno::EFBIG,
            ObjectError::Invalid { .. } => Errno::EINVAL,
            // Only a replay asks for a number.
            ObjectError::NumberTaken(_) => Errno::EBUSY,
            ObjectError::ReadOnly => Errno::EROFS,
            ObjectError::Quota { .. } => Errno::EDQUOT,
            ObjectError::Pool(pool) => match pool {
                PoolError::NoSpace { .. } => Errno::ENOSPC,
                PoolError::ReadOnly => Errno::EROFS,
                PoolError::Device(device) if device.is_stale() => {
                    log::warn!("ESTALE: {error}");
                    Errno::ESTALE
                }
                PoolError::Corrupt(_)
                | PoolError::Device(_)
                | PoolError::Failed { .. }
                | PoolError::Refused { .. } => log_eio(&error),
            },
        }
    }
}

impl From<ZapError> for Errno {
    fn from(error: ZapError) -> Self {
        match error {
            ZapError::Store(error) => Errno::from(error),
            ZapError::Exists => Errno::EEXIST,
            ZapError::NameTooLong { .. } => Errno::ENAMETOOLONG,
            ZapError::NameInvalid => Errno::EINVAL,
            ZapError::NameNotUtf8 => Errno::EILSEQ,
            ZapError::Full => Errno::ENOSPC,
            ZapError::KeyKind { .. }
            | ZapError::ValueTooLong { .. }
            | ZapError::EntryTooLarge { .. }
            | ZapError::NoInteger
            | ZapError::Unsupported { .. }
            | ZapError::Refused { .. } => log_eio(error),
        }
    }
}

impl From<Corrupt> for Errno {
    fn from(error: Corrupt) -> Self {
        log_eio(error)
    }
}

impl From<SaError> for Errno {
    fn from(error: SaError) -> Self {
        match error {
            SaError::TooLarge { .. } => Errno::EFBIG,
            SaError::TooManyLayouts => Errno::ENOSPC,
            SaError::Unregistered(_)
            | SaError::Duplicate(_)
            | SaError::LayoutMismatch { .. }
            | SaError::Length { .. }
            | SaError::DefinitionMismatch(_)
            | SaError::TooManyAttributes => log_eio(error),
        }
    }
}

/// Logs the reason, and returns `EIO`.
pub(crate) fn log_eio(reason: impl fmt::Display) -> Errno {
    log::error!("EIO: {reason}");
    Errno::EIO
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use terrane_device::DeviceError;

    #[test]
    fn numbers_are_printed_by_name() {
        assert_eq!(
            format!("{} {:?} {}", Errno::ENOENT, Errno::EEXIST, Errno(999)),
            "ENOENT EEXIST errno 999"
        );
    }

    #[test]
    fn a_state_that_is_gone_is_no_read_error() {
        let of = |kind: std::io::ErrorKind| {
            let error = DeviceError::Io { zone: None, offset: 0, op: "read", source: kind.into() };
            Errno::from(ObjectError::Pool(PoolError::Device(Arc::new(error))))
        };
        assert_eq!(of(std::io::ErrorKind::StaleNetworkFileHandle), Errno::ESTALE);
        assert_eq!(of(std::io::ErrorKind::Other), Errno::EIO);
    }

    #[test]
    fn a_full_pool_is_no_damage() {
        let full = ObjectError::Pool(PoolError::NoSpace { need: 2, free: 1 });
        assert_eq!(Errno::from(ZapError::Store(full)), Errno::ENOSPC);
        assert_eq!(Errno::from(ObjectError::Pool(PoolError::ReadOnly)), Errno::EROFS);
        assert_eq!(Errno::from(Corrupt::new("here", "this", 1, 2)), Errno::EIO);
    }
}
