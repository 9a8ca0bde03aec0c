//! Which names a data set accepts, and which of them are equal.
//!
//! Three properties decide: `utf8only`, `normalization` and `casesensitivity`. A directory places each name by
//! its hash, which depends on them. So they are fixed when a data set is created. They are entries of the
//! master ZAP, as in OpenZFS. Only values other than the default are written, so the default needs no feature.

use terrane_zap::{Match, NormFlags};

pub(crate) const UTF8_ONLY: &str = "utf8only";
pub(crate) const NORMALIZATION: &str = "normalization";
pub(crate) const CASE: &str = "casesensitivity";

/// Values of `normalization`: OpenZFS's numbers, which are also a ZAP's flags.
pub(crate) const FORM_WORDS: [(&str, u64); 5] =
    [("none", 0), ("formC", 0x50), ("formD", 0x10), ("formKC", 0x60), ("formKD", 0x20)];
const SENSITIVE: u64 = 0;
const INSENSITIVE: u64 = 1;
const MIXED: u64 = 2;
/// Values of `casesensitivity`.
pub(crate) const CASE_WORDS: [(&str, u64); 3] =
    [("sensitive", SENSITIVE), ("insensitive", INSENSITIVE), ("mixed", MIXED)];

/// Naming rules of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    utf8_only: bool,
    norm: NormFlags,
    matching: Match,
}

impl Naming {
    /// Names are bytes.
    pub const BYTES: Naming = Naming { utf8_only: false, norm: NormFlags::NONE, matching: Match::Exact };

    /// From the numbers of the three properties. `None`: `normalization` has no such value.
    pub(crate) fn from_numbers(utf8_only: u64, form: u64, case: u64) -> Option<Naming> {
        let form = NormFlags::parse(form).ok()?;
        let utf8_only = utf8_only != 0 || form.needs_utf8();
        let norm = if case == SENSITIVE { form } else { form.ignoring_case() };
        let matching = match case {
            // Case would be ignored per request, and the kernel never requests it.
            MIXED => Match::SameCase,
            _ if norm.is_none() => Match::Exact,
            _ => Match::Normalized,
        };
        Some(Naming { utf8_only, norm, matching })
    }

    /// Normalization of names before directories hash them.
    pub fn norm(&self) -> NormFlags {
        self.norm
    }

    /// How a given name is matched with stored ones.
    pub fn matching(&self) -> Match {
        self.matching
    }

    /// Whether two different byte strings are always different names.
    pub fn is_exact(&self) -> bool {
        self.match_norm().is_none()
    }

    /// Whether such a name may be created.
    pub fn accepts(&self, name: &[u8]) -> bool {
        !self.utf8_only || std::str::from_utf8(name).is_ok()
    }

    /// Whether no other spelling means this name: a cache entry for it stays valid until this name changes.
    /// False in doubt.
    pub fn has_one_spelling(&self, name: &[u8]) -> bool {
        self.match_norm().has_one_spelling(name)
    }

    /// Normalization that applies when two names are compared.
    fn match_norm(&self) -> NormFlags {
        match self.matching {
            Match::Exact => NormFlags::NONE,
            Match::SameCase => self.norm.keeping_case(),
            Match::Normalized => self.norm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_rules() {
        assert_eq!(Naming::from_numbers(0, 0, SENSITIVE).unwrap(), Naming::BYTES);
        let insensitive = Naming::from_numbers(0, 0, INSENSITIVE).unwrap();
        assert_eq!((insensitive.norm(), insensitive.matching()), (NormFlags::TO_UPPER, Match::Normalized));
        assert!(
            insensitive.accepts(b"\xff") && !insensitive.is_exact() && !insensitive.has_one_spelling(b"a")
        );
        // Names that differ in case are different names, but have equal hashes for callers that will ignore
        // case.
        let mixed = Naming::from_numbers(0, 0, MIXED).unwrap();
        assert!(mixed.is_exact() && mixed.has_one_spelling(b"a") && mixed.norm() == NormFlags::TO_UPPER);
        let form = Naming::from_numbers(0, 0x50, SENSITIVE).unwrap();
        assert!(!form.accepts(b"\xff") && !form.is_exact() && form.has_one_spelling(b"a"));
        let all = Naming::from_numbers(1, 0x20, MIXED).unwrap();
        assert_eq!((all.norm(), all.matching()), (NormFlags::NFKD.ignoring_case(), Match::SameCase));
        assert!(!all.is_exact());
        assert!(Naming::from_numbers(0, 0x30, SENSITIVE).is_none());
        let utf8 = Naming::from_numbers(1, 0, SENSITIVE).unwrap();
        assert!(utf8.is_exact() && !utf8.accepts(b"\xff") && utf8.accepts("\u{ff}".as_bytes()));
    }
}
