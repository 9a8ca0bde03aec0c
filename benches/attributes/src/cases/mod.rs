//! The cases, in order. Each gets an empty directory of its own.

mod access;
mod acls;
mod homes;
mod inherit;
mod kinds;
mod limits;
mod names;
mod objects;
pub mod privileges;
mod properties;
mod refusals;

use crate::checker::{Checker, Done};
use std::path::Path;

pub struct Case {
    pub name: &'static str,
    pub about: &'static str,
    pub run: fn(&mut Checker, &Path) -> Done,
}

pub const ALL: &[Case] = &[
    Case {
        name: "refusals",
        about: "each error number of set, get, list and remove",
        run: refusals::refusals,
    },
    Case { name: "read-only", about: "nothing changes on a read-only mount", run: refusals::read_only },
    Case { name: "spaces", about: "name spaces and the permissions of each", run: privileges::spaces },
    Case {
        name: "sticky",
        about: "user.* of a sticky directory: only for its owner",
        run: privileges::sticky,
    },
    Case { name: "kinds", about: "directories, symbolic links, fifos, sockets, devices", run: kinds::kinds },
    Case { name: "values", about: "values of every length, also after a new mount", run: limits::values },
    Case { name: "long-names", about: "names up to 255 bytes", run: limits::long_names },
    Case { name: "many", about: "a thousand names, set and removed", run: limits::many },
    Case { name: "full-list", about: "a list of exactly 64 KiB", run: limits::full_list },
    Case { name: "names", about: "names are bytes, in no order", run: names::names },
    Case { name: "homes", about: "values that grow and shrink keep their neighbours", run: homes::homes },
    Case { name: "large-beside", about: "many large values in one file", run: homes::large_beside },
    Case { name: "objects", about: "hard links, rename, open files without a name", run: objects::objects },
    Case { name: "times", about: "a change of attributes is a change of the inode", run: objects::times },
    Case { name: "together", about: "several threads change one file", run: objects::concurrent },
    Case { name: "acls", about: "ACLs set, read, refused and removed", run: acls::acls },
    Case { name: "acl-mode", about: "ACL and mode stay consistent", run: acls::mode },
    Case {
        name: "acl-setgid",
        about: "setgid is cleared when a user outside the group sets an ACL",
        run: acls::setgid,
    },
    Case {
        name: "inherit",
        about: "default ACLs set access ACLs and override the umask",
        run: inherit::inherit,
    },
    Case { name: "umask", about: "without a default ACL the umask applies", run: inherit::umask_matters },
    Case { name: "access", about: "access is decided by the ACL", run: access::access },
    Case {
        name: "capability",
        about: "file capabilities persist, and a write clears them",
        run: privileges::capability,
    },
    Case {
        name: "properties",
        about: "xattr= and acltype= changed between operations",
        run: properties::properties,
    },
];
