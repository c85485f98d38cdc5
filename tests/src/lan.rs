//! A network of its own for each node: namespaces on one bridge, whose links can be cut, each way alone. Needs root and `ip`.
//!
//! A cut is silent, as a broken switch is: the sender's table of neighbours sends frames for the other one to an address that nobody
//! has. Nothing answers, and nobody is told.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::processes::Place;

/// The bridge and its namespaces; all is removed with this value.
#[derive(Debug)]
pub struct Lan {
    name: String,
    subnet: u8,
    namespaces: Vec<String>,
}

/// Nobody's: of the range for local use.
const NOBODY: &str = "02:00:00:00:00:01";

impl Lan {
    /// A network of `count` namespaces, and this process's own end. `number` tells several of one process apart.
    ///
    /// # Errors
    /// `ip` refuses.
    pub fn make(number: u8, count: u8) -> Result<Self> {
        let id = std::process::id() % 100_000;
        let name = format!("fct{id}x{number}");
        let subnet = u8::try_from((id.wrapping_mul(7) + u32::from(number)) % 250)?;
        let mut lan = Self { name: name.clone(), subnet, namespaces: Vec::new() };
        ip(&format!("link add {name} type bridge"))?;
        ip(&format!("addr add {}/24 dev {name}", lan.own()))?;
        ip(&format!("link set {name} up"))?;
        for index in 0..count {
            let namespace = format!("{name}n{index}");
            ip(&format!("netns add {namespace}"))?;
            lan.namespaces.push(namespace.clone());
            ip(&format!("link add {name}v{index} type veth peer name eth0 netns {namespace}"))?;
            ip(&format!("link set {name}v{index} master {name}"))?;
            ip(&format!("link set {name}v{index} up"))?;
            ip(&format!("-n {namespace} addr add {}/24 dev eth0", lan.address(index)))?;
            ip(&format!("-n {namespace} link set eth0 up"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        Ok(lan)
    }

    /// Where this process is reached.
    pub fn own(&self) -> IpAddr {
        Ipv4Addr::new(10, 214, self.subnet, 254).into()
    }

    /// Where a node may live.
    pub fn place(&self, index: u8) -> Place {
        let inside = ["ip", "netns", "exec", &self.namespaces[usize::from(index)]].map(str::to_owned).into();
        Place { ip: self.address(index), inside }
    }

    /// From now on nothing of `from` reaches `to`.
    ///
    /// # Errors
    /// `ip` refuses.
    pub fn cut(&self, from: u8, to: u8) -> Result<()> {
        let namespace = &self.namespaces[usize::from(from)];
        ip(&format!("-n {namespace} neigh replace {} lladdr {NOBODY} dev eth0 nud permanent", self.address(to)))
    }

    /// It does again.
    ///
    /// # Errors
    /// `ip` refuses.
    pub fn heal(&self, from: u8, to: u8) -> Result<()> {
        ip(&format!("-n {} neigh del {} dev eth0", self.namespaces[usize::from(from)], self.address(to)))
    }

    fn address(&self, index: u8) -> IpAddr {
        Ipv4Addr::new(10, 214, self.subnet, index + 1).into()
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        // The near ends of the pairs go with the namespaces.
        let namespaces = self.namespaces.iter().map(|namespace| format!("netns del {namespace}"));
        for command in namespaces.chain([format!("link del {}", self.name)]) {
            if let Err(error) = ip(&command) {
                println!("left over: {error}");
            }
        }
    }
}

/// Why there can be no such network here, if so.
pub fn missing() -> Option<String> {
    // SAFETY: a query without arguments.
    if unsafe { libc::geteuid() } != 0 {
        return Some("not root".into());
    }
    let probe = format!("fctp{}", std::process::id() % 100_000);
    let made = ip(&format!("netns add {probe}")).and_then(|()| {
        let bridge = ip(&format!("link add {probe} type bridge")).and_then(|()| ip(&format!("link del {probe}")));
        ip(&format!("netns del {probe}")).and(bridge)
    });
    made.err().map(|error| error.to_string())
}

fn ip(arguments: &str) -> Result<()> {
    let ran = Command::new("ip").args(arguments.split_whitespace()).output()?;
    ensure!(ran.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&ran.stderr).trim());
    Ok(())
}
