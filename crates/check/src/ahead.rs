//! Blocks that are read before the walk comes to them, several at a time.
//!
//! The walk knows the blocks below an indirect block, and the trees of a block of dnodes. A device answers several requests in the time
//! of one, above all an object store, and checksums take several processors. What was found is reported when the walk comes to the
//! block, so that a report does not depend on threads.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrane_format::{Addr, BlockPtr, Owner};
use terrane_pool::Pool;
use terrane_store::PoolError;
use terrane_wire::Txg;

/// Blocks that are read before the walk goes on with the first.
pub(crate) const WINDOW: usize = 256;
/// Fewer blocks are left to the walk: starting threads would cost more.
const WORTH: usize = 4;

/// A block that the walk will come to.
pub(crate) struct Coming {
    pub ptr: BlockPtr,
    pub owner: Owner,
    /// Its content will be read too.
    pub is_read: bool,
}

type Damage = Vec<(Addr, PoolError)>;

/// What was found in copies of blocks that the walk has not come to.
#[derive(Default)]
pub(crate) struct Ahead {
    found: HashMap<(Addr, Txg), (BlockPtr, Damage)>,
}

fn key(ptr: &BlockPtr) -> Option<(Addr, Txg)> {
    match ptr {
        BlockPtr::Normal(normal) => Some((normal.addrs[0], normal.block_birth)),
        BlockPtr::Hole(_) | BlockPtr::Embedded(_) => None,
    }
}

impl Ahead {
    /// Verifies all copies of blocks, and reads the content of some into the cache.
    pub fn read(&mut self, pool: &Arc<Pool>, coming: Vec<Coming>) {
        let coming: Vec<Coming> = coming.into_iter().filter(|of| key(&of.ptr).is_some()).collect();
        if coming.len() < WORTH {
            return;
        }
        let found = each_of(pool, &coming, |Coming { ptr, owner, is_read }| {
            let damage = pool.verify(ptr);
            if *is_read && damage.is_empty() {
                // An error is found again by the walk.
                let _ = pool.read(ptr, *owner);
            }
            damage
        });
        for (Coming { ptr, .. }, damage) in coming.into_iter().zip(found) {
            let Some(key) = key(&ptr) else { continue };
            self.found.entry(key).or_insert((ptr, damage));
        }
    }

    /// The damaged copies of a block.
    pub fn verify(&mut self, pool: &Arc<Pool>, ptr: &BlockPtr) -> Damage {
        match key(ptr).and_then(|key| self.found.remove(&key)) {
            // Damaged pointers may name one block, and each expect something else of it.
            Some((read, damage)) if read == *ptr => damage,
            _ => pool.verify(ptr),
        }
    }
}

/// Calls a function for each item, from several threads if the pool has threads. Returns the results in the order of the items.
pub(crate) fn each_of<T: Sync, R: Send>(pool: &Pool, items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = pool.reads_at_a_time().min(items.len());
    if threads < 2 {
        return items.iter().map(of).collect();
    }
    let next = AtomicUsize::new(0);
    let some = || {
        let mut results = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return results };
            results.push((at, of(item)));
        }
    };
    let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
        let started: Vec<_> =
            (1..threads).map_while(|_| std::thread::Builder::new().spawn_scoped(scope, some).ok()).collect();
        let own = some();
        let others = started.into_iter().flat_map(|thread| match thread.join() {
            Ok(results) => results,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        own.into_iter().chain(others).collect()
    });
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}
