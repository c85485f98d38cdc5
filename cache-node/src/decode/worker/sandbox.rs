//! What a worker may do: compute, use the memory it is given, and talk over one socket. Profile `gpu` is in `device`.
//!
//! Profile `cpu`, in layers, so that one that fails (or a kernel that lacks it) leaves the others:
//! - no descriptor but the socket, the shared memory and `/dev/null`; no new privileges; dies with the node;
//! - limits: address space, CPU time per job, no files, no file growth, no processes, no core dumps;
//! - Landlock: no path, no port, no signal or abstract socket beyond itself;
//! - seccomp: a list of allowed calls. Calls by which a library might innocently look around (open, stat, socket, clone …) fail with
//!   EPERM, so that it goes on without; anything else ends the process with SIGSYS, which is judged as the picture's doing.

pub(super) mod device;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetStatus, Scope};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use nix::sys::signal::Signal;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
    apply_filter,
};

/// How far decoding stands behind serving where both want a core: a third of its share. What is held, and who is refused, need not wait
/// for the end of a decoder's slice.
const BEHIND_SERVING: i32 = 5;

/// Before the limits are known: dies with its parent, and holds nothing that it was not meant to inherit.
pub(super) fn before_the_lock() -> nix::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    prctl::set_no_new_privs()?;
    // SAFETY: takes a number only.
    unsafe { libc::nice(BEHIND_SERVING) };
    // SAFETY: takes numbers only; descriptors from 3 on are nobody's in this process.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, FIRST_FOREIGN, u32::MAX, 0) }).map(drop)
}

/// Locks the process in for good; says whether Landlock is among the layers.
///
/// `worker_memory` is what one job may take in addressable bytes, on top of what the process has mapped by now.
pub(super) fn lock(worker_memory: u64) -> Result<bool, String> {
    // Landlock shuts the file that says it.
    let mapped = mapped_bytes().ok_or("the size of this process is not to be had")?;
    let landlock = landlock().map_err(|error| format!("landlock: {error}"))?;
    limits(mapped.saturating_add(worker_memory)).map_err(|error| format!("resource limits: {error}"))?;
    seccomp().map_err(|error| format!("seccomp: {error}"))?;
    Ok(landlock)
}

/// Moves the soft limit of CPU time to `seconds` from now, in whole seconds rounded up. SIGXCPU ends what passes it.
pub(super) fn allow_cpu(seconds: u64) {
    let until = cpu_us().div_ceil(1_000_000) + seconds;
    let _ = setrlimit(Resource::RLIMIT_CPU, until, RLIM_INFINITY);
}

/// CPU time that this process has taken so far, in microseconds.
///
/// By its one thread's clock, in profile `cpu`: while a CPU limit is set, the kernel answers for the process from a sum that moves only
/// with timer ticks and task switches, which showed 50 of the 600 µs that a picture took.
pub(super) fn cpu_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let clock = if ALL_THREADS.load(Relaxed) { libc::CLOCK_PROCESS_CPUTIME_ID } else { libc::CLOCK_THREAD_CPUTIME_ID };
    // SAFETY: writes one timespec; these clocks always exist.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// From now on CPU time is that of all threads: a driver has its own.
fn count_all_threads() {
    ALL_THREADS.store(true, Relaxed);
}

static ALL_THREADS: AtomicBool = AtomicBool::new(false);

/// Whether this process is refused memory that its own limit would give it: the system's want, and no picture's.
///
/// Address that may not be touched counts against `RLIMIT_AS` alone; what may be written counts against all that there is besides, by
/// the kernel's overcommit policy and `RLIMIT_DATA`. Safe to call in a signal handler.
pub(super) fn is_short_of_memory() -> bool {
    let given = |bytes: usize, access| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping where the kernel likes, which nobody else knows and which is gone at once.
        unsafe {
            let place = libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0);
            place != libc::MAP_FAILED && libc::munmap(place, bytes) == 0
        }
    };
    TRIED.map(|power| 1 << power).any(|bytes| given(bytes, libc::PROT_NONE) && !given(bytes, libc::PROT_READ | libc::PROT_WRITE))
}

