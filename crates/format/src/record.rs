//! Commit records: what one txg changed in the zone tables (ZFS: log space map).
//!
//! A record lists births, moves and frees of its txg, zones opened, filled and reset, and which sections of the tables it rewrote.
//! Records applied in order to the sections of the last checkpoint give the tables of any committed txg. They form a chain: each names
//! its predecessor by place.
//!
//! On disk a record is a sequence of tagged items, so later features add items instead of changing them. A tag that this version does
//! not know is refused.
//!
//! Invariant: applying a record to one zone's row needs nothing but that row. So sections may be of different age.

use crate::addr::{Addr, GRANULE, ZONE_BYTES_MAX};
use crate::block_ptr::{BLOCK_BYTES_MAX, BlockPtr};
use crate::boot_ptr::BootPtr;
use crate::directory::Entry;
pub use crate::home::Home;
use crate::home::{get_home, get_homes, put_home, put_homes};
use crate::log::{LogForm, LogHead};
use crate::totals::Totals;
use terrane_wire::{Corrupt, Field, Reader, Truncated, Txg, Writer, ZoneSeq, splitmix64};

/// First word of a commit record.
pub const RECORD_MAGIC: u64 = u64::from_le_bytes(*b"TERRRECD");

/// The main use of a zone. A hint: any kind of block may lie in any zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ZoneClass {
    /// First copies of metadata.
    MetaA = 1,
    /// Second copies of metadata.
    MetaB = 2,
    /// The intent log.
    Log = 3,
    /// Blocks that the collector moved.
    Collection = 4,
    /// Blocks of files.
    Data = 5,
}

impl ZoneClass {
    /// All classes, by [`index`](ZoneClass::index).
    pub const ALL: [ZoneClass; 5] =
        [ZoneClass::MetaA, ZoneClass::MetaB, ZoneClass::Log, ZoneClass::Collection, ZoneClass::Data];

    /// The class with this stored number. `None`: there is none.
    pub fn from_id(id: u8) -> Option<ZoneClass> {
        ZoneClass::ALL.into_iter().find(|class| *class as u8 == id)
    }

    /// Whether the class belongs on special devices.
    pub fn is_metadata(self) -> bool {
        matches!(self, ZoneClass::MetaA | ZoneClass::MetaB)
    }

    /// Its index in [`ZoneClass::ALL`].
    pub fn index(self) -> usize {
        self as usize - 1
    }

    /// The name for users.
    pub fn name(self) -> &'static str {
        match self {
            ZoneClass::MetaA => "metadata A",
            ZoneClass::MetaB => "metadata B",
            ZoneClass::Log => "log",
            ZoneClass::Collection => "collection",
            ZoneClass::Data => "data",
        }
    }
}

/// The encoding of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowForm {
    /// Without the feature `rows`: not extensible.
    #[default]
    Plain,
    /// With tails.
    Tailed,
}

/// A zone that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedZone {
    /// The new filling.
    pub seq: ZoneSeq,
    /// Its main use.
    pub class: ZoneClass,
    /// The physical zone that it fills.
    pub home: Home,
    /// Writable bytes.
    pub capacity: u64,
}

/// A zone that was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenZone {
    /// The zone's filling.
    pub seq: ZoneSeq,
    /// End of the claimed bytes. The newest directory part ends here.
    pub claimed: u64,
    /// Bytes of the blocks born in this txg, rounded up to granules.
    pub born_bytes: u64,
}

/// A fingerprint of the live blocks of a run. Each block that is added or freed flips some of 31 bits (XOR). So it shows whether the
/// freed blocks are those that were added, without a list. 0 marks a run from before the feature, of which nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally(u32);

impl Tally {
    /// Nothing is known: the run is from before the feature.
    pub const UNKNOWN: Tally = Tally(0);
    /// No live block.
    pub const EMPTY: Tally = Tally(1 << 31);

    /// False for a run from before the feature.
    pub fn is_known(self) -> bool {
        self != Tally::UNKNOWN
    }

