//! Hint rules: a directory's write hints by the names of its files.
//!
//! A directory may have a list of rules such as `*.sst=medium`. A new file takes the hint of the first rule
//! whose pattern matches its name, and else the hint of the directory. A file that is renamed is matched
//! again, unless its hint was stated for the file itself. A new directory inherits the rules.
//!
//! The list is the extended attribute `user.terrane.hint_rules`, as text: one `PATTERN=HINT` per line. In a
//! pattern, `*` stands for any bytes and `?` for one. A flag of the inode says that the directory has rules,
//! so that others are not searched for them.
//!
//! Rules are advice: a list that does not parse applies to no file, and fails no operation.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::{Inode, State};
use crate::types::{Ino, NAME_MAX, mode};
use std::fmt;
use terrane_dataset::XattrPlacement;
use terrane_space::policy::Hint;

/// Name of the list of rules as an extended attribute of a directory.
pub const HINT_RULES: &[u8] = b"user.terrane.hint_rules";
/// A directory has at most this many rules.
pub const HINT_RULES_MAX: usize = 32;
/// Their text has at most this many bytes.
pub const HINT_RULES_BYTES_MAX: usize = 1024;

/// Bytes that no pattern may have: they end a rule, are in no name, or are kept for richer patterns.
const RESERVED: &[u8] = b"\n\0/[]{}\\";

/// Hints by name, first match first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HintRules {
    rules: Vec<HintRule>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HintRule {
    pattern: Vec<u8>,
    hint: Hint,
}

/// Why rules are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintRulesError {
    /// There is no `=`, or not one of the hints behind it.
    NotAHint,
    /// The pattern is empty, or longer than a name.
    PatternLength,
    /// The pattern has a byte that is reserved.
    ReservedByte,
    /// There are two rules with one pattern.
    Duplicate,
    /// There are more than [`HINT_RULES_MAX`].
    TooMany,
    /// The text is longer than [`HINT_RULES_BYTES_MAX`].
    TooLong,
}

impl fmt::Display for HintRulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HintRulesError::NotAHint => {
                f.write_str("expected PATTERN=HINT, where HINT is none, short, medium, long or extreme")
            }
            HintRulesError::PatternLength => write!(f, "a pattern should have 1 to {NAME_MAX} bytes"),
            HintRulesError::ReservedByte => {
                f.write_str(r"a pattern may not have / \ [ ] { } or a line break")
            }
            HintRulesError::Duplicate => f.write_str("a pattern may have one rule, found two"),
            HintRulesError::TooMany => write!(f, "a directory may have {HINT_RULES_MAX} rules"),
            HintRulesError::TooLong => {
                write!(f, "the rules of a directory may have {HINT_RULES_BYTES_MAX} bytes")
            }
        }
    }
}

impl std::error::Error for HintRulesError {}

impl HintRule {
    /// Parses `PATTERN=HINT`. The last `=` counts, so a pattern may have others.
    pub fn parse(text: &[u8]) -> Result<HintRule, HintRulesError> {
        let at = text.iter().rposition(|byte| *byte == b'=').ok_or(HintRulesError::NotAHint)?;
        let (pattern, word) = text.split_at_checked(at).ok_or(HintRulesError::NotAHint)?;
        let word = word.strip_prefix(b"=").and_then(|word| std::str::from_utf8(word).ok());
        let hint = word.and_then(Hint::from_name).filter(|hint| *hint != Hint::NotSet);
        let hint = hint.ok_or(HintRulesError::NotAHint)?;
        if pattern.is_empty() || pattern.len() > NAME_MAX {
            return Err(HintRulesError::PatternLength);
        }
        if pattern.iter().any(|byte| RESERVED.contains(byte)) {
            return Err(HintRulesError::ReservedByte);
        }
        Ok(HintRule { pattern: pattern.to_vec(), hint })
    }

    /// The pattern.
    pub fn pattern(&self) -> &[u8] {
        &self.pattern
    }

