//! A file system: format, open, take-over and unmount, and calls on it as a whole.

use crate::attr::encode_time;
use crate::claims::Claims;
use crate::delete_queue::UnlinkedSet;
use crate::dir_prefetch::PrefetchedDirs;
use crate::dnode_sizing::DnodeSizing;
use crate::fs::Fs;
use crate::indexes::Indexes;
use crate::inode::InodeCache;
use crate::intents::{IntentLog, Intents, PoolLog};
use crate::jobs::{Rewriting, ShrinkQueue};
use crate::layouts::Layouts;
use crate::losses::{Loss, Losses};
use crate::master::Master;
use crate::reservations::Reservations;
use crate::shown::ShownInodes;
use crate::types::{AccessTimes, Cred, Ino, ReadOptions, StatFs, Time, mode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, OnceLock};
use terrane_dataset::{ClaimedBlocks, Dataset, DatasetError, DnodeBlocks, ObjectZap};
use terrane_object::{ObjectError, ObjectKind, ObjectSpec};
use terrane_pool::Tx;
use terrane_sa::layout::LAYOUT_FIRST;
use terrane_sa::{SaBuffer, ZplAttrs};
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;

const ROOT: &[u8] = b"ROOT";
const DELETE_QUEUE: &[u8] = b"DELETE_QUEUE";
const SA_ATTRS: &[u8] = b"SA_ATTRS";
const REGISTRY: &[u8] = b"REGISTRY";
const LAYOUTS: &[u8] = b"LAYOUTS";
const VERSION: &[u8] = b"VERSION";
/// The attribute encodings of ZPL version 5.
const VERSION_NUMBER: u64 = 5;

/// Unit of `statvfs` numbers, in bytes.
const STAT_BLOCK_BYTES: u32 = 4096;
/// Unlinked inodes that a successor keeps in memory, because programs may have them open. Each takes 1 to 2
/// KiB.
const UNLINKED_HELD_MAX: usize = 32 << 10;

/// How a file system is opened.
#[derive(Default)]
pub(crate) struct Opening {
    /// Losses of a predecessor whose mount goes on.
    pub losses: Option<Losses>,
    /// See [`Fs::open_to_replay`].
    pub is_replaying: bool,
    /// See [`Fs::follow`].
    pub shown: Option<Arc<ShownInodes>>,
    /// The log; `None`: that of the pool.
    pub log: Option<Box<dyn IntentLog>>,
}

impl Fs {
    /// Writes an empty file system into a new data set. Its root directory has mode 0755 and this owner.
    /// Durable on return.
    pub fn format(dataset: &Dataset, owner: &Cred) -> Result<(), DatasetError> {
        let set = dataset.object_set();
        let tx = set.begin(Cost { write_bytes: 256 << 10, meta_blocks: 32, ..Cost::NOTHING })?;
        Fs::format_in(dataset, &tx, owner)?;
        drop(tx);
        Ok(set.commit()?)
    }

