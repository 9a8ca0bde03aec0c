//! Properties: reads and sets them, and shows counted values.

use super::Setting;
use super::datasets::root_facts;
use super::owners::{parse_limit, show_limit};
use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::figures::{self, FIGURES, Facts, Figure};
use crate::open_pool::OpenPool;
use crate::suggest;
use serde::Serialize;
use terrane_dataset::props::Key;
use terrane_dataset::{Dataset, DatasetError, PROPERTIES, Property, PropertyValue, QuotaName, Source};
use terrane_posix::Job;
use terrane_txg::levels::LevelShare;

/// A property, or a counted value that cannot be set.
#[derive(Serialize)]
pub(super) struct PropertyRow {
    name: String,
    pub(super) property: String,
    pub(super) value: String,
    source: String,
    /// Of a number, without its unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    exact: Option<String>,
    /// Of `compression`, where the level is chosen block by block.
    #[serde(skip_serializing_if = "Option::is_none")]
    levels: Option<Vec<LevelRow>>,
    /// Of `recompress`, once it did something.
    #[serde(skip_serializing_if = "Option::is_none")]
    recompressed: Option<Recompressed>,
}

/// What was written with one level.
#[derive(Serialize)]
struct LevelRow {
    name: String,
    records: u64,
    logical: u64,
    stored: u64,
}

#[derive(Serialize)]
struct Recompressed {
    records: u64,
    before: u64,
    after: u64,
}

fn property_row(open_pool: &OpenPool, path: &str, dataset: &Dataset, value: PropertyValue) -> PropertyRow {
    let level = |share: &LevelShare| LevelRow {
        name: share.compression.to_string(),
        records: share.blocks,
        logical: share.logical_bytes,
        stored: share.stored_bytes,
    };
    let levels = dataset.object_set().zstd_levels().shares();
    let levels =
        (value.name == "compression" && !levels.is_empty()).then(|| levels.iter().map(level).collect());
    let recompressed = (value.name == "recompress" && path.is_empty())
        .then(|| open_pool.fs.get().map(|fs| fs.recompress().progress()));
    let recompressed = recompressed.flatten().filter(|done| done.records > 0).map(|done| Recompressed {
        records: done.records,
        before: done.before_bytes,
        after: done.after_bytes,
    });
    PropertyRow {
        name: full_name(&open_pool.pool.name(), path),
        property: value.name,
        value: value.value,
        source: value.source.text(&open_pool.pool.name()),
        exact: None,
        levels,
        recompressed,
    }
}

/// A row with only value and source.
fn plain_row(
    name: String,
    property: &str,
    value: String,
    source: &str,
    exact: Option<String>,
) -> PropertyRow {
    let (property, source) = (property.to_owned(), source.to_owned());
    PropertyRow { name, property, value, source, exact, levels: None, recompressed: None }
}

/// The rows of one data set. A property that it does not have is `-`.
pub(super) fn rows_of(
    open_pool: &OpenPool,
    path: &str,
    dataset: &Dataset,
    facts: &Facts,
    names: &[String],
) -> Outcome<Vec<PropertyRow>> {
    let full = full_name(&open_pool.pool.name(), path);
    let figure = |figure: &Figure| {
        let (value, exact) = figure.show(facts);
        plain_row(full.clone(), figure.name, value, figures::SOURCE, Some(exact))
    };
    if names.is_empty() {
        let values = dataset.list()?;
        let properties = values.into_iter().map(|value| property_row(open_pool, path, dataset, value));
        return Ok(properties.chain(FIGURES.iter().map(figure)).collect());
    }
    let one = |name: &String| {
        if let Some(found) = Figure::find(name) {
            return Ok(figure(found));
        }
        if let Some(quota) = QuotaName::parse(name) {
            return Ok(limit_row(full.clone(), dataset, quota));
        }
        match dataset.get(name) {
            Ok(value) => Ok(property_row(open_pool, path, dataset, value)),
            Err(DatasetError::NotSet { .. } | DatasetError::PoolWide { .. }) => {
                Ok(plain_row(full.clone(), name, "-".to_owned(), "-", None))
            }
            Err(error) => Err(error.into()),
        }
    };
    names.iter().map(one).collect()
}

/// A limit of an owner. It belongs to its data set, and is not inherited.
fn limit_row(full: String, dataset: &Dataset, name: QuotaName) -> PropertyRow {
    let limit = dataset.quotas().get(name);
    let (value, exact) = show_limit(name, limit);
    let source = if limit > 0 { Source::Local } else { Source::Default };
    plain_row(full, &name.to_string(), value, &source.text(""), Some(exact))
}

pub(super) fn get(open_pool: &OpenPool, names: &[String]) -> Outcome<Vec<PropertyRow>> {
    rows_of(open_pool, "", &open_pool.dataset(), &root_facts(open_pool)?, names)
}

/// All or nothing: an invalid value is refused before the first is set.
pub(super) fn set(open_pool: &OpenPool, settings: &[Setting]) -> Outcome {
    for setting in settings {
        validate_setting(setting, open_pool.pool.max_block())?;
    }
    settings.iter().try_for_each(|setting| set_one(&open_pool.dataset(), setting))?;
    Ok(open_pool.pool.commit().map(drop)?)
}

