//! `terrane debug zap` and `terrane debug block`: what is shown of whole and of damaged pools.

use crate::support::{TestDir, can_mount};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// The zones of the test's pools have this many bytes.
const ZONE_BYTES: u64 = 1 << 20;

/// The output of a command, as bytes.
fn bytes(dir: &TestDir, words: &str, code: i32) -> Vec<u8> {
    dir.run(words, code).stdout
}

fn block(dir: &TestDir, address: &str, code: i32) -> Value {
    let out = bytes(dir, &format!("debug block tank {address} -j"), code);
    serde_json::from_slice::<Value>(&out).unwrap()["blocks"][0].clone()
}

/// The addresses of all copies of the first block of an object that lies on the device.
fn addresses(dir: &TestDir, object: u64, level: u64) -> Vec<String> {
    let tree = dir.json(&format!("debug tree tank {object} -j"));
    let stored = |row: &&Value| row["level"] == level && row["pointer"].as_str().unwrap().contains(':');
    let rows = tree["pointers"].as_array().unwrap();
    let row = rows.iter().find(stored).unwrap_or_else(|| panic!("{tree}"));
    row["pointer"].as_str().unwrap().split(' ').map(str::to_owned).collect()
}

/// The position in the image of a place device:zone:offset.
fn image_offset(place: &Value) -> u64 {
    let mut words = place.as_str().unwrap().split(':').skip(1);
    let zone: u64 = words.next().unwrap().parse().unwrap();
    zone * ZONE_BYTES + u64::from_str_radix(words.next().unwrap().trim_start_matches("0x"), 16).unwrap()
}

fn image(dir: &TestDir) -> File {
    File::options().read(true).write(true).open(dir.path("tank.img")).unwrap()
}

fn flip(dir: &TestDir, at: u64) {
    let (image, mut byte) = (image(dir), [0]);
    image.read_exact_at(&mut byte, at).unwrap();
    image.write_all_at(&[!byte[0]], at).unwrap();
}

#[test]
fn a_damaged_block_is_looked_at() {
    let dir = TestDir::new("block");
    dir.run("pool create tank tank.img --size 64M", 0);
    // The dnodes: metadata, of which there are two copies.
    let copies = addresses(&dir, 0, 0);
    let row = block(&dir, &copies[0], 0);
    assert_eq!(
        (&row["what"], &row["standing"], &row["damaged"]),
        (&"block".into(), &"live".into(), &false.into())
    );
    assert_eq!(
        (&row["kind"], &row["level"], &row["logical_bytes"]),
        (&"Dnodes".into(), &0.into(), &16384.into())
    );
    assert_eq!((&row["compression"], &row["checksum_kind"]), (&"zstd-1".into(), &"blake3".into()));
    assert_eq!((&row["class"], &row["birthplace"]), (&"metadata A".into(), &copies[0].as_str().into()));
    assert!(row["owner"].as_str().unwrap().contains("object 0 level 0 block 0"), "{row}");
    let shown: Vec<_> =
        row["copies"].as_array().unwrap().iter().map(|copy| copy["address"].clone()).collect();
    assert_eq!(shown, copies);
    assert_eq!(row["copies"][1]["class"], "metadata B");
    assert!(row["copies"].as_array().unwrap().iter().all(|copy| copy["checksum"] == row["checksum"]));

    // Its bytes, as they are on the device and as readers get them; by address and by place.
    let (at, len) = (image_offset(&row["place"]), row["stored_bytes"].as_u64().unwrap() as usize);
    let mut on_device = vec![0; len];
    image(&dir).read_exact_at(&mut on_device, at).unwrap();
    assert!(bytes(&dir, &format!("debug block tank {} --raw", copies[0]), 0) == on_device);
    assert!(
        bytes(&dir, &format!("debug block tank {} --raw", row["place"].as_str().unwrap()), 0) == on_device
    );
    let content = bytes(&dir, &format!("debug block tank {} --decompress", copies[0]), 0);
    assert_eq!(content.len(), 16384);
    let dump = String::from_utf8(bytes(&dir, &format!("debug block tank {} --hex", copies[0]), 0)).unwrap();
    assert!(dump.starts_with(&format!("00000000: {:02x}{:02x} ", on_device[0], on_device[1])), "{dump}");
    assert_eq!(dump.lines().count(), len.div_ceil(16));

    flip(&dir, at + len as u64 - 1);
    on_device[len - 1] = !on_device[len - 1];
    let damaged = block(&dir, &copies[0], 1);
    let states: Vec<_> =
        damaged["copies"].as_array().unwrap().iter().map(|copy| copy["state"].clone()).collect();
    assert_eq!((&damaged["damaged"], states), (&true.into(), vec!["wrong".into(), "right".into()]));
    let findings = damaged["findings"].to_string();
    let found = damaged["copies"][0]["checksum"].as_str().unwrap();
    for word in ["CRC expected", "blake3 expected", row["checksum"].as_str().unwrap(), found] {
        assert!(findings.contains(word), "{word}: {findings}");
    }
    assert!(bytes(&dir, &format!("debug block tank {} --raw", copies[0]), 1) == on_device);
    let text = String::from_utf8(bytes(&dir, &format!("debug block tank {}", copies[0]), 1)).unwrap();
    assert!(text.contains("blake3 expected") && text.contains("wrong"), "{text}");
    // From the other address there is the same damage, and the good content.
    let output = dir.run(&format!("debug block tank {} --decompress", copies[1]), 1);
    assert!(output.stdout == content);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("damaged: {}: CRC expected", copies[0])), "{said}");

    // Without the dnodes no object can be found, but the block can.
    let other = image_offset(&row["copies"][1]["place"]);
    flip(&dir, other);
    let lost = block(&dir, &copies[0], 1);
    assert!(lost["copies"].as_array().unwrap().iter().all(|copy| copy["state"] == "wrong"), "{lost}");
}

