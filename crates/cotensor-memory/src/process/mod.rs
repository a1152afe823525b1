//! This process and others: memory use, descriptors, credentials, signals.

mod credentials;
mod descriptors;
mod heap;
mod listen_fds;
mod signals;
mod usage;

pub use credentials::{PeerCredentials, peer_credentials};
pub use descriptors::{duplicate_fd, fd_limit_error, raise_fd_limit};
pub(crate) use descriptors::{fd_error, move_above_select};
pub use heap::trim_heap;
pub use listen_fds::listen_fds_with_names;
pub use signals::{ignore_sigxfsz, is_signal_ignored};
#[cfg(test)]
pub(crate) use usage::mapping_at;
pub use usage::{
    available_bytes, available_with_swap_bytes, cgroup_memory_limit, fd_count, mapping_count, peak_rss_bytes, pss_bytes,
};
