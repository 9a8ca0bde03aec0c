//! The attributes of one inode, each with its location: part of `terrane debug dnode` and of `terrane stat`.

use super::objects::hold;
use crate::open_pool::OpenPool;
use serde::Serialize;
use terrane_check::attributes::load_layouts;
use terrane_dataset::ObjectStore;
use terrane_format::BlockPtr;
use terrane_object::Object;
use terrane_object::dnode::Dnode;
use terrane_sa::{Attr, Attrs, LayoutTable, NvList};
use terrane_wire::ObjectId;
use terrane_zap::{Cursor, Zap};

/// Maximum number of hidden values that are listed.
const HIDDEN_MAX: usize = 10_000;

/// What kind of contents the root pointer has.
pub fn contents(dnode: &Dnode) -> &'static str {
    match &dnode.root {
        BlockPtr::Hole(_) => "none",
        BlockPtr::Embedded(_) => "embedded",
        BlockPtr::Normal(_) => "blocks",
    }
}

#[derive(Serialize)]
pub struct AttributeRow {
    name: String,
    home: String,
    bytes: usize,
    value: Option<String>,
}

#[derive(Serialize)]
pub struct XattrRow {
    name: String,
    home: String,
    bytes: u64,
}

#[derive(Default)]
struct Lists {
    attributes: Vec<AttributeRow>,
    xattrs: Vec<XattrRow>,
    hidden: Option<u64>,
    /// The hidden directory and the values in it.
    hidden_objects: u64,
    hidden_stored: u64,
}

/// Where the attributes of an inode lie, and what they take. Sizes are bytes.
#[derive(Serialize)]
pub struct HomesRow {
    bonus: usize,
    spill: u64,
    spill_stored: u64,
    objects: u64,
    objects_stored: u64,
    values: Vec<XattrRow>,
}

/// The homes of an inode's attributes. Stored bytes are those of the last commit. An error names what could not be read.
pub fn homes(open_pool: &OpenPool, object: &Object) -> (HomesRow, Option<String>) {
    let dnode = object.dnode();
    let (lists, error) = match lists(open_pool, object) {
        Ok(lists) => (lists, None),
        Err(error) => (Lists::default(), Some(format!("attributes: {error}"))),
    };
    let row = HomesRow {
        bonus: dnode.bonus.len(),
        spill: u64::from(dnode.spill.lsize()),
        spill_stored: stored_bytes(&dnode.spill),
        objects: lists.hidden_objects,
        objects_stored: lists.hidden_stored,
        values: lists.xattrs,
    };
    (row, error)
}

/// Bytes that a pointer's block takes: of all copies, or in the pointer itself.
fn stored_bytes(ptr: &BlockPtr) -> u64 {
    match ptr {
        BlockPtr::Embedded(embedded) => embedded.payload.len() as u64,
        BlockPtr::Hole(_) | BlockPtr::Normal(_) => ptr.allocated_bytes(),
    }
}

/// An object's attributes, or why they cannot be read.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Described {
    Read { attributes: Vec<AttributeRow>, xattrs: Vec<XattrRow> },
    Failed { attributes_error: String },
}

pub fn describe(open_pool: &OpenPool, object: &Object) -> Described {
    match lists(open_pool, object) {
        Ok(Lists { attributes, xattrs, .. }) => Described::Read { attributes, xattrs },
        Err(attributes_error) => Described::Failed { attributes_error },
    }
}

fn lists(open_pool: &OpenPool, object: &Object) -> Result<Lists, String> {
    let table = load_layouts(&open_pool.dataset())?.ok_or("the data set has no files")?;
    let mut lists = Lists::default();
    lists.take(&object.bonus(), &table, "bonus")?;
    let spill = object.spill().map_err(|error| error.to_string())?;
    if let Some(spill) = spill {
        lists.take(&spill, &table, "spill")?;
    }
    if let Some(number) = lists.hidden {
        lists.take_hidden(open_pool, &table, number)?;
    }
    Ok(lists)
}

impl Lists {
    fn take(&mut self, raw: &[u8], table: &LayoutTable, home: &str) -> Result<(), String> {
        let attrs = Attrs::decode(raw, table).map_err(|error| error.within(home).to_string())?;
        for (attr, value) in attrs.iter() {
            let name = table.registry().get(attr).map_or_else(|| attr.to_string(), |info| info.name.clone());
            let shown = shown(&attrs, attr, value);
            self.attributes.push(AttributeRow {
                name,
                home: home.to_owned(),
                bytes: value.len(),
                value: shown,
            });
        }
        self.hidden = self.hidden.or(attrs.u64(Attr::XATTR));
        if let Some(packed) = attrs.get(Attr::DXATTR) {
            let list = NvList::parse(packed).map_err(|error| error.to_string())?;
            let rows = list.iter().map(|(name, value)| row(name, home, value.len() as u64));
            self.xattrs.extend(rows);
        }
        Ok(())
    }

    fn take_hidden(&mut self, open_pool: &OpenPool, table: &LayoutTable, number: u64) -> Result<(), String> {
        let held = hold(open_pool, false, number).map_err(|error| error.0)?;
        self.count_hidden(&held);
        let store = ObjectStore::reader(&held);
        let zap = Zap::open(&store).map_err(|error| error.to_string())?;
        for entry in zap.list(&store, Cursor::START, HIDDEN_MAX).map_err(|error| error.to_string())? {
            let value = entry.value.first_integer().unwrap_or(0) & ObjectId::MASK;
            let held = hold(open_pool, false, value).map_err(|error| error.0)?;
            self.count_hidden(&held);
            let bytes =
                Attrs::decode(&held.bonus(), table).map_err(|error| error.to_string())?.u64(Attr::SIZE);
            let home = format!("object {value}");
            self.xattrs.push(row(entry.key.name().unwrap_or_default(), &home, bytes.unwrap_or(0)));
        }
        Ok(())
    }
}

impl Lists {
    fn count_hidden(&mut self, object: &Object) {
        let dnode = object.dnode();
        let embedded: u64 = [&dnode.root, &dnode.spill]
            .into_iter()
            .filter(|ptr| matches!(ptr, BlockPtr::Embedded(_)))
            .map(stored_bytes)
            .sum();
        self.hidden_objects += 1;
        self.hidden_stored += dnode.used + embedded;
    }
}

fn row(name: &[u8], home: &str, bytes: u64) -> XattrRow {
    XattrRow { name: String::from_utf8_lossy(name).into_owned(), home: home.to_owned(), bytes }
}

/// A value that is a number, a time or a text; other values are shown by their length.
fn shown(attrs: &Attrs<'_>, attr: Attr, value: &[u8]) -> Option<String> {
    match attr {
        Attr::MODE => attrs.u64(attr).map(|mode| format!("{mode:#o}")),
        Attr::SYMLINK => Some(String::from_utf8_lossy(value).into_owned()),
        Attr::DXATTR => None,
        _ => match attrs.pair(attr) {
            Some([seconds, nanos]) if value.len() == 16 => Some(format!("{seconds}.{nanos:09}")),
            _ => attrs.u64(attr).filter(|_| value.len() == 8).map(|number| number.to_string()),
        },
    }
}
