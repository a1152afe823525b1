//! Signal dispositions, which the standard library does not set.

/// Whether this process ignores `signal`. `nohup` makes a program ignore `SIGHUP`.
pub fn is_signal_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero `sigaction` is a valid value. `found` is borrowed until after the call, which only writes to
    // it: the new action is null.
    let found = unsafe {
        let mut found: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &raw mut found) == 0).then_some(found)
    };
    found.is_some_and(|found| found.sa_sigaction == libc::SIG_IGN)
}

/// Ignores `SIGXFSZ`, which ends a process by default. A write beyond the file size limit (`ulimit -f`) then fails with
/// an error.
pub fn ignore_sigxfsz() {
    // SAFETY: SIG_IGN is not a handler, so no code of this process runs in signal context.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_reported() {
        assert!(!is_signal_ignored(libc::SIGXFSZ) && !is_signal_ignored(0));
        ignore_sigxfsz();
        assert!(is_signal_ignored(libc::SIGXFSZ) && !is_signal_ignored(libc::SIGUSR2));
    }
}