    /// The same, in a transaction that has reserved 256 KiB and 32 metadata blocks for it.
    pub fn format_in(dataset: &Dataset, tx: &Tx, owner: &Cred) -> Result<(), DatasetError> {
        let set = dataset.object_set();
        let mut registry = dataset.new_zap(tx, ObjectKind::Zap)?;
        let table = Layouts::first().map_err(ObjectError::from)?;
        for row in table.registry().iter() {
            registry.add_u64(tx, row.name.as_bytes(), row.to_zap_value())?;
        }
        let mut layouts = dataset.new_zap(tx, ObjectKind::Zap)?;
        for layout in table.iter().filter(|layout| layout.number() >= LAYOUT_FIRST) {
            Layouts::store(&mut layouts, tx, layout)?;
        }
        let mut attributes = dataset.new_zap(tx, ObjectKind::Zap)?;
        attributes.add_u64(tx, REGISTRY, registry.object().id().0)?;
        attributes.add_u64(tx, LAYOUTS, layouts.object().id().0)?;
        let queue = dataset.new_zap(tx, ObjectKind::DeleteQueue)?;

        let now = encode_time(Time::from_ns(set.pool().env().wall_ns()));
        let mut root = ZplAttrs {
            mode: u64::from(mode::S_IFDIR | 0o755),
            size: 2,
            generation: tx.txg().0,
            uid: u64::from(owner.uid),
            gid: u64::from(owner.gid),
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            links: 2,
            ..ZplAttrs::default()
        };
        let bonus = |zpl: &ZplAttrs| -> Result<Vec<u8>, DatasetError> {
            let list = zpl.to_list();
            let layout = table.find(list.order());
            let encoded = layout.map(|layout| SaBuffer::encode(layout, &list));
            encoded.and_then(Result::ok).map(SaBuffer::into_bytes).ok_or_else(|| DatasetError::Damaged {
                at: "the root directory's attributes",
                expected: "encodable".to_string(),
                found: format!("{zpl:?}"),
            })
        };
        let object = set.create(
            tx,
            ObjectSpec {
                kind: ObjectKind::Directory,
                block_size: terrane_dataset::INITIAL_BLOCK_BYTES,
                dnode_slots: 1,
                bonus: bonus(&root)?,
                spill: None,
            },
        )?;
        // The root is its own parent. Its number is known only now.
        root.parent = object.id().0;
        object.set_bonus(tx, bonus(&root)?)?;

        let mut master = dataset.shared_master().lock();
        for (name, number) in [
            (VERSION, VERSION_NUMBER),
            (SA_ATTRS, attributes.object().id().0),
            (DELETE_QUEUE, queue.object().id().0),
            (ROOT, object.id().0),
        ] {
            master.add_u64(tx, name, number)?;
        }
        Ok(())
    }

    /// Opens a formatted data set, and destroys up to 256 objects that a crash left without a name. For the
    /// others the mount calls [`drain_unlinked`](Self::drain_unlinked) until it returns false.
    ///
    /// In a snapshot ([`Dataset::open_at`]) nothing is destroyed and no job runs. Each change fails with `EROFS`,
    /// and inodes without a name do not exist.
    pub fn open(dataset: Arc<Dataset>) -> Result<Arc<Fs>, DatasetError> {
        let fs = Fs::open_as(dataset, Opening::default())?;
        // A read-only or full pool can still be mounted.
        if let Err(errno) = fs.drain_unlinked() {
            log::warn!("failed to list unlinked objects, none destroyed: {errno}");
        }
        Ok(fs)
    }

    /// Opens the file system for an existing mount. The kernel has inodes in its cache that this server has not
    /// looked up, and unlinked ones may be open.
    ///
    /// So an unlinked inode lives until the kernel forgets it. `lost` lists the inodes whose last changes did
    /// not survive a predecessor, and which calls have reported that. See
    /// [`refuse_change`](Self::refuse_change) and [`fsync`](Self::fsync).
    ///
    /// An inode in `lost` that does not exist was created by lost changes, and the kernel knows its number.
    /// That number answers `ESTALE` and is not reused, as long as this `Fs` lives. This works because an
    /// object's number is reused only after its destruction has committed. So a number in `lost` that exists
    /// names the inode that the kernel means. After a rollback it may not: see [`is_replaced`](Self::is_replaced).
    pub fn take_over(dataset: Arc<Dataset>, lost: BTreeMap<Ino, Loss>) -> Result<Arc<Fs>, DatasetError> {
        // Not `is_read_only`: a data set may have become read-only while its files were changed or open.
        if dataset.is_snapshot() {
            return Fs::open(dataset);
        }
        dataset.object_set().withhold(lost.keys().copied());
        dataset.expect_write_backs();
        let fs = Fs::open_as(dataset, Opening { losses: Some(Losses::new(lost)), ..Opening::default() })?;
        match fs.unlinked.list(UNLINKED_HELD_MAX) {
            // Each gets one lookup, so that the kernel's FORGET finds it. Inodes unknown to the kernel wait for
            // the unmount.
            Ok(unlinked) => {
                // The kernel was never told of a rewrite's second copy.
                for ino in unlinked.into_iter().filter(|ino| !fs.rewriting.is_second_copy(*ino)) {
                    match fs.hold(ino) {
                        Ok(inode) => inode.count_lookup(),
                        Err(errno) => log::warn!("failed to read unlinked object {ino}: {errno}"),
                    }
                }
            }
            Err(errno) => log::warn!("failed to list unlinked objects: {errno}"),
        }
        Ok(fs)
    }

