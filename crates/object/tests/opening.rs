//! Creating and opening object sets while txgs sync.

use crate::support::{COST, KeepOlder, import, options, sim};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use terrane_device::{Device, SimDevice};
use terrane_format::Feature;
use terrane_object::{ObjectKind, ObjectSets};
use terrane_pool::{CreateOptions, Pool};
use terrane_store::env::{Env, SeededEnv, SystemEnv};
use terrane_wire::ObjectId;

/// Runs a function once, between quiescing and sync of a txg: the sync reads the clock then.
struct Between {
    env: SeededEnv,
    is_armed: AtomicBool,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Env for Between {
    fn wall_ns(&self) -> u64 {
        self.env.wall_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        if self.is_armed.swap(false, Ordering::AcqRel) {
            let then = self.then.lock().unwrap().take();
            then.into_iter().for_each(|then| then());
        }
        self.env.monotonic_ns()
    }

    fn random_u64(&self) -> u64 {
        self.env.random_u64()
    }

    fn sleep(&self, time: Duration) {
        self.env.sleep(time);
    }

    fn workers(&self) -> usize {
        0
    }
}

fn sets(objects: &ObjectSets) -> Vec<ObjectId> {
    let mut found = Vec::new();
    let failed = objects.mos().for_each_dnode(&mut |id, dnode| {
        found.extend((dnode.kind == ObjectKind::Objset).then_some(id));
    });
    assert!(failed.is_empty());
    found
}

/// A crash before the next txg leaves nothing of the new set: no reference to it, and no object number above
/// the counts.
#[test]
fn set_created_during_a_sync_belongs_to_the_next_txg() {
    let device = sim(61);
    let env = SeededEnv::new(61);
    let between = Arc::new(Between { env, is_armed: AtomicBool::new(false), then: Mutex::default() });
    let create = CreateOptions::named("between");
    let pool = Pool::create(vec![Arc::new(device.clone())], &create, between.clone(), &options()).unwrap();
    let objects = ObjectSets::create(pool.clone()).unwrap();
    let first = objects.create_objset(&pool.begin(COST).unwrap()).unwrap();
    let set = objects.open_objset(first, Arc::new(KeepOlder::default())).unwrap();
    pool.commit().unwrap();
    let (arms, all) = (between.clone(), objects.clone());
    let syncing = pool.open_txg();
    *between.then.lock().unwrap() = Some(Box::new(move || {
        let tx = all.pool().begin(COST).unwrap();
        assert_eq!(tx.txg(), syncing.next());
        let id = all.create_objset(&tx).unwrap();
        all.open_objset(id, Arc::new(KeepOlder::default())).unwrap();
    }));
    set.on_txg_end(move |_| {
        arms.is_armed.store(true, Ordering::Release);
        false
    });
    for count in [1, 2] {
        pool.commit_txg(pool.open_txg()).unwrap();
        assert!(between.then.lock().unwrap().is_none(), "the canary: it was done");
        let after = import(&device.after_power_loss(count), count);
        let found = sets(&after._objects);
        assert_eq!(found.len() as u64, count, "{found:?}");
        for id in found {
            after._objects.open_objset(id, Arc::new(KeepOlder::default())).unwrap();
        }
        after.pool.abandon();
    }
}

/// A pool of two sets as an older version leaves it, now with all features enabled.
fn upgraded(env: Arc<dyn Env>) -> (SimDevice, Arc<ObjectSets>, [ObjectId; 2]) {
    let device = sim(62);
    let devices = || -> Vec<Arc<dyn Device>> { vec![Arc::new(device.clone())] };
    let features = Feature::defaults().into_iter().filter(|feature| *feature != Feature::Datasets).collect();
    let create = CreateOptions { features, ..CreateOptions::named("old") };
    let pool = Pool::create(devices(), &create, Arc::new(SeededEnv::new(62)), &options()).unwrap();
    let objects = ObjectSets::create(pool.clone()).unwrap();
    let tx = pool.begin(COST).unwrap();
    let ids = [(); 2].map(|()| objects.create_objset(&tx).unwrap());
    drop(tx);
    pool.export().unwrap();
    drop((objects, pool));
    let pool = Pool::import(devices(), env, &options()).unwrap();
    pool.enable(&Feature::defaults()).unwrap();
    let objects = ObjectSets::open(pool).unwrap();
    (device, objects, ids)
}

/// A thread in a txg may open a set with an identity, while another thread assigns one to an older set.
#[test]
fn opening_a_set_does_not_wait_for_a_txg() {
    let (_device, objects, [first, second]) = upgraded(Arc::new(SystemEnv::new()));
    objects.open_objset(first, Arc::new(KeepOlder::default())).unwrap();
    let (done, ended) = mpsc::channel();
    let all = objects.clone();
    let tx = objects.pool().begin(COST).unwrap();
    let older =
        std::thread::spawn(move || all.open_objset(second, Arc::new(KeepOlder::default())).map(|_| ()));
    std::thread::sleep(Duration::from_millis(200));
    let all = objects.clone();
    std::thread::spawn(move || {
        let id = all.create_objset(&tx).unwrap();
        let opened = [first, id].map(|id| all.open_objset(id, Arc::new(KeepOlder::default())).map(|_| ()));
        drop(tx);
        done.send(opened.into_iter().all(|opened| opened.is_ok()))
    });
    assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(true), "each waits for the other");
    older.join().unwrap().unwrap();
    objects.pool().export().unwrap();
}

/// All threads that open a set at the same time get the same one. It has one identity and one queue.
#[test]
fn older_set_gets_one_identity() {
    let (device, objects, ids) = upgraded(Arc::new(SystemEnv::new()));
    let opened = std::thread::scope(|scope| {
        let open = || objects.open_objset(ids[0], Arc::new(KeepOlder::default())).unwrap();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(opened.iter().all(|set| Arc::ptr_eq(set, &opened[0])));
    let identity = objects.identity(ids[0]).unwrap().unwrap();
    objects.pool().commit().unwrap();
    objects.pool().export().unwrap();
    drop((objects, opened));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
    let pool = Pool::import(devices, Arc::new(SeededEnv::new(1)), &options()).unwrap();
    let objects = ObjectSets::open(pool.clone()).unwrap();
    assert_eq!(objects.identity(ids[0]).unwrap(), Some(identity));
    assert_eq!(objects.identity(ids[1]).unwrap(), None);
    let mut queues = 0;
    objects.mos().for_each_dnode(&mut |_, dnode| queues += u32::from(dnode.kind == ObjectKind::FreeQueue));
    assert_eq!(queues, 1);
    assert_eq!(pool.check_tables(), vec![]);
    pool.abandon();
}

/// The identity is for later: a pool that takes no more changes can still be read.
#[test]
fn stopped_pool_opens_an_older_set_without_identity() {
    let (_device, objects, [first, _]) = upgraded(Arc::new(SystemEnv::new()));
    objects.pool().abandon();
    let set = objects.open_objset(first, Arc::new(KeepOlder::default())).unwrap();
    assert_eq!(set.usage().objects, 0);
    assert_eq!(objects.identity(first).unwrap(), None);
}
