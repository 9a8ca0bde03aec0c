//! INIT: negotiates which features of both sides are used.
//!
//! The kernel offers features, the server takes those that it wants, and the result holds for the mount's
//! life.

use crate::mount::READ_AHEAD_BYTES;
use crate::proto::{self, Dialect, InitOut, Request, init};
use crate::reply::Reply;
use crate::transport::{Received, Transport, ring};
use std::io;
use terrane_posix::Errno;

/// Data in one WRITE or READ, bytes. 4 MiB was measured to gain nothing over this.
pub const MAX_WRITE: u32 = 1 << 20;
/// The same in pages. Hosts with larger pages allow more than they need, which does no harm.
const MAX_PAGES: u16 = 256;
/// Features that the server would use if the kernel has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedFeatures {
    /// Opens are not sent at all.
    pub stateless_open: bool,
    /// Background requests (prefetch, write-back) that the kernel may have in flight.
    pub max_background: u16,
    /// Requests come through rings.
    pub uring: bool,
    /// Another process changes the files.
    pub follows: bool,
    /// Extended attributes are served at all.
    pub xattrs: bool,
    /// The kernel checks access control lists, and leaves the umask to us.
    pub acls: bool,
    /// Idmapped mounts are allowed. Only where the kernel checks permissions: it ends the session otherwise.
    pub idmaps: bool,
}

/// What was negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The minor version both speak.
    pub minor: u32,
    /// Bits of [`proto::init`] that both use.
    pub flags: u64,
    /// Longest data of one WRITE, bytes.
    pub max_write: u32,
    /// If false, requests for extended attributes are answered with ENOSYS, and the kernel does not ask
    /// again.
    pub xattrs: bool,
    /// How later requests are parsed. It follows from `flags`.
    pub dialect: Dialect,
}

impl Negotiated {
    /// Whether this flag of [`proto::init`] was negotiated.
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// OPEN is answered with ENOSYS, and not sent again.
    pub fn stateless_open(&self) -> bool {
        self.has(init::NO_OPEN_SUPPORT)
    }

    /// The same for OPENDIR.
    pub fn stateless_opendir(&self) -> bool {
        self.has(init::NO_OPENDIR_SUPPORT)
    }

    /// The kernel checks access control lists, which it reads from us.
    pub fn acls(&self) -> bool {
        self.has(init::POSIX_ACL)
    }

    /// New files come with a umask that the server must apply; else the kernel has applied it.
    pub fn umask_is_ours(&self) -> bool {
        self.has(init::DONT_MASK)
    }

    /// Requests come through rings, which die with their process.
    pub fn over_rings(&self) -> bool {
        self.has(init::OVER_IO_URING)
    }

    /// Whether another process can continue this mount.
    pub fn can_be_taken_over(&self) -> bool {
        !self.over_rings()
    }

    /// For a successor that takes the mount over without an INIT of its own.
    pub fn encode(&self) -> [u8; Handover::SIZE] {
        let Negotiated { minor, flags, max_write, xattrs, .. } = *self;
        Handover { flags, minor, max_write, xattrs: u64::from(xattrs) }.encode()
    }

    /// `None` for bytes that [`encode`](Self::encode) never produces.
    pub fn decode(raw: &[u8]) -> Option<Negotiated> {
        let mut whole = [0; Handover::SIZE];
        // Servers without extended attributes did not encode the field, and told the kernel that there are
        // none.
        let is_known_size = [HANDOVER_BYTES_WITHOUT_XATTRS, Handover::SIZE].contains(&raw.len());
        whole.get_mut(..raw.len()).filter(|_| is_known_size)?.copy_from_slice(raw);
        let Handover { flags, minor, max_write, xattrs } = Handover::decode(&whole)?;
        let is_valid = xattrs <= 1
            && (proto::MINOR_MIN..=proto::MINOR).contains(&minor)
            && (1..=MAX_WRITE).contains(&max_write)
            && flags & init::OVER_IO_URING == 0;
        is_valid.then(|| Negotiated { minor, flags, max_write, xattrs: xattrs == 1, dialect: dialect(flags) })
    }

    /// The size of a buffer for requests.
    pub fn buffer_bytes(&self) -> usize {
        usize::try_from(self.max_write)
            .map_or(proto::READ_BUFFER_BYTES_MIN, |bytes| bytes + proto::REQUEST_OVERHEAD_BYTES)
    }
}

terrane_wire::layout! {
    /// The negotiated values, passed between two processes of one machine; never stored.
    Handover, 24 bytes { 0 flags: u64, 8 minor: u32, 12 max_write: u32, 16 xattrs: u64 }
}

/// Its size before it had `xattrs`.
const HANDOVER_BYTES_WITHOUT_XATTRS: usize = 16;

fn dialect(flags: u64) -> Dialect {
    Dialect { setxattr_ext: flags & init::SETXATTR_EXT != 0 }
}

/// Every feature that does not depend on an option.
///
/// Not among them:
/// * locks: the kernel's own are correct for one mount;
/// * AUTO_INVAL_DATA: only a follower's files change behind the kernel's back;
/// * ASYNC_DIO: after an asynchronous O_DIRECT write the kernel does not drop pages that readers fetched
///   meanwhile, so they stay stale;
/// * WRITEBACK_CACHE: the kernel would ignore our sizes, also after a crash that rolled its own back.
const BASE_FEATURES: u64 = init::ASYNC_READ
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::PARALLEL_DIROPS
    | init::ABORT_ERROR
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP
    | init::HAS_RESEND;

