//! Finds duplicate memory in running processes, page by page: an estimate of the savings by sharing.
//!
//! The scan is read-only and covers resident pages. A page's content is identified by its hash. The physical page is
//! identified by its frame number where the kernel shows it (this needs CAP_SYS_ADMIN), otherwise by file and offset,
//! otherwise by being mapped once.

mod advice;
mod gpu;
mod options;
mod page;
mod page_reader;
mod process;
mod report;
mod tally;
mod walk;

pub use gpu::{GpuProcess, GpuScan, gpus};
pub use options::{Progress, ScanOptions};
pub use report::{Advice, Library, PairScan, ProcessScan, RangeScan, Scan, Unread};
pub use tally::{Holding, Total};
pub use walk::scan;

#[cfg(test)]
mod tests;
