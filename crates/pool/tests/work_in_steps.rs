//! Work of the layer above that goes on in steps, one to a txg.

use crate::support::{Toy, empty_toy, options, sim};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Duration;
use terrane_format::BlockPtr;
use terrane_pool::{Client, CreateOptions, ImportOptions, Pool, Tx, TxgSync};
use terrane_store::PoolError;
use terrane_store::env::SystemEnv;
use terrane_txg::cost::Cost;
use terrane_wire::Txg;

const STEPS: u32 = 20;

struct InSteps {
    toy: Arc<Toy>,
    pool: OnceLock<Weak<Pool>>,
    done: AtomicU32,
    ended: mpsc::Sender<()>,
}

impl Client for InSteps {
    fn quiesced(&self, last: &Tx) {
        self.toy.quiesced(last);
    }

    fn sync(&self, txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
        if self.done.fetch_add(1, Ordering::Relaxed) + 1 < STEPS {
            self.pool.get().and_then(Weak::upgrade).unwrap().want_txg_soon();
        }
        self.toy.sync(txg_sync)
    }

    fn synced(&self, txg: Txg) {
        self.toy.synced(txg);
        if self.done.load(Ordering::Relaxed) == STEPS {
            let _ = self.ended.send(());
        }
    }
}

#[test]
fn work_in_steps_does_not_wait_for_the_timer() {
    let options = ImportOptions { commit_period: Duration::from_secs(3600), ..options() };
    let (env, create) = (Arc::new(SystemEnv::new()), CreateOptions::named("toy"));
    let pool = Pool::create(vec![Arc::new(sim(1, false))], &create, env, &options).unwrap();
    let (ended, end) = mpsc::channel();
    let client =
        Arc::new(InSteps { toy: empty_toy(), pool: OnceLock::new(), done: AtomicU32::new(0), ended });
    client.pool.set(Arc::downgrade(&pool)).unwrap();
    pool.set_client(client.clone());
    drop(pool.begin(Cost { write_bytes: 1, meta_blocks: 1, ..Cost::default() }).unwrap());
    pool.commit().unwrap();
    end.recv_timeout(Duration::from_secs(60)).expect("the steps wait for the timer");
    // An idle pool commits nothing.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(client.done.load(Ordering::Relaxed), STEPS);
}
