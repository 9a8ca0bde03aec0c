//! The devices of a pool: what they are, one more, one less.

use crate::failure::{Failure, Outcome};
use crate::live::Live;
use crate::newcomer::{Kind, Terms};
use crate::progress::Progress;
use serde_json::{Value, json};
use std::path::Path;
use terrane_format::label::{Role, Stay};
use terrane_pool::CacheDevice;
use terrane_pool::Member;
use terrane_store::errors::DeviceErrors;

/// Each device of the pool.
pub(super) fn rows(live: &Live) -> Value {
    let errors = live.pool.errors().devices;
    let row = |member| device_row(member, errors.get(&member.index).copied().unwrap_or_default());
    live.pool.members().iter().map(row).collect()
}

fn device_row(member: &Member, errors: DeviceErrors) -> Value {
    json!({
        "index": member.index.0,
        "id": format!("{:016x}", member.id),
        "device": member.name,
        "role": match member.role {
            Role::Data => "data",
            Role::Special => "special",
        },
        "state": match (member.stay, &member.trouble) {
            (_, Some(_)) => "troubled",
            (Stay::Normal, None) => "normal",
            (Stay::Leaving, None) => "leaving",
        },
        "zone_size": member.zone_size,
        "zones": member.zones,
        "zones_empty": member.zones_empty,
        "zones_used": member.zones_used,
        "live": member.live_bytes,
        "trouble": member.trouble,
        "read_errors": errors.read,
        "write_errors": errors.write,
        "checksum_errors": errors.checksum,
    })
}

/// A cache device, in figures if it is there.
pub(super) fn cache_row(cache: &CacheDevice) -> Value {
    let stats = cache.stats.as_ref();
    json!({
        "id": format!("{:016x}", cache.id),
        "device": cache.name,
        "role": "cache",
        "state": stats.map_or("missing", |stats| if stats.is_loading { "loading" } else { "normal" }),
        "size": stats.map(|stats| stats.size_bytes),
        "held": stats.map(|stats| stats.held_bytes),
        "blocks": stats.map(|stats| stats.blocks),
        "hits": stats.map(|stats| stats.hits),
        "damaged": stats.map(|stats| stats.damaged),
    })
}

/// Makes a device one of the pool's; says what there is to say of it.
pub(super) fn add(live: &Live, path: &Path, kind: Kind, terms: &Terms) -> Outcome<Value> {
    // Under the name by which it will be looked for.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let device = terms.open(&path, &|_| Ok(()))?.into_device()?;
    let role = match kind {
        Kind::Data => Role::Data,
        Kind::Special => Role::Special,
        Kind::Cache => {
            let id = live.pool.add_cache(device)?;
            let added = live.pool.caches().into_iter().find(|cache| cache.id == id);
            return Ok(added.as_ref().map_or(Value::Null, cache_row));
        }
    };
    let index = live.pool.add_device(device, role)?;
    let members = live.pool.members();
    let member = members.iter().find(|member| member.index == index);
    let row = |member| device_row(member, DeviceErrors::default());
    member.map(row).ok_or_else(|| Failure("the device went while it came".to_owned()))
}

/// Empties a device and lets it go; says which are left.
pub(super) fn remove(live: &Live, word: &str, progress: Progress<'_>) -> Outcome<Value> {
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
