//! A pool in memory.

use std::sync::Arc;
use terrane_object::{Objects, Pool};
use terrane_pool::SeededEnv;

pub struct Machine {
    pool: Arc<Pool>,
    pub objects: Arc<Objects>,
}

impl Machine {
    pub fn new(seed: u64) -> Machine {
        let pool = Pool::fake(Arc::new(SeededEnv::new(seed)));
        Machine { objects: Objects::create(Arc::clone(&pool)).unwrap(), pool }
    }

    /// What was not committed is gone.
    pub fn crash(self) -> Machine {
        let Machine { pool, objects } = self;
        drop(objects);
        Machine { objects: Objects::open(Arc::clone(&pool)).unwrap(), pool }
    }
}
