//! Extended attributes.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::types::{Cred, Ino, SetXattr};

impl Fs {
    /// Sets one extended attribute; `name` has its namespace's prefix, `value` up to 64 KiB.
    pub fn setxattr(
        &self,
        ino: Ino,
        _name: &[u8],
        _value: &[u8],
        _how: SetXattr,
        _cred: &Cred,
    ) -> Result<(), Errno> {
        self.hold(ino)?;
        Err(Errno::EOPNOTSUPP)
    }

    /// Appends the value to `out`. `ENODATA`: there is no such attribute.
    pub fn getxattr(&self, ino: Ino, _name: &[u8], _out: &mut Vec<u8>) -> Result<(), Errno> {
        self.hold(ino)?;
        Err(Errno::EOPNOTSUPP)
    }

    /// Appends the names to `out`, each with a NUL. Those of `trusted.` only if `is_admin` says so; it is asked once at most.
    pub fn listxattr(&self, ino: Ino, _is_admin: &dyn Fn() -> bool, _out: &mut Vec<u8>) -> Result<(), Errno> {
        self.hold(ino)?;
        Ok(())
    }

    /// `ENODATA`: there is no such attribute.
    pub fn removexattr(&self, ino: Ino, _name: &[u8]) -> Result<(), Errno> {
        self.hold(ino)?;
        Err(Errno::EOPNOTSUPP)
    }
}