    /// Opens the file system of one state of a data set that another process changes. `shown`: what the kernel knows by earlier states of
    /// the same mount. What has the number of such an inode and is another one answers `ESTALE`, until it is looked up.
    pub fn follow(dataset: Arc<Dataset>, shown: Arc<ShownInodes>) -> Result<Arc<Fs>, DatasetError> {
        Fs::open_as(dataset, Opening { shown: Some(shown), ..Opening::default() })
    }

    /// What the kernel knows, for the next state.
    pub fn shown(&self) -> Option<Arc<ShownInodes>> {
        self.shown.clone()
    }

    pub(crate) fn open_as(dataset: Arc<Dataset>, opening: Opening) -> Result<Arc<Fs>, DatasetError> {
        let Opening { losses, is_replaying, shown, log } = opening;
        let set = Arc::clone(dataset.object_set());
        if !is_replaying && !dataset.is_snapshot() && !set.pool().is_read_only() {
            refuse_unreplayed(&dataset)?;
        }
        let master: Master = Arc::clone(dataset.shared_master());
        let required = |name| required_entry(&master.lock(), name);
        let version = required(VERSION)?;
        if version != VERSION_NUMBER {
            return Err(DatasetError::Damaged {
                at: "the file system's VERSION",
                expected: VERSION_NUMBER.to_string(),
                found: version.to_string(),
            });
        }
        let zap = |number: u64| dataset.open_zap(ObjectId(number));
        let layouts = layouts_of(&dataset)?;
        let queue = zap(required(DELETE_QUEUE)?)?;
        let root = required(ROOT)?;
        // A snapshot has no reservations: the live set has reserved the space. A data set with `readonly=on` has: it may
        // become writable while it is open.
        let is_snapshot = dataset.is_snapshot();
        let reservations = match is_snapshot {
            true => Arc::default(),
            false => Arc::new(Reservations::load(&dataset, &master, &layouts)?),
        };
        let log: Box<dyn IntentLog> = match log {
            Some(log) => log,
            None => Box::new(PoolLog(Arc::clone(set.pool()))),
        };
        let fs = Arc::new(Fs {
            intents: Intents::new(log, set.id()),
            is_replaying,
            shown,
            had_acls: AtomicBool::new(false),
            naming: dataset.naming(),
            dataset,
            set,
            layouts,
            dnode_sizing: DnodeSizing::default(),
            inodes: InodeCache::new(),
            indexes: Indexes::new(),
            unlinked: Arc::new(UnlinkedSet::new(queue)),
            shrink_queue: ShrinkQueue::default(),
            rewriting: Arc::new(Rewriting::load(&master)?),
            master,
            reservations,
            restored: Mutex::default(),
            relocated_queue: Mutex::default(),
            dnode_blocks: DnodeBlocks::default(),
            pointer_blocks: ClaimedBlocks::default(),
            claims_of_new: Claims::of_new(),
            directory_moves: Mutex::new(()),
            ledger: OnceLock::new(),
            access_times: AtomicU8::new(AccessTimes::default() as u8),
            losses_reported: AtomicU64::new(0),
            dir_prefetch: Mutex::default(),
            prefetched_dirs: PrefetchedDirs::default(),
            losses,
            root,
            destroy_unlinked: if is_replaying { |_, _| Ok(()) } else { Fs::destroy },
        });
        if is_snapshot {
            fs.rewriting.running.lock().take();
        } else {
            fs.store_with_each_txg();
        }
        fs.check_root()?;
        Ok(fs)
    }

    /// Stores at the end of each txg what operations only note in memory.
    fn store_with_each_txg(&self) {
        let record_size = self.rewriting.record_size();
        record_size.into_iter().for_each(|bytes| self.set.pool().note_record_size(bytes));
        // It outlives this Fs by one txg: the last unlinked objects are not stored in any txg yet.
        let unlinked = Arc::clone(&self.unlinked);
        self.set.on_txg_end(move |last| {
            let is_used = Arc::strong_count(&unlinked) > 1;
            unlinked.store(last);
            is_used
        });
        let rewriting = Arc::clone(&self.rewriting);
        self.set.on_txg_end(move |last| {
            let is_used = Arc::strong_count(&rewriting) > 1;
            rewriting.store(last);
            is_used
        });
        let reservations = Arc::clone(&self.reservations);
        self.set.on_txg_end(move |last| {
            let is_used = Arc::strong_count(&reservations) > 1;
            reservations.store(last);
            is_used
        });
    }

