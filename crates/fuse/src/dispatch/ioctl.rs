//! Calls on open files that are ours alone: write hints, as `F_GET_RW_HINT` and `F_SET_RW_HINT` have them, which the kernel keeps
//! to itself.
//!
//! The kernel copies as many bytes to and fro as the call's number says, so these have the shape of `_IOR` and `_IOW` with a `u64`. It does
//! not say through which place a file was opened, so one that is read-only does not keep a hint from being set. Nor whether it
//! was opened for writing: as with `F_SET_RW_HINT`, the file's owner may, and root.

use super::{Answer, Dispatch, EINVAL, admin};
use crate::proto::{Header, IoctlIn, IoctlOut};
use crate::reply::{Errno, Reply};
use terrane_posix::{Hint, Ino};

/// `_IOR('T', 0xf0, u64)`: what was said of this file or directory; 0: nothing.
pub const GET_WRITE_HINT: u32 = 0x8008_54f0;
/// `_IOW('T', 0xf1, u64)`: says it.
pub const SET_WRITE_HINT: u32 = 0x4008_54f1;

/// `FITRIM`, `_IOWR('X', 121, struct fstrim_range)`: start, length, and the least length of a piece, in bytes.
const TRIM: u32 = 0xc018_5879;

const ENOTTY: Errno = Errno(libc::ENOTTY);
const EPERM: Errno = Errno(libc::EPERM);

impl Dispatch {
    /// `ENOTTY`: no number of ours. `EINVAL`: no hint has this number. `EPERM`: neither owner nor root.
    pub(super) fn ioctl(
        &self,
        caller: &Header,
        node: Ino,
        call: &IoctlIn,
        data: &[u8],
        reply: &mut Reply,
    ) -> Answer {
        let answer = match call.cmd {
            GET_WRITE_HINT if call.out_size == 8 => Some(self.fs.write_hint(node)? as u64),
            SET_WRITE_HINT => {
                let number = data.try_into().map(u64::from_le_bytes).map_err(|_| EINVAL)?;
                let hint = Hint::from_id(number).ok_or(EINVAL)?;
                let uid = admin::uid_of(caller);
                if uid != 0 && uid != self.fs.getattr(node)?.uid {
                    return Err(EPERM);
                }
                self.fs.set_write_hint(node, hint)?;
                None
            }
            TRIM if !admin::is_admin(caller) => return Err(EPERM),
            TRIM => return self.trim(data, reply),
            _ => return Err(ENOTTY),
        };
        reply.bytes(&IoctlOut { result: 0, flags: 0, in_iovs: 0, out_iovs: 0 }.encode());
        if let Some(number) = answer {
            reply.bytes(&number.to_le_bytes());
        }
        Ok(())
    }
}

impl Dispatch {
    /// For `fstrim`. Space of emptied zones is given back as groups are committed, so nothing is left to be given back: a commit, and no
    /// bytes.
    fn trim(&self, range: &[u8], reply: &mut Reply) -> Answer {
        let [start, _, least] = range.as_chunks::<8>().0 else { return Err(EINVAL) };
        self.fs.sync()?;
        reply.bytes(&IoctlOut { result: 0, flags: 0, in_iovs: 0, out_iovs: 0 }.encode());
        [start, &[0; 8], least].iter().for_each(|word| reply.bytes(*word));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::replay::tests::{AGREED, ask_about, served_with};
    use crate::proto::Request;
    use terrane_posix::Cred;

    #[test]
    fn numbers_have_the_shape_that_the_kernel_copies_by() {
        for (number, call, direction) in [(0xf0, GET_WRITE_HINT, 2), (0xf1, SET_WRITE_HINT, 1)] {
            assert_eq!(call, direction << 30 | 8 << 16 | u32::from(b'T') << 8 | number);
        }
    }

    #[test]
    fn hints_are_set_and_asked_for_by_call() {
        let (dispatch, fs) = served_with(&[]);
        let ino = fs.create(fs.root(), b"file", 0o644, &Cred::default()).unwrap().ino;
        let call = |cmd, data: &[u8], out_size| {
            let in_size = data.len() as u32;
            let ioctl = IoctlIn { fh: 0, flags: 0, cmd, arg: 0x1000, in_size, out_size };
            ask_about(&dispatch, ino, &AGREED, false, Request::Ioctl { ioctl, data })
        };
        let said = |number: u64| [&[0; 16][..], &number.to_le_bytes()].concat();
        assert_eq!(call(GET_WRITE_HINT, &[], 8), Ok(said(0)));
        for hint in Hint::ALL {
            assert_eq!(call(SET_WRITE_HINT, &(hint as u64).to_le_bytes(), 0), Ok(vec![0; 16]));
            assert_eq!(call(GET_WRITE_HINT, &[], 8), Ok(said(hint as u64)));
            assert_eq!(fs.write_hint(ino), Ok(hint));
        }
        for (data, errno) in [(&6u64.to_le_bytes()[..], EINVAL), (&[255; 8], EINVAL), (&[2, 0, 0, 0], EINVAL)]
        {
            assert_eq!(call(SET_WRITE_HINT, data, 0), Err(errno));
        }
        assert_eq!(call(GET_WRITE_HINT, &[], 4), Err(ENOTTY));
        assert_eq!(call(0x5401, &[], 0), Err(ENOTTY), "no terminal");
        let range: Vec<u8> = [5u64, u64::MAX, 4096].iter().flat_map(|word| word.to_le_bytes()).collect();
        let said = [&[0; 16][..], &range[..8], &[0; 8], &range[16..]].concat();
        assert_eq!(call(TRIM, &range, 24), Ok(said), "nothing is left to be given back");
        assert_eq!(call(TRIM, &range[8..], 24), Err(EINVAL));
        assert_eq!(fs.write_hint(ino), Ok(Hint::Extreme), "what was refused changed nothing");
    }
}
