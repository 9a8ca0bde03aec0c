//! The properties that a data set stores, and how values are inherited.
//!
//! The first of these that exists is the value: set on the data set, received with the data set, set on or received with
//! the nearest parent, default. A mount point is inherited as the parent's path and the names below it.
//!
//! The name of an entry of the properties ZAP is the name of the property. [`RECEIVED`] is appended if the value was
//! received. A text is stored as bytes with a 0 behind them, because a ZAP holds no empty value.

use super::{MOUNTPOINT, Property, Scope, Source};
use crate::error::DatasetError;
use crate::zap_store::ObjectZap;
use std::collections::BTreeMap;
use terrane_pool::Tx;
use terrane_zap::{Entry, Key as ZapKey, Value, ValueRef};

/// Ends the name of an entry whose value was received. No property's name contains the character.
const RECEIVED: &str = "$received";
/// Entry with the time of creation. It is no property.
const CREATION: &[u8] = b"$creation";
/// Longest name of a user property, in bytes. With [`RECEIVED`] it must fit a ZAP.
const USER_NAME_BYTES_MAX: usize = 240;
/// Longest value of a user property, in bytes.
const USER_VALUE_BYTES_MAX: usize = 8 << 10;
/// Most entries that are read for one data set.
const ENTRIES_MAX: usize = 10_000;

/// A value as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A number, or a word of the property table as its number.
    Number(u64),
    /// A path, or the value of a user property.
    Text(String),
}

impl Stored {
    /// The number; `None`: a text.
    pub fn number(&self) -> Option<u64> {
        match self {
            Stored::Number(number) => Some(*number),
            Stored::Text(_) => None,
        }
    }
}

/// The name of a property.
#[derive(Clone)]
pub enum Key {
    /// A row of the table.
    Known(&'static Property),
    /// A property of users: its name contains a colon.
    User(String),
}

impl Key {
    /// # Errors
    /// `UnknownProperty`: neither a row of the table, nor a name with a colon. `BadUserProperty`: such a name with
    /// characters that no property has.
    pub fn find(name: &str) -> Result<Key, DatasetError> {
        if !name.contains(':') {
            return Ok(Key::Known(Property::find(name)?));
        }
        let is_fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ":+._-".contains(c);
        if name.len() > USER_NAME_BYTES_MAX || name.starts_with('-') || !name.chars().all(is_fit) {
            return Err(DatasetError::BadUserProperty {
                name: name.to_string(),
                expected: "a name of at most 240 lower-case letters, digits and : + . _ -",
            });
        }
        Ok(Key::User(name.to_string()))
    }

    /// The name for users.
    pub fn name(&self) -> &str {
        match self {
            Key::Known(property) => property.name,
            Key::User(name) => name,
        }
    }

    /// The row of the table; `None`: a user property.
    pub fn property(&self) -> Option<&'static Property> {
        match self {
            Key::Known(property) => Some(property),
            Key::User(_) => None,
        }
    }

    /// Converts a user's word to the stored value.
    pub fn parse(&self, word: &str) -> Result<Stored, DatasetError> {
        match self {
            Key::Known(property) => property.parse_value(word),
            Key::User(_) if is_user_value(word) => Ok(Stored::Text(word.to_string())),
            Key::User(name) => Err(DatasetError::BadUserProperty {
                name: name.clone(),
                expected: "a value of at most 8 KiB without 0 bytes",
            }),
        }
    }

    /// Converts a stored value to a word.
    pub fn print(&self, stored: &Stored) -> Result<String, DatasetError> {
        match (self, stored) {
            (Key::Known(property), stored) => property.print_value(stored),
            (Key::User(_), Stored::Text(text)) => Ok(text.clone()),
            (Key::User(_), Stored::Number(number)) => Ok(number.to_string()),
        }
    }

    fn scope(&self) -> Scope {
        self.property().map_or(Scope::Inherited, |property| property.scope)
    }
}

