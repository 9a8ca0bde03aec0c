//! Questions to a pool, and their answers as JSON.
//!
//! The same question is asked of a pool that this process opened and, through a socket, of one that a daemon has mounted. So the
//! answer is made in one place, from the open pool, and is plain JSON: commands only choose columns.

mod status;

pub use status::{NOT_WRITTEN_BACK, unavailable};

use crate::check;
use crate::collect;
use crate::failure::{Failure, Outcome};
use crate::figures::{self, FIGURES, Figure};
use crate::inspect;
use crate::live::Live;
use crate::metrics;
use crate::newcomer::{Kind, Terms};
use crate::progress::Progress;
use crate::rewriting;
use crate::suggest;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use terrane_dataset::{DatasetError, PROPERTIES, Property};
use terrane_format::label::Role;
use terrane_format::{Feature, Spent};
use terrane_object::Compression;
use terrane_pool::WaitFor;
use terrane_pool::errors::DeviceErrors;
use terrane_pool::{CacheDevice, SecondStats};
use terrane_pool::{LevelShare, Member};
use terrane_posix::RewriteSpec;
use terrane_wire::meter::Times;

/// A property and what it shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: String,
    pub value: String,
}

/// What can be asked. Everything but `Set`, `Inherit`, `Upgrade`, `Add`, `Remove`, `Collect`, `Rewrite`, `RewriteCancel` and `Clear` only
/// reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    Status,
    Metrics,
    /// The named properties; none: all.
    Get(Vec<String>),
    Set(Vec<Setting>),
    /// The named properties back to their defaults.
    Inherit(Vec<String>),
    /// One more device.
    Add {
        path: PathBuf,
        kind: Kind,
        /// Where the device has none of its own, in bytes; `None`: as fits it.
        zone_size: Option<u64>,
        /// What is there may go.
        force: bool,
    },
    /// One device less: by path, number or id.
    Remove {
        device: String,
    },
    /// What the devices have done.
    Iostat,
    Check,
    Uberblocks,
    /// All features that new pools have.
    Upgrade,
    /// Garbage away, down to a share of what full zones hold.
    Collect {
        target_percent: u8,
        wait: bool,
    },
    /// Files stored in another form, by the server of a mount.
    Rewrite {
        object: u64,
        recursive: bool,
        compression: Option<String>,
        record_size: Option<u32>,
    },
    /// How far that is.
    RewriteStatus,
    RewriteCancel,
    /// Empties the error log.
    Clear,
    Zones,
    /// Every zone in its place.
    ZoneMap,
    /// Where the bytes went.
    Space,
    /// How an inode is stored.
    Stat {
        object: u64,
    },
    /// How what a path leads to is stored; from the root of the data set.
    StatPath {
        path: Vec<u8>,
    },
    Zone {
        seq: u64,
    },
    Dnodes {
        meta: bool,
    },
    Dnode {
        meta: bool,
        object: u64,
    },
    Tree {
        meta: bool,
        object: u64,
    },
    Zap {
        meta: bool,
        object: u64,
    },
}

impl Query {
    pub fn is_change(&self) -> bool {
        matches!(
            self,
            Query::Set(_)
                | Query::Inherit(_)
                | Query::Upgrade
                | Query::Add { .. }
                | Query::Remove { .. }
                | Query::Collect { .. }
                | Query::Rewrite { .. }
                | Query::RewriteCancel
                | Query::Clear
        )
    }

