//! Forms of ZAPs, as far as their number is counted: an object is a tiny ZAP, or it is none.

use std::sync::Arc;
use terrane_format::Feature;
use terrane_object::{Object, ObjectKind};
use terrane_pool::Tx;

/// The feature that tiny ZAPs use.
pub(crate) const COUNTED: Feature = Feature::TinyZap;

/// What an object counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZapForm {
    /// It is a tiny ZAP.
    Tiny,
    /// It is none.
    NotTiny,
    /// It cannot be read.
    Unknown,
}

impl ZapForm {
    /// The form of the ZAP in an object of a data set.
    pub fn of(object: &Arc<Object>) -> ZapForm {
        // A fat ZAP has a leaf behind its header.
        if object.block_count() != 1 {
            return ZapForm::NotTiny;
        }
        match object.read_block(0).map(|block| terrane_zap::is_tiny(&block)) {
            Ok(Ok(true)) => ZapForm::Tiny,
            Ok(Ok(false)) => ZapForm::NotTiny,
            _ => ZapForm::Unknown,
        }
    }

    /// Counts the change from this form to another one.
    pub fn change_to(self, after: ZapForm, tx: &Tx) {
        match (self, after) {
            (ZapForm::Unknown, _) | (_, ZapForm::Unknown) => {
                tx.pool().lose_uses(COUNTED, "a ZAP is unreadable")
            }
            (ZapForm::NotTiny, ZapForm::Tiny) => tx.pool().change_uses(tx, COUNTED, 1),
            (ZapForm::Tiny, ZapForm::NotTiny) => tx.pool().change_uses(tx, COUNTED, -1),
            (ZapForm::Tiny, ZapForm::Tiny) | (ZapForm::NotTiny, ZapForm::NotTiny) => {}
        }
    }
}

/// The feature that objects of a kind may use, if its uses are counted.
pub(crate) fn of_kind(kind: ObjectKind) -> Option<Feature> {
    let is_zap = matches!(
        kind,
        ObjectKind::Zap | ObjectKind::Master | ObjectKind::Directory | ObjectKind::DeleteQueue
    );
    is_zap.then_some(COUNTED)
}