fn is_user_value(word: &str) -> bool {
    // The 0 that ends it is stored too.
    word.len() < USER_VALUE_BYTES_MAX && !word.contains('\0')
}

/// The properties that one data set stores.
#[derive(Clone, Debug, Default)]
pub struct Props {
    local: BTreeMap<String, Stored>,
    received: BTreeMap<String, Stored>,
}

/// A parent of a data set.
#[derive(Clone, Copy)]
pub struct Ancestor<'a> {
    /// Its path below the pool; empty: the root data set.
    pub path: &'a str,
    /// What it stores.
    pub props: &'a Props,
}

/// The value that applies, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// The value.
    pub value: Stored,
    /// Its source.
    pub source: Source,
}

impl Props {
    /// The number that was received for a property.
    pub(crate) fn received_number(&self, name: &str) -> Option<u64> {
        self.received.get(name).and_then(Stored::number)
    }

    /// The value that is stored here: the one that was set, else the one that was received.
    fn own(&self, name: &str) -> Option<(&Stored, Source)> {
        let local = self.local.get(name).map(|value| (value, Source::Local));
        local.or_else(|| self.received.get(name).map(|value| (value, Source::Received)))
    }

    /// The value of a property that applies to the data set at `path`, which stores these properties. `parents`: the
    /// nearest first, the root data set last. `None`: a user property that is not set.
    pub fn effective(&self, key: &Key, path: &str, parents: &[Ancestor<'_>]) -> Option<Effective> {
        let (name, scope) = (key.name(), key.scope());
        if let Some((value, source)) = self.own(name) {
            let source = if scope == Scope::Creation { Source::Creation } else { source };
            return Some(Effective { value: value.clone(), source });
        }
        let inherited = |parent: &Ancestor<'_>| {
            let (value, _) = parent.props.own(name)?;
            let value = match value {
                Stored::Text(base) if name == MOUNTPOINT => Stored::Text(below(base, parent.path, path)),
                value => value.clone(),
            };
            Some(Effective { value, source: Source::Inherited(parent.path.to_string()) })
        };
        let inherited = if scope == Scope::Inherited { parents.iter().find_map(inherited) } else { None };
        let default = || {
            let value = Stored::Number(key.property()?.default);
            Some(Effective { value, source: Source::Default })
        };
        inherited.or_else(default)
    }

    /// The number of a property of the table that is stored here and not inherited.
    pub(crate) fn own_number(&self, property: &Property) -> u64 {
        self.own(property.name).and_then(|(value, _)| value.number()).unwrap_or(property.default)
    }

    /// Names of the user properties that are stored here.
    pub fn user_names(&self) -> impl Iterator<Item = &str> {
        self.local.keys().chain(self.received.keys()).map(String::as_str).filter(|name| name.contains(':'))
    }

    /// Records a value that is set here.
    pub fn set_local(&mut self, name: &str, value: Stored) {
        self.local.insert(name.to_string(), value);
    }

    /// Records a value that was received.
    pub fn set_received(&mut self, name: &str, value: Stored) {
        self.received.insert(name.to_string(), value);
    }

    /// Removes a value that was set here, and with `received` also the one that was received.
    pub fn remove(&mut self, name: &str, received: bool) {
        self.local.remove(name);
        if received {
            self.received.remove(name);
        }
    }

    /// Reads what is stored. Entries that this version does not know are ignored: a newer version wrote them.
    pub(crate) fn load(zap: &ObjectZap) -> Result<Props, DatasetError> {
        let mut props = Props::default();
        zap.each(ENTRIES_MAX, &mut |entry| props.take(entry))?;
        Ok(props)
    }

