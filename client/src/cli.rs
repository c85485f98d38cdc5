//! The command line: looks at a cluster and takes things out of it. Arguments here, one room a command, the exit codes in
//! `failure`.

mod explain;
pub mod failure;
mod get;
mod interrupt;
mod ls;
pub mod npy;
mod output;
mod png;
mod seconds;
mod sheet;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::config::{ClientConfig, PORT};
use crate::wire::Trace;
use crate::{Call, Client};
use failure::Failure;

const EXAMPLES: &str = "\
Examples:
  framecache status
  framecache ls -l s3://photos/2024/
  framecache get s3://photos/2024/a.jpg -o a.jpg
  framecache get s3://photos/2024/a.jpg --spec 'image?short=256&crop=224' -o a.png
  framecache get s3://photos/2024/ --contact-sheet sheet.png
  framecache explain s3://photos/2024/a.jpg

Exit codes:
  0  done
  1  some objects failed, or an output could not be written
  2  the arguments, the configuration or the trust are wrong
  3  the cluster could not be reached, or gave no answer before the deadline";

/// Looks at a Framecache cluster, and gets raw bytes and decoded pictures from it.
#[derive(Parser, Clone, Debug)]
#[command(name = "framecache", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Arguments {
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(subcommand)]
    pub command: Command,
}

/// Where the cluster is, and how it is spoken to.
#[derive(clap::Args, Clone, Debug)]
pub struct Cluster {
    /// Any node of the cluster, HOST:PORT; several, comma-separated
    #[arg(long, global = true, env = "FRAMECACHE_ADDR", default_value_t = format!("127.0.0.1:{PORT}"), value_name = "ADDRESS")]
    pub addr: String,
    /// The cluster's CA, a PEM file; not needed for a node of this machine
    #[arg(long, global = true, env = "FRAMECACHE_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Own certificate, a PEM file, where the cluster asks for one
    #[arg(long, global = true, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// The certificate's key, a PEM file
    #[arg(long, global = true, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Bearer token, where the cluster asks for one
    #[arg(long, global = true, env = "FRAMECACHE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Deadline of each request, in seconds
    #[arg(long, global = true, default_value = "30", value_parser = seconds::parse, value_name = "SECONDS")]
    pub timeout: Duration,
}

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    Get(get::Arguments),
    Ls(ls::Arguments),
    Status(status::Arguments),
    Explain(explain::Arguments),
}

impl Cluster {
    fn client(&self) -> Result<Client, Failure> {
        let mut config = ClientConfig::new(&self.addr);
        config.tls.ca.clone_from(&self.ca);
        (config.tls.cert, config.tls.key) = (self.cert.clone(), self.key.clone());
        config.token.clone_from(&self.token);
        config.timeout = self.timeout;
        config.caller = "framecache-cli".into();
        Ok(Client::new(config)?)
    }
}

/// Runs the command of this process's arguments.
pub fn main() -> ExitCode {
    // A reader that goes away (`| head`) ends us, as it ends every other tool.
    // SAFETY: the first thing that happens; no other thread, no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let arguments = Arguments::parse();
    interrupt::watch();
    let filter = tracing_subscriber::EnvFilter::try_from_env("FRAMECACHE_LOG").unwrap_or_else(|_| "off".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::usage(format!("cannot start: {error}")).report(),
    };
    match runtime.block_on(run(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    let client = arguments.cluster.client()?;
    // As other tools do: the trace of whoever runs this one.
    let trace = std::env::var("TRACEPARENT").ok().and_then(|text| Trace::parse(&text)).unwrap_or_default();
    let call = Call { trace, ..Call::default() };
    let done = match arguments.command {
        Command::Get(command) => command.run(&client, &call).await,
        Command::Ls(command) => command.run(&client, &call).await,
        Command::Status(command) => command.run(&client, &call).await,
        Command::Explain(command) => command.run(&client, &call).await,
    };
    client.close().await;
    done
}
