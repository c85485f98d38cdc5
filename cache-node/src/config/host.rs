//! What the host says: its memory, cores and name, and whether it lets us use what the configuration names.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

use super::{AuthPolicy, Config, ConfigError, Size};
use crate::auth::Policy;

/// The facts behind the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub cores: usize,
    pub ram: u64,
    /// The limit of the control group, where one is set.
    pub cgroup_memory: Option<u64>,
}

/// RAM that is assumed where the host does not say: what the smallest node of a cloud has.
const RAM_UNKNOWN: u64 = 2 << 30;

impl Host {
    /// This host. Never fails: what cannot be read is assumed small.
    pub fn here() -> Self {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let legal = |c: &char| c.is_ascii_alphanumeric() || ".-_".contains(*c);
        let name: String = name.trim().chars().filter(legal).take(63).collect();
        Self {
            name: if name.is_empty() { "node".into() } else { name },
            // Knows affinity and control groups.
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            ram: fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_total(&text)).unwrap_or(RAM_UNKNOWN),
            cgroup_memory: cgroup_memory(),
        }
    }

    /// Bytes that may be used at all: RAM, or the control group's limit if that is smaller.
    pub fn memory(&self) -> u64 {
        self.ram.min(self.cgroup_memory.unwrap_or(u64::MAX))
    }
}

/// `MemTotal` of proc(5) meminfo, whose "kB" are 1,024 bytes.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest limit from this process's control group up to the root: in version 2 each ancestor's applies, version 1 has
/// its own controller. Inside a container both roots are the container's.
fn cgroup_memory() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    cgroup_files(&groups).into_iter().filter_map(|path| limit(&fs::read_to_string(path).ok()?)).min()
}

/// The limit files to look at, by cgroups(7): `0::/path` is version 2, `N:memory:/path` version 1.
fn cgroup_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|one| one == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        files.extend(path.ancestors().map(|level| Path::new(root).join(level).join(file)));
    }
    files
}

/// `max`, and version 1's "no limit" (2^63 rounded down to a page), are none.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok().filter(|bytes| *bytes < 1 << 60)
}

/// What [`Config::check_host`] promises.
pub(super) fn check(config: &Config, host: &Host) -> Result<(), ConfigError> {
    if config.node.memory_limit > host.memory() {
        return Err(ConfigError::Conflict {
            key: "node.memory_limit",
            problem: format!(
                "of {} is more than the {} of this host or container",
                Size(config.node.memory_limit),
                Size(host.memory())
            ),
            fix: "lower it, or delete it for half of what there is".into(),
        });
    }
    if let Some(folder) = &config.node.data_dir {
        let io = |source: std::io::Error| ConfigError::Conflict {
            key: "node.data_dir",
            problem: format!("= {folder:?} cannot be used: {source}"),
            fix: "name a folder that this user may create and write".into(),
        };
        fs::create_dir_all(folder).map_err(io)?;
        let probe = folder.join(format!(".probe-{}", std::process::id()));
        fs::write(&probe, b"framecache").and_then(|()| fs::remove_file(&probe)).map_err(io)?;
    }
    let mut files: Vec<(&'static str, &Path)> = Vec::new();
    if let Some(tls) = &config.tls {
        files.extend([("tls.ca", tls.ca.as_path()), ("tls.cert", &tls.cert), ("tls.key", &tls.key)]);
    }
    if let AuthPolicy::File(path) = &config.auth.policy {
        files.push(("auth.policy", path));
    }
    files.extend(config.cluster.keys.as_deref().map(|path| ("cluster.keys", path)));
    files.extend(config.gateway.keys.as_deref().map(|path| ("gateway.keys", path)));
    for (key, path) in files {
        if let Err(error) = fs::File::open(path).and_then(|file| file.metadata()).and_then(is_file) {
            let problem = format!("= {path:?} cannot be read: {error}");
            return Err(ConfigError::Conflict { key, problem, fix: "name a file that this user may read".into() });
        }
    }
    config.auth.policy.read().map(drop)
}

/// What [`Config::lacks_disk`] promises: the cache's own check, before anything is reserved.
pub(super) fn lacks_disk(config: &Config) -> Option<String> {
    let (folder, disk) = (config.node.data_dir.as_ref()?, config.cache.disk?);
    let files = fs::read_dir(folder.join("cache/blocks")).into_iter().flatten().flatten();
    let held: u64 = files.filter_map(|file| file.metadata().ok()).map(|found| found.blocks() * 512).sum();
    let space = statvfs(folder).ok()?;
    let free = space.blocks_available() as u64 * space.fragment_size() as u64;
    let need = disk.saturating_sub(held) + disk / 20;
    (need > free).then(|| {
        let (need, free) = (Size(need), Size(free));
        format!("`cache.disk` needs {need} more under {folder:?} (5 % stay free), which has {free}: the disk tier would be off")
    })
}

impl AuthPolicy {
    /// The policy itself, read from its file where there is one.
    pub fn read(&self) -> Result<Policy, ConfigError> {
        let AuthPolicy::File(path) = self else { return Ok(Policy::AllowAll) };
        let refuse = |problem, fix: &str| ConfigError::Conflict { key: "auth.policy", problem, fix: fix.into() };
        let text = fs::read_to_string(path)
            .map_err(|error| refuse(format!("= {path:?} cannot be read: {error}"), "name a file that this user may read"))?;
        Policy::parse(&text).map_err(|error| refuse(format!("= {path:?} is refused: {error}"), "correct the file"))
    }
}

fn is_file(found: fs::Metadata) -> std::io::Result<()> {
    if found.is_dir() { Err(std::io::ErrorKind::IsADirectory.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit is the smallest of the group and its ancestors, in both versions of control groups.
    #[test]
    fn control_groups_are_followed_to_the_root() {
        let files = cgroup_files("4:cpu,cpuacct:/x\n3:memory:/a/b\n0::/c\nbroken\n");
        let names: Vec<_> = files.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        assert_eq!(
            names,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/c/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("9223372036854771712\n"), None);
        assert_eq!(limit("536870912\n"), Some(512 << 20));
        assert_eq!(mem_total("MemTotal:       24689764 kB\nMemFree: 1 kB\n"), Some(24_689_764 * 1024));
    }

    /// The host that the tests run on has memory, a core and a name.
    #[test]
    fn here_is_somewhere() {
        let host = Host::here();
        assert!(host.memory() > 64 << 20 && host.cores > 0 && !host.name.is_empty(), "{host:?}");
    }
}