/// Sets a property, or the limit of an owner.
pub(super) fn set_one(dataset: &Dataset, Setting { name, value }: &Setting) -> Outcome {
    match QuotaName::parse(name) {
        Some(quota) => dataset.quotas().set(quota, parse_limit(name, quota.unit, value)?)?,
        None => dataset.set(name, value)?,
    }
    Ok(())
}

/// Has the value of the data set above apply again, or the default; a limit is removed.
pub(super) fn reset_one(dataset: &Dataset, name: &str, received: bool) -> Result<(), DatasetError> {
    match QuotaName::parse(name) {
        Some(quota) => dataset.quotas().set(quota, 0),
        None if received => dataset.reset_to_received(name),
        None => dataset.reset(name),
    }
}

/// Refuses limits among the properties of something new.
pub fn refuse_limits(settings: &[Setting], of: &str) -> Outcome {
    match settings.iter().find(|setting| QuotaName::split(&setting.name).is_some()) {
        Some(Setting { name, .. }) => {
            let (found, remedy) = ("a limit of one owner", "use `terrane fs set` once it exists");
            Err(Failure::refused(name, format!("a property of a new {of}"), found, remedy))
        }
        None => Ok(()),
    }
}

/// Properties that are at their defaults stay so.
pub(super) fn inherit(open_pool: &OpenPool, names: &[String]) -> Outcome {
    for name in names.iter().filter(|name| QuotaName::parse(name).is_none()) {
        Key::find(name)?;
    }
    for name in names {
        reset_one(&open_pool.dataset(), name, false)?;
    }
    Ok(open_pool.pool.commit().map(drop)?)
}

/// Those of these properties that take effect only at the next mount.
pub(super) fn pending_until_remount<'a>(
    open_pool: &OpenPool,
    names: impl Iterator<Item = &'a String>,
) -> Vec<String> {
    names
        .filter(|name| open_pool.mountpoint().is_some() && open_pool.dataset().is_pending(name))
        .cloned()
        .collect()
}

/// Parses `PROPERTY=VALUE`. A value that no pool could take is an error of the command line.
pub fn parse_setting(word: &str) -> Result<Setting, String> {
    let split = word.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = split.ok_or_else(|| "it should be PROPERTY=VALUE".to_owned())?;
    let setting = Setting { name: name.to_owned(), value: value.to_owned() };
    validate_setting(&setting, u32::MAX).map_err(|Failure(text)| text)?;
    Ok(setting)
}

fn key(name: &str) -> Outcome<Key> {
    if let Some(figure) = Figure::find(name) {
        let remedy = "`terrane fs get` shows it";
        return Err(Failure::refused(name, "a property that can be set", figure.meaning, remedy));
    }
    Key::find(name).map_err(|error| {
        let known = PROPERTIES.iter().map(|property| property.name);
        Failure(format!("{error}{}", suggest::hint(name, known)))
    })
}

fn hint_value(property: &Property, value: &str, error: &DatasetError) -> Failure {
    Failure(format!("{error}{}", suggest::hint(value, property.value_words())))
}

/// Whether a property may have this value in a pool whose blocks take at most `max_block` bytes.
pub fn validate_setting(Setting { name, value }: &Setting, max_block: u32) -> Outcome {
    if let Some((.., unit, _)) = QuotaName::split(name) {
        return parse_limit(name, unit, value).map(drop);
    }
    let key = key(name)?;
    let Some(property) = key.property() else {
        return Ok(key.parse(value).map(drop)?);
    };
    let stored = key.parse(value).map_err(|error| hint_value(property, value, &error))?;
    if property.name == "recordsize" && stored.number().is_some_and(|number| number > u64::from(max_block)) {
        let expected = format!("at most {}, a quarter of a zone", crate::size::format(max_block.into()));
        return Err(Failure::refused(
            "recordsize",
            expected,
            value,
            "choose less, or make a pool with larger zones",
        ));
    }
    Ok(())
}

/// The help section of commands that take properties.
pub fn property_help() -> String {
    let rows =
        PROPERTIES.iter().map(|property| format!("  {:15}  {}\n", property.name, property.values_text()));
    format!(
        "Properties:\n{}  {:15}  any text of at most 8 KiB: a property of your own, like com.example:word\n",
        rows.collect::<String>(),
        "WORD:WORD"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_larger_than_a_block_may_be_is_refused() {
        let validated = |word: &str, max_block| validate_setting(&parse_setting(word).unwrap(), max_block);
        assert_eq!(validated("recordsize=128K", 256 << 10), Ok(()));
        let message = validated("recordsize=1M", 256 << 10).unwrap_err().0;
        assert!(message.contains("at most 256K"), "{message}");
    }

    #[test]
    fn settings_have_a_name_and_mistakes_get_a_suggestion() {
        let set = parse_setting("compression=zstd-3").unwrap();
        assert_eq!((set.name.as_str(), set.value.as_str()), ("compression", "zstd-3"));
        for (word, expected) in [
            ("colour=red", "recordsize"),
            ("compresion=lz4", "did you mean 'compression'?"),
            ("compression=ztsd", "did you mean 'zstd'?"),
            ("atime=relatme", "did you mean 'relatime'?"),
            ("normalization=fromKD", "did you mean 'formKD'?"),
            ("atime", "PROPERTY=VALUE"),
            ("=off", "PROPERTY=VALUE"),
        ] {
            let text = parse_setting(word).unwrap_err();
            assert!(text.contains(expected), "{text}");
        }
    }
}
