//! The scenarios: each sets the stage, measures in rounds, and reports figures with the project's targets.

mod cold;
mod disk;
mod formats;
mod herd;
mod hit;
mod keep;
mod kernels;
mod overload;
mod restart;
mod ring;

use futures::future::BoxFuture;

use crate::report::Report;
use crate::run::Run;

/// One scenario.
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it measures, in a line.
    pub about: &'static str,
    /// Measures.
    pub run: for<'a> fn(&'a Run) -> BoxFuture<'a, anyhow::Result<Report>>,
}

/// All of them.
pub const ALL: [Scenario; 10] = [
    Scenario {
        name: "hit",
        about: "what a RAM hit costs, against bare quinn and TLS over TCP",
        run: |run| Box::pin(hit::run(run)),
    },
    Scenario {
        name: "cold",
        about: "what decoding JPEG costs with raw bytes cached, exact and fast, against Pillow, OpenCV, torchvision",
        run: |run| Box::pin(cold::run(run)),
    },
    Scenario {
        name: "formats",
        about: "the same for PNG, WebP, GIF, BMP, TIFF, AVIF and other JPEGs, against Pillow",
        run: |run| Box::pin(formats::run(run)),
    },
    Scenario {
        name: "kernels",
        about: "a resize alone: scalar, AVX2, AVX-512, fast_image_resize, Pillow",
        run: |run| Box::pin(kernels::run(run)),
    },
    Scenario {
        name: "herd",
        about: "origin requests and decodes when a thousand ask at once",
        run: |run| Box::pin(herd::run(run)),
    },
    Scenario { name: "overload", about: "memory and refusals at ten times the budget", run: |run| Box::pin(overload::run(run)) },
    Scenario { name: "restart", about: "what a kill -9 during writes leaves", run: |run| Box::pin(restart::run(run)) },
    Scenario { name: "disk", about: "disk hits against fio on the same disk", run: |run| Box::pin(disk::run(run)) },
    Scenario {
        name: "keep",
        about: "hit ratio of shuffled epochs in a cache too small for them",
        run: |run| Box::pin(keep::run(run)),
    },
    Scenario {
        name: "ring",
        about: "how evenly many nodes share keys, what a ring costs, what a join moves",
        run: |run| Box::pin(ring::run(run)),
    },
];
