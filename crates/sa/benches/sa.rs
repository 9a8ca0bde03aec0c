//! Nanoseconds of an operation on a file's attributes, the fastest of some rounds: `cargo bench -p terrane-sa`.

use std::hint::black_box;
use std::time::Instant;
use terrane_sa::{
    Attr, AttrList, Attrs, LayoutTable, NvList, Registry, SaBuffer, ZplAttrs, count_in_bonus, nvlist,
};

const ROUNDS: usize = 20;
const OPS: u32 = 20_000;
/// Bonus sizes of dnodes of 512 bytes and 1 KiB.
const BONUS_BYTES: [usize; 2] = [320, 832];

fn report<T>(what: &str, mut op: impl FnMut() -> T) {
    let fastest = (0..ROUNDS).map(|_| {
        let started = Instant::now();
        for _ in 0..OPS {
            black_box(op());
        }
        started.elapsed()
    });
    let nanos = fastest.min().expect("some rounds").as_nanos();
    println!("  {what:<36} {:>7.1} ns/op", nanos as f64 / f64::from(OPS));
}

/// A list of three: a label, a small value, and one of `len` bytes.
fn xattrs(len: usize) -> Vec<u8> {
    let pairs = [("security.selinux", 27), ("user.mime_type", 10), ("user.last", len)];
    pairs.iter().fold(NvList::default().to_bytes(), |raw, (name, len)| {
        let list = NvList::parse(&raw).expect("what was just packed");
        list.with(name.as_bytes(), &vec![7; *len]).expect("a short list")
    })
}

/// Encodes the attributes into one buffer or two, and adds their layouts to the table if needed.
fn store(list: &AttrList, table: &mut LayoutTable, bonus_max: usize) -> [Vec<u8>; 2] {
    let count = count_in_bonus(list, table.registry(), bonus_max).expect("attributes fit");
    let (bonus, spill) = list.split_at(count);
    [bonus, spill].map(|part| {
        let layout = match table.find(part.order()) {
            Some(layout) => layout.clone(),
            None => table.add(&part.order().collect::<Vec<_>>()).expect("few layouts"),
        };
        SaBuffer::encode(&layout, part).expect("lengths are right").into_bytes()
    })
}

fn main() {
    for (len, bonus_max) in [(32, BONUS_BYTES[0]), (32, BONUS_BYTES[1]), (1024, BONUS_BYTES[0])] {
        let raw = xattrs(len);
        println!(
            "three xattrs, the last of {len} bytes ({} packed), {bonus_max} bytes of bonus area",
            raw.len()
        );
        let mut table = LayoutTable::new(Registry::built_in());
        let mut list = ZplAttrs { mode: 0o100644, links: 1, ..ZplAttrs::default() }.to_list();
        store(&list, &mut table, bonus_max);
        list.set(Attr::DXATTR, &raw);
        let [bonus, spill] = store(&list, &mut table, bonus_max);
        let has_spill = spill.len() > 8;
        let (last, value) = (&b"user.last"[..], vec![9; len]);
        report("get, of the list", || nvlist::get(&raw, last).expect("a good list").map(<[u8]>::len));
        let read = |table: &LayoutTable| {
            let bonus = Attrs::decode(&bonus, table).expect("a good buffer");
            match has_spill {
                true => {
                    let spill = Attrs::decode(&spill, table).expect("a good buffer");
                    AttrList::from_bonus_and_spill(&bonus, &spill).expect("two parts")
                }
                false => AttrList::from_attrs(&bonus),
            }
        };
        report("get, of stored buffers", || {
            let holder = if has_spill { &spill } else { &bonus };
            let attrs = Attrs::decode(holder, &table).expect("a good buffer");
            let list = attrs.get(Attr::DXATTR).expect("it was set");
            nvlist::get(list, last).expect("a good list").map(<[u8]>::len)
        });
        report("judge the list", || NvList::parse(&raw).is_ok());
        report("set, of the list", || NvList::parse(&raw).expect("a good list").with(last, &value));
        report("place", || count_in_bonus(&list, table.registry(), bonus_max));
        report("read the attributes", || read(&table));
        report("place, find layouts, encode", || store(&list, &mut table, bonus_max));
        report("set, from stored to stored buffers", || {
            let mut list = read(&table);
            let packed = NvList::parse(list.get(Attr::DXATTR).expect("it was set")).expect("a good list");
            let packed = packed.with(last, &value).expect("a short list");
            list.set(Attr::DXATTR, &packed);
            list.set_pair(Attr::CTIME, [1, 2]);
            store(&list, &mut table, bonus_max)
        });
    }
}
