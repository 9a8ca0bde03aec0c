//! Metrics of a pool, for Prometheus.
//!
//! `families` says what is measured, `text` how it is written, and `server` answers `GET /metrics`. `terrane
//! metrics` prints the same text. Names end in their unit, those of counters in `_total`. A pool that is not
//! mounted has no history: it shows its space and its zones.

mod families;
mod server;
mod text;

pub use server::{listen, serve};

use crate::open_pool::OpenPool;
use std::sync::Arc;
use terrane_fuse::MountStats;
use terrane_posix::Fs;
use text::{MetricsText, seconds};

/// The metrics of all mounts of a server.
pub struct MountMetrics {
    pub stats: MountStats,
    pub file_systems: Vec<Arc<Fs>>,
}

/// The whole text. Without a mount, what a freshly opened pool can show.
pub fn render(open_pool: &OpenPool, mount: Option<&MountMetrics>) -> String {
    let stats = open_pool.pool.stats();
    let mut text = MetricsText { pool: open_pool.pool.name(), out: String::new() };
    text.family("info", "gauge", "The pool, and the version of the program that serves it; always 1.");
    let id = format!("{:016x}", open_pool.pool.label().id());
    let device = open_pool.path.display().to_string();
    text.sample("info", &[("id", &id), ("device", &device), ("version", env!("CARGO_PKG_VERSION"))], 1);
    text.gauge("mounted", "Whether the answering process has the pool mounted.", u8::from(mount.is_some()));
    families::space(&mut text, open_pool, &stats);
    families::lifetime_totals(&mut text, open_pool, &stats);
    if let Some(mount) = mount {
        text.gauge("failed", "Whether the pool has stopped writing after an error.", u8::from(stats.failed));
        text.gauge(
            "uptime_seconds",
            "Time since the import, when all counters began.",
            seconds(stats.uptime_ns),
        );
        families::devices(&mut text, &stats);
        families::reclaim(&mut text, open_pool, &stats);
        families::given_up(&mut text, &stats);
        families::txgs(&mut text, &stats);
        families::caches(&mut text, &stats);
        families::cache_devices(&mut text, open_pool);
        families::log_devices(&mut text, open_pool);
        families::levels(&mut text, open_pool);
        families::rewritten(&mut text, &mount.file_systems);
        families::errors(&mut text, &stats);
        families::requests(&mut text, mount);
        families::process(&mut text, open_pool);
    }
    text.out
}
