//! Normalization: names that mean the same although their bytes differ.
//!
//! A ZAP may compare names by a *normalized* form: one of Unicode's four, upper case, or both. This affects only hash
//! and comparison; names are stored and listed as they were given. Entries whose names have one normalized form have
//! one hash. So they are adjacent, and their differentiators tell them apart.
//!
//! The hash is on disk, so its tables are part of the format: Unicode 17.0.0, whatever later versions say. A test
//! pins every character.
//!
//! With upper case and a form, a name is decomposed before its case is changed. The other order would separate names
//! that Unicode treats as equal: U+01F0 (j with caron) has no upper case, but j followed by the caron has.
//!
//! Invariants: a normalized name normalizes to itself; names of ASCII letters are never decoded.

mod upper;

use crate::error::Error;
use crate::hash::Flags;
use crate::key::KeyRef;
use std::borrow::Cow;
use terrane_wire::Corrupt;
use unicode_normalization::UnicodeNormalization;

/// How names of a ZAP are normalized, as its header stores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NormFlags(u64);

/// Which stored names a given name means in a normalized ZAP. In any other ZAP all variants mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// The name of the same bytes.
    Exact,
    /// A name of the same form, in which case counts.
    SameCase,
    /// A name of the same normalized form. If case is ignored, there may be several; the lowest differentiator wins.
    Normalized,
}

/// One of Unicode's normalization forms.
#[derive(Clone, Copy)]
enum Form {
    D,
    C,
    Kd,
    Kc,
}

impl NormFlags {
    /// Names are compared by bytes.
    pub const NONE: NormFlags = NormFlags(0);
    /// Characters in upper case, one for one, so case is ignored.
    pub const TO_UPPER: NormFlags = NormFlags(0x2);
    /// Canonical decomposition.
    pub const NFD: NormFlags = NormFlags(0x10);
    /// Compatibility decomposition.
    pub const NFKD: NormFlags = NormFlags(0x20);
    /// Canonical decomposition, then composition.
    pub const NFC: NormFlags = NormFlags(0x50);
    /// Compatibility decomposition, then composition.
    pub const NFKC: NormFlags = NormFlags(0x60);

    const FORMS: u64 = 0x70;

    /// The same flags, with case ignored.
    pub const fn ignoring_case(self) -> NormFlags {
        NormFlags(self.0 | Self::TO_UPPER.0)
    }

    /// The same flags, with case significant.
    pub const fn keeping_case(self) -> NormFlags {
        NormFlags(self.0 & !Self::TO_UPPER.0)
    }

    /// Whether names are compared byte for byte.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether names are put into upper case before they are hashed and compared.
    pub const fn ignores_case(self) -> bool {
        self.0 & Self::TO_UPPER.0 != 0
    }

    /// The word of the header: 0x2 for upper case, and the form in the bits of 0x70.
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// Refuses unknown flags, and two forms at once.
    pub fn parse(raw: u64) -> Result<NormFlags, Error<Corrupt>> {
        let flags = NormFlags(raw);
        if raw & !(Self::FORMS | Self::TO_UPPER.0) != 0 {
            return Err(Error::Unsupported {
                what: "a ZAP with unknown normalization flags",
                found: format!("{raw:#x}"),
            });
        }
        if raw & Self::FORMS != 0 && flags.form().is_none() {
            let found = format!("{:#x}", raw & Self::FORMS);
            return Err(
                Corrupt::new("block 0", "normalization form", "0x10, 0x20, 0x50 or 0x60", found).into()
            );
        }
        Ok(flags)
    }

    fn form(self) -> Option<Form> {
        match NormFlags(self.0 & Self::FORMS) {
            Self::NFD => Some(Form::D),
            Self::NFKD => Some(Form::Kd),
            Self::NFC => Some(Form::C),
            Self::NFKC => Some(Form::Kc),
            _ => None,
        }
    }

    /// Whether names must be UTF-8.
    pub fn needs_utf8(self) -> bool {
        self.form().is_some()
    }