    /// Adds or removes the block born at `granule` with `granules` granules.
    pub fn toggle(&mut self, granule: u32, granules: u32) {
        if self.is_known() {
            let [a, b, c, d, ..] = splitmix64(u64::from(granule) << 32 | u64::from(granules)).to_le_bytes();
            self.0 ^= u32::from_le_bytes([a, b, c, d]) >> 1;
        }
    }
}

/// A birth range and its only home away from its birthplace. 32 bytes, because pools have millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First granule of the range, at which a block begins in the birth zone.
    pub first: u32,
    /// Granule at which the last block of the range begins.
    pub last: u32,
    /// The zone where the survivors are now.
    pub dest: ZoneSeq,
    part_end_granules: u32,
    live_granules: u32,
    /// Fingerprint of the live blocks.
    pub tally: Tally,
}

impl Run {
    /// A run of one block of `granules` granules. `part_end` is the end of the directory part that lists it, in bytes.
    pub fn of(granule: u32, granules: u32, dest: ZoneSeq, part_end: u64) -> Run {
        let mut tally = Tally::EMPTY;
        tally.toggle(granule, granules);
        let part_end_granules = u32::try_from(part_end / GRANULE).expect("a part ends inside its zone");
        Run { first: granule, last: granule, dest, part_end_granules, live_granules: granules, tally }
    }

    /// Adds a block.
    pub fn add_block(&mut self, granule: u32, granules: u32) {
        (self.first, self.last) = (self.first.min(granule), self.last.max(granule));
        self.live_granules += granules;
        self.tally.toggle(granule, granules);
    }

    /// Removes a block that died.
    pub fn drop_block(&mut self, granule: u32, granules: u32) {
        self.live_granules = self.live_granules.saturating_sub(granules);
        self.tally.toggle(granule, granules);
    }

    /// End of the directory part that lists its blocks, in bytes.
    pub fn part_end(&self) -> u64 {
        u64::from(self.part_end_granules) * GRANULE
    }

    /// Live bytes of its blocks.
    pub fn live(&self) -> u64 {
        u64::from(self.live_granules) * GRANULE
    }

    /// Whether this part lists its blocks.
    pub fn is_listed_in(&self, zone: ZoneSeq, part_end: u64) -> bool {
        self.dest == zone && self.part_end() == part_end
    }
}

const _: () = assert!(size_of::<Run>() == 32);

/// A run of blocks that moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The zone where the blocks were born.
    pub birth: ZoneSeq,
    /// Where the blocks are now.
    pub run: Run,
}

/// The runs of moved blocks in one part. A run ends where the birth zone changes, the birth order breaks, or a block between two others
/// lives elsewhere.
pub fn runs_of(dest: ZoneSeq, part_end: u64, entries: &[Entry], shares_run: &[bool]) -> Vec<Move> {
    let mut moves: Vec<Move> = Vec::new();
    for (entry, shares_run) in entries.iter().zip(shares_run).filter(|(entry, _)| entry.is_moved(dest)) {
        let (birth, granule) = (entry.identity.seq(), entry.identity.granule());
        match moves.last_mut() {
            Some(last) if *shares_run && last.birth == birth && last.run.last < granule => {
                last.run.add_block(granule, entry.granules());
            }
            _ => moves.push(Move { birth, run: Run::of(granule, entry.granules(), dest, part_end) }),
        }
    }
    moves
}

/// A section of the tables, as last written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionPtr {
    /// Number of the section. Row *s* belongs to section *s* modulo the number of sections.
    pub section: u32,
    /// The last txg whose record it contains.
    pub last_txg: Txg,
    /// The block of the section. [`BootPtr::NONE`]: never written.
    pub ptr: BootPtr,
    /// The encoding of its rows.
    pub form: RowForm,
}

impl SectionPtr {
    /// A section that was never written.
    pub fn unwritten(section: u32) -> SectionPtr {
        SectionPtr { section, last_txg: Txg(0), ptr: BootPtr::NONE, form: RowForm::Plain }
    }
}

