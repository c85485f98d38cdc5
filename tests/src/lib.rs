//! What the tests of the whole stand on: an origin that fails on demand, nodes in one process and the program as it is deployed, media
//! with known pixels and hostile ones, a node in memory under a paused clock, a cluster on a simulated network, and a dumb model to hold
//! them against. The bench stands on some of it too: what is measured and what is tested are started, killed and counted alike.
pub mod authority;
pub mod dice;
pub mod faulty;
pub mod harness;
pub mod lan;
pub mod media;
pub mod memory;
pub mod model;
pub mod mutants;
pub mod processes;
pub mod proxy;
pub mod served;
pub mod simulated;
pub mod wire;
