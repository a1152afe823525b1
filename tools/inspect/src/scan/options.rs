//! Options and progress of a scan.

use std::time::Duration;

/// Options of a scan.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// The processes; empty for all processes of this user except this one.
    pub pids: Vec<u32>,
    /// Minimum size of a mapping, in bytes; smaller ones are skipped.
    pub range_bytes_min: u64,
    /// Maximum number of bytes to read.
    pub bytes_max: u64,
    /// Maximum duration.
    pub time_max: Duration,
    /// Samples one of so many contents. Above 1, the figures are estimates.
    pub sample: u32,
    /// Whether to use page frame numbers if the kernel shows them.
    pub frame_numbers: bool,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self {
            pids: Vec::new(),
            range_bytes_min: 1 << 20,
            bytes_max: 16 << 30,
            time_max: Duration::from_secs(120),
            sample: 1,
            frame_numbers: true,
        }
    }
}

/// Progress of a scan.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Bytes of the processes scanned so far.
    pub done_bytes: u64,
    /// Bytes of all processes, approximately.
    pub total_bytes: u64,
    /// Command line of the current process.
    pub command: &'a str,
}
