//! Words beside directory entries, as calls on an open directory.
//!
//! There are three ioctls, each with one structure that the kernel copies as a whole. The daemon answers them,
//! and [`get`], [`set`] and [`list`] make them. Integers have the byte order of the machine, which is little
//! endian on all machines that Terrane runs on.
#![expect(unsafe_code, reason = "the C library's ioctl has no safe form")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use terrane_posix::EntryWords;
use terrane_wire::{Field, Reader, layout};

/// `_IOWR('T', 0xf2, struct entry_words)`: the words beside a name.
pub const GET_ENTRY_WORDS: u32 = 0xc138_54f2;
/// `_IOW('T', 0xf3, struct entry_words)`: sets the words beside a name; none: removes them.
pub const SET_ENTRY_WORDS: u32 = 0x4138_54f3;
/// `_IOWR('T', 0xf4, struct entry_list)`: names of the directory with their words.
pub const LIST_ENTRY_WORDS: u32 = 0xe000_54f4;

/// Size of the list's structure in bytes.
pub(crate) const LIST_BYTES: usize = 8192;
/// Offset of the first name: "." and ".." have no words.
const LIST_START: u64 = 2;

layout! {
    /// `struct entry_words`
    EntryWordsArg, 312 bytes {
        /// Length of the name in bytes.
        0 name_bytes: u16,
        /// Number of words.
        2 count: u16,
        /// 0
        4 padding: u32,
        /// The words; those behind `count` are 0.
        8 words: [u64; 6],
        /// The name without a NUL; the bytes behind it are 0.
        56 name: [u8; 256],
    }
}

layout! {
    /// One name in `struct entry_list`. The words follow, then the name, and zeros up to a multiple of 8 bytes.
    ListedEntry, 16 bytes {
        /// Offset of the next list.
        0 next: u64,
        /// Length of the name in bytes; 0: the list ends here.
        8 name_bytes: u16,
        /// Number of words.
        10 count: u16,
        /// 0
        12 padding: u32,
    }
}

impl EntryWordsArg {
    /// `None`: the name is too long, or there are too many words.
    pub fn new(name: &[u8], words: &[u64]) -> Option<EntryWordsArg> {
        let name_bytes = u16::try_from(name.len()).ok()?;
        let count = u16::try_from(words.len()).ok()?;
        let mut arg = EntryWordsArg { name_bytes, count, padding: 0, words: [0; 6], name: [0; 256] };
        arg.words.get_mut(..words.len())?.copy_from_slice(words);
        arg.name.get_mut(..name.len())?.copy_from_slice(name);
        Some(arg)
    }

    /// The name. `None`: its length is none of a name.
    pub fn name(&self) -> Option<&[u8]> {
        self.name.get(..usize::from(self.name_bytes))
    }

    /// The words. `None`: there are too many.
    pub fn words(&self) -> Option<&[u64]> {
        self.words.get(..usize::from(self.count))
    }
}

/// A list of names with words, in the bytes of the answer.
pub(crate) struct ListBuilder {
    bytes: Vec<u8>,
}

impl ListBuilder {
    pub fn new() -> Self {
        ListBuilder { bytes: Vec::with_capacity(LIST_BYTES) }
    }

    /// False: it does not fit.
    pub fn push(&mut self, next: u64, name: &[u8], words: &EntryWords) -> bool {
        let (Ok(name_bytes), Ok(count)) = (u16::try_from(name.len()), u16::try_from(words.as_slice().len()))
        else {
            return false;
        };
        let bytes = ListedEntry::SIZE + usize::from(count) * 8 + name.len().next_multiple_of(8);
        if self.bytes.len() + bytes > LIST_BYTES {
            return false;
        }
        let end = self.bytes.len() + bytes;
        self.bytes.extend_from_slice(&ListedEntry { next, name_bytes, count, padding: 0 }.encode());
        words.as_slice().iter().for_each(|word| self.bytes.extend_from_slice(&word.to_le_bytes()));
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(LIST_BYTES, 0);
        self.bytes
    }
}

/// A name with the words beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Offset of the list that goes on behind it.
    pub next: u64,
    /// The name.
    pub name: Vec<u8>,
    /// Its words; empty: none.
    pub words: Vec<u64>,
}

