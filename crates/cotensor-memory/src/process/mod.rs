//! Processes as `/proc` shows them, and the calls that set up this process: descriptors, credentials, signals, heap.

mod address_space;
mod credentials;
mod descriptors;
mod detach;
mod file_lock;
mod heap;
mod inherited;
mod listen_fds;
mod lock_table;
mod mappings;
mod memfd;
mod memory_left;
mod procfs;
mod random;
mod signals;
mod status;
mod usage;
mod waited;

pub use address_space::{check_room_for_message, has_room_for_message};
pub use credentials::{PeerCredentials, peer_credentials};
pub(crate) use descriptors::move_above_select;
pub use descriptors::{duplicate_fd, duplicate_fds, fd_error, fd_limit_error, raise_fd_limit};
pub use detach::{detach, wait_for_end};
pub use file_lock::{lock_file, lock_holder_name};
pub use heap::{HeapWork, allow_heap_growth, return_memory, returns_free_memory_by, trim_heap, use_one_heap};
pub use listen_fds::listen_fds_with_names;
pub use lock_table::{LockTable, unlock};
#[cfg(test)]
pub(crate) use mappings::range_at;
pub use mappings::{MappedRange, RangeUsage, mapped_ranges, range_usage};
pub(crate) use memfd::reopen_to_read;
pub use memfd::{create_memfd, create_segment_memfd, segment_group};
pub(crate) use memory_left::left_without_swap_bytes;
pub use memory_left::{
    MemoryGroup, PendingMemory, available_bytes, charged_group, check_memory, limit_bytes, memory_groups,
};
pub use random::random_bytes;
pub use signals::{ignore_sigxfsz, is_signal_ignored};
pub use status::{children, is_alive, is_exiting, parent, state};
pub use usage::{anonymous_rss_bytes, fd_count, mapping_count, pss_bytes, rss_bytes};
pub use waited::{client_process, wait_report};