/// The second copy of a directory part that lists moved blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartCopy {
    /// End of the part in its zone, in bytes.
    pub part_end: u64,
    /// Start of the part in its zone, in bytes.
    pub part_start: u64,
    /// Birthplace of the copy.
    pub addr: Addr,
}

/// A range of dead granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Free {
    /// Birthplace of the first dead granule.
    pub addr: Addr,
    /// Number of dead granules.
    pub granules: u32,
}

/// What one txg changed in the zone tables, and the root that it committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The committed txg.
    pub txg: Txg,
    /// The incarnation that wrote the record.
    pub incarnation: u64,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// The predecessor. None for the first record.
    pub previous: BootPtr,
    /// Txg of the predecessor.
    pub previous_txg: Txg,
    /// All sections contain this txg, so older records are not needed.
    pub replay_after: Txg,
    /// The meta object set.
    pub root: BlockPtr,
    /// Zones opened by this txg.
    pub opened: Vec<OpenedZone>,
    /// The encoding of opened zones.
    pub form: RowForm,
    /// Zones that blocks or directory parts were appended to.
    pub written: Vec<WrittenZone>,
    /// Zones that become full: open ones, and suspect ones that are explained again.
    pub filled: Vec<ZoneSeq>,
    /// Zones whose physical zone was reset.
    pub reset: Vec<ZoneSeq>,
    /// Zones whose directory contradicts the tables. Kept for `check`.
    pub suspect: Vec<ZoneSeq>,
    /// Runs of blocks that moved.
    pub moves: Vec<Move>,
    /// Live bytes that moves and frees added to or removed from zones.
    pub deltas: Vec<(ZoneSeq, i64)>,
    /// Freed granules, in address order. Further ones may be in `dead_log`.
    pub frees: Vec<Free>,
    /// Blocks with further frees.
    pub dead_log: Vec<BootPtr>,
    /// Sections that this txg rewrote.
    pub sections: Vec<SectionPtr>,
    /// Second copies of directory parts, with the zone of each part.
    pub part_copies: Vec<(ZoneSeq, PartCopy)>,
    /// Physical zones that may be opened before the next commit.
    pub may_open: Vec<Home>,
    /// The pool's totals at this record. Zero if the feature is not in force.
    pub totals: Totals,
    /// Where the intent log goes on. `None`: there is none.
    pub log: Option<LogHead>,
}

const TAG_END: u8 = 0;
const TAG_OPENED: u8 = 1;
const TAG_WRITTEN: u8 = 2;
const TAG_FILLED: u8 = 3;
const TAG_RESET: u8 = 4;
const TAG_SUSPECT: u8 = 5;
const TAG_MOVES: u8 = 6;
const TAG_DELTAS: u8 = 7;
const TAG_FREES: u8 = 8;
const TAG_DEAD_LOG: u8 = 9;
const TAG_SECTIONS: u8 = 10;
const TAG_PART_COPIES: u8 = 11;
const TAG_MAY_OPEN: u8 = 12;
const TAG_TOTALS: u8 = 13;
const TAG_OPENED_AT: u8 = 14;
const TAG_TAILED_SECTIONS: u8 = 15;
const TAG_LOG: u8 = 16;
const TAG_LOG_WITH_DEVICES: u8 = 17;

/// The tags of opened zones and of sections, for this row form.
fn tags_of(form: RowForm) -> (u8, u8) {
    match form {
        RowForm::Plain => (TAG_OPENED, TAG_SECTIONS),
        RowForm::Tailed => (TAG_OPENED_AT, TAG_TAILED_SECTIONS),
    }
}