#[test]
fn structures_of_zones_are_looked_at() {
    let dir = TestDir::new("structures");
    dir.run("pool create tank tank.img --size 64M", 0);
    let header = block(&dir, "1:0", 0);
    assert_eq!((&header["what"], &header["fields"]["seq"]), (&"zone header".into(), &1.into()));
    assert_eq!(header["fields"]["capacity"], ZONE_BYTES);
    assert_eq!(bytes(&dir, "debug block tank 1:0 --raw", 0)[..8], *b"TERRZONE");
    // The record of the newest uberblock, by the place that is printed there.
    let uber = dir.json("debug uberblock tank -j")["uberblocks"][0].clone();
    let place = uber["record"].as_str().unwrap().split(' ').next().unwrap().to_owned();
    let record = block(&dir, &place, 0);
    assert_eq!(record["owner"], "pool: commit record", "{record}");
    assert_eq!((&record["fields"]["txg"], &record["stored_bytes"]), (&uber["txg"], &uber["record_bytes"]));
    assert_eq!(bytes(&dir, &format!("debug block tank {place} --decompress",), 0)[..8], *b"TERRRECD");
    // What is behind the last block of a batch is padding or its directory part.
    let zones = dir.json("debug zone tank -j");
    let claimed = zones["zones"][0]["claimed"].as_u64().unwrap();
    let part = block(&dir, &format!("1:{:#x}", claimed - 96), 0);
    assert_eq!(
        (&part["what"], &part["fields"]["end"]),
        (&"directory part".into(), &claimed.into()),
        "{part}"
    );
    let raw = bytes(&dir, &format!("debug block tank 1:{:#x} --raw", claimed - 96), 0);
    assert_eq!(raw.len() as u64, part["stored_bytes"].as_u64().unwrap());
    assert_eq!(raw[raw.len() - 96..][..8], *b"TERRPART");
    // A place on the device means the same.
    let home = &zones["zones"][0]["zone"];
    assert_eq!(block(&dir, &format!("0:{home}:{:#x}", claimed - 96), 0)["fields"], part["fields"]);
    assert!(block(&dir, &format!("1:{claimed}"), 0)["what"].as_str().unwrap().starts_with("nothing"));
    let message = format!("debug block tank 1:{claimed} --raw");
    dir.refused(&message, &["1:", "a block that can be read", "nothing"]);
    // Every block of a zone's directory can be shown, dead ones too.
    let listed = dir.json("debug zone tank 1 -j");
    let mut sections = 0;
    for entry in listed["entries"].as_array().unwrap() {
        let row = block(&dir, entry["birthplace"].as_str().unwrap(), 0);
        for (key, other) in
            [("standing", "standing"), ("crc", "crc"), ("stored_bytes", "psize"), ("birth", "birth")]
        {
            assert_eq!(row[key], entry[other], "{row}");
        }
        sections += u32::from(
            row["owner"].as_str().unwrap().contains("section") && row["fields"]["last_txg"].is_u64(),
        );
        // Records that a rollback may need have a pointer as well, and count as dead.
        assert!(row["no_pointer"].is_null() || row["standing"] == "dead", "{row}");
    }
    assert!(sections > 0, "or it says little: {listed}");
    // A damaged header is shown as damaged.
    flip(&dir, image_offset(&header["place"]) + 40);
    assert_eq!(block(&dir, "1:0", 1)["copies"][0]["state"], "wrong");
}

