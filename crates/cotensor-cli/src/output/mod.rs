//! Output for people and programs.

mod progress;
mod report_file;
mod standard;
mod text;

pub(crate) use progress::{FileProgress, Steps, Tracked};
pub(crate) use report_file::ReportFile;
pub(crate) use standard::{json_line, print, print_exactly, print_json, report, write_if_open, write_out};
pub(crate) use text::{bounded, count, plain, printable};
