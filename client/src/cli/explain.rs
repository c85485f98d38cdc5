//! `framecache explain`: who owns an object, where it is cached, and why.

use super::failure::Failure;
use super::output::print;
use super::status::{object, table};
use crate::{Call, Client, DecodeSpec, ObjectId};

const EXAMPLES: &str = "\
Examples:
  framecache explain s3://photos/a.jpg                              its raw bytes
  framecache explain s3://photos/a.jpg --spec 'image?short=256'     those decoded pixels";

/// Explain an object: version, owner, where it is cached, flushed to disk or not
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Object, s3://BUCKET/KEY
    pub uri: ObjectId,
    /// Ask about the pixels of this spec; without it, about the raw bytes
    #[arg(long)]
    pub spec: Option<DecodeSpec>,
    /// One JSON object of the same names and values
    #[arg(long)]
    pub json: bool,
}

impl Arguments {
    pub(super) async fn run(self, client: &Client, call: &Call) -> Result<(), Failure> {
        let spec = self.spec.map_or(String::new(), |spec| spec.to_string());
        let lines = client.explain(&self.uri, &spec, call).await?;
        match self.json {
            true => print(&format!("{:#}\n", object(&lines))),
            false => print(&table(&lines, "")),
        }
    }
}
