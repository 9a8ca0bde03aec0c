//! Questions to a pool, and their answers as JSON.
//!
//! The same question is asked of a pool that this process opened and, through a socket, of one that a daemon has mounted. So the
//! answer is made in one place, from the open pool, and is plain JSON: commands only choose columns.

use crate::check;
use crate::clock;
use crate::failure::{Failure, Outcome};
use crate::inspect;
use crate::live::Live;
use serde_json::{Value, json};
use terrane_dataset::{PROPERTIES, Property};

/// What can be asked. Everything but `Set` only reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    Status,
    /// The named properties; none: all.
    Get(Vec<String>),
    Set(Vec<(String, String)>),
    Check,
    Uberblocks,
    Zones,
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

/// How far something is: what is counted, how many are done, of how many (0: nobody knows).
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

impl Query {
    pub fn is_change(&self) -> bool {
        matches!(self, Query::Set(_))
    }

    pub fn to_json(&self) -> Value {
        let of = |word: &str, meta: &bool, object: &u64| json!({"ask": word, "meta": meta, "object": object});
        match self {
            Query::Status => json!({"ask": "status"}),
            Query::Get(names) => json!({"ask": "get", "names": names}),
            Query::Set(pairs) => json!({"ask": "set", "pairs": pairs}),
            Query::Check => json!({"ask": "check"}),
            Query::Uberblocks => json!({"ask": "uberblocks"}),
            Query::Zones => json!({"ask": "zones"}),
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
        Some(match raw.get("ask")?.as_str()? {
            "status" => Query::Status,
            "get" => {
                let names = raw.get("names")?.as_array()?.iter().map(|name| name.as_str().map(str::to_owned));
                Query::Get(names.collect::<Option<_>>()?)
            }
            "set" => {
                let pair = |pair: &Value| {
                    let word = |at: usize| pair.get(at)?.as_str().map(str::to_owned);
                    Some((word(0)?, word(1)?))
                };
                Query::Set(raw.get("pairs")?.as_array()?.iter().map(pair).collect::<Option<_>>()?)
            }
            "check" => Query::Check,
            "uberblocks" => Query::Uberblocks,
            "zones" => Query::Zones,
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
            Query::Status => Ok(status(live)),
            Query::Get(names) => get(live, names),
            Query::Set(pairs) => set(live, pairs).map(|()| Value::Null),
            Query::Check => check::beside(live, progress),
            Query::Uberblocks => Ok(inspect::uberblocks(live.device.as_ref())),
            Query::Zones => Ok(inspect::zones(&live.pool)),
            Query::Zone { seq } => inspect::zone(&live.pool, *seq),
            Query::Dnodes { meta } => Ok(inspect::dnodes(live, *meta)),
            Query::Dnode { meta, object } => inspect::dnode(live, *meta, *object),
            Query::Tree { meta, object } => inspect::tree(live, *meta, *object),
            Query::Zap { meta, object } => inspect::zap(live, *meta, *object),
        }
    }
}

fn status(live: &Live) -> Value {
    let status = live.pool.status();
    let usage = live.dataset.objects().usage();
    let uberblock = terrane_pool::inspect::anchors(live.device.as_ref())
        .into_iter()
        .flat_map(|(_, _, ubers)| ubers)
        .map(|(_, uber)| uber)
        .max_by_key(|uber| (uber.txg, uber.incarnation, uber.clean));
    let committed = uberblock.map(|uber| clock::utc((uber.time_ns / 1_000_000_000) as i64));
    let state = match (&status.failed, status.damage.is_empty(), live.pool.is_read_only()) {
        (Some(_), _, _) => "failed",
        (None, false, _) => "damaged",
        (None, true, _) => "healthy",
    };
    let damage: Vec<String> = status.damage.iter().map(ToString::to_string).collect();
    json!({
        "name": status.name,
        "id": format!("{:016x}", status.id),
        "state": state,
        "device": live.path.display().to_string(),
        "mountpoint": live.mountpoint.as_ref().map(|dir| dir.display().to_string()),
        "read_only": live.mountpoint.is_some() && live.pool.is_read_only(),
        "size": status.size_bytes,
        "used": status.live_bytes,
        "available": status.available_bytes,
        "capacity_percent": (status.live_bytes as u128 * 100).checked_div(u128::from(status.size_bytes)).map(|part| part as u64),
        "objects": usage.objects,
        "zone_size": status.zone_size,
        "zones": status.zones,
        "zones_empty": status.zones_empty,
        "zones_waiting": status.zones_waiting,
        "runs": status.runs,
        "txg": status.txg.0,
        "incarnation": status.incarnation,
        "clean": uberblock.map(|uber| uber.clean),
        "committed": committed,
        "failed": status.failed,
        "damage": damage,
    })
}

fn get(live: &Live, names: &[String]) -> Outcome<Value> {
    let values = if names.is_empty() {
        live.dataset.list()?
    } else {
        names.iter().map(|name| live.dataset.get(name)).collect::<Result<_, _>>()?
    };
    let pool = live.pool.name();
    let row = |value: &terrane_dataset::PropertyValue| {
        let source = value.source.to_string();
        json!({"name": pool, "property": value.name, "value": value.value, "source": source})
    };
    Ok(values.iter().map(row).collect())
}

/// All of it or nothing: what is not valid is refused before the first is set.
fn set(live: &Live, pairs: &[(String, String)]) -> Outcome {
    for (name, value) in pairs {
        judge(name, value, live.pool.max_block())?;
    }
    for (name, value) in pairs {
        live.dataset.set(name, value)?;
    }
    Ok(live.pool.commit().map(drop)?)
}

/// Whether a property may have this value in a pool whose blocks take at most `max_block` bytes.
pub fn judge(name: &str, value: &str, max_block: u32) -> Outcome {
    let property = Property::find(name)?;
    let number = property.parse(value)?;
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

/// What the help of `get` and `set` says.
pub fn property_help() -> String {
    let rows = PROPERTIES.iter().map(|property| format!("  {:12}  {}\n", property.name, property.values));
    format!("Properties:\n{}", rows.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_survive_the_socket() {
        for query in [
            Query::Status,
            Query::Get(vec![]),
            Query::Get(vec!["atime".into(), "x\n".into()]),
            Query::Set(vec![("a".into(), "b=c".into())]),
            Query::Check,
            Query::Uberblocks,
            Query::Zones,
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
        assert_eq!(judge("recordsize", "128K", 256 << 10), Ok(()));
        let message = judge("recordsize", "1M", 256 << 10).unwrap_err().0;
        assert!(message.contains("at most 256K"), "{message}");
        assert!(judge("colour", "red", 1 << 24).unwrap_err().0.contains("recordsize"));
    }
}
