//! Checks the commit record of a txg before its uberblock makes it the newest.
//!
//! Import applies records by [`Tables::apply`](terrane_space::zones::Tables::apply), and refuses the pool if
//! one does not fit. So an error in our own accounting would be acknowledged while the pool is in use, and
//! would then prevent every import.
//!
//! Therefore each record is parsed again and compared with the tables before it counts. If anything is wrong,
//! the txg fails, the pool stops, and the previous txg stays the newest.

use crate::pool::TxgSync;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::record::Record;
use terrane_store::PoolError;

impl TxgSync<'_> {
    /// Fails the txg if import would refuse its record.
    pub(crate) fn validate_record(&self, record: &Record, own: &BootPtr) -> Result<(), PoolError> {
        let mut findings = self.pool.store.tables.read().validate_record(record, own, &self.commit.frees);
        let at = format!("commit record of txg {}", self.txg);
        findings.extend(Record::parse(&record.encode(), &at).err());
        let Some(first) = findings.first().map(ToString::to_string) else { return Ok(()) };
        findings.into_iter().for_each(|finding| self.pool.reports.note_damage(finding));
        let reason = format!("txg {} refused, its record contradicts the tables: {first}", self.txg);
        Err(PoolError::Failed { reason: reason.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::CreateOptions;
    use crate::import::ImportOptions;
    use crate::pool::Tx;
    use crate::pool::{Client, Pool};
    use crate::pool::{Stream, WriteRequest};
    use parking_lot::Mutex;
    use std::sync::Arc;
    use terrane_codec::{ChecksumKind, Compression};
    use terrane_device::{SimConfig, SimDevice};
    use terrane_format::block_ptr::BlockPtr;
    use terrane_store::env::{Env, SeededEnv};
    use terrane_txg::cost::Cost;
    use terrane_wire::Txg;

    /// Keeps one block, which each txg rewrites.
    #[derive(Default)]
    struct OneBlock(Mutex<BlockPtr>);

    impl Client for OneBlock {
        fn quiesced(&self, _last: &Tx) {}

        fn sync(&self, txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
            let data = Arc::new(SeededEnv::new(txg_sync.txg().0).random_u64().to_le_bytes().repeat(64));
            let request = WriteRequest {
                data,
                kind: 1,
                compression: Compression::Off.into(),
                checksum: ChecksumKind::Blake3,
                owner: terrane_format::directory::Owner::Block { objset: 1, object: 1, level: 0, block: 0 },
                fill: 1,
                content_birth: None,
                stream: Stream::Metadata,
                may_embed: false,
                replaces: None,
            };
            let new = txg_sync.write(vec![request])?.remove(0);
            let old = std::mem::replace(&mut *self.0.lock(), new.clone());
            txg_sync.release(&old);
            Ok(new)
        }

        fn synced(&self, _txg: Txg) {}
    }

    #[test]
    fn a_txg_whose_accounts_are_wrong_fails_and_the_one_before_is_imported() {
        let device = Arc::new(SimDevice::new(SimConfig::default()).unwrap());
        let (create, options) = (CreateOptions::named("toy"), ImportOptions::default());
        let pool =
            Pool::create(vec![device.clone()], &create, Arc::new(SeededEnv::new(1)), &options).unwrap();
        pool.set_client(Arc::new(OneBlock::default()));
        let commit = |pool: &Arc<Pool>| {
            drop(pool.begin(Cost { meta_blocks: 1, ..Cost::NOTHING }).unwrap());
            pool.commit()
        };
        (0..3).for_each(|_| assert!(commit(&pool).is_ok()));
        let good = pool.synced_txg();
        // Simulates an accounting error: the record says that a zone was reset, and the txg writes to it.
        let open = pool.store.tables.read().zones.keys().next().copied().unwrap();
        pool.sync.lock().resets_done.push((open, Vec::new()));
        let error = commit(&pool).unwrap_err().to_string();
        assert!(error.contains("its record contradicts the tables"), "{error}");
        assert!(error.contains("in the tables"), "{error}");
        assert_eq!(pool.synced_txg(), good);
        assert!(!pool.errors().findings.is_empty());
        pool.abandon();
        drop(pool);
        let pool = Pool::import(vec![device], Arc::new(SeededEnv::new(2)), &options).unwrap();
        assert_eq!(pool.synced_txg(), good);
        assert_eq!(pool.check_tables(), []);
    }
}
