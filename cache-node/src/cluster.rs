//! The cluster: which nodes there are, who serves which key, and how they are asked. It knows keys, not contents.

mod linked;
mod members;
mod peers;
mod placement;

pub use linked::Linked;
pub use members::Members;
pub use peers::{Alone, Lent, Peers, Piece};
pub use placement::{Load, Paces, Place, places};
