//! Metrics of a pool, for Prometheus.
//!
//! `families` says what is measured, `text` how it is written, and `server` answers `GET /metrics`. `terrane
//! metrics` prints the same text. Names end in their unit, those of counters in `_total`. A pool that is not
//! mounted has no history: it shows its space and its zones.

mod families;
mod server;
mod text;

pub use server::{listen, serve};

use crate::live::Live;
use terrane_fuse::MountStats;
use terrane_posix::Fs;
use text::{Page, seconds};

/// The data of a mount beside its pool.
pub struct MountSide<'a> {
    pub stats: MountStats,
    pub fs: &'a Fs,
}

/// The whole text. Without a mount, what a freshly opened pool can show.
pub fn page(live: &Live, mount: Option<&MountSide<'_>>) -> String {
    let stats = live.pool.stats();
    let mut page = Page { pool: live.pool.name(), out: String::new() };
    page.family("info", "gauge", "The pool and the program that answers for it; always 1.");
    let id = format!("{:016x}", live.pool.label().id());
    let device = live.path.display().to_string();
    page.sample("info", &[("id", &id), ("device", &device), ("version", env!("CARGO_PKG_VERSION"))], 1);
    page.gauge(
        "mounted",
        "Whether the pool is mounted by the process that answers.",
        u8::from(mount.is_some()),
    );
    families::space(&mut page, live, &stats);
    families::life(&mut page, live, &stats);
    if let Some(mount) = mount {
        page.gauge("failed", "Whether the pool has stopped writing after an error.", u8::from(stats.failed));
        page.gauge(
            "uptime_seconds",
            "Time since the import; all counters began then.",
            seconds(stats.uptime_ns),
        );
        families::devices(&mut page, &stats);
        families::groups(&mut page, &stats);
        families::caches(&mut page, &stats);
        families::cache_devices(&mut page, live);
        families::levels(&mut page, live);
        families::rewritten(&mut page, mount.fs);
        families::errors(&mut page, &stats);
        families::requests(&mut page, mount);
        families::process(&mut page, live);
    }
    page.out
}