impl Record {
    /// The record as stored, before compression.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        for word in [
            RECORD_MAGIC,
            self.txg.0,
            self.incarnation,
            self.time_ns,
            self.replay_after.0,
            self.previous_txg.0,
        ] {
            out.u64(word);
        }
        out.bytes(&self.previous.encode());
        out.bytes(&self.root.encode());
        put_item(&mut out, tags_of(self.form).0, &self.opened, |out, opened| {
            out.varint(opened.seq.0);
            out.u8(opened.class as u8);
            match self.form {
                RowForm::Plain => put_home(out, opened.home),
                RowForm::Tailed => put_homes(out, opened.home),
            }
            out.varint(opened.capacity);
        });
        put_item(&mut out, TAG_WRITTEN, &self.written, |out, written| {
            out.varint(written.seq.0);
            out.varint(written.claimed);
            out.varint(written.born_bytes);
        });
        for (tag, list) in
            [(TAG_FILLED, &self.filled), (TAG_RESET, &self.reset), (TAG_SUSPECT, &self.suspect)]
        {
            put_item(&mut out, tag, list, |out, seq| out.varint(seq.0));
        }
        put_item(&mut out, TAG_MOVES, &self.moves, |out, moved| {
            out.varint(moved.birth.0);
            put_run(out, &moved.run);
        });
        put_item(&mut out, TAG_DELTAS, &self.deltas, |out, (seq, delta)| {
            out.varint(seq.0);
            out.varint_signed(*delta);
        });
        let frees = if self.frees.is_empty() { &[][..] } else { &[&self.frees] };
        put_item(&mut out, TAG_FREES, frees, |out, frees| put_frees(out, frees));
        put_item(&mut out, TAG_DEAD_LOG, &self.dead_log, |out, ptr| out.bytes(&ptr.encode()));
        for form in [RowForm::Plain, RowForm::Tailed] {
            let of_form: Vec<&SectionPtr> = self.sections.iter().filter(|ptr| ptr.form == form).collect();
            put_item(&mut out, tags_of(form).1, &of_form, |out, section| {
                out.u32(section.section);
                out.u64(section.last_txg.0);
                out.bytes(&section.ptr.encode());
            });
        }
        put_item(&mut out, TAG_PART_COPIES, &self.part_copies, |out, (seq, copy)| {
            out.varint(seq.0);
            put_part_copy(out, copy);
        });
        put_item(&mut out, TAG_MAY_OPEN, &self.may_open, |out, home| put_home(out, *home));
        put_item(&mut out, TAG_TOTALS, &self.totals.entries(), Totals::put_entry);
        let log_tag = match self.log.as_ref().map(LogHead::form) {
            Some(LogForm::Own) => TAG_LOG_WITH_DEVICES,
            _ => TAG_LOG,
        };
        put_item(&mut out, log_tag, self.log.as_slice(), |out, head| head.put(out));
        out.u8(TAG_END);
        out.into_bytes()
    }

    /// Parses a record whose checksum was already verified.
    pub fn parse(raw: &[u8], at: &str) -> Result<Record, Corrupt> {
        let truncated = |error: Truncated| Corrupt::new(at, "commit record", "whole", error);
        let mut raw = Reader::new(raw);
        let mut head = [0u64; 6];
        for word in &mut head {
            *word = raw.u64().map_err(truncated)?;
        }
        if head[0] != RECORD_MAGIC {
            return Err(Corrupt::new(
                at,
                "commit record magic",
                format_args!("{RECORD_MAGIC:#x}"),
                format_args!("{:#x}", head[0]),
            ));
        }
        let previous = BootPtr::decode(raw.bytes(BootPtr::SIZE).map_err(truncated)?).unwrap_or(BootPtr::NONE);
        previous.validate(&at)?;
        let root = BlockPtr::parse(raw.bytes(BlockPtr::SIZE).map_err(truncated)?, &at)?;
        let mut record = Record {
            txg: Txg(head[1]),
            incarnation: head[2],
            time_ns: head[3],
            previous,
            previous_txg: Txg(head[5]),
            replay_after: Txg(head[4]),
            root,
            opened: Vec::new(),
            form: RowForm::Plain,
            written: Vec::new(),
            filled: Vec::new(),
            reset: Vec::new(),
            suspect: Vec::new(),
            moves: Vec::new(),
            deltas: Vec::new(),
            frees: Vec::new(),
            dead_log: Vec::new(),
            sections: Vec::new(),
            part_copies: Vec::new(),
            may_open: Vec::new(),
            totals: Totals::default(),
            log: None,
        };
        loop {
            let tag = raw.u8().map_err(truncated)?;
            if tag == TAG_END {
                let mut bootstrap =
                    record.dead_log.iter().chain(record.sections.iter().map(|section| &section.ptr));
                bootstrap.try_for_each(|ptr| ptr.validate(&at))?;
                return Ok(record);
            }
            let mut body = Reader::new(raw.blob().map_err(truncated)?);
            if !record.parse_item(tag, &mut body).map_err(truncated)? {
                return Err(Corrupt::new(
                    at,
                    "item of a commit record",
                    "known",
                    format_args!("tag {tag}, an unknown feature"),
                ));
            }
        }
    }

    fn parse_item(&mut self, tag: u8, raw: &mut Reader<'_>) -> Result<bool, Truncated> {
        match tag {
            TAG_OPENED => self.opened = get_list(raw, |raw| get_opened(raw, get_home))?,
            TAG_OPENED_AT => {
                self.form = RowForm::Tailed;
                self.opened = get_list(raw, |raw| get_opened(raw, get_homes))?
            }
            TAG_WRITTEN => {
                self.written = get_list(raw, |raw| {
                    Ok(WrittenZone {
                        seq: get_seq(raw)?,
                        claimed: get_zone_bytes(raw)?,
                        born_bytes: get_zone_bytes(raw)?,
                    })
                })?
            }
            TAG_FILLED => self.filled = get_list(raw, get_seq)?,
            TAG_RESET => self.reset = get_list(raw, get_seq)?,
            TAG_SUSPECT => self.suspect = get_list(raw, get_seq)?,
            TAG_MOVES => {
                self.moves = get_list(raw, |raw| Ok(Move { birth: get_seq(raw)?, run: get_run(raw)? }))?
            }
            TAG_DELTAS => self.deltas = get_list(raw, |raw| Ok((get_seq(raw)?, raw.varint_signed()?)))?,
            TAG_FREES => self.frees = get_list(raw, get_frees)?.into_iter().flatten().collect(),
            TAG_DEAD_LOG => {
                self.dead_log = get_list(raw, |raw| {
                    Ok(BootPtr::decode(raw.bytes(BootPtr::SIZE)?).unwrap_or(BootPtr::NONE))
                })?
            }
            TAG_SECTIONS => self.sections.append(&mut get_list(raw, |raw| get_section(raw, RowForm::Plain))?),
            TAG_TAILED_SECTIONS => {
                self.sections.append(&mut get_list(raw, |raw| get_section(raw, RowForm::Tailed))?)
            }
            TAG_PART_COPIES => {
                self.part_copies = get_list(raw, |raw| Ok((get_seq(raw)?, get_part_copy(raw)?)))?
            }
            TAG_MAY_OPEN => self.may_open = get_list(raw, get_home)?,
            TAG_TOTALS => self.totals = Totals::get(raw)?,
            TAG_LOG => self.log = get_list(raw, |raw| LogHead::get(raw, LogForm::Lent))?.pop(),
            TAG_LOG_WITH_DEVICES => self.log = get_list(raw, |raw| LogHead::get(raw, LogForm::Own))?.pop(),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn get_opened(
    raw: &mut Reader<'_>,
    get_home: impl Fn(&mut Reader<'_>) -> Result<Home, Truncated>,
) -> Result<OpenedZone, Truncated> {
    let (seq, class) = (get_seq(raw)?, raw.u8()?);
    let class = ZoneClass::from_id(class).ok_or(Truncated { offset: raw.offset(), needed: 0 })?;
    Ok(OpenedZone { seq, class, home: get_home(raw)?, capacity: get_zone_bytes(raw)? })
}

fn get_section(raw: &mut Reader<'_>, form: RowForm) -> Result<SectionPtr, Truncated> {
    let (section, stamp) = (raw.u32()?, Txg(raw.u64()?));
    let ptr = BootPtr::decode(raw.bytes(BootPtr::SIZE)?).unwrap_or(BootPtr::NONE);
    Ok(SectionPtr { section, last_txg: stamp, ptr, form })
}

fn put_item<T>(out: &mut Writer, tag: u8, list: &[T], mut put: impl FnMut(&mut Writer, &T)) {
    if list.is_empty() {
        return;
    }
    let mut body = Writer::new();
    body.varint(list.len() as u64);
    for value in list {
        put(&mut body, value);
    }
    out.u8(tag);
    out.blob(body.as_bytes());
}

/// A count, then that many values of at least one byte each.
pub fn get_list<T>(
    raw: &mut Reader<'_>,
    mut get: impl FnMut(&mut Reader<'_>) -> Result<T, Truncated>,
) -> Result<Vec<T>, Truncated> {
    let count = raw.count(1)?;
    // Grown while reading: a claimed byte may be many bytes in memory.
    let mut out = Vec::new();
    for _ in 0..count {
        out.push(get(raw)?);
    }
    Ok(out)
}

/// Reads a sequence number, 1 to 2^36 - 1.
pub fn get_seq(raw: &mut Reader<'_>) -> Result<ZoneSeq, Truncated> {
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    let seq = raw.varint()?;
    (seq > 0 && seq >> 36 == 0).then_some(ZoneSeq(seq)).ok_or(bad)
}

/// A number of bytes within a zone.
pub fn get_zone_bytes(raw: &mut Reader<'_>) -> Result<u64, Truncated> {
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    Some(raw.varint()?).filter(|bytes| *bytes <= ZONE_BYTES_MAX).ok_or(bad)
}

/// Writes a run, with its tally if that is known.
pub fn put_run(out: &mut Writer, run: &Run) {
    out.varint(u64::from(run.first));
    out.varint(u64::from(run.last - run.first));
    out.varint(run.dest.0);
    out.varint(run.part_end());
    // Live bytes are multiples of a granule, so the low bits are free for a flag.
    out.varint(run.live() | if run.tally.is_known() { TALLIED } else { 0 });
    if run.tally.is_known() {
        out.u32(run.tally.0);
    }
}

/// A tally follows.
const TALLIED: u64 = 1;

/// Reads a run. All its bytes must be whole granules.
pub fn get_run(raw: &mut Reader<'_>) -> Result<Run, Truncated> {
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    let first = u32::try_from(raw.varint()?).map_err(|_| bad)?;
    let last = u32::try_from(raw.varint()?).ok().and_then(|len| first.checked_add(len)).ok_or(bad)?;
    let (dest, part_end, live) = (get_seq(raw)?, get_zone_bytes(raw)?, get_zone_bytes(raw)?);
    let tally = match live % GRANULE {
        0 => Tally::UNKNOWN,
        TALLIED => Some(Tally(raw.u32()?)).filter(|tally| tally.0 >> 31 == 1).ok_or(bad)?,
        _ => return Err(bad),
    };
    let granules = |bytes: u64| u32::try_from(bytes / GRANULE).map_err(|_| bad);
    if part_end % GRANULE != 0 {
        return Err(bad);
    }
    let (part_end_granules, live_granules) = (granules(part_end)?, granules(live)?);
    Ok(Run { first, last, dest, part_end_granules, live_granules, tally })
}

/// Writes where the second copy of a directory part is.
pub fn put_part_copy(out: &mut Writer, copy: &PartCopy) {
    out.varint(copy.part_end);
    out.varint(copy.part_start);
    out.u64(copy.addr.raw());
}

/// Reads where the second copy of a directory part is. The part has 1 byte to 16 MiB.
pub fn get_part_copy(raw: &mut Reader<'_>) -> Result<PartCopy, Truncated> {
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    let (part_end, part_start) = (get_zone_bytes(raw)?, get_zone_bytes(raw)?);
    let addr = Addr::get(raw.bytes(8)?).filter(|addr| !addr.is_none()).ok_or(bad)?;
    let len = part_end.checked_sub(part_start).filter(|len| (1..=u64::from(BLOCK_BYTES_MAX)).contains(len));
    len.map(|_| PartCopy { part_end, part_start, addr }).ok_or(bad)
}

/// Sorted frees, delta coded.
pub fn put_frees(out: &mut Writer, frees: &[Free]) {
    out.varint(frees.len() as u64);
    let mut last = 0;
    for free in frees {
        out.varint(free.addr.raw() - last);
        out.varint(u64::from(free.granules));
        last = free.addr.raw();
    }
}

/// Reads frees. Each lies in one zone and has at least one granule; overlaps are not detected.
pub fn get_frees(raw: &mut Reader<'_>) -> Result<Vec<Free>, Truncated> {
    let mut last = 0u64;
    get_list(raw, |raw| {
        let bad = Truncated { offset: raw.offset(), needed: 0 };
        last = last.checked_add(raw.varint()?).ok_or(bad)?;
        let addr = Addr::from_raw(last);
        let granules = u32::try_from(raw.varint()?).map_err(|_| bad)?;
        let ends = u64::from(addr.granule()) + u64::from(granules);
        (addr.seq().0 > 0 && granules > 0 && ends <= 1 << 28).then_some(Free { addr, granules }).ok_or(bad)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{LogHome, LogZone};
    use proptest::prelude::*;
    use terrane_wire::{DeviceIdx, ZoneIdx};

    pub fn sample() -> Record {
        let mut run = Run::of(5, 30, ZoneSeq(8), 8192);
        run.add_block(900, 10);
        let home = Home { device: DeviceIdx(0), zone: ZoneIdx(9) };
        Record {
            txg: Txg(10),
            incarnation: 2,
            time_ns: 77,
            previous: BootPtr { len: 8, ..BootPtr::NONE },
            previous_txg: Txg(9),
            replay_after: Txg(8),
            root: BlockPtr::default(),
            opened: vec![OpenedZone {
                seq: ZoneSeq(8),
                class: ZoneClass::Collection,
                home,
                capacity: 1 << 20,
            }],
            form: RowForm::Tailed,
            written: vec![WrittenZone { seq: ZoneSeq(8), claimed: 65536, born_bytes: 640 }],
            filled: vec![ZoneSeq(7)],
            reset: vec![ZoneSeq(2)],
            suspect: vec![ZoneSeq(1)],
            moves: vec![Move { birth: ZoneSeq(3), run }],
            deltas: vec![(ZoneSeq(3), -640), (ZoneSeq(8), 640)],
            frees: vec![Free { addr: Addr::new(ZoneSeq(4), 160), granules: 3 }],
            dead_log: vec![BootPtr { len: 9, ..BootPtr::NONE }],
            sections: vec![
                SectionPtr { section: 3, last_txg: Txg(9), ptr: BootPtr::NONE, form: RowForm::Plain },
                SectionPtr { section: 1, last_txg: Txg(9), ptr: BootPtr::NONE, form: RowForm::Tailed },
            ],
            part_copies: vec![(
                ZoneSeq(8),
                PartCopy { part_end: 8192, part_start: 4096, addr: Addr::new(ZoneSeq(6), 16) },
            )],
            may_open: vec![home],
            totals: Totals { user_bytes: 1 << 40, by_purpose: [9; 7], ..Totals::default() },
            log: Some(LogHead {
                incarnation: 2,
                number: 3,
                offset: 8192,
                unit: 4096,
                chain: [7; 16],
                after: Txg(10),
                replayed: 0,
                zones: vec![LogZone { homes: vec![LogHome::Lent(home)] }],
            }),
        }
    }

    fn seq() -> impl Strategy<Value = ZoneSeq> {
        prop_oneof![Just(1), Just((1u64 << 36) - 1), 1u64..1000].prop_map(ZoneSeq)
    }

    fn zone_bytes() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), Just(ZONE_BYTES_MAX), 0u64..1 << 20]
    }

    fn home() -> impl Strategy<Value = Home> {
        (prop_oneof![Just(0u16), any::<u16>()], prop_oneof![0u32..200, any::<u32>()])
            .prop_map(|(device, zone)| Home { device: DeviceIdx(device), zone: ZoneIdx(zone) })
    }

    /// Smallest and largest runs, with and without a known tally.
    fn run() -> impl Strategy<Value = Run> {
        let granule = || prop_oneof![Just(0u32), Just((1 << 28) - 1), 0u32..300];
        let block = (granule(), prop_oneof![Just(1u32), Just(1 << 20), 1u32..9]);
        (prop::collection::vec(block, 1..4), seq(), zone_bytes(), any::<bool>()).prop_map(
            |(blocks, dest, part_end, known)| {
                let mut run = Run::of(blocks[0].0, blocks[0].1, dest, part_end / GRANULE * GRANULE);
                blocks[1..].iter().for_each(|(granule, granules)| run.add_block(*granule, *granules));
                run.tally = if known { run.tally } else { Tally::UNKNOWN };
                run
            },
        )
    }

    fn some<T: std::fmt::Debug>(one: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
        prop::collection::vec(one, 0..40)
    }

    proptest! {
        /// The parser must accept what the writer may write: many of the smallest items, and the extremes of each field.
        #[test]
        fn any_record_comes_back(
            opened in some((seq(), 1u8..6, home(), zone_bytes())),
            written in some((seq(), zone_bytes(), zone_bytes())),
            lists in (some(seq()), some(seq()), some(seq()), some(home())),
            moves in some((seq(), run())),
            deltas in some((seq(), prop_oneof![Just(i64::MIN), Just(i64::MAX), any::<i64>(), -9i64..9])),
            frees in some((seq(), prop_oneof![Just(0u32), Just((1 << 28) - 1), 0u32..99], 1u32..1 << 21)),
            copies in some((seq(), seq(), 1u64..u64::from(BLOCK_BYTES_MAX))),
            tailed in any::<bool>(),
        ) {
            let opened = opened.into_iter().map(|(seq, class, home, capacity)| {
                OpenedZone { seq, class: ZoneClass::from_id(class).unwrap(), home, capacity }
            });
            let mut frees: Vec<Free> = frees.into_iter().map(|(seq, granule, granules)| {
                let addr = Addr::new(seq, u64::from(granule) * GRANULE);
                Free { addr, granules: granules.min((1 << 28) - granule) }
            }).collect();
            frees.sort_unstable();
            let copy = |(seq, of, len): (ZoneSeq, ZoneSeq, u64)| {
                (seq, PartCopy { part_end: ZONE_BYTES_MAX, part_start: ZONE_BYTES_MAX - len, addr: Addr::new(of, 16) })
            };
            let (filled, reset, suspect, may_open) = lists;
            let opened: Vec<OpenedZone> = opened.collect();
            let form = if tailed && !opened.is_empty() { RowForm::Tailed } else { RowForm::Plain };
            let record = Record {
                opened,
                form,
                written: written.into_iter().map(|(seq, claimed, born_bytes)| WrittenZone { seq, claimed, born_bytes }).collect(),
                filled, reset, suspect, may_open,
                moves: moves.into_iter().map(|(birth, run)| Move { birth, run }).collect(),
                deltas,
                frees,
                part_copies: copies.into_iter().map(copy).collect(),
                ..sample()
            };
            let back = Record::parse(&record.encode(), "here").map_err(|error| error.to_string());
            prop_assert_eq!(back, Ok(record));
        }
    }

    #[test]
    fn records_come_back() {
        let raw = sample().encode();
        assert_eq!(Record::parse(&raw, "here").unwrap(), sample());
        for len in 0..raw.len() {
            assert!(Record::parse(&raw[..len], "here").is_err());
        }
    }

    #[test]
    fn no_byte_makes_parsing_panic_and_unknown_items_are_refused() {
        let raw = sample().encode();
        for at in 0..raw.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = raw.clone();
                bad[at] = byte;
                let _ = Record::parse(&bad, "here");
            }
        }
        let mut unknown = raw[..raw.len() - 1].to_vec();
        unknown.extend_from_slice(&[99, 1, 0, 0]);
        assert!(Record::parse(&unknown, "here").unwrap_err().to_string().contains("unknown feature"));
    }
}