    /// The form by which a name is hashed and compared. `None` if a form is set and the name is not UTF-8. Upper case
    /// alone leaves bytes that are no characters unchanged.
    pub fn normalize(self, name: &[u8]) -> Option<Cow<'_, [u8]>> {
        if self.is_none() {
            return Some(Cow::Borrowed(name));
        }
        if name.is_ascii() {
            // ASCII equals all its forms.
            let is_changed = self.ignores_case() && name.iter().any(u8::is_ascii_lowercase);
            return Some(if is_changed {
                Cow::Owned(name.to_ascii_uppercase())
            } else {
                Cow::Borrowed(name)
            });
        }
        let Some(form) = self.form() else { return Some(Cow::Owned(upper_bytes(name))) };
        let text = std::str::from_utf8(name).ok()?;
        let normalized = match self.ignores_case() {
            false => form.collect(text.chars()),
            true if matches!(form, Form::D | Form::C) => form.collect(text.nfd().map(upper::upper)),
            true => form.collect(text.nfkd().map(upper::upper)),
        };
        Some(Cow::Owned(normalized.into_bytes()))
    }

    /// The masked hash of a key. A name that cannot be normalized is hashed by its bytes; no lookup finds it.
    pub(crate) fn hash(self, flags: Flags, salt: u64, key: KeyRef<'_>) -> u64 {
        if self.is_none() { flags.hash(salt, key) } else { self.hash_normalized(flags, salt, key) }
    }

    #[cold]
    fn hash_normalized(self, flags: Flags, salt: u64, key: KeyRef<'_>) -> u64 {
        let KeyRef::Name(name) = key else { return flags.hash(salt, key) };
        let normalized = self.normalize(name);
        flags.hash(salt, KeyRef::Name(normalized.as_deref().unwrap_or(name)))
    }

    /// Refuses a name that cannot be normalized.
    pub(crate) fn validate(self, key: KeyRef<'_>) -> Result<(), Error<Corrupt>> {
        match key {
            KeyRef::Name(name) if self.needs_utf8() && std::str::from_utf8(name).is_err() => {
                Err(Error::NameNotUtf8)
            }
            _ => Ok(()),
        }
    }

    /// Whether surely no other name has the same normalized form.
    pub fn has_one_spelling(self, name: &[u8]) -> bool {
        if self.is_none() {
            return true;
        }
        // Characters that become ASCII: the Kelvin sign, the Greek question mark and the varia. With compatibility
        // forms there are many more.
        let has_alias = |byte: &u8| match self.form() {
            Some(Form::Kd | Form::Kc) => true,
            Some(Form::D | Form::C) if b"K;`".contains(byte) => true,
            _ => self.ignores_case() && byte.is_ascii_alphabetic(),
        };
        name.is_ascii() && !name.iter().any(has_alias)
    }

    /// Whether a lookup of `wanted` means `stored`.
    pub fn matches_name(self, stored: &[u8], wanted: &[u8], how: Match) -> bool {
        let flags = match how {
            Match::Exact => NormFlags::NONE,
            Match::SameCase => self.keeping_case(),
            Match::Normalized => self,
        };
        stored == wanted
            || !flags.is_none() && {
                let (stored, wanted) = (flags.normalize(stored), flags.normalize(wanted));
                stored.is_some() && stored == wanted
            }
    }
}

impl Form {
    fn collect(self, text: impl Iterator<Item = char>) -> String {
        match self {
            Form::D => text.nfd().collect(),
            Form::C => text.nfc().collect(),
            Form::Kd => text.nfkd().collect(),
            Form::Kc => text.nfkc().collect(),
        }
    }
}

