//! Ioctls on open files. Ours are write hints, as in `F_GET_RW_HINT` and `F_SET_RW_HINT`, which the kernel
//! does not pass on.
//!
//! The kernel copies as many bytes in and out as the ioctl number says, so these have the shape of `_IOR` and
//! `_IOW` with a `u64`. It does not say through which bind mount a file was opened, so a read-only one does
//! not prevent setting a hint. Nor does it say whether the file was opened for writing. As with
//! `F_SET_RW_HINT`, the owner and root may set it.

use super::{Answer, Dispatch, EINVAL, admin};
use crate::proto::{Header, IoctlIn, IoctlOut};
use crate::reply::Reply;
use crate::session::Negotiated;
use terrane_posix::{Errno, Fs, Ino, InodeFlags};
use terrane_space::policy::Hint;

/// `_IOR('T', 0xf0, u64)`: the write hint of this file or directory; 0: not set.
pub const GET_WRITE_HINT: u32 = 0x8008_54f0;
/// `_IOW('T', 0xf1, u64)`: sets the write hint.
pub const SET_WRITE_HINT: u32 = 0x4008_54f1;

/// `FITRIM`, `_IOWR('X', 121, struct fstrim_range)`: start, length, and the minimum extent length, in bytes.
const TRIM: u32 = 0xc018_5879;

/// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS`: 32 bits, although the ioctl numbers encode 64.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`: `struct fsxattr`, 28 bytes, flags first.
const GET_XFLAGS: u32 = 0x801c_581f;
const SET_XFLAGS: u32 = 0x401c_5820;
/// From this minor version on (Linux 5.14) the kernel itself checks who may set flags, and which.
const MINOR_KERNEL_CHECKS_FLAGS: u32 = 34;

/// The bit of each flag in one of the two calls.
struct FlagBits {
    immutable: u32,
    append_only: u32,
    no_dump: u32,
    no_access_time: u32,
    project_inherit: u32,
}

/// `FS_IMMUTABLE_FL` and the like.
const FLAGS: FlagBits = FlagBits {
    immutable: 0x10,
    append_only: 0x20,
    no_dump: 0x40,
    no_access_time: 0x80,
    project_inherit: 0x2000_0000,
};
/// `FS_XFLAG_IMMUTABLE` and the like.
const XFLAGS: FlagBits = FlagBits {
    immutable: 0x08,
    append_only: 0x10,
    no_dump: 0x80,
    no_access_time: 0x40,
    project_inherit: 0x200,
};

/// `struct fsxattr`: what is set beside flags and project, and not supported, must be 0.
struct ExtendedFlags {
    bits: u32,
    project: u32,
}