    /// The hint of files whose name matches.
    pub fn hint(&self) -> Hint {
        self.hint
    }
}

impl HintRules {
    /// Parses the attribute's value.
    pub fn parse(value: &[u8]) -> Result<HintRules, HintRulesError> {
        if value.len() > HINT_RULES_BYTES_MAX {
            return Err(HintRulesError::TooLong);
        }
        let mut found = HintRules::default();
        for line in value.split(|byte| *byte == b'\n') {
            let rule = HintRule::parse(line)?;
            if found.position(&rule.pattern).is_some() {
                return Err(HintRulesError::Duplicate);
            }
            if found.rules.len() == HINT_RULES_MAX {
                return Err(HintRulesError::TooMany);
            }
            found.rules.push(rule);
        }
        Ok(found)
    }

    /// The attribute's value. A list without rules has none: the attribute is removed.
    pub fn to_value(&self) -> Option<Vec<u8>> {
        let lines: Vec<Vec<u8>> = self
            .rules
            .iter()
            .map(|rule| [&rule.pattern, &b"="[..], rule.hint.name().as_bytes()].concat())
            .collect();
        (!lines.is_empty()).then(|| lines.join(&b'\n'))
    }

    /// The rules, first match first.
    pub fn iter(&self) -> impl Iterator<Item = &HintRule> {
        self.rules.iter()
    }

    /// Adds a rule as the last one. A rule with the same pattern keeps its place and takes the new hint.
    pub fn set(&mut self, rule: HintRule) -> Result<(), HintRulesError> {
        let mut rules = self.clone();
        match rules.rules.iter_mut().find(|old| old.pattern == rule.pattern) {
            Some(old) => old.hint = rule.hint,
            None => rules.rules.push(rule),
        }
        *self = HintRules::parse(&rules.to_value().unwrap_or_default())?;
        Ok(())
    }

    /// Removes the rule with this pattern. False: there is none.
    pub fn remove(&mut self, pattern: &[u8]) -> bool {
        let at = self.position(pattern);
        if let Some(at) = at {
            self.rules.remove(at);
        }
        at.is_some()
    }

    /// The hint of the first rule that matches.
    pub fn find(&self, name: &[u8]) -> Option<Hint> {
        self.find_rule(name).map(|rule| rule.hint)
    }

    /// The first rule that matches.
    fn find_rule(&self, name: &[u8]) -> Option<&HintRule> {
        self.rules.iter().find(|rule| matches(&rule.pattern, name))
    }

    fn position(&self, pattern: &[u8]) -> Option<usize> {
        self.rules.iter().position(|rule| rule.pattern == pattern)
    }
}

/// Whether the whole name matches. Takes time in proportion to the product of both lengths at most: only the
/// last `*` is ever tried again.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut pattern, mut name) = (pattern, name);
    // Behind the last `*`, and where the bytes that it stands for may end at the earliest.
    let mut last_star: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern.split_first(), name.split_first()) {
            (Some((b'*', rest)), _) => {
                pattern = rest;
                last_star = Some((rest, name));
            }
            (Some((wanted, pattern_rest)), Some((byte, name_rest))) if *wanted == b'?' || wanted == byte => {
                (pattern, name) = (pattern_rest, name_rest);
            }
            (None, None) => return true,
            _ => {
                let Some((behind, from)) = last_star else { return false };
                let Some((_, from)) = from.split_first() else { return false };
                (pattern, name) = (behind, from);
                last_star = Some((behind, from));
            }
        }
    }
}

impl Fs {
    /// The rules of a directory, as stored. `None`: it has none, or extended attributes are off.
    pub(crate) fn stored_hint_rules(&self, dir: &Inode, state: &State) -> Option<Vec<u8>> {
        if !state.attrs.has_hint_rules() || self.dataset().xattr_placement() == XattrPlacement::Off {
            return None;
        }
        let mut value = Vec::new();
        self.value(dir, state, HINT_RULES, &mut value).ok()?;
        (value.len() <= HINT_RULES_BYTES_MAX).then_some(value)
    }

