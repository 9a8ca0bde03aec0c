//! Inputs of the targets that read the intent log.
//!
//! * `log`: an offset in a zone, in write units (`u8`), the head of a batch, and its frames. The seal is made valid, because a seal is
//!   no secret.
//! * `log_records`: the body of a frame: one record.

use terrane_format::log::{Batch, Frame, LogBatchHead};
use terrane_posix::{inodes_of_record, rewritten_record};
use terrane_wire::{ObjsetId, Txg};

const UNIT: u64 = 4096;
/// A mode of a regular file, with its device number, the target of a link, and the user, group and umask.
const FILE: &[u8] = &[0xa4, 0x83, 2, 0, 0, 0, 0, 0x12];
/// A number, a generation, and dnode slots.
const NEW: &[u8] = &[9, 1, 1];
const NAME: &[u8] = b"\x01n";

/// A record of each kind, without its time: FORMAT.md, the intent log.
fn records() -> [Vec<u8>; 18] {
    let words = [1, 1, 2, 3, 4, 5, 6, 7, 8];
    [
        [&[5], NAME, &[0], FILE, NEW].concat(),
        [&[5], FILE, NEW].concat(),
        [&[9, 5], NAME, &[0]].concat(),
        [&[5], NAME, &[0, 9]].concat(),
        [&[5], NAME, &[6], NAME, &[0, 0, 9]].concat(),
        vec![9, 1, 0, 0xa4, 0x83, 2],
        b"\x09\x03u.a\x02\x07\x07\0\0".to_vec(),
        b"\x09\x03u.a".to_vec(),
        vec![9, 4, 1, 7],
        vec![9, 16, 0, 0],
        vec![9, 2, 0, 0],
        [&[5], NAME, &words].concat(),
        vec![9, 100, 0, 3, 1, 2, 3],
        vec![9],
        vec![9, 1, 50, 0],
        vec![9, 1, 50, 0],
        vec![9, 4, 0],
        vec![9, 5, 0, 50, 7],
    ]
}

/// A batch is valid where it was written and nowhere else. Its frames are refused, or can be written again and mean the same.
pub fn run_log(data: &[u8]) {
    let Some((units, stored)) = data.split_first() else { return };
    let (offset, ids) = (u64::from(*units) * UNIT, |head: &LogBatchHead| (head.pool, head.incarnation));
    let Some(mut head) = LogBatchHead::decode(stored) else { return };
    // As it is, nearly every input is refused.
    if let Some(batch) = Batch::parse(stored, ids(&head), offset, UNIT) {
        run_frames(batch.frames);
    }
    if let Some(bytes) = Batch::claimed_bytes(stored, ids(&head), UNIT) {
        assert!(bytes.is_multiple_of(UNIT) && bytes > 0);
    }
    let frames = stored.get(LogBatchHead::SIZE..).unwrap_or_default();
    let raw = head.encode_batch(frames, offset, UNIT as usize);
    let batch = Batch::parse(&raw, ids(&head), offset, UNIT).expect("a sealed batch is whole");
    assert_eq!((batch.head, batch.frames, batch.stored_bytes), (head, frames, raw.len() as u64));
    assert_eq!(Batch::claimed_bytes(&raw, ids(&head), UNIT), Some(batch.stored_bytes));
    for (ids, offset) in [
        (ids(&head), offset + UNIT),
        ((head.pool ^ 1, head.incarnation), offset),
        ((head.pool, head.incarnation ^ 1), offset),
    ] {
        assert!(Batch::parse(&raw, ids, offset, UNIT).is_none(), "{ids:?} {offset}");
    }
    run_frames(frames);
}

fn run_frames(frames: &[u8]) {
    let Ok(all) = Frame::parse_all(frames) else { return };
    let mut again = Vec::new();
    all.iter().for_each(|frame| frame.append_to(&mut again));
    assert!(again.len() <= frames.len(), "numbers have no shorter form");
    assert_eq!(Frame::parse_all(&again).as_ref(), Ok(&all));
    all.iter().for_each(|frame| run_record(frame.body));
}

/// A record is refused, or can be written again and means the same.
pub fn run_record(body: &[u8]) {
    let Some(again) = rewritten_record(body) else {
        return assert!(inodes_of_record(body).is_empty());
    };
    assert!(again.len() <= body.len(), "numbers have no shorter form");
    assert_eq!(rewritten_record(&again).as_ref(), Some(&again));
    let inodes = inodes_of_record(body);
    assert!(!inodes.is_empty());
    assert_eq!(inodes_of_record(&again), inodes);
}

/// The seeds: target, name, input.
pub fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (kind, fields) in (1..).zip(records()) {
        let body = [&[kind, 2, 0], &fields[..]].concat();
        assert_eq!(rewritten_record(&body).as_ref(), Some(&body), "the seed of kind {kind} is a record");
        seeds.push(("log_records", kind.to_string(), body));
    }
    let bodies: Vec<Vec<u8>> = seeds.iter().map(|(_, _, body)| body.clone()).collect();
    for count in [0, 1, bodies.len()] {
        let mut frames = Vec::new();
        for (change, body) in (1..).zip(&bodies[..count]) {
            Frame { set: ObjsetId(5), change, txg: Txg(40), body }.append_to(&mut frames);
        }
        let (chain, seal, reserved) = ([9; 16], [0; 16], [0; 12]);
        let (number, acked, newest_txg) = (8, 4, Txg(40));
        let mut head = LogBatchHead {
            magic: 0,
            pool: 7,
            incarnation: 3,
            number,
            acked,
            newest_txg,
            len: 0,
            reserved,
            chain,
            seal,
        };
        let mut raw = head.encode_batch(&frames, 2 * UNIT, UNIT as usize);
        raw.truncate(LogBatchHead::SIZE + frames.len());
        seeds.push(("log", format!("{count} records"), [&[2][..], &raw].concat()));
    }
    seeds
}