#[test]
fn addresses_outside_are_refused_by_name() {
    let dir = TestDir::new("outside");
    dir.run("pool create tank tank.img --size 64M", 0);
    let first = addresses(&dir, 0, 0)[0].clone();
    let (seq, offset) = first.split_once(":0x").unwrap();
    let inside = format!("{seq}:{:#x}", u64::from_str_radix(offset, 16).unwrap() + 16);
    for (address, said) in [
        ("nonsense", &["nonsense", "SEQ:OFFSET"][..]),
        ("1:0x7", &["1:0x7", "multiple of 16"]),
        ("99:0", &["99:0", "a zone of this pool"]),
        ("0:0", &["0:0", "a zone of this pool"]),
        ("68719476736:0", &["68719476736", "a zone of this pool"]),
        ("1:0x100000", &["1:0x100000", "below 0x100000", "zone 2 of device", "tank.img"]),
        ("1:0xfffffffffffffff0", &["0xfffffffffffffff0", "below 0x100000"]),
        ("7:2:0", &["7:2:0", "a device of the pool: 0", "tank.img", "device 7"]),
        ("0:64:0", &["0:64:0", "zone below 64", "tank.img"]),
        ("0:1:0", &["0:1:0", "anchor zone", "debug uberblock"]),
        ("0:2:0x100000", &["0x100000", "zone size of device", "tank.img"]),
        ("0:40:0", &["0:40:0", "a zone in use", "tank.img empty"]),
        (inside.as_str(), &[inside.as_str(), "the start of a block", first.as_str()]),
    ] {
        dir.refused(&format!("debug block tank {address}"), said);
    }
    dir.misused("debug block tank 1:0 --raw --decompress", &["cannot be used with"]);
}

/// Random bytes over the used part of the image: there is an answer or a refusal.
#[test]
fn damaged_pools_are_looked_at_without_panic() {
    let dir = TestDir::new("hostile-look");
    dir.run("pool create tank tank.img --size 64M", 0);
    let whole = fs::read(dir.path("tank.img")).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let blocks = addresses(&dir, 0, 0);
    let looks = [
        format!("debug block tank {} -j", blocks[0]),
        format!("debug block tank {} --decompress --hex", blocks[1]),
        "debug block tank 1:0".to_owned(),
        "debug block tank 0:2:0x1000".to_owned(),
        "debug zap tank 1".to_owned(),
        "debug zap tank 1 --meta --hex".to_owned(),
    ];
    for round in 0..20 {
        let image = image(&dir);
        // Both zones of metadata, which hold some 64 KiB each.
        for zone in [2u64, 3] {
            for _ in 0..=random() % (1 << (round % 6)) {
                image.write_all_at(&[random() as u8], zone * ZONE_BYTES + random() % (48 << 10)).unwrap();
            }
        }
        for words in &looks {
            let output = dir.command(words).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                matches!(output.status.code(), Some(0 | 1)) && !said.contains("panicked"),
                "{words}: {said}"
            );
        }
        image.write_all_at(&whole[..4 << 20], 0).unwrap();
    }
}

