//! Output for people and programs.

mod progress;
mod report_file;
mod standard;
mod text;

pub(crate) use progress::{FileProgress, Steps, Tracked};
pub(crate) use report_file::ReportFile;
pub(crate) use standard::{
    error_line, is_json, json_line, print, print_exactly, print_json, report, report_exactly, set_json, warning_line,
    write_if_open, write_out,
};
pub(crate) use text::{count, plain, printable};