const ACLS: u64 = init::POSIX_ACL | init::DONT_MASK;

impl WantedFeatures {
    /// The part of an offer that we take.
    pub fn choose(&self, offered: u64) -> u64 {
        let mut wanted = BASE_FEATURES;
        if self.stateless_open {
            wanted |= init::NO_OPEN_SUPPORT | init::NO_OPENDIR_SUPPORT;
        }
        // ATOMIC_O_TRUNC promises that OPEN truncates. Where OPEN is not sent, the kernel would drop its
        // cached data, believe that the file is empty, and send nothing. Without the promise it sends a
        // SETATTR.
        if !self.stateless_open || offered & init::NO_OPEN_SUPPORT == 0 {
            wanted |= init::ATOMIC_O_TRUNC;
        }
        if self.follows {
            wanted |= init::AUTO_INVAL_DATA;
        }
        if self.uring {
            wanted |= init::OVER_IO_URING;
        }
        // A request that creates nothing then carries no user.
        if self.idmaps {
            wanted |= init::ALLOW_IDMAP;
        }
        // A directory's default ACL takes the umask's place, and only the server knows whether there is one.
        // So both or neither.
        if self.acls && offered & ACLS == ACLS {
            wanted |= ACLS;
        }
        wanted & offered
    }
}

/// Reads INIT and answers it. `None`: the mount went away before it began.
pub(super) fn negotiate(
    transport: &dyn Transport,
    wanted: &WantedFeatures,
) -> io::Result<Option<Negotiated>> {
    let mut wanted = *wanted;
    // Once promised, the kernel sends nothing until all queues are registered: so what can fail is tried
    // first.
    if wanted.uring
        && let Err(reason) = ring::check_available()
    {
        log::warn!("fuse: -o uring refused, using /dev/fuse: {reason}");
        wanted.uring = false;
    }
    let wanted = &wanted;
    let mut buf = vec![0; proto::READ_BUFFER_BYTES_MIN];
    let mut reply = Reply::new();
    loop {
        let Received::Request { len } = transport.receive(&mut buf)? else { return Ok(None) };
        let parsed = Request::parse(buf.get(..len).unwrap_or(&[]), Dialect::default());
        let refusal = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let (header, request) =
            parsed.map_err(|error| refusal(format!("the first request should be INIT: {error}")))?;
        let Request::Init { major, minor, max_readahead, flags } = request else {
            transport.send(reply.seal(header.unique, Err(Errno(libc::EIO))))?;
            return Err(refusal(format!("the first request should be INIT, found {request:?}")));
        };
        let speaks = format!("{major}.{minor}");
        if major < proto::MAJOR || (major == proto::MAJOR && minor < proto::MINOR_MIN) {
            transport.send(reply.seal(header.unique, Err(Errno(libc::EPROTO))))?;
            let least = format!("{}.{}", proto::MAJOR, proto::MINOR_MIN);
            return Err(refusal(format!(
                "the kernel's FUSE version should be at least {least} (Linux 5.4), found {speaks}"
            )));
        }
        let out = if major > proto::MAJOR {
            // The kernel will send INIT again, in our version.
            init_out(proto::MINOR, 0, 0, wanted)
        } else {
            // An upper bound: it must not reduce what a superuser's mount has set already to the kernel's
            // initial value.
            let max_readahead = max_readahead.max(READ_AHEAD_BYTES);
            init_out(minor.min(proto::MINOR), max_readahead, wanted.choose(flags), wanted)
        };
        reply.clear();
        reply.bytes(&out.encode());
        transport.send(reply.seal(header.unique, Ok(())))?;
        if major > proto::MAJOR {
            continue;
        }
        let flags = wanted.choose(flags);
        if wanted.uring && flags & init::OVER_IO_URING == 0 {
            log::warn!("fuse: -o uring refused, using /dev/fuse: not offered by the kernel");
        }
        log::debug!("fuse: negotiated: kernel version {speaks}, flags {flags:#x}");
        return Ok(Some(Negotiated {
            minor: out.minor,
            flags,
            max_write: out.max_write,
            xattrs: wanted.xattrs,
            dialect: dialect(flags),
        }));
    }
}

fn init_out(minor: u32, max_readahead: u32, flags: u64, wanted: &WantedFeatures) -> InitOut {
    let [low, high] = [flags & u64::from(u32::MAX), flags >> 32].map(|half| u32::try_from(half).unwrap_or(0));
    InitOut {
        major: proto::MAJOR,
        minor,
        max_readahead,
        flags: low,
        max_background: wanted.max_background,
        // Beyond three quarters the kernel calls the mount congested and reduces prefetch.
        congestion_threshold: wanted.max_background - wanted.max_background / 4,
        max_write: MAX_WRITE,
        time_gran: 1,
        max_pages: MAX_PAGES,
        map_alignment: 0,
        flags2: high,
        max_stack_depth: 0,
        request_timeout_s: 0,
        unused: [0; 11],
    }
}