    pub fn to_json(&self) -> Value {
        let of = |word: &str, meta: &bool, object: &u64| json!({"ask": word, "meta": meta, "object": object});
        match self {
            Query::Status => json!({"ask": "status"}),
            Query::Metrics => json!({"ask": "metrics"}),
            Query::Get(names) => json!({"ask": "get", "names": names}),
            Query::Set(settings) => {
                let pairs: Vec<_> = settings.iter().map(|set| [&set.name, &set.value]).collect();
                json!({"ask": "set", "pairs": pairs})
            }
            Query::Inherit(names) => json!({"ask": "inherit", "names": names}),
            Query::Add { path, kind, zone_size, force } => {
                let path = path.as_os_str().as_bytes();
                json!({"ask": "add", "path": path, "kind": kind.name(), "zone_size": zone_size, "force": force})
            }
            Query::Remove { device } => json!({"ask": "remove", "device": device}),
            Query::Iostat => json!({"ask": "iostat"}),
            Query::Check => json!({"ask": "check"}),
            Query::Uberblocks => json!({"ask": "uberblocks"}),
            Query::Upgrade => json!({"ask": "upgrade"}),
            Query::Collect { target_percent, wait } => {
                json!({"ask": "collect", "target_percent": target_percent, "wait": wait})
            }
            Query::Rewrite { object, recursive, compression, record_size } => json!({
                "ask": "rewrite",
                "object": object,
                "recursive": recursive,
                "compression": compression,
                "record_size": record_size,
            }),
            Query::RewriteStatus => json!({"ask": "rewrite status"}),
            Query::RewriteCancel => json!({"ask": "rewrite cancel"}),
            Query::Clear => json!({"ask": "clear"}),
            Query::Zones => json!({"ask": "zones"}),
            Query::ZoneMap => json!({"ask": "zone map"}),
            Query::Space => json!({"ask": "space"}),
            Query::Stat { object } => json!({"ask": "stat", "object": object}),
            Query::StatPath { path } => json!({"ask": "stat path", "path": path}),
            Query::Zone { seq } => json!({"ask": "zone", "seq": seq}),
            Query::Dnodes { meta } => json!({"ask": "dnodes", "meta": meta}),
            Query::Dnode { meta, object } => of("dnode", meta, object),
            Query::Tree { meta, object } => of("tree", meta, object),
            Query::Zap { meta, object } => of("zap", meta, object),
        }
    }

    /// `None`: another version asks for something we do not know.
    pub fn from_json(raw: &Value) -> Option<Query> {
        let meta = || raw.get("meta")?.as_bool();
        let object = || raw.get("object")?.as_u64();
        let names = || {
            let names = raw.get("names")?.as_array()?.iter().map(|name| name.as_str().map(str::to_owned));
            names.collect::<Option<Vec<_>>>()
        };
        // Paths are bytes, and JSON is not.
        let path = || {
            let byte = |byte: &Value| byte.as_u64().and_then(|byte| u8::try_from(byte).ok());
            raw.get("path")?.as_array()?.iter().map(byte).collect::<Option<Vec<u8>>>()
        };
        Some(match raw.get("ask")?.as_str()? {
            "remove" => Query::Remove { device: raw.get("device")?.as_str()?.to_owned() },
            "add" => Query::Add {
                path: PathBuf::from(OsString::from_vec(path()?)),
                kind: Kind::of_name(raw.get("kind")?.as_str()?)?,
                zone_size: raw.get("zone_size")?.as_u64(),
                force: raw.get("force")?.as_bool()?,
            },
            "status" => Query::Status,
            "metrics" => Query::Metrics,
            "get" => Query::Get(names()?),
            "inherit" => Query::Inherit(names()?),
            "iostat" => Query::Iostat,
            "set" => {
                let pair = |pair: &Value| {
                    let word = |at: usize| pair.get(at)?.as_str().map(str::to_owned);
                    Some(Setting { name: word(0)?, value: word(1)? })
                };
                Query::Set(raw.get("pairs")?.as_array()?.iter().map(pair).collect::<Option<_>>()?)
            }
            "check" => Query::Check,
            "uberblocks" => Query::Uberblocks,
            "upgrade" => Query::Upgrade,
            "collect" => Query::Collect {
                target_percent: u8::try_from(raw.get("target_percent")?.as_u64()?).ok()?,
                wait: raw.get("wait")?.as_bool()?,
            },
            "rewrite" => {
                let word = |key: &str| raw.get(key).and_then(Value::as_str).map(str::to_owned);
                let size = raw.get("record_size").and_then(Value::as_u64).map(u32::try_from);
                Query::Rewrite {
                    object: object()?,
                    recursive: raw.get("recursive")?.as_bool()?,
                    compression: word("compression"),
                    record_size: size.transpose().ok()?,
                }
            }
            "rewrite status" => Query::RewriteStatus,
            "rewrite cancel" => Query::RewriteCancel,
            "clear" => Query::Clear,
            "zones" => Query::Zones,
            "zone map" => Query::ZoneMap,
            "space" => Query::Space,
            "stat" => Query::Stat { object: object()? },
            "stat path" => Query::StatPath { path: path()? },
            "zone" => Query::Zone { seq: raw.get("seq")?.as_u64()? },
            "dnodes" => Query::Dnodes { meta: meta()? },
            "dnode" => Query::Dnode { meta: meta()?, object: object()? },
            "tree" => Query::Tree { meta: meta()?, object: object()? },
            "zap" => Query::Zap { meta: meta()?, object: object()? },
            _ => return None,
        })
    }

