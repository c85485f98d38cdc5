//! Framecache is a distributed cache for training data: a cluster between S3 and the loaders, which keeps raw objects and decoded
//! pictures and serves them over QUIC. This crate is its language (objects, specs, the ring, the wire) and its first speaker, the
//! [`Client`]. A node depends on it too, for a node is a client of its peers.
//!
//! ```no_run
//! # async fn example() -> Result<(), framecache::Error> {
//! use framecache::{Batch, Client, ClientConfig, ImageSpec, ObjectId};
//!
//! let client = Client::new(ClientConfig::new("127.0.0.1:4433"))?;
//! let ids: Vec<ObjectId> = vec!["s3://photos/1.jpg".parse()?, "s3://photos/2.jpg".parse()?];
//! let spec: ImageSpec = "image?short=256&crop=224".parse()?;
//! let batch = Batch::new(ids.len(), 1 << 30);
//! let outcomes = client.images(&ids, &spec, &batch, &Default::default()).await;
//! let pictures = batch.finish();
//! if let (Ok(version), Some(pixels)) = (&outcomes[0], pictures.pixels(0)) {
//!     println!("{} bytes of version {version}", pixels.len()); // 224 * 224 * 3
//! }
//! # Ok(())
//! # }
//! ```

mod ask;
pub mod batch;
#[cfg(feature = "cli")]
#[doc(hidden)] // the binary's inside, public for it and for the tests alone
pub mod cli;
pub mod client;
pub mod config;
pub mod error;
#[cfg(test)]
mod fake;
pub mod fallback;
pub mod frame;
pub mod health;
pub mod hedge;
pub mod hot;
pub mod object;
#[cfg(feature = "origin")]
pub mod origin;
pub mod peer;
pub mod pixels;
mod pool;
pub mod quic;
pub mod ring;
pub mod route;
pub mod spec;
pub mod stats;
pub mod tls;
pub mod topology;
pub mod view;
pub mod wire;
mod zeroed;

pub use batch::{Batch, Pictures};
pub use client::{Call, Client, Raw};
pub use config::ClientConfig;
pub use error::{Error, ErrorKind};
pub use frame::{Tensor, TensorHead};
pub use object::{ByteRange, ObjectId, Page, RouteKey, Span, Version};
pub use peer::{Lent, Peers};
pub use ring::Ring;
pub use spec::{DecodeSpec, ImageSpec, Selection, Selector, VideoSpec};
pub use stats::Stats;
pub use topology::Topology;
pub use view::View;
