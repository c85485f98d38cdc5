//! A network of its own between two ends of this machine, with a small MTU: a network namespace and a veth pair. Needs root.

use std::process::Command;

use anyhow::{Result, ensure};

/// The namespace; removed with this value.
#[derive(Debug)]
pub struct Network {
    name: String,
    /// Address of this end, where nodes are reached.
    pub address: String,
}

impl Network {
    /// A network of that MTU. `number` (1 or 2) tells two of them apart.
    pub fn make(number: u8, mtu: u32) -> Result<Self> {
        let id = std::process::id() % 100_000;
        let name = format!("fcb{id}n{number}");
        let (near, far) = (format!("fcb{id}a{number}"), format!("fcb{id}b{number}"));
        let address = format!("10.213.{number}.1");
        ip(&format!("netns add {name}"))?;
        let network = Self { name: name.clone(), address };
        ip(&format!("link add {near} mtu {mtu} type veth peer name {far} mtu {mtu} netns {name}"))?;
        ip(&format!("addr add {}/24 dev {near}", network.address))?;
        ip(&format!("link set {near} up"))?;
        ip(&format!("-n {name} addr add 10.213.{number}.2/24 dev {far}"))?;
        ip(&format!("-n {name} link set {far} up"))?;
        ip(&format!("-n {name} link set lo up"))?;
        Ok(network)
    }

    /// What runs a command at the far end.
    pub fn inside(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name].map(str::to_owned).into()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The near end goes with the far one.
        if let Err(error) = ip(&format!("netns del {}", self.name)) {
            eprintln!("framecache-bench: network namespace {} stays: {error}", self.name);
        }
    }
}

/// Why there can be no such network here, if so.
pub fn missing() -> Option<String> {
    // SAFETY: a query without arguments.
    if unsafe { libc::geteuid() } != 0 {
        return Some("not root".into());
    }
    ip("netns list").err().map(|error| error.to_string())
}

fn ip(arguments: &str) -> Result<()> {
    let ran = Command::new("ip").args(arguments.split_whitespace()).output()?;
    ensure!(ran.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&ran.stderr).trim());
    Ok(())
}