    pub fn answer(&self, live: &Live, progress: Progress<'_>) -> Outcome<Value> {
        match self {
            Query::Status => Ok(status::of(live)),
            Query::Metrics => Ok(metrics::page(live, None).into()),
            Query::Get(names) => get(live, names),
            Query::Set(settings) => {
                set(live, settings)?;
                Ok(waiting(live, settings.iter().map(|setting| &setting.name)))
            }
            Query::Inherit(names) => {
                inherit(live, names)?;
                Ok(waiting(live, names.iter()))
            }
            Query::Add { path, kind, zone_size, force } => {
                add(live, path, *kind, &Terms { size: None, zone_size: *zone_size, force: *force })
            }
            Query::Remove { device } => remove(live, device, progress),
            Query::Iostat => Ok(iostat(live)),
            Query::Check => check::beside(live, progress),
            Query::Uberblocks => Ok(inspect::uberblocks(&live.pool.device_handles())),
            Query::Upgrade => upgrade(live),
            Query::Collect { target_percent, wait } => {
                collect::down_to(live, *target_percent, *wait, progress)
            }
            Query::Rewrite { object, recursive, compression, record_size } => {
                let compression = compression.as_ref().map(|word| word.parse::<Compression>()).transpose();
                let spec = RewriteSpec {
                    root: *object,
                    recursive: *recursive,
                    compression: compression.map_err(|error| Failure(error.to_string()))?,
                    record_size: *record_size,
                };
                rewriting::begin(live, &spec)
            }
            Query::RewriteStatus => Ok(rewriting::status(live)),
            Query::RewriteCancel => rewriting::cancel(live),
            Query::Clear => status::clear(live),
            Query::Zones => Ok(inspect::zones(&live.pool)),
            Query::ZoneMap => Ok(inspect::zone_map(live)),
            Query::Space => inspect::space(live),
            Query::Stat { object } => inspect::stat(live, *object, progress),
            Query::StatPath { path } => inspect::stat(live, inspect::resolve(live, path)?, progress),
            Query::Zone { seq } => inspect::zone(&live.pool, *seq),
            Query::Dnodes { meta } => Ok(inspect::dnodes(live, *meta)),
            Query::Dnode { meta, object } => inspect::dnode(live, *meta, *object),
            Query::Tree { meta, object } => inspect::tree(live, *meta, *object),
            Query::Zap { meta, object } => inspect::zap(live, *meta, *object),
        }
    }
}

/// Makes a device one of the pool's; says what there is to say of it.
fn add(live: &Live, path: &Path, kind: Kind, terms: &Terms) -> Outcome<Value> {
    // Under the name by which it will be looked for.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let device = terms.open(&path, &|_| Ok(()))?.into_device()?;
    let role = match kind {
        Kind::Data => Role::Data,
        Kind::Special => Role::Special,
        Kind::Cache => {
            let id = live.pool.add_cache(device)?;
            let added = live.pool.caches().into_iter().find(|cache| cache.id == id);
            return Ok(added.as_ref().map_or(Value::Null, status::cache_row));
        }
    };
    let index = live.pool.add_device(device, role)?;
    let members = live.pool.members();
    let member = members.iter().find(|member| member.index == index);
    let row = |member| status::device_row(member, DeviceErrors::default());
    member.map(row).ok_or_else(|| Failure("the device went while it came".to_owned()))
}