impl ExtendedFlags {
    /// Extent size hints are not supported.
    fn parse(raw: &[u8]) -> Result<ExtendedFlags, Errno> {
        let ([bits, extent_size, _extents, project, others @ ..], []) = raw.as_chunks::<4>() else {
            return Err(EINVAL);
        };
        if u32::from_le_bytes(*extent_size) != 0 || others.iter().any(|word| *word != [0; 4]) {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(ExtendedFlags { bits: u32::from_le_bytes(*bits), project: u32::from_le_bytes(*project) })
    }

    fn encode(&self) -> Vec<u8> {
        [self.bits, 0, 0, self.project].iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

impl FlagBits {
    fn bits_of(&self, flags: InodeFlags) -> u32 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        bit(flags.immutable, self.immutable)
            | bit(flags.append_only, self.append_only)
            | bit(flags.no_dump, self.no_dump)
            | bit(flags.no_access_time, self.no_access_time)
            | bit(flags.project_inherit, self.project_inherit)
    }

    /// Decodes flags. `EOPNOTSUPP` for a flag that we do not implement: storing it would promise its effect.
    fn flags_of(&self, bits: u32) -> Result<InodeFlags, Errno> {
        let has = |bit| bits & bit != 0;
        let flags = InodeFlags {
            immutable: has(self.immutable),
            append_only: has(self.append_only),
            no_dump: has(self.no_dump),
            no_access_time: has(self.no_access_time),
            project_inherit: has(self.project_inherit),
        };
        if self.bits_of(flags) == bits { Ok(flags) } else { Err(Errno::EOPNOTSUPP) }
    }
}

const ENOTTY: Errno = Errno(libc::ENOTTY);
const EPERM: Errno = Errno(libc::EPERM);

impl Dispatch {
    /// # Errors
    /// `ENOTTY`: not one of our ioctls. `EINVAL`: no write hint has this number. `EPERM`: neither the owner
    /// nor root.
    pub(super) fn ioctl(
        &self,
        fs: &Fs,
        negotiated: &Negotiated,
        caller: &Header,
        node: Ino,
        (args, data): (&IoctlIn, &[u8]),
        reply: &mut Reply,
    ) -> Answer {
        let answer = match args.cmd {
            GET_WRITE_HINT if args.out_size == 8 => Some(fs.write_hint(node)? as u64),
            SET_WRITE_HINT => {
                let number = data.try_into().map(u64::from_le_bytes).map_err(|_| EINVAL)?;
                let hint = Hint::from_id(number).ok_or(EINVAL)?;
                let uid = admin::uid_of(caller);
                if uid != 0 && uid != fs.getattr(node)?.uid {
                    return Err(EPERM);
                }
                fs.set_write_hint(node, hint)?;
                None
            }
            GET_FLAGS => return self.show_flags(fs, node, args, reply),
            SET_FLAGS => {
                let bits = data.first_chunk().map(|bits| u32::from_le_bytes(*bits)).ok_or(EINVAL)?;
                self.set_flags(fs, negotiated, node, FLAGS.flags_of(bits)?)?;
                None
            }
            GET_XFLAGS => return self.show_xflags(fs, node, args, reply),
            SET_XFLAGS => {
                let ExtendedFlags { bits, project } = ExtendedFlags::parse(data)?;
                let flags = XFLAGS.flags_of(bits)?;
                check_kernel_checks_flags(negotiated)?;
                fs.set_flags_and_project(node, flags, project)?;
                None
            }
            TRIM if !admin::is_admin(caller) => return Err(EPERM),
            TRIM => return self.trim(fs, data, reply),
            _ => return self.entry_words(fs, caller, node, args, data, reply),
        };
        reply.bytes(&IoctlOut { result: 0, flags: 0, in_iovs: 0, out_iovs: 0 }.encode());
        if let Some(number) = answer {
            reply.bytes(&number.to_le_bytes());
        }
        Ok(())
    }
}

impl Dispatch {
    fn show_flags(&self, fs: &Fs, node: Ino, args: &IoctlIn, reply: &mut Reply) -> Answer {
        let bits = FLAGS.bits_of(fs.inode_flags(node)?);
        put_result(reply, &bits.to_le_bytes(), args)
    }

    fn show_xflags(&self, fs: &Fs, node: Ino, args: &IoctlIn, reply: &mut Reply) -> Answer {
        let bits = XFLAGS.bits_of(fs.inode_flags(node)?);
        let project = fs.project(node)?;
        put_result(reply, &ExtendedFlags { bits, project }.encode(), args)
    }

    fn set_flags(&self, fs: &Fs, negotiated: &Negotiated, node: Ino, flags: InodeFlags) -> Answer {
        check_kernel_checks_flags(negotiated)?;
        fs.set_inode_flags(node, flags)
    }

    /// For `fstrim`. Emptied zones are reset as txgs commit, so there is nothing left to discard: commits,
    /// and reports 0 bytes.
    fn trim(&self, fs: &Fs, range: &[u8], reply: &mut Reply) -> Answer {
        let [start, _, least] = range.as_chunks::<8>().0 else { return Err(EINVAL) };
        fs.sync()?;
        reply.bytes(&IoctlOut { result: 0, flags: 0, in_iovs: 0, out_iovs: 0 }.encode());
        [start, &[0; 8], least].iter().for_each(|word| reply.bytes(*word));
        Ok(())
    }
}

fn check_kernel_checks_flags(negotiated: &Negotiated) -> Answer {
    if negotiated.minor < MINOR_KERNEL_CHECKS_FLAGS { Err(ENOTTY) } else { Ok(()) }
}

/// Puts as many bytes as the call takes: `value`, then zeros.
fn put_result(reply: &mut Reply, value: &[u8], args: &IoctlIn) -> Answer {
    let len = usize::try_from(args.out_size).map_err(|_| EINVAL)?;
    if !(value.len()..=64).contains(&len) {
        return Err(EINVAL);
    }
    reply.bytes(&IoctlOut { result: 0, flags: 0, in_iovs: 0, out_iovs: 0 }.encode());
    reply.bytes(value);
    reply.bytes(&vec![0; len - value.len()]);
    Ok(())
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
    fn flags_are_set_and_shown_by_both_calls() {
        let (dispatch, fs) = served_with(&[]);
        let ino = fs.create(fs.root(), b"file", 0o644, &Cred::default()).unwrap().ino;
        let call = |agreed: &Negotiated, cmd, data: &[u8], out_size| {
            let in_size = data.len() as u32;
            let ioctl = IoctlIn { fh: 0, flags: 0, cmd, arg: 0x1000, in_size, out_size };
            ask_about(&dispatch, ino, agreed, false, Request::Ioctl { ioctl, data })
        };
        let fsx = |bits: u32| [&bits.to_le_bytes()[..], &[0; 24]].concat();
        let answer = |bytes: &[u8]| Ok([&[0; 16][..], bytes].concat());
        assert_eq!(call(&AGREED, GET_FLAGS, &[], 4), answer(&[0; 4]));
        assert_eq!(call(&AGREED, SET_FLAGS, &0xf0u32.to_le_bytes(), 0), answer(&[]));
        assert_eq!(call(&AGREED, GET_FLAGS, &[], 4), answer(&0xf0u32.to_le_bytes()));
        assert_eq!(call(&AGREED, GET_FLAGS, &[], 8), answer(&0xf0u64.to_le_bytes()));
        assert_eq!(call(&AGREED, GET_XFLAGS, &[], 28), answer(&fsx(0xd8)));
        let flags = InodeFlags { append_only: true, ..InodeFlags::default() };
        assert_eq!(call(&AGREED, SET_XFLAGS, &fsx(0x10), 0), answer(&[]));
        assert_eq!(fs.inode_flags(ino), Ok(flags));
        let mut hint = fsx(0);
        hint[4] = 1;
        for (cmd, data) in [(SET_FLAGS, vec![8, 0, 0, 0]), (SET_XFLAGS, fsx(0x20)), (SET_XFLAGS, hint)] {
            assert_eq!(
                call(&AGREED, cmd, &data, 0),
                Err(Errno::EOPNOTSUPP),
                "what is not obeyed is not taken"
            );
        }
        let mut project = fsx(0x210);
        project[12] = 7;
        assert_eq!(call(&AGREED, SET_XFLAGS, &project, 0), answer(&[]));
        project[..4].copy_from_slice(&0x10u32.to_le_bytes());
        assert_eq!(call(&AGREED, GET_XFLAGS, &[], 28), answer(&project), "only directories pass it on");
        assert_eq!(call(&AGREED, SET_FLAGS, &0x20u32.to_le_bytes(), 0), answer(&[]));
        assert_eq!(fs.project(ino), Ok(7), "flags alone leave the project");
        assert_eq!(call(&AGREED, SET_FLAGS, &[1, 2], 0), Err(EINVAL));
        assert_eq!(call(&AGREED, SET_XFLAGS, &project[..27], 0), Err(EINVAL));
        assert_eq!(call(&AGREED, GET_FLAGS, &[], 2), Err(EINVAL));
        // A kernel that has not checked who may set flags.
        let old = Negotiated { minor: MINOR_KERNEL_CHECKS_FLAGS - 1, ..AGREED };
        assert_eq!(call(&old, SET_FLAGS, &[0; 4], 0), Err(ENOTTY));
        assert_eq!(fs.inode_flags(ino), Ok(flags));
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
        let answer = |number: u64| [&[0; 16][..], &number.to_le_bytes()].concat();
        assert_eq!(call(GET_WRITE_HINT, &[], 8), Ok(answer(0)));
        for hint in Hint::ALL {
            assert_eq!(call(SET_WRITE_HINT, &(hint as u64).to_le_bytes(), 0), Ok(vec![0; 16]));
            assert_eq!(call(GET_WRITE_HINT, &[], 8), Ok(answer(hint as u64)));
            assert_eq!(fs.write_hint(ino), Ok(hint));
        }
        for (data, errno) in [(&6u64.to_le_bytes()[..], EINVAL), (&[255; 8], EINVAL), (&[2, 0, 0, 0], EINVAL)]
        {
            assert_eq!(call(SET_WRITE_HINT, data, 0), Err(errno));
        }
        assert_eq!(call(GET_WRITE_HINT, &[], 4), Err(ENOTTY));
        assert_eq!(call(0x5401, &[], 0), Err(ENOTTY), "no terminal");
        let range: Vec<u8> = [5u64, u64::MAX, 4096].iter().flat_map(|word| word.to_le_bytes()).collect();
        let answer = [&[0; 16][..], &range[..8], &[0; 8], &range[16..]].concat();
        assert_eq!(call(TRIM, &range, 24), Ok(answer), "nothing is left to be given back");
        assert_eq!(call(TRIM, &range[8..], 24), Err(EINVAL));
        assert_eq!(fs.write_hint(ino), Ok(Hint::Extreme), "what was refused changed nothing");
    }
}
