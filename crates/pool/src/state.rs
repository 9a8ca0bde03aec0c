//! What a pool holds, each type in a room of its own. Nothing here knows the pool.

pub(crate) mod activity;
pub(crate) mod admission;
pub(crate) mod by_hand;
pub(crate) mod collector;
pub(crate) mod commit;
pub(crate) mod control;
pub mod cost;
pub(crate) mod fates;
pub(crate) mod history;
pub(crate) mod hold;
pub(crate) mod levels;
pub(crate) mod members;
pub(crate) mod membership;
pub(crate) mod pace;
pub(crate) mod sync;
pub(crate) mod trace;
pub(crate) mod unread;
