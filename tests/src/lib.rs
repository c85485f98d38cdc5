//! What the tests of the whole stand on.
pub mod faulty;