/// Empties a device and lets it go; says which are left.
fn remove(live: &Live, word: &str, progress: Progress<'_>) -> Outcome<Value> {
    let members = live.pool.members();
    let is_meant = |member: &&Member| {
        member.name == word || member.index.0.to_string() == word || format!("{:016x}", member.id) == word
    };
    let is_cache = |cache: &CacheDevice| cache.name == word || format!("{:016x}", cache.id) == word;
    if let Some(cache) = live.pool.caches().into_iter().find(is_cache) {
        live.pool.remove_cache(cache.id)?;
        let rest: Vec<String> = members.into_iter().map(|member| member.name).collect();
        return Ok(json!({"name": live.pool.name(), "rest": rest}));
    }
    let Some(member) = members.iter().find(is_meant) else {
        let known: Vec<String> =
            members.iter().map(|member| format!("{} ({})", member.index, member.name)).collect();
        let (pool, remedy) = (format!("pool {}", live.pool.name()), "name one of them");
        return Err(Failure::refused(pool, known.join(", "), format_args!("{word:?}"), remedy));
    };
    if live.mountpoint.is_some() && Path::new(&member.name) == live.path {
        // A server that follows this one looks for the pool there.
        let remedy = "unmount it, and mount it by another of its devices";
        let expected = "a device by which the pool is not mounted";
        return Err(Failure::refused(format!("pool {}", live.pool.name()), expected, word, remedy));
    }
    live.pool.remove_device(member.index, &mut |done, total| {
        progress("reading what lives there", done, total);
    })?;
    let rest: Vec<String> = live.pool.members().into_iter().map(|member| member.name).collect();
    Ok(json!({"name": live.pool.name(), "rest": rest}))
}

/// Counters since the import, all devices together, and how long ago that was.
fn iostat(live: &Live) -> Value {
    let stats = live.pool.stats();
    let (_, used, available) = stats.space;
    let sum = |counter: fn(&terrane_device::IoCounts) -> u64| -> u64 {
        stats.devices.iter().map(|device| counter(&device.io)).sum()
    };
    let caches: Vec<SecondStats> = live.pool.caches().into_iter().filter_map(|cache| cache.stats).collect();
    let second = |counter: fn(&SecondStats) -> u64| caches.iter().map(counter).sum::<u64>();
    json!({
        "name": live.pool.name(),
        "used": used,
        "available": available,
        "seconds": stats.uptime_ns as f64 / 1e9,
        "reads": sum(|io| io.reads),
        "writes": sum(|io| io.writes),
        "read_bytes": sum(|io| io.read_bytes),
        "written_bytes": sum(|io| io.written_bytes),
        "flushes": sum(|io| io.flushes),
        "resets": sum(|io| io.resets),
        "errors": sum(terrane_device::IoCounts::errors),
        "cache_hits": stats.cache.hits,
        "cache_misses": stats.cache.misses,
        "cache_device_hits": second(|stats| stats.hits),
        "cache_device_read_bytes": second(|stats| stats.io.read_bytes),
        "cache_device_written_bytes": second(|stats| stats.io.written_bytes),
        "user_bytes": stats.totals_now.user_bytes,
        "data_bytes": stats.totals_now.spent_on(Spent::Data),
        "metadata_bytes": stats.totals_now.spent_on(Spent::Metadata),
        "log_bytes": stats.totals_now.spent_on(Spent::Log),
        "collection_bytes": stats.totals_now.spent_on(Spent::Collection),
        "directory_bytes": stats.totals_now.spent_on(Spent::Directory),
        "padding_bytes": stats.totals_now.spent_on(Spent::Padding),
        "anchor_bytes": stats.totals_now.spent_on(Spent::Anchor),
        "nopwrite_bytes": stats.nopwrite_bytes,
        "times": {
            "read": times(&stats.device_read),
            "write": times(&stats.device_write),
            "flush": times(&stats.flush),
            "group": times(&stats.group),
            "join": times(&stats.begin),
            "space": times(&stats.waits[WaitFor::Space as usize]),
        },
    })
}

