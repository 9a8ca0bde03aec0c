//! Where a pool's objects are: a URL, and what it takes to reach it.

use crate::dir::DirStore;
use crate::store::{Store, StoreError};
use std::path::Path;
use std::sync::Arc;

/// A URL of a prefix, and settings that it does not hold. No credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// `s3://BUCKET/PREFIX`, or `file:///DIR`.
    pub url: String,
    /// As in [`SETTINGS`], in order of their names.
    pub settings: Vec<(String, String)>,
}

/// Names of settings.
pub const SETTINGS: [&str; 3] = ["endpoint", "payload", "region"];

/// Whether a word is the URL of an object store, and not a path or a name.
pub fn is_url(word: &str) -> bool {
    ["s3://", "file://"].iter().any(|scheme| word.starts_with(scheme))
}

impl Location {
    /// Checks the URL. Slashes at its end are dropped.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(url: &str, settings: &[(String, String)]) -> Result<Location, String> {
        let url = url.trim_end_matches('/');
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        let (is_sound, form) = match (url.strip_prefix("s3://"), url.strip_prefix("file://")) {
            // Characters that need no escape, so that names are the same in every tool.
            (Some(path), _) => {
                let is_safe = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
                (
                    path.split('/').all(is_plain) && path.chars().all(is_safe),
                    "s3://BUCKET or s3://BUCKET/PREFIX",
                )
            }
            (_, Some(path)) => (
                path.starts_with('/') && path.split('/').skip(1).all(is_plain),
                "file:// and an absolute path",
            ),
            _ => (false, "s3:// or file://"),
        };
        if !is_sound || url.contains(['\n', '\0']) {
            return Err(format!("{url}: not the URL of an object store: expected {form}"));
        }
        let mut settings = settings.to_vec();
        settings.sort();
        if let Some((name, _)) = settings.iter().find(|(name, _)| !SETTINGS.contains(&name.as_str())) {
            return Err(format!(
                "{name}: unknown setting of an object store; known: {}",
                SETTINGS.join(", ")
            ));
        }
        if settings.iter().any(|(_, value)| value.contains(['\n', '\0'])) {
            return Err("a setting of an object store has one line".into());
        }
        Ok(Location { url: url.to_owned(), settings })
    }

    /// Opens the store. `create`: makes a directory that is not there.
    ///
    /// # Errors
    /// If it cannot be used at all.
    pub fn open(&self, create: bool) -> Result<Arc<dyn Store>, StoreError> {
        if self.url.starts_with("s3://") {
            #[cfg(feature = "s3")]
            return Ok(Arc::new(crate::s3::S3Store::open(self)?));
            #[cfg(not(feature = "s3"))]
            return Err(StoreError::Failed("built without the feature `s3`".into()));
        }
        let dir = self.url.strip_prefix("file://").unwrap_or(&self.url);
        Ok(Arc::new(DirStore::open(Path::new(dir), create)?))
    }

    /// A name for a file that stands for it: letters, digits and `-`.
    pub fn file_name(&self) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric();
        let words: String = self.url.chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
        let from = words.len().saturating_sub(48);
        let hash = blake3::hash(self.url.as_bytes()).to_hex();
        format!("{}-{}", words.get(from..).unwrap_or("").trim_matches('-'), hash.get(..16).unwrap_or(""))
    }

    /// As text: the URL, then a line for each setting.
    pub fn encode(&self) -> String {
        let settings = self.settings.iter().map(|(name, value)| format!("{name}={value}\n"));
        format!("{}\n{}", self.url, settings.collect::<String>())
    }

    /// The other direction.
    ///
    /// # Errors
    /// As [`Location::parse`].
    pub fn decode(text: &str) -> Result<Location, String> {
        let mut lines = text.lines();
        let url = lines.next().unwrap_or("");
        let settings = lines.filter_map(|line| line.split_once('='));
        let settings: Vec<(String, String)> =
            settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Location::parse(url, &settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_come_back() {
        let settings =
            [("region".to_owned(), "here".to_owned()), ("endpoint".to_owned(), "http://x:1".to_owned())];
        let location = Location::parse("file:///srv/pool//", &settings).unwrap();
        assert_eq!(location.encode(), "file:///srv/pool\nendpoint=http://x:1\nregion=here\n");
        assert_eq!(Location::decode(&location.encode()), Ok(location));
        assert!(
            Location::parse("s3://bucket/some/where", &[]).is_ok()
                && Location::parse("s3://bucket", &[]).is_ok()
        );
        for wrong in [
            "s3://",
            "s3:///x",
            "s3://b/../c",
            "s3://b/a b",
            "file://",
            "file://srv",
            "file:///",
            "file:///a/../b",
            "/srv",
            "http://x",
        ] {
            assert!(Location::parse(wrong, &[]).is_err(), "{wrong}");
        }
        assert!(Location::parse("file:///a", &[("secret".into(), "x".into())]).is_err());
    }
}
