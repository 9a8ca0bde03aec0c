//! Names of users, groups and projects: limits and listings use them, and pools store numbers.
//!
//! Names are looked up on the command's side, since a server may run where other names are known. Users and groups
//! come from the name service (`getent`), projects from `/etc/projid`.

use crate::failure::{Failure, Outcome};
use std::collections::BTreeMap;
use std::process::Command;
use terrane_dataset::QuotaName;
use terrane_object::OwnerKind;

const PROJECTS: &str = "/etc/projid";

fn database(kind: OwnerKind) -> &'static str {
    match kind {
        OwnerKind::User => "passwd",
        OwnerKind::Group => "group",
        OwnerKind::Project => PROJECTS,
    }
}

/// One line of a database: name and number.
fn parse_line(kind: OwnerKind, line: &str) -> Option<(&str, u32)> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
    // Behind the password, where there is one.
    let number = if kind == OwnerKind::Project { fields.next() } else { fields.nth(1) };
    Some((name, number?.trim().parse().ok()?))
}

/// What the name service says about some keys, or all that it lists.
fn lines(kind: OwnerKind, keys: &[String]) -> String {
    if kind == OwnerKind::Project {
        return std::fs::read_to_string(PROJECTS).unwrap_or_default();
    }
    let answer = Command::new("getent").arg(database(kind)).args(keys).output();
    match answer {
        Ok(answer) => String::from_utf8_lossy(&answer.stdout).into_owned(),
        // Without the tool, the files of this machine.
        Err(_) => std::fs::read_to_string(format!("/etc/{}", database(kind))).unwrap_or_default(),
    }
}

/// The number of a name. A number stands for itself.
fn id_of(kind: OwnerKind, word: &str) -> Outcome<u32> {
    if let Ok(id) = word.parse() {
        return Ok(id);
    }
    let text = if word.is_empty() { String::new() } else { lines(kind, &[word.to_owned()]) };
    let found = text.lines().filter_map(|line| parse_line(kind, line)).find(|(name, _)| *name == word);
    found.map(|(_, id)| id).ok_or_else(|| {
        let expected = match kind {
            OwnerKind::User => "the name or the number of a user",
            OwnerKind::Group => "the name or the number of a group",
            OwnerKind::Project => "the number of a project, or a name in /etc/projid",
        };
        Failure(format!("expected {expected}, found '{word}'"))
    })
}

/// The name of a property, with a number in the place of a user's, a group's or a project's name.
pub fn numbered(name: &str) -> Outcome<String> {
    match QuotaName::split(name) {
        Some((_, kind, unit, word)) => {
            let id =
                id_of(kind, word).map_err(|Failure(text)| Failure(format!("property {name}: {text}")))?;
            Ok(QuotaName { kind, unit, id }.to_string())
        }
        None => Ok(name.to_owned()),
    }
}

/// Names of these numbers, as far as there are any.
pub fn names_of(kind: OwnerKind, ids: &[u32]) -> BTreeMap<u32, String> {
    if ids.is_empty() {
        return BTreeMap::new();
    }
    let keys: Vec<String> = ids.iter().map(u32::to_string).collect();
    let text: String = keys.chunks(1000).map(|keys| lines(kind, keys)).collect();
    let mut names = BTreeMap::new();
    for (name, id) in
        text.lines().filter_map(|line| parse_line(kind, line)).filter(|(_, id)| ids.contains(id))
    {
        names.entry(id).or_insert_with(|| name.to_owned());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_names_and_numbers() {
        for (kind, line, found) in [
            (OwnerKind::User, "ann:x:1000:100:Ann:/home/ann:/bin/sh", Some(("ann", 1000))),
            (OwnerKind::Group, "users:x:100:ann,bob", Some(("users", 100))),
            (OwnerKind::Project, "build:42", Some(("build", 42))),
            (OwnerKind::Project, "# build:42", None),
            (OwnerKind::User, "ann:x:many", None),
            (OwnerKind::User, "", None),
        ] {
            assert_eq!(parse_line(kind, line), found, "{line}");
        }
    }

    #[test]
    fn numbers_stand_for_themselves_and_names_must_exist() {
        assert_eq!(numbered("userquota@4000000000").unwrap(), "userquota@4000000000");
        assert_eq!(numbered("userquota@root").unwrap(), "userquota@0");
        assert_eq!(numbered("compression").unwrap(), "compression");
        for name in ["userquota@", "userobjquota@no such user", "projectquota@4294967296"] {
            let text = numbered(name).unwrap_err().0;
            assert!(text.contains(name) && text.contains("expected the n"), "{text}");
        }
        assert_eq!(names_of(OwnerKind::User, &[0]).get(&0).map(String::as_str), Some("root"));
        assert!(names_of(OwnerKind::User, &[]).is_empty());
    }
}
