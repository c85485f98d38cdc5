//! The native half of the Python package `framecache`: raw bytes and decoded pictures of the cluster, as memory that Python
//! libraries use without copying.
//!
//! Three promises shape it. Importing it starts no thread and opens no socket: the runtime is made by the first request
//! (`process`). A forked child never touches what its parent made, and has no lock to wait for. And every call that waits gives
//! up the GIL, has a deadline, and answers Ctrl-C.

mod batch;
mod client;
mod clips;
mod colours;
mod crop;
mod dlpack;
mod error;
mod facts;
mod frames;
mod process;
mod raw;
mod settings;
mod spec;
mod tensor;
mod video;
mod wanted;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<client::Client>()?;
    module.add_class::<spec::Image>()?;
    module.add_class::<crop::RandomResizedCrop>()?;
    module.add_class::<video::Video>()?;
    module.add_class::<frames::Frames>()?;
    module.add_class::<clips::Clips>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<raw::Raw>()?;
    module.add_class::<facts::Listing>()?;
    module.add_class::<facts::Entry>()?;
    module.add_class::<facts::Stat>()?;
    module.add_class::<facts::Node>()
}
