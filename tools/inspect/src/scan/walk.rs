//! Walks over the pages of all processes.

use super::advice::{self, Used};
use super::gpu;
use super::options::{Progress, ScanOptions};
use super::page::PAGE_BYTES;
use super::page_reader::{Counted, Known, Page, PageReader};
use super::process::{self, Process};
use super::report::{PairScan, ProcessScan, RangeScan, Scan, Unread};
use super::tally::{self, Seen};
use cotensor_core::{Error, ErrorKind, Result, size};
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// The least duplicate bytes of a program that gets advice: small libraries have a few MiB of their own.
const ADVISED_BYTES_MIN: u64 = 16 << 20;
/// Maximum number of ranges and of pairs in a report.
const LISTED_MAX: usize = 10;

/// Scans all resident pages of the processes. Calls `progress` before each process.
///
/// # Errors
/// `NotFound` for a missing process, `Invalid` for a sample of 0, `Unsupported` for an unsupported page size.
pub fn scan(options: &ScanOptions, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Scan> {
    if options.sample == 0 {
        return Err(Error::invalid("must be at least 1").in_field("sample"));
    }
    if rustix::param::page_size() != PAGE_BYTES {
        let message = format!(
            "the page size is {} bytes; only pages of {PAGE_BYTES} bytes can be scanned",
            rustix::param::page_size()
        );
        return Err(Error::unsupported(message));
    }
    let listing = process::list(&options.pids)?;
    let mut walk = Walk {
        options,
        started: Instant::now(),
        known: Known::default(),
        seen: Vec::new(),
        names: Vec::new(),
        used: BTreeMap::new(),
        unread: Vec::new(),
        read_bytes: 0,
        stopped: None,
    };
    let total_bytes = listing.processes.iter().map(|process| process.resident_bytes).sum();
    let mut done_bytes = 0;
    let mut counted = Vec::new();
    for (number, process) in listing.processes.iter().enumerate() {
        progress(Progress { done_bytes, total_bytes, command: &process.command });
        counted.push(walk.visit(number, process));
        done_bytes += process.resident_bytes;
    }
    if listing.others > 0 {
        let reason = format!("{} processes belong to other users", listing.others);
        walk.unread.push(Unread { pid: None, bytes: None, reason });
    }
    Ok(walk.report(&listing.processes, &counted))
}

struct Walk<'a> {
    options: &'a ScanOptions,
    started: Instant,
    known: Known,
    seen: Vec<Seen>,
    /// Names of mappings, once per process.
    names: Vec<String>,
    /// The libraries and files of each process, by its id.
    used: BTreeMap<u32, Used>,
    unread: Vec<Unread>,
    read_bytes: u64,
    /// The limit that stopped the scan.
    stopped: Option<String>,
}

