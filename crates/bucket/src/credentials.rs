//! Credentials from the file that other tools keep: `~/.aws/credentials`.
//!
//! It is read again when it changes, so a tool that renews keys there renews them here.

use async_trait::async_trait;
use object_store::aws::AwsCredential;
use object_store::{CredentialProvider, Error};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// A profile of the file.
#[derive(Debug)]
pub struct ProfileFile {
    path: PathBuf,
    profile: String,
    known: Mutex<Option<(SystemTime, Arc<AwsCredential>)>>,
}

/// The keys of a profile in the text of the file.
fn keys_of(text: &str, profile: &str) -> Option<AwsCredential> {
    let (mut is_ours, mut key, mut secret, mut token) = (false, None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_ours = name.trim() == profile;
        }
        let Some((name, value)) = line.split_once('=').filter(|_| is_ours) else { continue };
        let value = Some(value.trim().to_owned());
        match name.trim() {
            "aws_access_key_id" => key = value,
            "aws_secret_access_key" => secret = value,
            "aws_session_token" => token = value,
            _ => {}
        }
    }
    Some(AwsCredential { key_id: key?, secret_key: secret?, token })
}

impl ProfileFile {
    /// The file of this user, if it has the profile and no variable says something else.
    pub fn of_this_user() -> Option<ProfileFile> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let others =
            ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"];
        if others.iter().any(|name| set(name).is_some()) {
            return None;
        }
        let path = match set("AWS_SHARED_CREDENTIALS_FILE") {
            Some(path) => PathBuf::from(path),
            None => PathBuf::from(set("HOME")?).join(".aws/credentials"),
        };
        let profile =
            set("AWS_PROFILE").and_then(|name| name.into_string().ok()).unwrap_or_else(|| "default".into());
        let file = ProfileFile { path, profile, known: Mutex::default() };
        file.load().ok().map(|_| file)
    }

    fn load(&self) -> Result<Arc<AwsCredential>, String> {
        let text = |error| format!("{}: {error}", self.path.display());
        let changed = std::fs::metadata(&self.path).and_then(|meta| meta.modified()).map_err(text)?;
        let mut known = self.known.lock();
        if let Some((then, keys)) = known.as_ref().filter(|(then, _)| *then == changed) {
            let _ = then;
            return Ok(Arc::clone(keys));
        }
        let keys = Arc::new(self.parse(&self.path)?);
        *known = Some((changed, Arc::clone(&keys)));
        Ok(keys)
    }

    fn parse(&self, path: &Path) -> Result<AwsCredential, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        keys_of(&text, &self.profile)
            .ok_or_else(|| format!("{}: no keys for profile {}", path.display(), self.profile))
    }
}

#[async_trait]
impl CredentialProvider for ProfileFile {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.load().map_err(|text| Error::Generic { store: "S3", source: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_found_among_others() {
        let text = "[default]\naws_access_key_id = A\naws_secret_access_key=B\n\n# x\n[ci]\naws_secret_access_key = D\n\
                    aws_access_key_id=C\naws_session_token = E==\n[broken]\naws_access_key_id = F\n";
        let keys =
            |profile: &str| keys_of(text, profile).map(|keys| (keys.key_id, keys.secret_key, keys.token));
        assert_eq!(keys("default"), Some(("A".into(), "B".into(), None)));
        assert_eq!(keys("ci"), Some(("C".into(), "D".into(), Some("E==".into()))));
        assert_eq!((keys("broken"), keys("none")), (None, None));
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        let write = |key: &str| {
            std::fs::write(&path, format!("[default]\naws_access_key_id={key}\naws_secret_access_key=s\n"))
                .unwrap();
        };
        write("A");
        let file = ProfileFile { path: path.clone(), profile: "default".into(), known: Mutex::default() };
        assert_eq!(file.load().unwrap().key_id, "A");
        write("B");
        let later = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(2_000_000_000);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(file.load().unwrap().key_id, "B");
        std::fs::remove_file(&path).unwrap();
        assert!(file.load().is_err());
    }
}