fn upper_bytes(name: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut buffer = [0; 4];
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            bytes.extend_from_slice(upper::upper(c).encode_utf8(&mut buffer).as_bytes());
        }
        bytes.extend_from_slice(chunk.invalid());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMS: [NormFlags; 4] = [NormFlags::NFD, NormFlags::NFKD, NormFlags::NFC, NormFlags::NFKC];

    fn all() -> impl Iterator<Item = NormFlags> {
        FORMS.into_iter().chain([NormFlags::NONE]).flat_map(|form| [form, form.ignoring_case()])
    }

    fn text(flags: NormFlags, name: &str) -> String {
        String::from_utf8(flags.normalize(name.as_bytes()).unwrap().into_owned()).unwrap()
    }

    #[test]
    fn flags_round_trip_and_invalid_ones_are_refused() {
        for flags in all() {
            assert_eq!(NormFlags::parse(flags.to_u64()), Ok(flags));
        }
        for raw in [0x30, 0x40, 0x70, 0x42] {
            assert!(matches!(NormFlags::parse(raw), Err(Error::Store(_))), "{raw:#x}");
        }
        for raw in [0x1, 0x4, 0x80, 0x8000_0000_0000_0002] {
            assert!(matches!(NormFlags::parse(raw), Err(Error::Unsupported { .. })), "{raw:#x}");
        }
    }

    /// The planes with letters. Beyond them are unassigned characters, tags and private use.
    fn characters() -> impl Iterator<Item = char> {
        '\u{1}'..'\u{40000}'
    }

    /// The disk format depends on every one of them. A change loses names, so it needs a feature flag of its own.
    #[test]
    fn every_character_has_the_normalized_form_it_had() {
        let classes = characters().map(unicode_normalization::char::canonical_combining_class);
        let classes: Vec<u8> = classes.collect();
        let mut sums = vec![crate::hash::crc64(1, &classes)];
        for flags in all().filter(|flags| !flags.is_none()) {
            let mut sum = 1;
            for c in characters() {
                let name = c.to_string();
                let normalized = flags.normalize(name.as_bytes()).unwrap();
                if normalized != name.as_bytes() {
                    sum = crate::hash::crc64(sum, &normalized);
                    sum = crate::hash::crc64(sum, name.as_bytes());
                }
            }
            sums.push(sum);
        }
        let expected: [u64; 10] = [
            0x5cc4_58a0_364a_bfa5,
            0x3f51_88a0_c22d_fcae,
            0xb1d6_77d0_d46b_267c,
            0x25bb_64e0_04fd_2772,
            0x1420_ed3f_10fc_f108,
            0x60c6_d8f1_afd8_87c5,
            0xa571_f2fa_8656_740d,
            0x9731_201c_f656_90b6,
            0x7b70_7a63_2157_cdf6,
            0x1035_6670_c89f_5790,
        ];
        assert_eq!(sums, expected, "{sums:#x?}");
    }

    #[test]
    fn canonical_equivalents_are_one_name_and_normalizing_twice_changes_nothing() {
        for flags in all() {
            for c in characters() {
                let name = c.to_string();
                let normalized = text(flags, &name);
                assert_eq!(text(flags, &normalized), normalized, "{flags:?} {c:?}");
                if flags.needs_utf8() {
                    assert_eq!(text(flags, &name.nfd().collect::<String>()), normalized, "{flags:?} {c:?}");
                    assert_eq!(text(flags, &name.nfc().collect::<String>()), normalized, "{flags:?} {c:?}");
                }
                if flags.ignores_case() {
                    let upper = upper::upper(c).to_string();
                    assert_eq!(text(flags, &upper), normalized, "{flags:?} {c:?}");
                }
            }
        }
    }

    #[test]
    fn a_name_that_is_alone_has_no_other_spelling() {
        for flags in all() {
            for c in characters() {
                let name = c.to_string();
                let normalized = flags.normalize(name.as_bytes()).unwrap();
                if normalized != name.as_bytes() {
                    assert!(
                        !flags.has_one_spelling(&normalized) && !flags.has_one_spelling(name.as_bytes()),
                        "{flags:?} {c:?}"
                    );
                }
            }
            assert_eq!(flags.has_one_spelling("\u{ef}".as_bytes()), flags.is_none());
        }
        assert!(NormFlags::NFC.has_one_spelling(b"main.rs") && !NormFlags::NFC.has_one_spelling(b"Kelvin"));
        assert!(
            NormFlags::TO_UPPER.has_one_spelling(b"2026-11-21")
                && !NormFlags::TO_UPPER.has_one_spelling(b"a")
        );
    }

    #[test]
    fn names_mean_what_they_should() {
        let (composed, decomposed, shouted) = ("na\u{ef}ve", "nai\u{308}ve", "NA\u{cf}VE");
        let means =
            |flags: NormFlags, how, a: &str, b: &str| flags.matches_name(a.as_bytes(), b.as_bytes(), how);
        let both = NormFlags::NFC.ignoring_case();
        assert!(means(both, Match::Normalized, shouted, decomposed));
        assert!(means(both, Match::SameCase, composed, decomposed));
        assert!(!means(both, Match::SameCase, shouted, composed));
        assert!(!means(both, Match::Exact, composed, decomposed));
        assert!(means(both, Match::Exact, composed, composed));
        assert!(means(NormFlags::TO_UPPER, Match::Normalized, shouted, composed));
        assert!(!means(NormFlags::TO_UPPER, Match::Normalized, decomposed, composed));
        assert!(!means(NormFlags::NONE, Match::Normalized, "a", "A"));
        assert!(means(NormFlags::NFKC, Match::Normalized, "\u{fb01}le", "file"));
    }

    #[test]
    fn bytes_that_are_no_characters_pass_where_no_form_is_asked_for() {
        let upper = NormFlags::TO_UPPER.normalize(b"bad\xff\xfeutf8\xc3\xaf\xc3").unwrap();
        assert_eq!(&*upper, b"BAD\xff\xfeUTF8\xc3\x8f\xc3");
        for form in FORMS {
            assert_eq!(form.normalize(b"bad\xff"), None);
            assert!(!form.matches_name(b"bad\xff", b"bad\xfe", Match::Normalized));
        }
        assert!(matches!(NormFlags::NFC.normalize(b"plain"), Some(Cow::Borrowed(b"plain"))));
    }
}