impl Walk<'_> {
    fn visit(&mut self, number: usize, process: &Process) -> Counted {
        let mut counted = Counted::default();
        if self.stopped.is_none()
            && let Err(error) = self.pages_of(number, process, &mut counted)
            // A process that ended during the scan is not reported.
            && error.kind() != ErrorKind::NotFound
        {
            self.unread.push(Unread { pid: Some(process.pid), bytes: None, reason: error.to_string() });
        }
        if counted.unread_bytes > 0 {
            let reason = "not readable, or unmapped during the scan".to_owned();
            self.unread.push(Unread { pid: Some(process.pid), bytes: Some(counted.unread_bytes), reason });
        }
        counted
    }

    fn pages_of(&mut self, number: usize, process: &Process, counted: &mut Counted) -> Result<()> {
        let Self { options, started, known, seen, names, used, read_bytes, stopped, .. } = self;
        let pages = PageReader::open(process, options.sample, options.frame_numbers)?;
        let mut numbers: HashMap<String, u32> = HashMap::new();
        let ranges = process.ranges()?;
        used.insert(process.pid, Used::of(&ranges));
        for range in ranges {
            if range.end - range.start < options.range_bytes_min {
                continue;
            }
            let name = process::name(&range);
            let name = *numbers.entry(name.to_owned()).or_insert_with(|| {
                names.push(name.to_owned());
                u32::try_from(names.len() - 1).unwrap_or(u32::MAX)
            });
            let process = u32::try_from(number).unwrap_or(u32::MAX);
            let mut on_page =
                |page: Page| seen.push(Seen { content: page.content, frame: page.frame, process, range: name });
            let mut go_on = |read: u64| {
                *read_bytes += read;
                if *read_bytes >= options.bytes_max {
                    *stopped =
                        Some(format!("the limit of {} to read (--max-read) was reached", size(options.bytes_max)));
                } else if started.elapsed() >= options.time_max {
                    *stopped =
                        Some(format!("the time limit of {} s (--max-time) was reached", options.time_max.as_secs()));
                }
                stopped.is_none()
            };
            if !pages.visit(&range, known, counted, &mut go_on, &mut on_page)? {
                break;
            }
        }
        Ok(())
    }

    fn report(mut self, processes: &[Process], counted: &[Counted]) -> Scan {
        let tally = tally::tally(std::mem::take(&mut self.seen), u64::from(self.options.sample));
        let pid = |number: u32| processes.get(number as usize).map_or(0, |process| process.pid);
        let mut reports: Vec<ProcessScan> = Vec::new();
        for ((number, process), counted) in (0u32..).zip(processes).zip(counted) {
            if counted.resident_bytes > 0 {
                reports.push(ProcessScan {
                    pid: process.pid,
                    command: process.command.clone(),
                    resident_bytes: counted.resident_bytes,
                    zero_bytes: counted.zero_bytes,
                    swapped_bytes: counted.swapped_bytes,
                    holding: tally.holdings.get(&number).copied().unwrap_or_default(),
                });
            }
        }
        reports
            .sort_by_key(|process| std::cmp::Reverse(process.holding.duplicate_bytes + process.holding.repeated_bytes));
        let ranges = tally.ranges.iter().map(|(&(process, range), &duplicate_bytes)| RangeScan {
            pid: pid(process),
            name: self.names.get(range as usize).cloned().unwrap_or_default(),
            duplicate_bytes,
        });
        let mut ranges: Vec<RangeScan> = ranges.collect();
        ranges.sort_by_key(|range| std::cmp::Reverse(range.duplicate_bytes));
        ranges.truncate(LISTED_MAX);
        let pairs = tally.pairs.iter();
        let pairs = pairs.map(|(&(a, b), &duplicate_bytes)| PairScan { pids: (pid(a), pid(b)), duplicate_bytes });
        let mut pairs: Vec<PairScan> = pairs.collect();
        pairs.sort_by_key(|pair| std::cmp::Reverse(pair.duplicate_bytes));
        pairs.truncate(LISTED_MAX);
        let mut notes = self.notes();
        let (gpus, unread) = gpu::gpus();
        notes.extend(unread);
        let advice = advice::advice(&reports, &self.used, ADVISED_BYTES_MIN, LISTED_MAX);
        if let Some(limit) = &self.stopped {
            self.unread.push(Unread { pid: None, bytes: None, reason: format!("the rest: {limit}") });
        }
        Scan {
            sample: self.options.sample,
            complete: self.unread.is_empty(),
            total: tally.total,
            processes: reports,
            ranges,
            pairs,
            unread: self.unread,
            notes,
            gpus,
            advice,
        }
    }

    fn notes(&self) -> Vec<String> {
        let ScanOptions { sample, range_bytes_min, .. } = self.options;
        let mut notes = vec![format!(
            "covers resident memory in mappings of at least {range_bytes_min} bytes; unmapped memory is not counted"
        )];
        if *sample > 1 {
            notes.push(format!("the figures are estimates from one of {sample} contents"));
        }
        if self.known.frame_numbers_hidden {
            notes.push(
                "the kernel hides page frame numbers without CAP_SYS_ADMIN; pages that a fork left shared are identified by \
                 content, so equal pages of forked processes count as one"
                    .to_owned(),
            );
        }
        notes
    }
}
