//! Calls about words beside directory entries.
//!
//! The kernel does not say through which bind mount the directory was opened, nor whether the caller may write
//! to it. So the directory's owner and root may set words, as with write hints. Whoever could open the
//! directory for reading may read them.

use super::{Answer, Dispatch, EINVAL, admin};
use crate::entry_words::{EntryWordsArg, GET_ENTRY_WORDS, LIST_ENTRY_WORDS, ListBuilder, SET_ENTRY_WORDS};
use crate::proto::{Header, IoctlIn, IoctlOut};
use crate::reply::Reply;
use terrane_posix::{Errno, Fs, Ino};

const EPERM: Errno = Errno(libc::EPERM);
const ENOTTY: Errno = Errno(libc::ENOTTY);

impl Dispatch {
    /// # Errors
    /// `ENOTTY`: another call, or no directory. `EINVAL`: the structure is not valid. `EPERM`: neither the
    /// owner nor root. Others are those of [`Fs::set_entry_words`](terrane_posix::Fs::set_entry_words).
    pub(super) fn entry_words(
        &self,
        fs: &Fs,
        caller: &Header,
        dir: Ino,
        args: &IoctlIn,
        data: &[u8],
        reply: &mut Reply,
    ) -> Answer {
        let is_not_dir = |errno| if errno == Errno::ENOTDIR { ENOTTY } else { errno };
        let parse = || EntryWordsArg::decode(data).filter(|arg| arg.padding == 0).ok_or(EINVAL);
        let answer = match args.cmd {
            GET_ENTRY_WORDS => {
                let arg = parse()?;
                let name = arg.name().ok_or(EINVAL)?;
                let words = fs.entry_words(dir, name).map_err(is_not_dir)?;
                EntryWordsArg::new(name, words.as_slice()).ok_or(EINVAL)?.encode().to_vec()
            }
            SET_ENTRY_WORDS => {
                let arg = parse()?;
                let (name, words) = (arg.name().ok_or(EINVAL)?, arg.words().ok_or(EINVAL)?);
                let uid = admin::uid_of(caller);
                if uid != 0 && uid != fs.getattr(dir)?.uid {
                    return Err(EPERM);
                }
                match words {
                    [] => fs.remove_entry_words(dir, name),
                    words => fs.set_entry_words(dir, name, words),
                }
                .map_err(is_not_dir)?;
                // Its times changed, and the answer does not carry them.
                reply.mark_outdated(caller.nodeid);
                Vec::new()
            }
            LIST_ENTRY_WORDS => {
                let offset = data.first_chunk().map(|offset| u64::from_le_bytes(*offset)).ok_or(EINVAL)?;
                let mut list = ListBuilder::new();
                let mut push = |entry: terrane_posix::DirEntry<'_>, words: &_| {
                    let is_dot = entry.name == b"." || entry.name == b"..";
                    is_dot || list.push(entry.next, entry.name, words)
                };
                fs.readdir_words(dir, offset, &mut push).map_err(is_not_dir)?;
                list.finish()
            }
            _ => return Err(ENOTTY),
        };
        if answer.len() > usize::try_from(args.out_size).unwrap_or(usize::MAX) {
            return Err(EINVAL);
        }
        reply.bytes(&IoctlOut { result: 0, flags: 0, in_iovs: 0, out_iovs: 0 }.encode());
        reply.bytes(&answer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::replay::tests::{AGREED, ask_about, served_with};
    use crate::entry_words::LIST_BYTES;
    use crate::proto::Request;
    use terrane_posix::Cred;

    #[test]
    fn words_are_set_shown_and_listed_by_call() {
        let (dispatch, fs) = served_with(&[]);
        let dir = fs.mkdir(fs.root(), b"dir", 0o755, &Cred::default()).unwrap().ino;
        let file = fs.create(dir, b"file", 0o644, &Cred::default()).unwrap().ino;
        let call = |resent, ino, cmd, data: &[u8], out_size| {
            let ioctl = IoctlIn { fh: 0, flags: 0, cmd, arg: 0x1000, in_size: data.len() as u32, out_size };
            ask_about(&dispatch, ino, &AGREED, resent, Request::Ioctl { ioctl, data })
        };
        let arg = |name: &[u8], words: &[u64]| EntryWordsArg::new(name, words).unwrap().encode();
        let answer = |bytes: &[u8]| Ok([&[0; 16][..], bytes].concat());
        let get = |name: &[u8]| call(false, dir, GET_ENTRY_WORDS, &arg(name, &[]), 312);
        let set = |name: &[u8], words: &[u64]| call(false, dir, SET_ENTRY_WORDS, &arg(name, words), 0);
        assert_eq!((get(b"file"), get(b"none")), (Err(Errno::ENODATA), Err(Errno::ENOENT)));
        assert_eq!(set(b"file", &[1, u64::MAX, 3]), answer(&[]));
        assert_eq!(get(b"file"), answer(&arg(b"file", &[1, u64::MAX, 3])));
        assert_eq!(fs.entry_words(dir, b"file").unwrap().as_slice(), [1, u64::MAX, 3]);

        let mut list = ListBuilder::new();
        let mut next = 0;
        fs.readdir(dir, 2, &mut |entry| {
            next = entry.next;
            true
        })
        .unwrap();
        list.push(next, b"file", &fs.entry_words(dir, b"file").unwrap());
        let listed = list.finish();
        for (offset, listed) in [(0, &listed), (2, &listed), (next, &vec![0; LIST_BYTES])] {
            let mut data = vec![0; LIST_BYTES];
            data[..8].copy_from_slice(&offset.to_le_bytes());
            assert_eq!(call(false, dir, LIST_ENTRY_WORDS, &data, LIST_BYTES as u32), answer(listed));
        }

        let mut damaged = arg(b"file", &[1]);
        damaged[4] = 1;
        assert_eq!(call(false, dir, SET_ENTRY_WORDS, &damaged, 0), Err(EINVAL));
        for (at, byte) in [(1, 2), (2, 7), (3, 1)] {
            let mut damaged = arg(b"file", &[1]);
            damaged[at] = byte;
            assert_eq!(call(false, dir, SET_ENTRY_WORDS, &damaged, 0), Err(EINVAL), "byte {at}");
        }
        assert_eq!(call(false, dir, SET_ENTRY_WORDS, &[0; 311], 0), Err(EINVAL));
        assert_eq!(call(false, dir, GET_ENTRY_WORDS, &arg(b"file", &[]), 311), Err(EINVAL));
        assert_eq!(call(false, file, GET_ENTRY_WORDS, &arg(b"file", &[]), 312), Err(ENOTTY));
        assert_eq!(call(false, file, LIST_ENTRY_WORDS, &[0; LIST_BYTES], 8192), Err(ENOTTY));
        assert_eq!(set(b"", &[1]), Err(Errno::ENOENT));
        assert_eq!(set(b"..", &[1]), Err(EINVAL));
        assert_eq!(fs.entry_words(dir, b"file").unwrap().as_slice(), [1, u64::MAX, 3]);

        // A removal that a dead server carried out is answered as done.
        assert_eq!(set(b"file", &[]), answer(&[]));
        assert_eq!(set(b"file", &[]), Err(Errno::ENODATA));
        assert_eq!(call(true, dir, SET_ENTRY_WORDS, &arg(b"file", &[]), 0), answer(&[]));
    }
}