    /// The rules that a new file with these bits inherits: directories do.
    pub(crate) fn inherited_hint_rules(&self, dir: &Inode, state: &State, bits: u32) -> Option<Vec<u8>> {
        let is_dir = bits & mode::S_IFMT == mode::S_IFDIR;
        if is_dir { self.stored_hint_rules(dir, state) } else { None }
    }

    /// The rule of its directory that matches a file under this name. `None`: no rule matches.
    pub fn hint_rule_of(&self, ino: Ino, name: &[u8]) -> Result<Option<HintRule>, Errno> {
        let dir = self.hold(ino)?.read().attrs.zpl.parent;
        let inode = self.hold(dir)?;
        let rules = self.stored_hint_rules(&inode, &inode.read());
        let rules = rules.and_then(|rules| HintRules::parse(&rules).ok()).unwrap_or_default();
        Ok(rules.find_rule(name).cloned())
    }

    /// The hint of the directory's rules for a file of this name.
    pub(crate) fn hint_by_rule(&self, dir: &Inode, state: &State, name: &[u8]) -> Option<Hint> {
        let rules = self.stored_hint_rules(dir, state)?;
        HintRules::parse(&rules).ok()?.find(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{Machine, Short, USER};
    use crate::types::SetXattr;
    use crate::xattr::PutXattr;
    use proptest::prelude::*;

    fn rules(text: &str) -> Result<HintRules, HintRulesError> {
        HintRules::parse(text.as_bytes())
    }

    #[test]
    fn the_first_match_counts_and_the_last_equals_sign() {
        let list = rules("*.sst=medium\na=b=long\n*.log=short\n0?.log=extreme\n*=none").unwrap();
        for (name, hint) in [
            ("1.sst", Hint::Medium),
            (".sst", Hint::Medium),
            ("a=b", Hint::Long),
            ("01.log", Hint::Short),
            ("sst", Hint::None),
            ("1.SST", Hint::None),
            ("1.sst.tmp", Hint::None),
        ] {
            assert_eq!(list.find(name.as_bytes()), Some(hint), "{name}");
        }
        assert_eq!(rules("*.sst=medium").unwrap().find(b"x.log"), None);
        assert_eq!(HintRules::default().find(b"x"), None);
    }

    #[test]
    fn what_is_malformed_is_refused() {
        use HintRulesError::{Duplicate, NotAHint, PatternLength, ReservedByte, TooLong, TooMany};
        let many: Vec<String> = (0..=HINT_RULES_MAX).map(|at| format!("{at}=long")).collect();
        let long = format!("{}=long", "x".repeat(NAME_MAX + 1));
        let all = vec![format!("{}=long", "x".repeat(250)); 5].join("\n");
        for (text, error) in [
            ("", NotAHint),
            ("*.sst", NotAHint),
            ("*.sst=", NotAHint),
            ("*.sst=not-set", NotAHint),
            ("*.sst=ever", NotAHint),
            ("*.sst=short\n", NotAHint),
            ("\n*.sst=short", NotAHint),
            ("=short", PatternLength),
            (&long, PatternLength),
            ("a/b=short", ReservedByte),
            ("[ab]=short", ReservedByte),
            ("a\0=short", ReservedByte),
            ("a=short\na=long", Duplicate),
            (&many.join("\n"), TooMany),
            (&all, TooLong),
        ] {
            assert_eq!(rules(text), Err(error), "{text:?}");
        }
        assert!(rules(&many[1..].join("\n")).is_ok());
        assert_eq!(HintRules::parse(b"\xff=short\n\xfe=\xff"), Err(NotAHint));
        assert_eq!(HintRules::parse(b"\xff*=short").unwrap().find(b"\xff\x80"), Some(Hint::Short));
    }

    #[test]
    fn rules_are_added_changed_and_removed() {
        let mut list = HintRules::default();
        let add = |list: &mut HintRules, text: &str| list.set(HintRule::parse(text.as_bytes())?);
        assert_eq!(list.to_value(), None);
        add(&mut list, "a=short").unwrap();
        add(&mut list, "b=long").unwrap();
        add(&mut list, "a=medium").unwrap();
        assert_eq!(list.to_value().unwrap(), b"a=medium\nb=long");
        assert!(list.remove(b"a") && !list.remove(b"a"));
        for at in 1..HINT_RULES_MAX {
            add(&mut list, &format!("{at}=long")).unwrap();
        }
        let before = list.clone();
        assert_eq!(add(&mut list, "x=long"), Err(HintRulesError::TooMany));
        assert_eq!(add(&mut list, &format!("{}=long", "y".repeat(255))), Err(HintRulesError::TooMany));
        assert_eq!(list, before, "what was refused changed nothing");
    }

    /// The plainest matcher.
    fn slow(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|at| slow(rest, &name[at..])),
            Some((wanted, rest)) => {
                name.first().is_some_and(|byte| (*wanted == b'?' || wanted == byte) && slow(rest, &name[1..]))
            }
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_plainest_matcher(
            pattern in prop::collection::vec(prop::sample::select(&b"ab*?"[..]), 0..9),
            name in prop::collection::vec(prop::sample::select(&b"ab"[..]), 0..9),
        ) {
            prop_assert_eq!(matches(&pattern, &name), slow(&pattern, &name));
        }

        #[test]
        fn any_bytes_parse_or_are_refused_and_come_back(value in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(list) = HintRules::parse(&value) {
                prop_assert_eq!(list.to_value(), Some(value));
            }
        }

        #[test]
        fn rules_come_back(words in prop::collection::vec("[ab*?=. ]{1,6}=(none|short|long)", 1..5)) {
            let value = words.join("\n");
            match HintRules::parse(value.as_bytes()) {
                Ok(list) => prop_assert_eq!(list.to_value(), Some(value.into_bytes())),
                Err(error) => prop_assert_eq!(error, HintRulesError::Duplicate),
            }
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_long() {
        let pattern = b"*a".repeat(127);
        let name = [b'a'; 255];
        let hostile = [&pattern[..], b"b"].concat();
        for _ in 0..1000 {
            assert!(!matches(&hostile, &name) && matches(&pattern, &name));
        }
    }

    /// An older version takes any value for this name. One that is no list of rules fails nothing.
    #[test]
    fn damaged_rules_are_no_rules() {
        let m = Machine::new(64, &[]);
        let how = SetXattr::default();
        let dir = m.fs().dir(m.fs().root(), "d").ino;
        let hint_of_new = |dir, name: &str| {
            let ino = m.fs().create(dir, name.as_bytes(), 0o644, &USER).unwrap().ino;
            m.fs().write_hint(ino).unwrap()
        };
        let all: [&[u8]; 6] =
            [b"", b"\xff\xfe\0", b"*=long\n*=long", &[b'*'; 1 << 10], &[b'\n'; 40 << 10], b"=long"];
        for value in all {
            let placement = XattrPlacement::Sa;
            m.fs().execute(&PutXattr { ino: dir, name: HINT_RULES, value, how, placement }).unwrap();
            for step in 0..2 {
                let name = format!("{}-{step}", value.len());
                assert_eq!(hint_of_new(dir, &name), Hint::NotSet);
                let below = m.fs().dir(dir, &format!("d{name}")).ino;
                assert_eq!(hint_of_new(below, "x"), Hint::NotSet);
                m.fs().sync().unwrap();
            }
            m.fs().setxattr(dir, HINT_RULES, b"*.x=long", how, &USER).unwrap();
            assert_eq!(hint_of_new(dir, &format!("{}.x", value.len())), Hint::Long, "it is repaired");
        }
    }
}