fn times(times: &Times) -> Value {
    json!({"counts": times.buckets, "sum_ns": times.sum_ns, "longest_ns": times.longest_ns})
}

fn get(live: &Live, names: &[String]) -> Outcome<Value> {
    let pool = live.pool.name();
    let property = |value: &terrane_dataset::PropertyValue| {
        let source = value.source.to_string();
        let mut row = json!({"name": pool, "property": value.name, "value": value.value, "source": source});
        let levels = live.dataset.objects().levels().shares();
        if value.name == "compression" && !levels.is_empty() {
            row["levels"] = levels.iter().map(level).collect();
        }
        if value.name == "recompress"
            && let Some(done) = live.fs.get().map(|fs| fs.recompress_status()).filter(|done| done.records > 0)
        {
            row["recompressed"] =
                json!({"records": done.records, "before": done.before_bytes, "after": done.after_bytes});
        }
        row
    };
    let figure = |figure: &Figure| {
        let (value, exact) = figure.show(live);
        json!({"name": pool, "property": figure.name, "value": value, "exact": exact, "source": figures::SOURCE})
    };
    if names.is_empty() {
        let values = live.dataset.list()?;
        return Ok(values.iter().map(property).chain(FIGURES.iter().map(figure)).collect());
    }
    let one = |name: &String| match Figure::find(name) {
        Some(found) => Ok(figure(found)),
        None => Ok(property(&live.dataset.get(name)?)),
    };
    names.iter().map(one).collect()
}

fn level(share: &LevelShare) -> Value {
    json!({
        "name": share.compression.to_string(),
        "records": share.blocks,
        "logical": share.logical_bytes,
        "stored": share.stored_bytes,
    })
}

/// All of it or nothing: what is not valid is refused before the first is set.
fn set(live: &Live, settings: &[Setting]) -> Outcome {
    for setting in settings {
        judge(setting, live.pool.max_block())?;
    }
    for Setting { name, value } in settings {
        live.dataset.set(name, value)?;
    }
    Ok(live.pool.commit().map(drop)?)
}

/// Those that stand at their defaults stay so.
fn inherit(live: &Live, names: &[String]) -> Outcome {
    for name in names {
        Property::find(name)?;
    }
    for name in names {
        live.dataset.reset(name)?;
    }
    Ok(live.pool.commit().map(drop)?)
}

/// Those of these properties that a mount goes on without.
fn waiting<'a>(live: &Live, names: impl Iterator<Item = &'a String>) -> Value {
    names.filter(|name| live.mountpoint.is_some() && live.dataset.waits(name)).cloned().collect()
}

/// Adds the features that the pool lacks; names those that it lacked.
fn upgrade(live: &Live) -> Outcome<Value> {
    let new = live.pool.enable(&Feature::defaults())?;
    let added: Vec<&str> = new.iter().map(|feature| feature.row().name).collect();
    Ok(
        json!({"name": live.pool.name(), "features": inspect::feature_names(&live.pool.label()), "added": added}),
    )
}

/// `PROPERTY=VALUE` on a command line. What no pool could take is a mistake in the command line.
pub fn setting(word: &str) -> Result<Setting, String> {
    let split = word.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = split.ok_or_else(|| "it should be PROPERTY=VALUE".to_owned())?;
    let setting = Setting { name: name.to_owned(), value: value.to_owned() };
    judge(&setting, u32::MAX).map_err(|Failure(text)| text)?;
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
    // What may be written is told in words for people; those that are values are among them.
    let words = property.values.split(", ").filter(|word| !word.contains([' ', '.']));
    Failure(format!("{error}{}", suggest::hint(value, words)))
}