    fn take(&mut self, entry: &Entry) {
        let ZapKey::Name(name) = &entry.key else { return };
        let Ok(name) = std::str::from_utf8(name) else { return };
        let (plain, is_received) = match name.strip_suffix(RECEIVED) {
            Some(plain) => (plain, true),
            None => (name, false),
        };
        let Ok(key) = Key::find(plain) else { return };
        if key.scope() == Scope::Creation {
            return;
        }
        let Some(value) = from_zap(&entry.value) else { return };
        match key.print(&value) {
            Ok(_) if is_received => self.set_received(plain, value),
            Ok(_) => self.set_local(plain, value),
            // Data stays readable: block pointers describe their own form.
            Err(error) => log::warn!("property ignored, using its default: {error}"),
        }
    }
}

/// The mount point that the data set at `path` inherits, if that of the data set at `parent` is `base`.
fn below(base: &str, parent: &str, path: &str) -> String {
    let rest = path.strip_prefix(parent).unwrap_or(path).trim_start_matches('/');
    format!("{}/{rest}", base.trim_end_matches('/'))
}

fn from_zap(value: &Value) -> Option<Stored> {
    match value {
        Value::U64(number) => Some(Stored::Number(*number)),
        value => {
            let text = std::str::from_utf8(value.bytes()?.strip_suffix(b"\0")?).ok()?;
            is_user_value(text).then(|| Stored::Text(text.to_string()))
        }
    }
}

/// Stores a value in the properties ZAP.
pub(crate) fn store(
    zap: &mut ObjectZap,
    tx: &Tx,
    name: &str,
    value: &Stored,
    is_received: bool,
) -> Result<(), DatasetError> {
    let name = if is_received { format!("{name}{RECEIVED}") } else { name.to_string() };
    match value {
        Stored::Number(number) => zap.update_u64(tx, name.as_bytes(), *number)?,
        Stored::Text(text) => {
            let bytes = [text.as_bytes(), b"\0"].concat();
            zap.update(tx, name.as_bytes(), ValueRef::U8s(&bytes)).map(drop)?;
        }
    }
    Ok(())
}

/// Stores when a data set was created.
pub(crate) fn store_creation(zap: &mut ObjectZap, tx: &Tx) -> Result<(), DatasetError> {
    let seconds = tx.pool().env().wall_ns() / 1_000_000_000;
    Ok(zap.update_u64(tx, CREATION, seconds)?)
}

/// When a data set was created, in seconds since 1970. `None`: not stored.
pub(crate) fn load_creation(zap: &ObjectZap) -> Result<Option<u64>, DatasetError> {
    Ok(zap.lookup_u64(CREATION)?)
}

/// Copies the properties that a clone takes over: inheritable ones except the mount point, which only one data set can have.
pub(crate) fn copy(from: &ObjectZap, to: &mut ObjectZap, tx: &Tx) -> Result<(), DatasetError> {
    let props = Props::load(from)?;
    for (values, is_received) in [(&props.local, false), (&props.received, true)] {
        for (name, value) in values {
            let key = Key::find(name)?;
            if key.scope() == Scope::Inherited && name != MOUNTPOINT {
                store(to, tx, name, value, is_received)?;
            }
        }
    }
    Ok(())
}

