//! Helpers in processes of their own, so that the CPU of each side is measured apart: this binary again, as `framecache-bench agent`.
//!
//! The parent writes one line of JSON, the agent does one thing and answers with one line; at the end of its input it ends.

mod clips;
pub(crate) mod kernels;
mod path;
mod traffic;

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use crate::meter::Tree;

pub(crate) use clips::{ClipAsk, ClipTask};
pub(crate) use path::{PathFacts, PathTask};
pub(crate) use traffic::{Eye, Look, Round, Subject, Tally, Traffic};

/// What an agent is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Moves items and says how long it took.
    Traffic(Traffic),
    /// Serves the same messages over bare QUIC.
    QuinnServer(crate::comparator::Pool),
    /// Serves the same messages over TLS over TCP.
    TlsServer(crate::comparator::Pool),
    /// Looks at the path of one connection.
    Path(PathTask),
    /// Reads clips.
    Clips(ClipTask),
    /// Resizes alone.
    Kernels(Vec<kernels::Case>),
}

/// A running helper, from its parent's side. It ends with this value.
#[derive(Debug)]
pub struct Agent {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// Its processes.
    pub tree: Tree,
    name: String,
}

impl Agent {
    /// This binary in that role; `inside` is put in front of the command (for a network namespace).
    pub fn start(role: &Role, inside: &[String]) -> Result<Self> {
        let own = std::env::current_exe()?;
        let own = own.to_str().context("own path is not text")?;
        let mut words: Vec<&str> = inside.iter().map(String::as_str).collect();
        let text = serde_json::to_string(role)?;
        words.extend([own, "agent", &text]);
        Self::run(&words, &[])
    }

    /// Any program that speaks by lines.
    pub fn run(words: &[&str], paths: &[&Path]) -> Result<Self> {
        let (program, arguments) = words.split_first().context("no command")?;
        let mut command = Command::new(program);
        command.args(arguments).args(paths).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("start {program}"))?;
        let tree = Tree(child.id().context("it ended at once")?);
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Self { _child: child, input, output, tree, name: words.join(" ").chars().take(120).collect() })
    }

    /// Asks for one thing and waits for the answer.
    pub async fn ask<A: for<'a> Deserialize<'a>>(&mut self, question: &impl Serialize) -> Result<A> {
        let line = serde_json::to_string(question)? + "\n";
        self.input.write_all(line.as_bytes()).await?;
        self.listen().await
    }

    /// Waits for a line that was not asked for: what a server says once it listens.
    pub async fn listen<A: for<'a> Deserialize<'a>>(&mut self) -> Result<A> {
        match self.output.next_line().await? {
            Some(line) => serde_json::from_str(&line).with_context(|| format!("{} said {line:?}", self.name)),
            None => bail!("{} ended early", self.name),
        }
    }
}

/// The agent's own side: runs `role` until its input ends.
pub async fn play(role: Role) -> Result<()> {
    match role {
        Role::Traffic(traffic) => traffic::play(traffic).await,
        Role::QuinnServer(pool) => crate::comparator::quinn::serve(pool).await,
        Role::TlsServer(pool) => crate::comparator::tls::serve(pool).await,
        Role::Path(task) => path::play(task).await,
        Role::Clips(task) => clips::play(task).await,
        Role::Kernels(cases) => kernels::play(cases).await,
    }
}

/// Says one thing to the parent.
pub fn say(answer: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(answer)?);
    Ok(())
}

/// The questions of the parent, in order, until it goes.
pub struct Questions(mpsc::Receiver<String>);

impl Questions {
    /// Begins to listen, on a thread of its own, which sleeps between questions.
    pub fn listen() -> Self {
        let (hear, heard) = mpsc::channel(1);
        std::thread::spawn(move || {
            let lines = std::io::stdin().lines();
            lines.map_while(Result::ok).take_while(|line| hear.blocking_send(line.clone()).is_ok()).for_each(drop);
        });
        Self(heard)
    }

    /// The next one.
    pub async fn next<Q: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<Q>> {
        let line = self.0.recv().await;
        line.map(|line| serde_json::from_str(&line).with_context(|| format!("no question: {line:?}"))).transpose()
    }
}

/// Waits until the parent has gone.
pub async fn until_orphaned() {
    let mut questions = Questions::listen();
    while questions.0.recv().await.is_some() {}
}
