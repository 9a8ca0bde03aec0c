//! A small workload on a pool, recorded and replayed by the simulator: it must cost there what the pool
//! itself measured.

use std::io::Write;
use std::sync::{Arc, Mutex};
use terrane_format::Totals;
use terrane_format::totals::WritePurpose;
use terrane_posix::{Fs, WriteFlags};
use terrane_sim::gc::trace::recorded::Recorded;
use terrane_sim::gc::{self, Measure, Setting};
use terrane_sim::machine::{Machine, Plan, USER};
use terrane_wire::Prng;

/// The recording, kept after the pool was closed.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const BLOCK: usize = 16 << 10;

fn write(fs: &Fs, ino: u64, block: u64, rng: &mut Prng) {
    let mut bytes = Vec::with_capacity(BLOCK);
    while bytes.len() < BLOCK {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    assert_eq!(fs.write(ino, block * BLOCK as u64, &bytes, WriteFlags::default()), Ok(BLOCK as u32));
}

/// One file, overwritten at random, and small ones that come and go. Returns the recording, and the pool's
/// counters.
fn record_workload(zones: u32) -> (String, Totals) {
    let props = vec![("recordsize", "16K"), ("compression", "off")];
    let plan = Plan { zones, drive: true, stale: false, props, ..Plan::small(4) };
    let machine = Machine::create(&plan).unwrap();
    let (page, before) = (Page::default(), machine.pool.totals());
    machine.pool.record(Box::new(page.clone())).unwrap();
    let fs = machine.fs();
    let mut rng = Prng::new(1);
    let blocks = fs.statfs().available * u64::from(fs.statfs().block_size) / BLOCK as u64 * 8 / 10;
    let great = fs.create(fs.root(), b"great", 0o644, &USER).unwrap().ino;
    for block in 0..blocks {
        write(fs, great, block, &mut rng);
    }
    for step in 0..2 * blocks {
        write(fs, great, rng.below(blocks), &mut rng);
        if step % 64 == 0 {
            let small = fs.create(fs.root(), b"small", 0o644, &USER).unwrap().ino;
            write(fs, small, 0, &mut rng);
            fs.sync().unwrap();
            fs.unlink(fs.root(), b"small").unwrap();
            fs.forget(small, 1);
        }
    }
    fs.sync().unwrap();
    let spent = machine.pool.totals().since(&before);
    machine.export().unwrap();
    let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
    (text, spent)
}

#[test]
fn a_replay_costs_what_the_pool_measured() {
    let (text, spent) = record_workload(160);
    let lines = |letter: &str| text.lines().filter(|line| line.split(' ').next() == Some(letter)).count();
    assert_eq!((lines("pool"), lines("b") > 10_000, lines("m") > 0), (1, true, true));
    let born: u64 = text
        .lines()
        .filter_map(|line| line.strip_prefix("b "))
        .map(|rest| rest.split(' ').nth(1).unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(
        born,
        spent.written_for(WritePurpose::Data),
        "every block of data is recorded, and none twice"
    );
    let mut trace = Recorded::parse(text).unwrap();
    let shape = trace.shape.unwrap();
    let setting =
        Setting { slots: shape.slots, ages: shape.ages, ..Setting::new(shape.zones, shape.zone_bytes) };
    let measure = Measure { seed: 1, warm_up: 0.0, measured: 1e6 };
    let report = gc::run(setting.with_policy("both").unwrap(), &mut trace, measure).unwrap();
    let [data, moved] =
        [WritePurpose::Data, WritePurpose::Collection].map(|what| spent.written_for(what) as f64);
    let measured = (data + moved) / data;
    eprintln!("pool {measured:.3}, replay {:.3}, {report:?}", report.amplification);
    assert!(measured > 1.2, "something was collected: {measured}");
    let off = report.amplification / measured;
    assert!((0.85..1.15).contains(&off), "pool {measured}, replay {}", report.amplification);
}
