//! All tests of this crate in one program, which is linked once.

mod bytes;
mod figures;
mod fixed;
