//! A nearly full pool whose txgs are smaller than a batch: GC frees as much for each as it took, though most
//! of that is not sent yet.

use terrane_posix::WriteFlags;
use terrane_sim::machine::{Machine, Plan, USER};
use terrane_wire::Prng;

const RECORD: u64 = 4 << 10;
const ZONE: u64 = 1 << 20;
/// Records that are replaced in a txg.
const TXG_RECORDS: usize = 100;

#[test]
fn gc_keeps_up_with_txgs_smaller_than_a_batch() {
    let props = vec![("recordsize", "4K"), ("compression", "off")];
    let plan = Plan { zones: 256, capacity: ZONE, drive: true, props, ..Plan::small(3) };
    let machine = Machine::create(&plan).unwrap();
    let fs = machine.fs();
    let collected = || machine.pool.stats().collected_bytes;
    let stat = fs.statfs();
    let records = stat.free * u64::from(stat.block_size) / 100 * 85 / RECORD;
    let ino = fs.create(fs.root(), b"file", 0o644, &USER).unwrap().ino;
    let mut rng = Prng::new(7);
    let mut write = |place: u64| {
        let bytes: Vec<u8> = (0..RECORD / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        let before = collected();
        assert_eq!(fs.write(ino, place * RECORD, &bytes, WriteFlags::default()).unwrap(), RECORD as u32);
        collected() > before
    };
    (0..records).for_each(|place| _ = write(place));
    fs.sync().unwrap();
    let mut places = Prng::new(8);
    let (mut txgs, mut waited, began) = (0, 0, collected());
    while collected() - began < 100 * ZONE {
        waited += (0..TXG_RECORDS).filter(|_| write(places.below(records))).count();
        fs.sync().unwrap();
        txgs += 1;
    }
    println!("{waited} writes waited for collection in {txgs} groups");
    assert!(txgs > 100 && waited * 100 <= txgs, "{waited} waited in {txgs} groups");
    machine.check().unwrap();
}
