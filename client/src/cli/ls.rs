//! `framecache ls`: the objects under a prefix.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::failure::Failure;
use crate::client::ObjectRow;
use crate::wire::LIST_ITEMS_MAX;
use crate::{Call, Client};

const EXAMPLES: &str = "\
Examples:
  framecache ls s3://photos/
  framecache ls -l s3://photos/2024/ --limit 20
  framecache ls --json s3://photos/ | jq .size";

/// List the objects under a prefix
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// s3://BUCKET/ and any beginning of a key
    pub prefix: String,
    /// With size in bytes and version
    #[arg(short)]
    pub long: bool,
    /// Most objects to list; all, if not given
    #[arg(long)]
    pub limit: Option<u64>,
    /// One JSON object a line: uri, size, version
    #[arg(long, conflicts_with = "long")]
    pub json: bool,
}

impl Arguments {
    pub(super) async fn run(self, client: &Client, call: &Call) -> Result<(), Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut after: Option<String> = None;
        while left > 0 {
            let limit = left.min(u64::from(LIST_ITEMS_MAX)) as u32;
            let page = client.list(&self.prefix, after.as_deref(), limit, call).await?;
            let rows = page.rows.iter().take(limit as usize);
            left -= rows.len() as u64;
            let written = rows.into_iter().try_for_each(|row| writeln!(out, "{}", self.line(row)));
            // A page is seen as soon as it is there.
            written.and_then(|()| out.flush()).map_err(|error| Failure::write(Path::new("-"), &error))?;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn line(&self, row: &ObjectRow) -> String {
        let (uri, size, version) = (row.id.to_string(), row.size, &row.version);
        match (self.json, self.long) {
            (true, _) => serde_json::json!({"uri": uri, "size": size, "version": version}).to_string(),
            (false, true) => format!("{size:>12}  {version}  {uri}"),
            (false, false) => uri,
        }
    }
}