/// What it tries: a mebibyte to a gibibyte. A machine that has not as much runs no node.
const TRIED: std::ops::RangeInclusive<u32> = 20..=30;

fn landlock() -> Result<bool, landlock::RulesetError> {
    // Handled and granted nowhere: denied everywhere. Best effort: what an older kernel lacks is left out.
    let abi = ABI::V6;
    let rules = Ruleset::default().handle_access(AccessFs::from_all(abi))?.handle_access(AccessNet::from_all(abi))?;
    let status = rules.scope(Scope::from_all(abi))?.create()?.restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

fn limits(space: u64) -> nix::Result<()> {
    for (resource, limit) in [
        (Resource::RLIMIT_AS, space),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_FSIZE, 0),
        (Resource::RLIMIT_NOFILE, u64::from(FIRST_FOREIGN)),
        (Resource::RLIMIT_NPROC, 0),
    ] {
        setrlimit(resource, limit, limit)?;
    }
    Ok(())
}

/// Address space in use: program, libraries, stack, and what the allocator reserved at start (gigabytes, with some).
fn mapped_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').next()?.parse().ok()?;
    Some(pages * 4096)
}

fn seccomp() -> Result<(), Box<dyn std::error::Error>> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    // The kernel obeys the sternest of all filters. The refusing one goes last: it also forbids to add filters.
    let refuse = REFUSED.iter().map(|&call| (call, vec![])).collect();
    let eperm = SeccompAction::Errno(libc::EPERM as u32);
    let refuse: BpfProgram = SeccompFilter::new(refuse, SeccompAction::Allow, eperm, arch)?.try_into()?;
    let allow: BpfProgram = SeccompFilter::new(allowed()?, SeccompAction::KillProcess, SeccompAction::Allow, arch)?.try_into()?;
    apply_filter(&allow)?;
    apply_filter(&refuse)?;
    Ok(())
}

fn allowed() -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    // No memory is ever made executable.
    let data = || only(2, Dword, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    let own = u64::from(std::process::id());
    let mut rules: BTreeMap<_, _> = FREE.iter().chain(REFUSED).map(|&call| (call, vec![])).collect();
    rules.insert(libc::SYS_mmap, data()?);
    rules.insert(libc::SYS_mprotect, data()?);
    // Its own CPU limit moves with each job.
    rules.insert(libc::SYS_prlimit64, only(0, Dword, SeccompCmpOp::Eq, 0)?);
    // abort() is a signal to oneself.
    rules.insert(libc::SYS_tgkill, only(0, Qword, SeccompCmpOp::Eq, own)?);
    Ok(rules)
}

/// One rule: the argument compares so.
fn only(
    argument: u8,
    length: SeccompCmpArgLen,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, length, operator, value)?]).map(|rule| vec![rule])
}

/// Descriptors below this are the worker's own.
const FIRST_FOREIGN: u32 = 3;

/// Calls that allocation, libjpeg, the socket and an orderly end need.
const FREE: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_sigaltstack,
    libc::SYS_write,
];

/// Calls that are refused and survived. Allocators are among those who look around: mimalloc names its memory by `prctl`, and asks
/// where it runs.
const REFUSED: &[i64] = &[
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_execve,
    libc::SYS_faccessat,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_get_mempolicy,
    libc::SYS_getcpu,
    libc::SYS_getcwd,
    libc::SYS_getrusage,
    libc::SYS_ioctl,
    libc::SYS_kill,
    libc::SYS_lseek,
    libc::SYS_mbind,
    libc::SYS_membarrier,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_readlinkat,
    libc::SYS_sched_getaffinity,
    libc::SYS_seccomp,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_statx,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];
