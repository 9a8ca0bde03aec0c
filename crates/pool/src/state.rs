//! What a pool holds, each type in a room of its own. Nothing here knows the pool.

pub(crate) mod by_hand;
pub(crate) mod collector;
pub(crate) mod fates;
pub(crate) mod features;
pub(crate) mod groups;
pub(crate) mod hold;
pub(crate) mod levels;
pub(crate) mod members;
pub(crate) mod pace;
pub(crate) mod trace;
pub(crate) mod unread;
