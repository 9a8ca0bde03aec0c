//! All tests of this crate in one program: one for each file would take most of the time of a build.

mod bytes;
mod figures;
mod fixed;
