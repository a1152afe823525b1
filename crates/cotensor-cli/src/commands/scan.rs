use super::gpu_memory;
use crate::args::ScanArgs;
use crate::output::{Steps, print, print_json};
use crate::table::{Table, plain};
use cotensor::core::{Error, Result, size};
use cotensor_demo::Progress;
use cotensor_inspect::scan::{Advice, Scan, ScanOptions, scan as scan_processes};
use std::fmt::Write;

/// Maximum length of a command line in a table.
const COMMAND_CHARS: usize = 60;
/// Maximum number of processes in the table.
const PROCESSES_SHOWN: usize = 20;

pub(crate) fn scan(args: &ScanArgs) -> Result<()> {
    let options = ScanOptions {
        pids: args.pid.clone(),
        range_bytes_min: args.min_range,
        bytes_max: args.max_read,
        time_max: args.max_time,
        sample: args.sample,
        ..ScanOptions::default()
    };
    let steps = Steps::new();
    let found = scan_processes(&options, &mut |progress| {
        steps.step(progress.done_bytes, progress.total_bytes.max(1), "reading memory");
    });
    steps.finish();
    let found = found.map_err(|error| match error.field() {
        Some("pid") => Error::new(error.kind(), error.message()).in_field("--pid"),
        _ => error,
    })?;
    if args.json { print_json(&found) } else { print(&text(&found)) }
}

fn short(command: &str) -> String {
    plain(command).chars().take(COMMAND_CHARS).collect()
}

fn text(found: &Scan) -> String {
    let mut text = String::new();
    let total = &found.total;
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{} of memory, {} of it duplicate:\n  {} in separate copies of several processes\n  {} in several copies within one \
         process\nThe sum over the processes is {}; the first line counts shared memory once.\n",
        size(total.physical_bytes),
        size(total.duplicate_bytes),
        size(total.between_processes_bytes),
        size(total.within_processes_bytes),
        size(total.mapped_bytes)
    );
    let right = &[true, true, true, true, true, true, false];
    let header = ["pid", "memory", "shared", "duplicate", "repeated", "swapped", "command"];
    let mut processes = Table::new(right, &header);
    for process in found.processes.iter().take(PROCESSES_SHOWN) {
        processes.row([
            process.pid.to_string(),
            size(process.holding.physical_bytes),
            size(process.holding.shared_bytes),
            size(process.holding.duplicate_bytes),
            size(process.holding.repeated_bytes),
            size(process.swapped_bytes),
            short(&process.command),
        ]);
    }
    let _ = writeln!(
        text,
        "{}{}shared: also mapped by another process. duplicate: another process has a separate copy. repeated: several copies within the process.\n",
        processes.text(),
        match found.processes.len().saturating_sub(PROCESSES_SHOWN) {
            0 => String::new(),
            more => format!("and {more} more with fewer duplicates (--json lists all)\n"),
        }
    );
    if !found.pairs.is_empty() {
        let mut pairs = Table::new(&[true, true, true], &["pid", "other pid", "duplicate"]);
        for pair in &found.pairs {
            pairs.row([pair.pids.0.to_string(), pair.pids.1.to_string(), size(pair.duplicate_bytes)]);
        }
        let _ = writeln!(text, "{}", pairs.text());
    }
    if !found.ranges.is_empty() {
        let mut ranges = Table::new(&[true, true, false], &["pid", "duplicate", "mapping"]);
        for range in &found.ranges {
            ranges.row([range.pid.to_string(), size(range.duplicate_bytes), plain(&range.name)]);
        }
        let _ = writeln!(text, "{}", ranges.text());
    }
    if !found.gpus.is_empty() {
        let _ = writeln!(text, "GPUs, whose duplicates are not searched:\n{}", gpu_memory::lines(&found.gpus));
    }
    for unread in &found.unread {
        let bytes = unread.bytes.map_or_else(String::new, |bytes| format!("{} of ", size(bytes)));
        let whose = unread.pid.map_or_else(String::new, |pid| format!("process {pid}: "));
        let _ = writeln!(text, "not read: {bytes}{whose}{}", plain(&unread.reason));
    }
    for note in &found.notes {
        let _ = writeln!(text, "note: {}", plain(note));
    }
    for Advice { pids, command, library, duplicate_bytes, code: [first, second], .. } in &found.advice {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let _ = writeln!(
            text,
            "\n{} ({}; {} duplicate in {}) shares them with:\n    {first}\n    {second}",
            short(command),
            library.name(),
            size(*duplicate_bytes),
            pids.join(", ")
        );
    }
    text
}
