//! Changes are recorded, the power fails, and a replay makes them again.

mod each;
mod fsync;
mod hostile;
mod random;
mod threads;
mod world;
