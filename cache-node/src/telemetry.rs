//! One way to look at a node.

mod log;

pub use log::LogSetting;
