//! The result of a run, as a row and as JSON.

use super::Simulation;
use super::accounting::{IndexSize, Totals};
use std::time::Duration;

/// One run's results, over the measured time.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Bytes of users' data and of survivors written, per byte of users' data.
    pub amplification: f64,
    /// The same with metadata and directories.
    pub amplification_all: f64,
    /// Live share of the capacity of full zones, at the end.
    pub utilisation: f64,
    /// Size of the relocation index, at the end.
    pub index: IndexSize,
    /// Its largest size during the measurement.
    pub index_largest: IndexSize,
    /// Bytes of live blocks at the end.
    pub live_bytes: u64,
    /// Snapshots at the end.
    pub snapshots: u64,
    /// Live bytes that only snapshots hold, at the end.
    pub held_bytes: u64,
    /// Bytes of relocated blocks rewritten per byte of users' data.
    pub rewritten: f64,
    /// Bytes of all zones.
    pub pool_bytes: u64,
    /// Zones of the pool.
    pub zones: u32,
    /// Choices of a victim.
    pub victims: u64,
    /// Time to choose a victim, median and p99. Wall time, so load on the machine counts.
    pub choose_p50_ns: u32,
    /// The p99 of that time.
    pub choose_p99_ns: u32,
    /// The mean lifetime of hot data, in bytes that users write.
    pub life_mean_bytes: Option<u64>,
    /// Wall time of the run.
    pub elapsed: Duration,
}

impl Report {
    /// Head of the table: the columns of [`row`](Self::row).
    pub const HEAD: &str = "policy         data WA  all WA      u  runs/zone  index MB/TB  dead MB/TB  \
         victim us (p99)         l GB  seconds  snapshots  live  held  largest MB/TB live  rewritten";

    /// The results since the totals were `before`, and the largest index. Choice times and sizes are of the whole run.
    pub fn new(run: &Simulation, before: Totals, index_largest: IndexSize, elapsed: Duration) -> Report {
        let accounting = &run.accounting;
        let (snapshots, held_bytes) = run.held();
        let after = accounting.totals;
        let mut choices = accounting.choices_ns.clone();
        choices.sort_unstable();
        // The quantile that one in `part` exceeds.
        let choice =
            |part: usize| choices.len().checked_sub(1 + choices.len() / part).map_or(0, |at| choices[at]);
        let user = (after.user_bytes - before.user_bytes).max(1) as f64;
        let moved = (after.moved_bytes - before.moved_bytes) as f64;
        let rest =
            (after.metadata_bytes + after.directory_bytes) - (before.metadata_bytes + before.directory_bytes);
        Report {
            amplification: 1.0 + moved / user,
            amplification_all: 1.0 + (moved + rest as f64) / user,
            utilisation: accounting.utilisation(),
            index: accounting.index(),
            index_largest,
            live_bytes: run.live_bytes(),
            snapshots,
            held_bytes,
            rewritten: (after.rewritten_bytes - before.rewritten_bytes) as f64 / user,
            pool_bytes: accounting.setting.pool_bytes(),
            zones: accounting.setting.zones,
            victims: after.victims - before.victims,
            choose_p50_ns: choice(2),
            choose_p99_ns: choice(100),
            life_mean_bytes: accounting.lifetimes.mean_bytes(),
            elapsed,
        }
    }

    /// Runs per zone of the pool.
    pub fn runs_per_zone(&self) -> f64 {
        self.index.runs as f64 / f64::from(self.zones)
    }

    /// Per TB (10^12 bytes) of the pool.
    fn per_tb(&self, bytes: u64) -> f64 {
        bytes as f64 / self.pool_bytes as f64 * 1e12
    }

    /// Bytes of memory of the relocation index per TB of the pool.
    pub fn run_bytes_per_tb(&self) -> f64 {
        self.per_tb(self.index.run_bytes)
    }

    /// Memory of the largest index and its dead sets per TB of live data, of users and of snapshots.
    pub fn largest_per_live_tb(&self) -> f64 {
        self.index_largest.bytes() as f64 / self.live_bytes.max(1) as f64 * 1e12
    }

    /// This share of the pool.
    fn of_pool(&self, bytes: u64) -> f64 {
        bytes as f64 / self.pool_bytes as f64
    }

    /// The results as a row of the table.
    pub fn row(&self, policy: &str) -> String {
        format!(
            "{policy:14} {:7.3} {:7.3}  {:.3}  {:9.1}  {:11.2}  {:10.2}  {:9.1} ({:8.1})  {:9.2}  {:7.1}  \
             {:9}  {:.2}  {:.2}  {:18.2}  {:9.3}",
            self.amplification,
            self.amplification_all,
            self.utilisation,
            self.runs_per_zone(),
            self.run_bytes_per_tb() / 1e6,
            self.per_tb(self.index.dead_bytes) / 1e6,
            f64::from(self.choose_p50_ns) / 1e3,
            f64::from(self.choose_p99_ns) / 1e3,
            self.life_mean_bytes.unwrap_or(0) as f64 / 1e9,
            self.elapsed.as_secs_f64(),
            self.snapshots,
            self.of_pool(self.live_bytes),
            self.of_pool(self.held_bytes),
            self.largest_per_live_tb() / 1e6,
            self.rewritten,
        )
    }

    /// The results as a JSON object in one line.
    pub fn json(&self, policy: &str) -> String {
        format!(
            "{{\"policy\":\"{policy}\",\"data_write_amplification\":{:.4},\"all_write_amplification\":{:.4},\
             \"utilisation\":{:.4},\"zones\":{},\"pool_bytes\":{},\"runs\":{},\"run_index_bytes\":{},\
             \"run_index_bytes_per_tb\":{:.0},\"dead_set_bytes\":{},\"zone_rows\":{},\"victims\":{},\
             \"victim_choice_p50_ns\":{},\"victim_choice_p99_ns\":{},\"hot_life_bytes\":{},\
             \"snapshots\":{},\"live_bytes\":{},\"held_bytes\":{},\"largest_run_index_bytes\":{},\
             \"largest_dead_set_bytes\":{},\"rewritten_per_byte\":{:.4},\"seconds\":{:.3}}}",
            self.amplification,
            self.amplification_all,
            self.utilisation,
            self.zones,
            self.pool_bytes,
            self.index.runs,
            self.index.run_bytes,
            self.run_bytes_per_tb(),
            self.index.dead_bytes,
            self.index.rows,
            self.victims,
            self.choose_p50_ns,
            self.choose_p99_ns,
            self.life_mean_bytes.map_or("null".into(), |bytes| bytes.to_string()),
            self.snapshots,
            self.live_bytes,
            self.held_bytes,
            self.index_largest.run_bytes,
            self.index_largest.dead_bytes,
            self.rewritten,
            self.elapsed.as_secs_f64(),
        )
    }
}
