//! Extended attributes of one node: a list, because a node has few.

use terrane_fuse::proto::GetxattrOut;
use terrane_fuse::reply::Reply;
use terrane_posix::Errno;

struct Xattr {
    /// With its prefix.
    name: Box<[u8]>,
    value: Box<[u8]>,
}

/// In the order in which they were set.
#[derive(Default)]
pub struct Xattrs(Vec<Xattr>);

impl Xattrs {
    /// `flags` as of setxattr(2).
    pub fn set(&mut self, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        let (create, replace) = (libc::XATTR_CREATE.cast_unsigned(), libc::XATTR_REPLACE.cast_unsigned());
        match self.0.iter_mut().find(|known| *known.name == *name) {
            Some(_) if flags & create != 0 => Err(Errno(libc::EEXIST)),
            None if flags & replace != 0 => Err(Errno(libc::ENODATA)),
            Some(known) => {
                known.value = value.into();
                Ok(())
            }
            None => {
                self.0.push(Xattr { name: name.into(), value: value.into() });
                Ok(())
            }
        }
    }

    pub fn get(&self, name: &[u8]) -> Result<&[u8], Errno> {
        let found = self.0.iter().find(|known| *known.name == *name);
        found.map(|known| &*known.value).ok_or(Errno(libc::ENODATA))
    }

    /// Each name with a NUL after it.
    pub fn names(&self) -> Vec<u8> {
        self.0.iter().flat_map(|known| known.name.iter().copied().chain([0])).collect()
    }

    pub fn remove(&mut self, name: &[u8]) -> Result<(), Errno> {
        let at = self.0.iter().position(|known| *known.name == *name).ok_or(Errno(libc::ENODATA))?;
        self.0.remove(at);
        Ok(())
    }
}

/// Answers with the bytes, or with their number if `size` is 0.
pub fn put(reply: &mut Reply, bytes: &[u8], size: u32) -> Result<(), Errno> {
    match size as usize {
        0 => reply.bytes(&GetxattrOut { size: bytes.len() as u32, padding: 0 }.encode()),
        size if size < bytes.len() => return Err(Errno(libc::ERANGE)),
        _ => reply.bytes(bytes),
    }
    Ok(())
}
