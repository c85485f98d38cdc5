//! Resizes and crops 8-bit pictures: the bytes that Pillow 13 would give, several times sooner.
//!
//! Training code compares with Pillow (torchvision's default), so a cached rendition must not differ from it in a single byte. That
//! leaves no freedom in *what* is computed, only in *how*: only the rows and columns of the wanted window are made, and whole rows
//! are handled by vector instructions whose integer sums are the same ones.
//!
//! The parts, in the order in which a call meets them:
//! - [`Source`], [`Plan`], [`Window`]: the picture and what to make of it; [`Plan::check`] refuses what cannot be made.
//! - `filter`, `axis`: the filter curve and, for each output column or row, the input samples it is made from and their weights.
//! - `axes`: a few such axes are kept, since a fixed training size asks for the same ones again and again.
//! - `passes`: horizontal, vertical, or both fused in either order; `nearest` apart, as it sums nothing.
//! - `scalar`, `avx2`, `vnni`: the kernels. All give the same bytes, which the tests hold them to.
//! - [`yuv`]: what a video decoder gives, to the pictures that the others take.
//!
//! Everything here is computation: no I/O, no clock, no lock. It is exact for one version of Pillow, which `golden.txt` names.
//!
//! ```
//! use framecache::pixels::{Filter, Plan, Source, Window, resize};
//! let source = Source { pixels: &[0, 64, 128, 192], width: 4, height: 1, channels: 1 };
//! let window = Window { x: 0, y: 0, width: 2, height: 1 };
//! let plan = Plan { size: (2, 1), region: None, window, filter: Filter::Box };
//! plan.check(&source)?;
//! let mut out = [0; 2];
//! resize(&source, &plan, &mut out);
//! assert_eq!(out, [32, 160]);
//! # Ok::<(), framecache::pixels::PlanError>(())
//! ```

mod axes;
mod axis;
mod filter;
mod isa;
mod nearest;
mod passes;
mod plan;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "read by vector kernels alone"))]
mod quads;
mod resize;
mod scalar;
mod weights;
pub mod yuv;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod vnni;

#[cfg(test)]
mod tests;

pub use filter::Filter;
pub use isa::Isa;
pub use plan::{Plan, PlanError, SIDE_MAX, Source, Window};
pub use resize::{RESIZER_BYTES_MAX, Resizer, crop, resize, resize_scratch_bytes, resize_with};
