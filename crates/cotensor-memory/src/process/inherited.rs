//! Attributes that a process inherits from the program that starts it, and that a shared process must not keep.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

const OOM_SCORE_ADJUSTMENT: &CStr = c"/proc/self/oom_score_adj";
/// The mode of files of a process that sets none: this user's alone.
const UMASK: libc::mode_t = 0o077;
/// `ioprio_set(2)`: the I/O priority follows the CPU priority.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
const IOPRIO_CLASS_NONE: libc::c_int = 0;
/// The bits of a set of CPUs: more than a kernel supports.
const CPUS: usize = 8192;
/// Limits of a program that is started for itself, and that would end or hamper a shared process.
const LIMITS: [libc::__rlimit_resource_t; 5] =
    [libc::RLIMIT_CPU, libc::RLIMIT_AS, libc::RLIMIT_DATA, libc::RLIMIT_FSIZE, libc::RLIMIT_RSS];

/// Gives this process the attributes of one that the system starts: no signal is ignored or blocked; any CPU, no nice value, the
/// usual scheduling and I/O priority and memory policy; no adjustment for the out-of-memory killer; no limits of processor time,
/// address space, data and file size. What the kernel refuses stays: a raised priority, and hard limits without privileges.
///
/// Only makes system calls and writes no memory but its own stack, so that a copy of a process with threads can run it.
pub(super) fn reset_inherited() {
    // SAFETY: the calls get pointers to values on this stack, which they only read, or null. `SIG_DFL` is not a handler. The
    // descriptor is closed here, and no other code has it.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, null_mut());
        libc::umask(UMASK);
        let all = [usize::MAX; CPUS / usize::BITS as usize];
        libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&all), all.as_ptr());
        let usual = libc::sched_param { sched_priority: 0 };
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const usual);
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_NONE);
        libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_DEFAULT, null::<libc::c_ulong>(), 0);
        for limit in LIMITS {
            unlimit(limit);
        }
        let adjustment = libc::open(OOM_SCORE_ADJUSTMENT.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if adjustment >= 0 {
            libc::write(adjustment, b"0".as_ptr().cast(), 1);
            libc::close(adjustment);
        }
    }
}

/// Removes a limit; without the right to, raises it to the hard limit.
///
/// # Safety
/// Callable in a copy of a process with threads.
unsafe fn unlimit(limit: libc::__rlimit_resource_t) {
    let none = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `none` and `found` outlive the calls, which read and write them only.
    unsafe {
        if libc::setrlimit(limit, &raw const none) == 0 {
            return;
        }
        let mut found: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(limit, &raw mut found) == 0 {
            found.rlim_cur = found.rlim_max;
            libc::setrlimit(limit, &raw const found);
        }
    }
}