/// Removes a value from the properties ZAP, and with `received` also the one that was received.
pub(crate) fn unstore(zap: &mut ObjectZap, tx: &Tx, name: &str, received: bool) -> Result<(), DatasetError> {
    zap.remove(tx, name.as_bytes())?;
    if received {
        zap.remove(tx, format!("{name}{RECEIVED}").as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn props(values: &[(&str, &str)]) -> Props {
        let mut props = Props::default();
        for (name, word) in values {
            let (name, is_received) = name.strip_suffix('!').map_or((*name, false), |name| (name, true));
            let value = Key::find(name).unwrap().parse(word).unwrap();
            if is_received { props.set_received(name, value) } else { props.set_local(name, value) }
        }
        props
    }

    fn shown(name: &str, chain: &[(&str, &Props)]) -> Option<(String, String)> {
        let key = Key::find(name).unwrap();
        let ((path, own), parents) = chain.split_first().unwrap();
        let parents: Vec<_> = parents.iter().map(|(path, props)| Ancestor { path, props }).collect();
        let found = own.effective(&key, path, &parents)?;
        Some((key.print(&found.value).unwrap(), found.source.text("tank")))
    }

    #[test]
    fn the_nearest_value_applies_and_names_its_source() {
        let root = props(&[
            ("compression", "zstd-3"),
            ("atime", "off"),
            ("readonly!", "on"),
            ("failmode", "continue"),
        ]);
        let home =
            props(&[("atime", "on"), ("quota", "10G"), ("canmount", "off"), ("compression!", "gzip-9")]);
        let ann = props(&[("atime", "relatime"), ("atime!", "off")]);
        let chain = [("home/ann", &ann), ("home", &home), ("", &root)];
        for (name, value, source) in [
            ("atime", "relatime", "local"),
            ("compression", "gzip-9", "inherited from tank/home"),
            ("readonly", "on", "inherited from tank"),
            ("checksum", "blake3", "default"),
            ("quota", "none", "default"),
            ("canmount", "on", "default"),
            ("failmode", "wait", "default"),
        ] {
            assert_eq!(shown(name, &chain), Some((value.into(), source.into())), "{name}");
        }
        assert_eq!(shown("compression", &chain[1..]), Some(("gzip-9".into(), "received".into())));
        let mut ann = ann;
        ann.remove("atime", false);
        assert_eq!(shown("atime", &[("home/ann", &ann)]), Some(("off".into(), "received".into())));
        ann.remove("atime", true);
        let chain = [("home/ann", &ann), ("home", &home)];
        assert_eq!(shown("atime", &chain), Some(("on".into(), "inherited from tank/home".into())));
    }

    #[test]
    fn mount_points_are_inherited_as_paths_below() {
        let (root, none) = (props(&[("mountpoint", "/srv")]), Props::default());
        let at = |path: &str, chain: &[(&str, &Props)]| {
            shown("mountpoint", &[&[(path, &none)], chain].concat()).unwrap().0
        };
        assert_eq!(at("home/ann", &[("home", &none), ("", &root)]), "/srv/home/ann");
        let home = props(&[("mountpoint", "/people")]);
        assert_eq!(at("home/ann/x", &[("home/ann", &none), ("home", &home), ("", &root)]), "/people/ann/x");
        let slash = props(&[("mountpoint", "/")]);
        assert_eq!(at("home", &[("", &slash)]), "/home");
        let legacy = props(&[("mountpoint", "legacy")]);
        assert_eq!(at("home", &[("", &legacy)]), "legacy");
        assert_eq!(at("home", &[("", &none)]), "none");
        for word in ["srv", "/a/../b", "/./a", "/a\nb", ""] {
            assert!(Key::find("mountpoint").unwrap().parse(word).is_err(), "{word:?}");
        }
    }

    #[test]
    fn user_properties_are_inherited_texts() {
        let root = props(&[("com.example:word", "Zwölf"), ("syncoid:sync", "")]);
        let (home, none) = (props(&[("com.example:word", "12")]), Props::default());
        let chain = [("home/ann", &none), ("home", &home), ("", &root)];
        let expected = Some(("12".into(), "inherited from tank/home".into()));
        assert_eq!(shown("com.example:word", &chain), expected);
        assert_eq!(shown("syncoid:sync", &chain), Some((String::new(), "inherited from tank".into())));
        assert_eq!(shown("a:b", &chain), None);
        for name in ["A:b", "a:b c", "-a:b", &format!("a:{}", "b".repeat(239)), "a:$received", "ä:b"] {
            assert!(matches!(Key::find(name), Err(DatasetError::BadUserProperty { .. })), "{name}");
        }
        let word = Key::find("a:b").unwrap();
        assert!(word.parse(&"x".repeat(8191)).is_ok());
        assert!(word.parse(&"x".repeat(8192)).is_err() && word.parse("a\0b").is_err());
    }
}
