//! Object sets that are made and opened while groups go by.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{COST, Judge, import, options, sim};
use terrane_object::{ObjectKind, Objects};
use terrane_pool::{CreateOptions, Pool};
use terrane_store::env::{Env, SeededEnv};
use terrane_wire::ObjectId;

/// Does something when a group has quiesced and does not sync yet: it looks at the clock then.
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

fn sets(objects: &Objects) -> Vec<ObjectId> {
    let mut found = Vec::new();
    let failed = objects.mos().for_each_dnode(&mut |id, dnode| {
        found.extend((dnode.kind == ObjectKind::Objset).then_some(id));
    });
    assert!(failed.is_empty());
    found
}

/// A crash before the next group leaves nothing of it: nobody names it, and no number is beyond what the set of sets counts.
#[test]
fn a_set_that_is_made_while_a_group_syncs_belongs_to_the_next() {
    let device = sim(61);
    let env = SeededEnv::new(61);
    let between = Arc::new(Between { env, is_armed: AtomicBool::new(false), then: Mutex::default() });
    let create = CreateOptions::named("between");
    let pool = Pool::create(vec![Arc::new(device.clone())], &create, between.clone(), &options()).unwrap();
    let objects = Objects::create(pool.clone()).unwrap();
    let first = objects.create_objset(&pool.begin(COST).unwrap()).unwrap();
    let set = objects.open_objset(first, Arc::new(Judge::default())).unwrap();
    pool.commit().unwrap();
    let (arms, all) = (between.clone(), objects.clone());
    let syncing = pool.open_txg();
    *between.then.lock().unwrap() = Some(Box::new(move || {
        let tx = all.pool().begin(COST).unwrap();
        assert_eq!(tx.txg(), syncing.next());
        let id = all.create_objset(&tx).unwrap();
        all.open_objset(id, Arc::new(Judge::default())).unwrap();
    }));
    set.at_the_end_of_groups(move |_| {
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
            after._objects.open_objset(id, Arc::new(Judge::default())).unwrap();
        }
        after.pool.abandon();
    }
}
