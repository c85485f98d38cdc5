//! The node's second engine: whether there is a GPU, and what follows where there is none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{Config, GpuUse};
use crate::decode::{Engines, Offer, PoolSettings, StartError, WorkerPool};

/// What came of looking for a GPU.
#[derive(Default)]
pub(super) struct Second {
    /// Its workers.
    pub(super) pool: Option<Arc<WorkerPool>>,
    /// Why there are none though one was wanted.
    pub(super) told: Option<String>,
    lines: Vec<(&'static str, u64)>,
}

impl Second {
    /// Its lines of the node's memory.
    pub(super) fn lines(&self) -> Vec<(&'static str, u64)> {
        self.lines.clone()
    }
}

fn settings(config: &Config, program: PathBuf) -> PoolSettings {
    PoolSettings {
        worker_memory: config.decode.worker_memory,
        deadline: config.decode.deadline,
        pixels_max: config.decode.pixels_max,
        ..PoolSettings::of_gpu(program)
    }
}

/// Starts the GPU's workers where one is wanted.
///
/// # Errors
/// There is none, and nothing else was named.
pub(super) async fn start(config: &Config, program: PathBuf) -> anyhow::Result<Second> {
    if config.decode.gpu == GpuUse::No {
        return Ok(Second::default());
    }
    let settings = settings(config, program);
    let lines = settings.memory_lines();
    match WorkerPool::start(settings).await {
        Ok(pool) => {
            let offer = pool.offer().unwrap_or_default();
            tracing::info!(%offer, "a GPU decodes beside the CPU");
            offer.lacks.iter().for_each(|lack| tracing::warn!(lack, "the GPU does not decode everything"));
            Ok(Second { pool: Some(Arc::new(pool)), told: None, lines })
        }
        Err(error) if config.decode.gpu == GpuUse::IfThere => {
            tracing::warn!(%error, "`decode.engines` names \"gpu\", and there is none to be had: the CPU decodes everything");
            Ok(Second { told: Some(error.to_string()), ..Second::default() })
        }
        Err(error) => Err(anyhow::anyhow!(refusal(&error))),
    }
}

fn refusal(error: &StartError) -> String {
    format!(
        "`decode.engines` names \"gpu\" alone, and there is none to be had: {error}; write [\"gpu\", \"cpu\"] to go on without"
    )
}

/// What a GPU would decode here; looked at from a process of its own, which ends.
///
/// # Errors
/// There is none, and nothing else was named. Otherwise why not is the inner error.
pub async fn look(config: &Config, program: &Path) -> Result<Option<Result<Offer, String>>, String> {
    if config.decode.gpu == GpuUse::No {
        return Ok(None);
    }
    match WorkerPool::start(PoolSettings { workers: 1, ..settings(config, program.into()) }).await {
        Ok(pool) => {
            let offer = pool.offer().unwrap_or_default();
            pool.close().await;
            Ok(Some(Ok(offer)))
        }
        Err(error) if config.decode.gpu == GpuUse::IfThere => Ok(Some(Err(error.to_string()))),
        Err(error) => Err(refusal(&error)),
    }
}

/// The line about it with which a node describes itself.
pub(super) fn line(engines: Option<&Engines>, told: Option<&str>) -> Option<(String, String)> {
    let text = match (engines, told) {
        (Some(engines), _) => {
            let stats = engines.stats();
            format!("{}; {} units, {} pictures", engines.device(), stats.videos, stats.pictures)
        }
        (None, Some(told)) => format!("none: {told}"),
        (None, None) => return None,
    };
    Some(("gpu".into(), text))
}