#[test]
fn zaps_are_looked_at() {
    let dir = TestDir::new("zap");
    dir.run("pool create tank tank.img --size 64M", 0);
    let zap = dir.json("debug zap tank 1 --meta -j");
    let (entries, slots) = (zap["entries"].as_array().unwrap().len(), &zap["slots"]);
    assert_eq!(
        (&zap["kind"], &zap["block_bytes"], &zap["blocks"]),
        (&"Micro".into(), &512.into(), &1.into())
    );
    assert_eq!(
        (&slots["used"], &slots["free"], &slots["slot_bytes"]),
        (&entries.into(), &(7 - entries).into(), &64.into())
    );
    assert_ne!(zap["salt"], "0000000000000000");
    assert_eq!((&zap["table"], &zap["damage_count"]), (&Value::Null, &0.into()));
    let stats = dir.json("debug zap tank 1 --meta -j --stats");
    assert_eq!((&stats["slots"], &stats["entries"]), (slots, &Value::Null));
    let raw = bytes(&dir, "debug zap tank 1 --meta --raw", 0);
    assert_eq!((raw.len(), &raw[..8]), (512, &0x8000_0000_0000_0003_u64.to_le_bytes()[..]));
    assert_eq!(
        format!("{:016x}", u64::from_le_bytes(raw[8..16].try_into().unwrap())),
        zap["salt"].as_str().unwrap()
    );
    let dump = dir.out("debug zap tank 1 --meta --hex");
    assert!(dump.starts_with("block 0\n00000000: 0300 0000 0000 0080 "), "{dump}");
    assert_eq!(dump.lines().count(), 1 + 32);
    let hex: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(dir.json("debug zap tank 1 --meta --raw -j")["content"], serde_json::json!([hex]));
    let text = dir.out("debug zap tank 1 --meta");
    assert!(
        text.contains(" free of 7; 64 bytes each") && text.contains("of 512 bytes") && text.contains("NAME"),
        "{text}"
    );
    assert_eq!(
        dir.out("debug zap tank 1 --meta -H").lines().count(),
        entries,
        "scripts get the entries alone"
    );
    dir.misused("debug zap tank 1 --stats --raw", &["cannot be used with"]);
    dir.refused("debug zap tank 2 --meta --raw", &["Objset"]);
}

