//! Profile `gpu`: what a worker may do that shares its process with a vendor's driver.
//!
//! The driver opens files and devices, starts threads and maps far more than it uses, so that the `cpu` profile cannot hold it. In two steps,
//! since threads that run already are out of Landlock's reach: [`fence`] before the driver is loaded, so that it is born inside, and
//! [`shut`] when it stands. What is open, and why:
//! - files, to be read: libraries' folders (the driver loads parts of itself as they are needed), `/proc/driver/nvidia`, its own `/proc`
//!   entry, what the kernel says of processor, memory and buses. Nothing is ever written but to devices;
//! - devices: `/dev/nvidia*`, with ioctl, by which everything is asked of the driver; null, zero and random numbers;
//! - threads within the process; nothing that starts another;
//! - memory: no limit of addresses (the driver reserves hundreds of gigabytes). The node looks at what is resident instead.
//!
//! Closed all the same: network, sockets of any kind, other processes, new programs, executable memory once shut, signals to others. A
//! call that is not listed fails with EPERM and does not end the process: the driver is nobody's to prescribe, and survives refusals.
//! Where the kernel has no Landlock, nothing at all is opened once shut; whether the driver bears that, the samples say.

use std::collections::BTreeMap;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
    path_beneath_rules,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompFilter, SeccompRule, TargetArch};

use super::{FREE, only};

/// Before the driver is loaded: files, devices, network. Says whether the kernel has Landlock.
pub(in crate::decode::worker) fn fence() -> Result<bool, String> {
    super::count_all_threads();
    let landlock = landlock().map_err(|error| format!("landlock: {error}"))?;
    for (resource, limit) in [(Resource::RLIMIT_CORE, 0), (Resource::RLIMIT_FSIZE, 0), (Resource::RLIMIT_NOFILE, FILES_MAX)] {
        let (_, most) = getrlimit(resource).map_err(|error| format!("resource limits: {error}"))?;
        let limit = limit.min(most);
        setrlimit(resource, limit, limit).map_err(|error| format!("resource limits: {error}"))?;
    }
    Ok(landlock)
}

/// When the driver stands: every thread, for good.
pub(in crate::decode::worker) fn shut(landlock: bool) -> Result<(), String> {
    seccomp(landlock).map_err(|error| format!("seccomp: {error}"))
}

fn landlock() -> Result<bool, landlock::RulesetError> {
    let abi = ABI::V6;
    let read: BitFlags<AccessFs> = AccessFs::from_read(abi);
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let rules = Ruleset::default().handle_access(AccessFs::from_all(abi))?.handle_access(AccessNet::from_all(abi))?;
    // What is not there on this machine is passed over.
    let status = rules
        .scope(Scope::from_all(abi))?
        .create()?
        .add_rules(path_beneath_rules(readable(), read))?
        .add_rules(path_beneath_rules(devices(), device))?
        .restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Folders and files that are read.
fn readable() -> Vec<PathBuf> {
    let own = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let own = std::env::split_paths(&own).filter(|path| path.is_absolute() && path.parent().is_some());
    READABLE.iter().map(PathBuf::from).chain(own).collect()
}

/// The driver's devices that are there.
fn devices() -> Vec<PathBuf> {
    let all = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let drivers = all.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"nvidia")).map(|entry| entry.path());
    ["/dev/null", "/dev/zero", "/dev/urandom"].iter().map(PathBuf::from).chain(drivers).collect()
}

/// Where libraries lie, by distribution and container runtime; and what the driver asks the kernel.
const READABLE: &[&str] = &[
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/cuda",
    "/usr/local/nvidia",
    "/usr/share/nvidia",
    "/etc/ld.so.cache",
    "/etc/nvidia",
    "/proc/driver/nvidia",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/devices",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/sys/vm",
    "/proc/version",
    "/sys/bus/pci",
    "/sys/devices",
    "/sys/module",
];

/// The driver holds some dozens.
const FILES_MAX: u64 = 1024;

fn seccomp(landlock: bool) -> Result<(), Box<dyn std::error::Error>> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    // libc starts a thread by `clone` where this is unknown; its arguments lie in memory, where no filter looks.
    let unknown = BTreeMap::from([(libc::SYS_clone3, vec![])]);
    let unknown = SeccompFilter::new(unknown, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32), arch)?;
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let listed = SeccompFilter::new(allowed(landlock)?, refuse, SeccompAction::Allow, arch)?;
    for filter in [unknown, listed] {
        let filter: BpfProgram = filter.try_into()?;
        seccompiler::apply_filter_all_threads(&filter)?;
    }
    Ok(())
}

fn allowed(landlock: bool) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    let opens = OPENING.iter().filter(|_| landlock);
    let mut rules: BTreeMap<_, _> = FREE.iter().chain(DRIVER).chain(opens).map(|&call| (call, vec![])).collect();
    let data = || only(2, Dword, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    rules.insert(libc::SYS_mmap, data()?);
    rules.insert(libc::SYS_mprotect, data()?);
    let thread = libc::CLONE_THREAD as u64;
    rules.insert(libc::SYS_clone, only(0, Qword, SeccompCmpOp::MaskedEq(thread), thread)?);
    rules.insert(libc::SYS_prlimit64, only(0, Dword, SeccompCmpOp::Eq, 0)?);
    rules.insert(libc::SYS_tgkill, only(0, Qword, SeccompCmpOp::Eq, u64::from(std::process::id()))?);
    Ok(rules)
}

/// What the driver does once it stands, beside what decoders do: ioctl for all that is asked of a device, threads that wait for events,
/// pages that are held in place, and looking around.
const DRIVER: &[i64] = &[
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_get_mempolicy,
    libc::SYS_getcpu,
    libc::SYS_getcwd,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getppid,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_mbind,
    libc::SYS_membarrier,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_nanosleep,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// What opens and looks up files: within Landlock's fence, or not at all.
const OPENING: &[i64] = &[
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_statfs,
    libc::SYS_statx,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];
