//! Answers as text, so that they can be compared, printed, and listed as differences.

use rustix::io::Errno;

/// Longer values are shown by length and checksum.
const SHOWN_BYTES_MAX: usize = 64;

pub trait Describe {
    fn describe(&self) -> String;
}

/// As errno.h names them.
const NAMES: [(Errno, &str); 19] = [
    (Errno::PERM, "EPERM"),
    (Errno::NOENT, "ENOENT"),
    (Errno::IO, "EIO"),
    (Errno::TOOBIG, "E2BIG"),
    (Errno::BADF, "EBADF"),
    (Errno::ACCESS, "EACCES"),
    (Errno::EXIST, "EEXIST"),
    (Errno::NOTDIR, "ENOTDIR"),
    (Errno::ISDIR, "EISDIR"),
    (Errno::INVAL, "EINVAL"),
    (Errno::FBIG, "EFBIG"),
    (Errno::NOSPC, "ENOSPC"),
    (Errno::ROFS, "EROFS"),
    (Errno::RANGE, "ERANGE"),
    (Errno::NAMETOOLONG, "ENAMETOOLONG"),
    (Errno::LOOP, "ELOOP"),
    (Errno::NODATA, "ENODATA"),
    (Errno::OPNOTSUPP, "EOPNOTSUPP"),
    (Errno::NOSYS, "ENOSYS"),
];

impl Describe for Errno {
    fn describe(&self) -> String {
        let named = NAMES.iter().find(|(errno, _)| errno == self);
        named.map_or_else(|| format!("errno {}", self.raw_os_error()), |(_, name)| (*name).to_string())
    }
}

impl<T: Describe> Describe for Result<T, Errno> {
    fn describe(&self) -> String {
        match self {
            Ok(found) => found.describe(),
            Err(errno) => errno.describe(),
        }
    }
}

impl Describe for () {
    fn describe(&self) -> String {
        "ok".to_string()
    }
}

impl Describe for bool {
    fn describe(&self) -> String {
        if *self { "yes" } else { "no" }.to_string()
    }
}

impl Describe for usize {
    fn describe(&self) -> String {
        self.to_string()
    }
}

impl Describe for String {
    fn describe(&self) -> String {
        self.clone()
    }
}

impl Describe for &str {
    fn describe(&self) -> String {
        (*self).to_string()
    }
}

/// In the syntax of setfacl(1), if it can be parsed.
fn describe_acl(value: &[u8]) -> Option<String> {
    let entries = value.strip_prefix(&2_u32.to_le_bytes())?.chunks(8);
    let words = entries.map(|entry| {
        let [tag, 0, may @ 0..8, 0, id @ ..] = <[u8; 8]>::try_from(entry).ok()? else { return None };
        let id = u32::from_le_bytes(id);
        let who = match tag {
            0x01 => "u:".to_string(),
            0x02 => format!("u:{id}"),
            0x04 => "g:".to_string(),
            0x08 => format!("g:{id}"),
            0x10 => "m:".to_string(),
            0x20 => "o:".to_string(),
            _ => return None,
        };
        Some(format!("{who}:{may}"))
    });
    let words: Option<Vec<String>> = words.collect();
    words.filter(|words| (1..20).contains(&words.len())).map(|words| words.join(","))
}

/// The bytes of a value or of a name.
impl Describe for Vec<u8> {
    fn describe(&self) -> String {
        if let Some(acl) = describe_acl(self) {
            return acl;
        }
        if self.len() <= SHOWN_BYTES_MAX {
            return format!("\"{}\"", self.escape_ascii());
        }
        // FNV-1a: distinguishes two values of one length in a message.
        let sum = self.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{} bytes, sum {sum:016x}", self.len())
    }
}

/// A list of names, whose order has no meaning.
impl Describe for Vec<Vec<u8>> {
    fn describe(&self) -> String {
        let mut names: Vec<String> = self.iter().map(|name| name.escape_ascii().to_string()).collect();
        names.sort();
        if names.is_empty() { "(none)".to_string() } else { names.join(" ") }
    }
}

/// Permission bits.
pub struct Bits(pub u32);

impl Describe for Bits {
    fn describe(&self) -> String {
        format!("{:04o}", self.0)
    }
}