#[test]
fn a_fat_directory_and_a_file_are_looked_at_while_mounted() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("fat");
    dir.run("pool create tank tank.img --size 64M -o zapsize=512", 0);
    dir.run("mount tank mnt", 0);
    fs::create_dir(dir.path("mnt/many")).unwrap();
    for name in 0..3000 {
        File::create(dir.path(&format!("mnt/many/file number {name}"))).unwrap();
    }
    let content: Vec<u8> =
        (0..100_000u32).flat_map(|word| word.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    fs::write(dir.path("mnt/file"), &content).unwrap();
    dir.run("sync tank", 0);
    let object = |path: &str| dir.json(&format!("stat -j {path}"))["files"][0]["object"].as_u64().unwrap();
    let (many, file) = (object("mnt/many"), object("mnt/file"));
    let zap = dir.json(&format!("debug zap tank {many} -j --stats"));
    let (table, leaves) = (&zap["table"], &zap["leaves"]);
    assert_eq!(
        (&zap["kind"], &zap["length"], &leaves["entries"]),
        (&"Fat".into(), &3000.into(), &3000.into())
    );
    assert_eq!((&leaves["leaves"], &leaves["header_entries"]), (&leaves["header_leaves"], &3000.into()));
    assert_eq!(table["pointers"].as_u64().unwrap(), 1 << table["shift"].as_u64().unwrap());
    let sum = |name: &str| -> u64 {
        let rows = leaves["histograms"].as_array().unwrap().iter();
        rows.filter(|row| row["histogram"].as_str().unwrap().starts_with(name))
            .map(|row| row["count"].as_u64().unwrap())
            .sum()
    };
    for name in ["leaves by depth", "leaves by tenths", "leaves by log2", "leaves by entries"] {
        assert_eq!(sum(name), leaves["leaves"].as_u64().unwrap(), "{name}");
    }
    assert_eq!(sum("entries by chunks"), 3000);
    let (leaf_bytes, all_bytes) = (&zap["leaf_stored_bytes"], &zap["stored_bytes"]);
    assert!(leaf_bytes.as_u64() > Some(3000 * 8) && leaf_bytes.as_u64() < all_bytes.as_u64(), "{zap}");
    let text = dir.out(&format!("debug zap tank {many} --stats"));
    assert!(text.contains("buckets by chain length") && text.contains(" pointers in "), "{text}");
    let raw = bytes(&dir, &format!("debug zap tank {many} --raw"), 0);
    assert_eq!(raw.len() as u64, zap["blocks"].as_u64().unwrap() * zap["block_bytes"].as_u64().unwrap());

    let address = addresses(&dir, file, 0)[0].clone();
    let first = bytes(&dir, &format!("debug block tank {address} --decompress"), 0);
    assert!(first == content[..first.len()] && first.len() == 128 << 10);
    dir.run("umount tank", 0);
    // Closed, and damaged: data has one copy.
    let row = block(&dir, &address, 0);
    assert_eq!((&row["kind"], row["copies"].as_array().unwrap().len()), (&"File".into(), 1), "{row}");
    flip(&dir, image_offset(&row["place"]) + 5);
    let row = block(&dir, &address, 1);
    assert_eq!((&row["damaged"], &row["copies"][0]["state"]), (&true.into(), &"wrong".into()));
    let raw = bytes(&dir, &format!("debug block tank {address} --raw"), 1);
    assert!(raw[5] == !first[5] && raw[..5] == first[..5], "incompressible, so stored as it is");
    dir.run("mount tank mnt", 0);
    assert!(fs::read(dir.path("mnt/file")).is_err());
    assert_eq!(block(&dir, &address, 1)["damaged"], true, "the server answers the same");
    dir.run("umount tank", 0);
}

/// Blocks that GC moved are found by their birthplaces, also if the zone of those is gone.
#[test]
fn moved_blocks_are_found() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("moved");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    let content = |file: u32| -> Vec<u8> {
        (0..30_000u32).flat_map(|word| (word ^ file << 20).wrapping_mul(0x9e37_79b1).to_le_bytes()).collect()
    };
    (0..80).for_each(|file| fs::write(dir.path(&format!("mnt/{file}")), content(file)).unwrap());
    dir.run("sync tank", 0);
    (0..80)
        .filter(|file| file % 4 != 0)
        .for_each(|file| fs::remove_file(dir.path(&format!("mnt/{file}"))).unwrap());
    dir.run("sync tank", 0);
    dir.run("pool gc tank --target 0 --wait", 0);
    let object = |file: u32| dir.json(&format!("stat -j mnt/{file}"))["files"][0]["object"].as_u64().unwrap();
    let kept: Vec<(u32, u64)> = (0..80).step_by(4).map(|file| (file, object(file))).collect();
    dir.run("umount tank", 0);
    let mut moved = 0;
    for (file, object) in kept {
        let address = addresses(&dir, object, 0)[0].clone();
        let row = block(&dir, &address, 0);
        assert_eq!(
            (&row["standing"], &row["birthplace"]),
            (&"live".into(), &address.as_str().into()),
            "{row}"
        );
        moved += u32::from(!address.starts_with(&format!("{}:", row["zone"])));
        let first = bytes(&dir, &format!("debug block tank {address} --decompress"), 0);
        assert!(first == content(file)[..first.len()], "{address}");
        // The place leads to the same block, whatever was born there.
        let place = row["place"].as_str().unwrap();
        assert_eq!(block(&dir, place, 0)["birthplace"], address.as_str());
    }
    assert!(moved > 5, "or it says little: {moved}");
}
