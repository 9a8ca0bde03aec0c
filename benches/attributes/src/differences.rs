//! Where known file systems differ, each with its reason.

/// An assertion whose answer always differs.
pub struct Difference {
    pub assertion: &'static str,
    pub found: &'static str,
    pub why: &'static str,
}

/// Made with `-b 4096 -I 256 -O ea_inode`: without the feature no value could be longer than a block.
const EXT4: &[Difference] = &[
    Difference { assertion: "many/set", found: "ENOSPC", why: ONE_BLOCK },
    Difference { assertion: "many/so many", found: "103", why: ONE_BLOCK },
    Difference { assertion: "full-list/so many fit", found: "14", why: ONE_BLOCK },
    Difference { assertion: "full-list/a small one neither", found: "ok", why: SMALL_FITS },
    Difference { assertion: "full-list/the whole list, remounted", found: "no", why: SMALL_FITS },
    Difference { assertion: "homes/60 names, one after the other", found: "ENOSPC", why: ONE_BLOCK },
];

const ONE_BLOCK: &str = "all names of a file are in its inode and one block of 4 KiB";
const SMALL_FITS: &str = "what is left of the block is too short for a name of 255 bytes only";

const TERRANE: &[Difference] = &[
    Difference { assertion: "acls/508 users: set", found: "E2BIG", why: ONE_PAGE },
    Difference { assertion: "acls/2000 users: set", found: "E2BIG", why: ONE_PAGE },
];

const ONE_PAGE: &str = "through FUSE the kernel passes ACLs of at most a page: 511 entries";

/// The differences of the file system of this name.
pub fn of(name: &str) -> Result<&'static [Difference], String> {
    match name {
        "ext4" => Ok(EXT4),
        "terrane" => Ok(TERRANE),
        _ => Err(format!("{name}: unknown file system; known are ext4 and terrane")),
    }
}
