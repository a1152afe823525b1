//! What this process does on signals, which the standard library leaves as it is.

/// Whether this process ignores `signal`. A program that was started by `nohup` ignores `SIGHUP`.
pub fn is_signal_ignored(signal: i32) -> bool {
    // SAFETY: a sigaction of zeros is a valid value, and the kernel only writes into it: no new action is given.
    let found = unsafe {
        let mut found: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &raw mut found) == 0).then_some(found)
    };
    found.is_some_and(|found| found.sa_sigaction == libc::SIG_IGN)
}

/// Ignores `SIGXFSZ`, which ends a process by default: writing beyond the limit of a file's size (`ulimit -f`) is an error of
/// that write then.
pub fn ignore_sigxfsz() {
    // SAFETY: no handler is installed, so no code of this process runs on the signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_known() {
        assert!(!is_signal_ignored(libc::SIGXFSZ) && !is_signal_ignored(0));
        ignore_sigxfsz();
        assert!(is_signal_ignored(libc::SIGXFSZ) && !is_signal_ignored(libc::SIGUSR2));
    }
}