    fn check_root(&self) -> Result<(), DatasetError> {
        match self.hold(self.root).map(|inode| inode.read().attrs.is_dir()) {
            Ok(true) => Ok(()),
            outcome => Err(DatasetError::Damaged {
                at: "the root directory",
                expected: "a readable directory".to_string(),
                found: outcome.map_or_else(|errno| errno.to_string(), |_| "another file".to_string()),
            }),
        }
    }

    /// Forgets all lookups at unmount, after shrinking the directories in the shrink queue.
    pub fn forget_all(&self) {
        self.shrink_all_dirs();
        for ino in self.inodes.numbers() {
            self.forget(ino, u64::MAX);
        }
    }

    /// A path to the inode with its number, as far as directories can be read. For messages: it scans all names
    /// on the way.
    pub fn path_of(&self, ino: Ino) -> String {
        let mut names = Vec::new();
        let mut at = ino;
        // Deeper than any path of a system call. A damaged parent may lead in circles.
        while at != self.root() && names.len() < 4096 {
            let Ok(parent) = self.hold(at).map(|inode| inode.read().attrs.zpl.parent) else { break };
            let mut found = None;
            let listed = self.readdir_as(
                parent,
                2,
                ReadOptions { keeps_atime: true, no_prefetch: false },
                &mut |entry| {
                    if entry.ino == at {
                        found = Some(String::from_utf8_lossy(entry.name).into_owned());
                    }
                    found.is_none()
                },
            );
            let (Ok(()), Some(name)) = (listed, found) else { break };
            names.push(name);
            at = parent;
        }
        names.reverse();
        let start = if at == self.root() { "/" } else { "(no name) " };
        format!("{start}{} (inode {ino})", names.join("/"))
    }

    /// Space and number of files, for `statvfs`.
    /// A snapshot uses the space that it refers to, and has no free space.
    pub fn statfs(&self) -> StatFs {
        let mut usage = self.set.usage();
        if self.is_read_only() {
            usage.available_bytes = 0;
            usage.used_bytes = self.set.account().map_or(usage.used_bytes, |account| account.used_bytes);
        }
        let blocks = |bytes: u64| bytes / u64::from(STAT_BLOCK_BYTES);
        let free = blocks(usage.available_bytes);
        // A dnode takes 512 bytes before compression.
        let files_free = usage.available_bytes / 512;
        StatFs {
            block_size: STAT_BLOCK_BYTES,
            blocks: blocks(usage.used_bytes).saturating_add(free),
            free,
            available: free,
            files: usage.objects.saturating_add(files_free),
            files_free,
            name_max: 255,
        }
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        self.reservations.release_all(self.set.pool());
    }
}

/// The layouts of attributes that a data set stores.
pub(crate) fn layouts_of(dataset: &Dataset) -> Result<Layouts, DatasetError> {
    let zap = |number: u64| dataset.open_zap(ObjectId(number));
    let attributes = zap(required_entry(&dataset.shared_master().lock(), SA_ATTRS)?)?;
    let registry = zap(required_entry(&attributes, REGISTRY)?)?;
    Ok(Layouts::load(&registry, zap(required_entry(&attributes, LAYOUTS)?)?)?)
}

/// Changes now would come before those that are in the log.
fn refuse_unreplayed(dataset: &Dataset) -> Result<(), DatasetError> {
    match dataset.object_set().pool().unreplayed_log() {
        None => Ok(()),
        Some(log) => Err(DatasetError::Damaged {
            at: "the intent log",
            expected: "all records replayed before a data set is opened".to_string(),
            found: format!("{} records", log.records),
        }),
    }
}

fn required_entry(zap: &ObjectZap, name: &[u8]) -> Result<u64, DatasetError> {
    zap.lookup_u64(name)?.ok_or_else(|| DatasetError::Damaged {
        at: "the master ZAP",
        expected: format!("an entry '{}'", String::from_utf8_lossy(name)),
        found: "none: this data set holds no file system".to_string(),
    })
}
