//! A disk that several machines can reach.

use crate::support::disk::disk;
use crate::support::{empty_toy, options, sim, work};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use terrane_device::DeviceKind;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::PoolError;
use terrane_store::env::{Env, SeededEnv};

type Meanwhile = Box<dyn FnMut() + Send>;

/// A machine with a host id, and what other machines do while it sleeps.
struct Machine {
    env: SeededEnv,
    host: u64,
    slept: Mutex<Duration>,
    meanwhile: Mutex<Option<Meanwhile>>,
}

fn machine(host: u64, meanwhile: Option<Meanwhile>) -> Arc<Machine> {
    let (slept, meanwhile) = (Mutex::default(), Mutex::new(meanwhile));
    Arc::new(Machine { env: SeededEnv::new(host), host, slept, meanwhile })
}

impl Env for Machine {
    fn wall_ns(&self) -> u64 {
        self.env.wall_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.env.monotonic_ns()
    }

    fn random_u64(&self) -> u64 {
        self.env.random_u64()
    }

    fn host_id(&self) -> u64 {
        self.host
    }

    fn sleep(&self, time: Duration) {
        *self.slept.lock() += time;
        self.env.sleep(time);
        if let Some(meanwhile) = &mut *self.meanwhile.lock() {
            meanwhile();
        }
    }

    fn workers(&self) -> usize {
        0
    }
}

/// Result of an import by `env` of a pool that machine 1 uses, or used until it was cut off.
fn import(kind: DeviceKind, is_exported: bool, env: &Arc<Machine>, commits: bool) -> Result<(), PoolError> {
    let device = sim(1, false);
    let first = machine(1, None);
    let pool =
        Pool::create(vec![disk(&device, kind)], &CreateOptions::named("toy"), first, &options()).unwrap();
    let toy = empty_toy();
    pool.set_client(toy.clone());
    work(&pool, &toy, &SeededEnv::new(1), 3).unwrap();
    if is_exported {
        pool.export().unwrap();
    }
    if commits {
        let go_on: Meanwhile = Box::new(move || work(&pool, &toy, &SeededEnv::new(2), 1).unwrap());
        *env.meanwhile.lock() = Some(go_on);
    }
    let second = Pool::import(vec![disk(&device, kind)], env.clone(), &options());
    second.map(|pool| pool.abandon())
}

#[test]
fn a_disk_that_another_machine_writes_to_is_refused() {
    let env = machine(2, None);
    let error = import(DeviceKind::Block, false, &env, true).unwrap_err().to_string();
    assert!(error.contains("another machine"), "{error}");
    assert_eq!(*env.slept.lock(), Duration::from_secs(1), "at once");
}

#[test]
fn only_a_disk_that_another_machine_left_open_is_waited_for() {
    for (kind, is_exported, host, seconds) in [
        (DeviceKind::Block, false, 2, 10),
        (DeviceKind::Zoned, false, 2, 10),
        (DeviceKind::Block, true, 2, 0),
        // The next server of a mount, or the next mount after a crash.
        (DeviceKind::Block, false, 1, 0),
        (DeviceKind::File, false, 2, 0),
        (DeviceKind::Block, false, 0, 0),
    ] {
        let env = machine(host, None);
        import(kind, is_exported, &env, false).unwrap();
        let what = format!("{kind:?}, exported {is_exported}, machine {host}");
        assert_eq!(env.slept.lock().as_secs(), seconds, "{what}");
    }
}

#[test]
fn a_bucket_is_taken_from_another_machine_only_by_order() {
    for (is_exported, host, takes_over, is_refused) in
        [(false, 2, false, true), (false, 2, true, false), (true, 2, false, false), (false, 1, false, false)]
    {
        let device = sim(1, false);
        let bucket = || vec![disk(&device, DeviceKind::Bucket)];
        let pool =
            Pool::create(bucket(), &CreateOptions::named("toy"), machine(1, None), &options()).unwrap();
        match is_exported {
            true => pool.export().unwrap(),
            false => pool.abandon(),
        }
        let env = machine(host, None);
        let second = Pool::import(bucket(), env.clone(), &ImportOptions { takes_over, ..options() });
        assert_eq!(env.slept.lock().as_secs(), 0);
        match second {
            Ok(pool) => {
                assert!(!is_refused);
                pool.abandon();
            }
            Err(error) => assert!(is_refused && error.to_string().contains("--take-over"), "{error}"),
        }
    }
}