fn parse_list(raw: &[u8]) -> Option<Vec<Listed>> {
    let (mut reader, mut listed) = (Reader::new(raw), Vec::new());
    while reader.remaining() >= ListedEntry::SIZE {
        let entry = ListedEntry::decode(reader.bytes(ListedEntry::SIZE).ok()?)?;
        if entry.name_bytes == 0 {
            break;
        }
        let words = reader.bytes(usize::from(entry.count).checked_mul(8)?).ok()?;
        let words = words.chunks_exact(8).filter_map(u64::get).collect();
        let bytes = usize::from(entry.name_bytes);
        let name = reader.bytes(bytes.next_multiple_of(8)).ok()?.get(..bytes)?.to_vec();
        listed.push(Listed { next: entry.next, name, words });
    }
    Some(listed)
}

/// The words beside a name in an open directory of a mount.
///
/// # Errors
/// `ENODATA`: there are none. `ENOTTY`: it is no directory of Terrane.
pub fn get(dir: impl AsFd, name: &[u8]) -> io::Result<Vec<u64>> {
    let mut raw = EntryWordsArg::new(name, &[]).ok_or_else(invalid)?.encode();
    call(dir, GET_ENTRY_WORDS, &mut raw)?;
    let answer = EntryWordsArg::decode(&raw).ok_or_else(invalid)?;
    Ok(answer.words().ok_or_else(invalid)?.to_vec())
}

/// Sets the words beside a name in an open directory of a mount; none: removes them.
pub fn set(dir: impl AsFd, name: &[u8], words: &[u64]) -> io::Result<()> {
    let mut raw = EntryWordsArg::new(name, words).ok_or_else(invalid)?.encode();
    call(dir, SET_ENTRY_WORDS, &mut raw)
}

/// All names of an open directory of a mount, each with its words, in the order of the directory.
pub fn list(dir: impl AsFd) -> io::Result<Vec<Listed>> {
    let (mut all, mut offset) = (Vec::new(), LIST_START);
    loop {
        let mut raw = [0; LIST_BYTES];
        if let Some(first) = raw.first_chunk_mut() {
            *first = offset.to_le_bytes();
        }
        call(&dir, LIST_ENTRY_WORDS, &mut raw)?;
        let listed = parse_list(&raw).ok_or_else(invalid)?;
        match listed.last() {
            Some(last) if last.next > offset => offset = last.next,
            _ => return Ok(all),
        }
        all.extend(listed);
    }
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidInput.into()
}

/// An ioctl whose number says how many bytes the kernel copies.
fn call<const N: usize>(dir: impl AsFd, number: u32, arg: &mut [u8; N]) -> io::Result<()> {
    assert_eq!((number >> 16 & 0x3fff) as usize, N, "the number says the size");
    // SAFETY: the kernel reads and writes as many bytes as the number says, which `arg` has.
    let done = unsafe { libc::ioctl(dir.as_fd().as_raw_fd(), number.into(), arg.as_mut_ptr()) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_shape_that_the_kernel_copies_by() {
        let number = |direction: u32, number: u32, bytes: usize| {
            direction << 30 | (bytes as u32) << 16 | u32::from(b'T') << 8 | number
        };
        assert_eq!(GET_ENTRY_WORDS, number(3, 0xf2, EntryWordsArg::SIZE));
        assert_eq!(SET_ENTRY_WORDS, number(1, 0xf3, EntryWordsArg::SIZE));
        assert_eq!(LIST_ENTRY_WORDS, number(3, 0xf4, LIST_BYTES));
    }

    #[test]
    fn a_list_is_read_as_it_was_built_and_any_bytes_are_survived() {
        let mut builder = ListBuilder::new();
        let mut expected = Vec::new();
        for count in 0.. {
            let name = vec![b'x'; 1 + count % 255];
            let words: Vec<u64> = (0..count as u64 % 7).collect();
            let next = 3 + count as u64;
            if !builder.push(next, &name, &EntryWords::from_slice(&words).unwrap()) {
                break;
            }
            expected.push(Listed { next, name, words });
        }
        assert!(expected.len() > 50);
        let raw = builder.finish();
        assert_eq!((raw.len(), parse_list(&raw)), (LIST_BYTES, Some(expected)));
        for at in 0..300 {
            let mut raw = raw.clone();
            raw[at] ^= 0xff;
            let _ = parse_list(&raw);
        }
        assert_eq!(parse_list(&[]), Some(Vec::new()));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(
            EntryWordsArg::new(&[b'x'; 257], &[]).is_none() && EntryWordsArg::new(b"x", &[0; 7]).is_none()
        );
        let arg = EntryWordsArg { name_bytes: 257, count: 7, ..EntryWordsArg::new(b"x", &[1]).unwrap() };
        assert_eq!((arg.name(), arg.words()), (None, None));
    }
}