/// Whether a property may have this value in a pool whose blocks take at most `max_block` bytes.
pub fn judge(Setting { name, value }: &Setting, max_block: u32) -> Outcome {
    let property = property(name)?;
    let number = property.parse(value).map_err(|error| hint_value(property, value, &error))?;
    if property.name == "recordsize" && number > u64::from(max_block) {
        let expected = format!("at most {}, a quarter of a zone", crate::size::print(max_block.into()));
        return Err(Failure::refused(
            "recordsize",
            expected,
            value,
            "choose less, or make a pool with larger zones",
        ));
    }
    Ok(())
}

/// What the help of commands that take properties says.
pub fn property_help() -> String {
    let rows = PROPERTIES.iter().map(|property| format!("  {:15}  {}\n", property.name, property.values));
    format!("Properties:\n{}", rows.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_survive_the_socket() {
        for query in [
            Query::Status,
            Query::Metrics,
            Query::Get(vec![]),
            Query::Get(vec!["atime".into(), "x\n".into()]),
            Query::Set(vec![Setting { name: "a".into(), value: "b=c".into() }]),
            Query::Inherit(vec!["atime".into()]),
            Query::Add {
                path: "/dev/\u{e4}".into(),
                kind: Kind::Special,
                zone_size: Some(1 << 20),
                force: false,
            },
            Query::Add { path: "/x".into(), kind: Kind::Cache, zone_size: None, force: true },
            Query::Remove { device: "/dev/sdb".into() },
            Query::Iostat,
            Query::Check,
            Query::Uberblocks,
            Query::Upgrade,
            Query::Collect { target_percent: 7, wait: true },
            Query::Rewrite {
                object: 7,
                recursive: true,
                compression: Some("zstd-19".into()),
                record_size: None,
            },
            Query::Rewrite { object: 8, recursive: false, compression: None, record_size: Some(1 << 20) },
            Query::RewriteStatus,
            Query::RewriteCancel,
            Query::Zones,
            Query::ZoneMap,
            Query::Space,
            Query::Stat { object: 7 },
            Query::StatPath { path: b"/a\xff\n".to_vec() },
            Query::Zone { seq: u64::MAX },
            Query::Dnodes { meta: true },
            Query::Dnode { meta: true, object: 3 },
            Query::Tree { meta: false, object: 0 },
            Query::Zap { meta: false, object: 1 << 60 },
        ] {
            assert_eq!(Query::from_json(&query.to_json()), Some(query));
        }
    }

    #[test]
    fn what_nobody_asks_is_not_understood() {
        for raw in ["1", "{}", r#"{"ask":"fly"}"#, r#"{"ask":"zone"}"#, r#"{"ask":"set","pairs":[["a"]]}"#] {
            assert_eq!(Query::from_json(&serde_json::from_str(raw).unwrap()), None, "{raw}");
        }
    }

    #[test]
    fn a_record_larger_than_a_block_may_be_is_refused() {
        let judged = |word: &str, max_block| judge(&setting(word).unwrap(), max_block);
        assert_eq!(judged("recordsize=128K", 256 << 10), Ok(()));
        let message = judged("recordsize=1M", 256 << 10).unwrap_err().0;
        assert!(message.contains("at most 256K"), "{message}");
    }

    #[test]
    fn settings_have_a_name_and_mistakes_get_a_suggestion() {
        let set = setting("compression=zstd-3").unwrap();
        assert_eq!((set.name.as_str(), set.value.as_str()), ("compression", "zstd-3"));
        for (word, said) in [
            ("colour=red", "recordsize"),
            ("compresion=lz4", "did you mean 'compression'?"),
            ("compression=ztsd", "did you mean 'zstd'?"),
            ("atime=relatme", "did you mean 'relatime'?"),
            ("atime", "PROPERTY=VALUE"),
            ("=off", "PROPERTY=VALUE"),
        ] {
            let text = setting(word).unwrap_err();
            assert!(text.contains(said), "{text}");
        }
    }
}
