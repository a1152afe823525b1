use super::{mib_to_bytes, print, print_json};
use crate::args::ScanArgs;
use crate::output::Steps;
use crate::table::{Table, plain};
use cotensor::core::{Error, Result, size};
use cotensor_demo::Progress;
use cotensor_inspect::scan::{Scan, ScanOptions, scan as scan_processes};
use std::fmt::Write;
use std::time::Duration;

/// Characters of a command line that a table shows.
const COMMAND_CHARS: usize = 60;
/// Processes that are listed.
const PROCESSES_SHOWN: usize = 20;

pub(crate) fn scan(args: &ScanArgs) -> Result<()> {
    let options = ScanOptions {
        pids: args.pid.clone(),
        range_bytes_min: args.min_range << 10,
        bytes_max: mib_to_bytes(args.max_read, "--max-read")?,
        time_max: Duration::from_secs(args.max_time),
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
        "{} in memory, of which {} held more than once:\n  {} that several processes each have their own copy of\n  {} that \
         single processes have several times\nAs mapped by the processes it is {}; what they share already counts once.\n",
        size(total.physical_bytes),
        size(total.duplicate_bytes),
        size(total.between_processes_bytes),
        size(total.within_processes_bytes),
        size(total.mapped_bytes)
    );
    let right = &[true, true, true, true, true, true, false];
    let header = ["pid", "in memory", "shared", "copied", "repeated", "swapped", "command"];
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
        "{}{}shared: mapped by another process too. copied: another process has its own copy.\n",
        processes.text(),
        match found.processes.len().saturating_sub(PROCESSES_SHOWN) {
            0 => String::new(),
            more => format!("and {more} more with less (--json lists all)\n"),
        }
    );
    if !found.pairs.is_empty() {
        let mut pairs = Table::new(&[true, true, true], &["pid", "and pid", "both have"]);
        for pair in &found.pairs {
            pairs.row([pair.pids.0.to_string(), pair.pids.1.to_string(), size(pair.duplicate_bytes)]);
        }
        let _ = writeln!(text, "{}", pairs.text());
    }
    if !found.ranges.is_empty() {
        let mut ranges = Table::new(&[true, true, false], &["pid", "held twice", "where"]);
        for range in &found.ranges {
            ranges.row([range.pid.to_string(), size(range.duplicate_bytes), plain(&range.name)]);
        }
        let _ = writeln!(text, "{}", ranges.text());
    }
    for unread in &found.unread {
        let bytes = unread.bytes.map_or_else(String::new, |bytes| format!("{} of ", size(bytes)));
        let whose = unread.pid.map_or_else(String::new, |pid| format!("process {pid}: "));
        let _ = writeln!(text, "not looked at: {bytes}{whose}{}", plain(&unread.why));
    }
    for note in &found.notes {
        let _ = writeln!(text, "note: {}", plain(note));
    }
    text
}
