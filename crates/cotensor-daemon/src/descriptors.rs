//! Limits the descriptors of tensors and connections, so that some remain for connections, answers and a takeover.

use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::server::WAITING_FDS_MAX;
use cotensor_store::LocalStore;
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// One in this many descriptors is for connections, answers and a takeover.
const RESERVED: u64 = 8;
/// The least number of those descriptors.
const RESERVED_MIN: u64 = 32;
/// The descriptors that connections leave for a takeover. The process that hands over opens a socket pair, a pipe to the
/// new process and an index, and sends what it has without duplicates. The others are a margin.
const TAKEOVER: u64 = 20;
/// The most descriptors that wait for one client.
const UNREAD_MAX: usize = 1024;
/// An idle server has 23 descriptors, and a supervisor 18.
const IDLE: u64 = 24;
/// A daemon with a lower limit could keep few tensors or none.
const LIMIT_MIN: u64 = RESERVED_MIN + IDLE + 8;
/// When the tensors' descriptors are exhausted, one in this many is freed.
const SHED: u64 = 128;

/// How many of `limit` descriptors no tensor takes.
fn reserve(limit: u64) -> u64 {
    (limit / RESERVED).max(RESERVED_MIN)
}

/// The number of descriptors for tensors.
fn for_tensors() -> u64 {
    getrlimit(Resource::Nofile).current.map_or(u64::MAX, |limit| limit.saturating_sub(reserve(limit)))
}

/// How many descriptors wait at most for one client that does not read its answers: those of two callers, and at most half of those that
/// no tensor takes.
pub(crate) fn unread_max() -> usize {
    unread_of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

fn unread_of(limit: u64) -> usize {
    usize::try_from(reserve(limit) / 2).unwrap_or(usize::MAX).clamp(WAITING_FDS_MAX, UNREAD_MAX)
}

/// Checks that the limit of this process suffices for a daemon.
///
/// # Errors
/// `Unsupported` for a limit that is too low.
pub(crate) fn check_limit() -> Result<()> {
    check(getrlimit(Resource::Nofile).current)
}

fn check(limit: Option<u64>) -> Result<()> {
    match limit {
        Some(limit) if limit < LIMIT_MIN => Err(Error::unsupported(format!(
            "the limit of open descriptors (RLIMIT_NOFILE) is {limit}, and a daemon needs at least {LIMIT_MIN}: raise it (`ulimit \
             -n`, LimitNOFILE= of a systemd unit)"
        ))),
        _ => Ok(()),
    }
}

/// Whether a connection with this descriptor would leave too few for a takeover.
pub(crate) fn are_for_takeover(newest: impl AsFd) -> bool {
    let limit = getrlimit(Resource::Nofile).current.map_or(u64::MAX, |limit| limit.saturating_sub(TAKEOVER));
    u64::try_from(newest.as_fd().as_raw_fd()).is_ok_and(|number| number >= limit)
}

/// Whether the tensors' descriptors are exhausted with this one: the system assigns the lowest free number.
pub(crate) fn are_scarce(newest: impl AsFd) -> bool {
    u64::try_from(newest.as_fd().as_raw_fd()).is_ok_and(|number| number >= for_tensors())
}

/// The error when no descriptor is left.
pub(crate) fn none_left() -> Error {
    let message = "the daemon has reached its limit of open descriptors: release tensors, or raise the limit (`ulimit -n`, \
                   LimitNOFILE of the service)";
    Error::new(ErrorKind::OverBudget, message)
}

/// Makes room for a descriptor that the daemon keeps: removes tensors without leases if too many descriptors are open.
///
/// # Errors
/// `OverBudget` when that does not free enough.
pub(crate) fn room_for(store: &LocalStore, fd: OwnedFd) -> Result<OwnedFd> {
    if !are_scarce(&fd) {
        return Ok(fd);
    }
    let (mut lower, mut searches) = (None, 0);
    let shed = store.shed_until(&mut || {
        searches += 1;
        lower = lower.take().or_else(|| fd.try_clone().ok().filter(|copy| !are_scarce(copy)));
        // A few more at once, because each search goes through all tensors.
        lower.is_some() && searches > for_tensors() / SHED
    });
    lower.ok_or_else(|| match shed {
        Err(error) => Error::new(ErrorKind::OverBudget, format!("{}; spilling failed: {error}", none_left().message())),
        Ok(_) => none_left(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_suffices_for_a_takeover_at_any_limit() {
        for limit in LIMIT_MIN..5000 {
            let tensors = limit - reserve(limit) - IDLE;
            assert!(tensors > 0 && check(Some(limit)).is_ok());
            // The process that hands over, and connections beside the tensors.
            assert!(tensors + IDLE + TAKEOVER < limit, "{limit}");
            assert!(reserve(limit) >= limit / RESERVED && reserve(limit) > TAKEOVER);
        }
        assert_eq!([64, 128, 256, 400, 512, 1 << 20].map(reserve), [32, 32, 32, 50, 64, 1 << 17]);
        assert_eq!([64, 4096, 8192, 1 << 14, 1 << 20, u64::MAX].map(unread_of), [256, 256, 512, 1024, 1024, 1024]);
    }

    #[test]
    fn limit_that_is_too_low_is_named() {
        let error = check(Some(LIMIT_MIN - 1)).unwrap_err().to_string();
        assert!(error.contains("RLIMIT_NOFILE") && error.contains("63") && error.contains("64"), "{error}");
        assert!(check(None).is_ok());
    }
}
