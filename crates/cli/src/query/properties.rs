//! Properties: reads and sets them, and shows counted values.

use super::Setting;
use super::owners::{parse_limit, show_limit};
use crate::failure::{Failure, Outcome};
use crate::figures::{self, FIGURES, Figure};
use crate::open_pool::OpenPool;
use crate::suggest;
use serde::Serialize;
use terrane_dataset::{DatasetError, PROPERTIES, Property, PropertyValue, QuotaName, Source};
use terrane_posix::Job;
use terrane_txg::levels::LevelShare;

/// A property, or a counted value that cannot be set.
#[derive(Serialize)]
pub(super) struct PropertyRow {
    name: String,
    property: String,
    value: String,
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

fn property_row(open_pool: &OpenPool, value: PropertyValue) -> PropertyRow {
    let level = |share: &LevelShare| LevelRow {
        name: share.compression.to_string(),
        records: share.blocks,
        logical: share.logical_bytes,
        stored: share.stored_bytes,
    };
    let levels = open_pool.dataset.object_set().zstd_levels().shares();
    let levels =
        (value.name == "compression" && !levels.is_empty()).then(|| levels.iter().map(level).collect());
    let recompressed =
        (value.name == "recompress").then(|| open_pool.fs.get().map(|fs| fs.recompress().progress()));
    let recompressed = recompressed.flatten().filter(|done| done.records > 0).map(|done| Recompressed {
        records: done.records,
        before: done.before_bytes,
        after: done.after_bytes,
    });
    PropertyRow {
        name: open_pool.pool.name(),
        property: value.name.to_owned(),
        value: value.value,
        source: value.source.to_string(),
        exact: None,
        levels,
        recompressed,
    }
}

fn figure_row(open_pool: &OpenPool, figure: &Figure) -> PropertyRow {
    let (value, exact) = figure.show(open_pool);
    PropertyRow {
        name: open_pool.pool.name(),
        property: figure.name.to_owned(),
        value,
        source: figures::SOURCE.to_owned(),
        exact: Some(exact),
        levels: None,
        recompressed: None,
    }
}

fn limit_row(open_pool: &OpenPool, name: QuotaName) -> PropertyRow {
    let limit = open_pool.dataset.quotas().get(name);
    let (value, exact) = show_limit(name, limit);
    let source = if limit > 0 { Source::Local } else { Source::Default };
    PropertyRow {
        name: open_pool.pool.name(),
        property: name.to_string(),
        value,
        source: source.to_string(),
        exact: Some(exact),
        levels: None,
        recompressed: None,
    }
}

pub(super) fn get(open_pool: &OpenPool, names: &[String]) -> Outcome<Vec<PropertyRow>> {
    let figure = |figure: &Figure| figure_row(open_pool, figure);
    if names.is_empty() {
        let values = open_pool.dataset.list()?;
        let properties = values.into_iter().map(|value| property_row(open_pool, value));
        return Ok(properties.chain(FIGURES.iter().map(figure)).collect());
    }
    let one = |name: &String| match (Figure::find(name), QuotaName::parse(name)) {
        (Some(found), _) => Ok(figure(found)),
        (None, Some(quota)) => Ok(limit_row(open_pool, quota)),
        (None, None) => Ok(property_row(open_pool, open_pool.dataset.get(name)?)),
    };
    names.iter().map(one).collect()
}

/// All or nothing: an invalid value is refused before the first is set.
pub(super) fn set(open_pool: &OpenPool, settings: &[Setting]) -> Outcome {
    for setting in settings {
        validate_setting(setting, open_pool.pool.max_block())?;
    }
    for Setting { name, value } in settings {
        match QuotaName::parse(name) {
            Some(quota) => open_pool.dataset.quotas().set(quota, parse_limit(name, quota.unit, value)?)?,
            None => open_pool.dataset.set(name, value)?,
        }
    }
    Ok(open_pool.pool.commit().map(drop)?)
}

/// Properties that are at their defaults stay so.
pub(super) fn inherit(open_pool: &OpenPool, names: &[String]) -> Outcome {
    for name in names.iter().filter(|name| QuotaName::parse(name).is_none()) {
        Property::find(name)?;
    }
    for name in names {
        match QuotaName::parse(name) {
            Some(quota) => open_pool.dataset.quotas().set(quota, 0)?,
            None => open_pool.dataset.reset(name)?,
        }
    }
    Ok(open_pool.pool.commit().map(drop)?)
}

/// Those of these properties that take effect only at the next mount.
pub(super) fn pending_until_remount<'a>(
    open_pool: &OpenPool,
    names: impl Iterator<Item = &'a String>,
) -> Vec<String> {
    names
        .filter(|name| open_pool.mountpoint.is_some() && open_pool.dataset.is_pending(name))
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

fn property(name: &str) -> Outcome<&'static Property> {
    if let Some(figure) = Figure::find(name) {
        let remedy = "`terrane fs get` shows it";
        return Err(Failure::refused(name, "a property that can be set", figure.meaning, remedy));
    }
    Property::find(name).map_err(|error| {
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
    let property = property(name)?;
    let number = property.parse(value).map_err(|error| hint_value(property, value, &error))?;
    if property.name == "recordsize" && number > u64::from(max_block) {
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
    format!("Properties:\n{}", rows.collect::<String>())
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
