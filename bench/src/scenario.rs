//! The scenarios: each sets the stage, measures in rounds, and reports figures with the project's targets.

mod churn;
mod cold;
mod connections;
mod disk;
mod formats;
mod frames;
mod grow;
mod herd;
mod hit;
mod hot;
mod keep;
mod kernels;
mod kill;
mod overload;
mod restart;
mod ring;
mod scale;
mod throttle;

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
pub const ALL: [Scenario; 18] = [
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
        name: "frames",
        about: "frames of a 1080p video: held, as RGB and as planes; drawn by each profile",
        run: |run| Box::pin(frames::run(run)),
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
    Scenario {
        name: "kill",
        about: "three nodes under load, killed at random and started again: wrong bytes, errors, p99, hit ratio",
        run: |run| Box::pin(kill::run(run)),
    },
    Scenario {
        name: "churn",
        about: "a rolling restart of five nodes under load: errors, p99, origin bytes",
        run: |run| Box::pin(churn::run(run)),
    },
    Scenario {
        name: "scale",
        about: "joins, leaves and weights: origin reads for what another node holds",
        run: |run| Box::pin(scale::run(run)),
    },
    Scenario {
        name: "hot",
        about: "one object is half of all requests: the busiest of eight nodes against their mean",
        run: |run| Box::pin(hot::run(run)),
    },
    Scenario {
        name: "connections",
        about: "thousands of idle clients: memory, their return after a crash, a flood of handshakes",
        run: |run| Box::pin(connections::run(run)),
    },
    Scenario {
        name: "throttle",
        about: "an origin that says 503 for a while: how soon it is left alone, and asked again",
        run: |run| Box::pin(throttle::run(run)),
    },
    Scenario { name: "grow", about: "CPU-seconds a GiB as one node becomes eight", run: |run| Box::pin(grow::run(run)) },
];
