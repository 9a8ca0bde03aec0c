//! A nearly full pool of few large zones: writers wait for the GC of one victim, not of the next one as well.

use terrane_posix::WriteFlags;
use terrane_sim::machine::{Machine, Plan, USER};
use terrane_wire::Prng;

const PIECE: usize = 128 << 10;
const ZONE: u64 = 2 << 20;

#[test]
fn writers_rarely_wait_while_two_victims_are_copied() {
    let props = vec![("recordsize", "128K"), ("compression", "off")];
    let plan = Plan { zones: 64, capacity: ZONE, drive: true, props, ..Plan::small(2) };
    let machine = Machine::create(&plan).unwrap();
    let fs = machine.fs();
    let collected = || machine.pool.stats().collected_bytes;
    let mut rng = Prng::new(5);
    let stat = fs.statfs();
    let most = stat.free * u64::from(stat.block_size) / 100 * 95 / PIECE as u64;
    let (mut files, mut used, mut written, mut copied) = (Vec::new(), 0, 0, Vec::new());
    for name in 0.. {
        let pieces = 1 + rng.below(7);
        while used + pieces > most {
            let (gone, freed): (u64, u64) = files.swap_remove(rng.below(files.len() as u64) as usize);
            fs.unlink(fs.root(), gone.to_string().as_bytes()).unwrap();
            used -= freed;
        }
        let ino = fs.create(fs.root(), name.to_string().as_bytes(), 0o644, &USER).unwrap().ino;
        for piece in 0..pieces {
            let bytes: Vec<u8> = (0..PIECE / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
            let before = collected();
            let done = fs.write(ino, piece * PIECE as u64, &bytes, WriteFlags::default()).unwrap();
            assert_eq!(done, PIECE as u32);
            copied.push(collected() - before);
        }
        fs.forget(ino, 1);
        fs.sync().unwrap();
        files.push((name, pieces));
        (used, written) = (used + pieces, written + pieces);
        if written > 3 * most {
            break;
        }
    }
    let (longest, waited) = (copied.iter().max().unwrap(), copied.iter().filter(|bytes| **bytes > 0).count());
    println!(
        "{longest} bytes at the most, {waited} writes of {} waited, {} bytes in all",
        copied.len(),
        collected()
    );
    assert!(waited > 50 && collected() > 50 * ZONE, "the canary: nobody had to wait");
    // Now and then a reset comes late. If the next victim is begun before the last one is reset, three of
    // four waits are for both.
    let for_two = copied.iter().filter(|bytes| **bytes > ZONE / 2 * 3).count();
    assert!(
        for_two * 50 <= waited,
        "{for_two} of {waited} waited for two victims, {longest} bytes at the most"
    );
    machine.check().unwrap();
}
