//! Which bytes running processes hold twice, page by page: what sharing would save, before anything is adopted.
//!
//! Read-only, and of resident pages only. A page's content is known by its hash; which physical page it is, by its frame
//! number where the kernel tells it (that takes CAP_SYS_ADMIN), else by file and offset, else by being mapped once.

mod pages;
mod process;
mod tally;

pub use tally::{Holding, Total};

use cotensor_core::{Error, ErrorKind, Result, size};
use pages::{Counted, Known, Page, Pages};
use process::Process;
use serde::Serialize;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tally::Seen;

const PAGE_BYTES: usize = 4096;
/// Ranges and pairs that are listed.
const LISTED: usize = 10;

/// What to look at, and how much of it.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// The processes; empty for all of this user's but this one.
    pub pids: Vec<u32>,
    /// Ranges of fewer bytes are left out.
    pub range_bytes_min: u64,
    /// The most bytes to read.
    pub bytes_max: u64,
    /// The longest to go on.
    pub time_max: Duration,
    /// Take in one content of so many. Above 1 the figures are estimates.
    pub sample: u32,
    /// Whether to use frame numbers where the kernel tells them.
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

/// What was found. Bytes are of pages that are not all zeros, unless a field says otherwise.
#[derive(Clone, Debug, Serialize)]
pub struct Scan {
    /// One content of so many was taken in: above 1, figures are estimates.
    pub sample: u32,
    /// Whether everything was looked at that was asked for.
    pub complete: bool,
    /// All processes together.
    pub total: Total,
    /// Each process, the one with the most duplicates first.
    pub processes: Vec<ProcessScan>,
    /// Where duplicates are, most first.
    pub ranges: Vec<RangeScan>,
    /// Who holds what another holds too, most first.
    pub pairs: Vec<PairScan>,
    /// What was not looked at, and why.
    pub unread: Vec<Unread>,
    /// How to read the figures.
    pub notes: Vec<String>,
}

/// One process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessScan {
    /// Its number.
    pub pid: u32,
    /// Its command line, shortened.
    pub command: String,
    /// Resident bytes in the ranges that were looked at, zeros included.
    pub resident_bytes: u64,
    /// Those that are all zeros.
    pub zero_bytes: u64,
    /// Bytes in these ranges that are swapped out, which were not looked at.
    pub swapped_bytes: u64,
    /// What it holds.
    #[serde(flatten)]
    pub holding: Holding,
}

/// Ranges of one name in one process.
#[derive(Clone, Debug, Serialize)]
pub struct RangeScan {
    /// The process.
    pub pid: u32,
    /// The file's path, or what the kernel calls them.
    pub name: String,
    /// Bytes of pages whose content is elsewhere too.
    pub duplicate_bytes: u64,
}

/// Two processes.
#[derive(Clone, Debug, Serialize)]
pub struct PairScan {
    /// Their numbers.
    pub pids: (u32, u32),
    /// Bytes that each holds in pages of its own.
    pub duplicate_bytes: u64,
}

/// Something that was not looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Unread {
    /// The process; none for several.
    pub pid: Option<u32>,
    /// How much, in bytes, where that is known.
    pub bytes: Option<u64>,
    /// Why.
    pub why: String,
}

/// How far a scan is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Bytes that were looked at.
    pub done_bytes: u64,
    /// Bytes that there are to look at, about.
    pub total_bytes: u64,
    /// Whose they are.
    pub command: &'a str,
}

/// Looks at every resident page of the processes, and tells how far it is from time to time.
///
/// # Errors
/// `NotFound` for a process that there is not, `Invalid` for a sample of none, `Unsupported` where pages have another size.
pub fn scan(options: &ScanOptions, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Scan> {
    if options.sample == 0 {
        return Err(Error::invalid("a sample of one in none").in_field("sample"));
    }
    if rustix::param::page_size() != PAGE_BYTES {
        let message = format!("pages of {} bytes; those of {PAGE_BYTES} can be scanned", rustix::param::page_size());
        return Err(Error::unsupported(message));
    }
    let listing = process::list(&options.pids)?;
    let mut walk = Walk {
        options,
        started: Instant::now(),
        known: Known::default(),
        seen: Vec::new(),
        names: Vec::new(),
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
        let why = format!("{} processes belong to other users", listing.others);
        walk.unread.push(Unread { pid: None, bytes: None, why });
    }
    Ok(walk.report(&listing.processes, &counted))
}

struct Walk<'a> {
    options: &'a ScanOptions,
    started: Instant,
    known: Known,
    seen: Vec<Seen>,
    /// Names of ranges; each is in once for every process that has it.
    names: Vec<String>,
    unread: Vec<Unread>,
    read_bytes: u64,
    /// Why it was stopped before its end.
    stopped: Option<String>,
}

impl Walk<'_> {
    fn visit(&mut self, number: usize, process: &Process) -> Counted {
        let mut counted = Counted::default();
        if self.stopped.is_none()
            && let Err(error) = self.pages_of(number, process, &mut counted)
            // One that has ended is not running any more, which is what was asked about.
            && error.kind() != ErrorKind::NotFound
        {
            self.unread.push(Unread { pid: Some(process.pid), bytes: None, why: error.to_string() });
        }
        if counted.unread_bytes > 0 {
            let why = "the kernel does not let these pages be read, or they went meanwhile".to_owned();
            self.unread.push(Unread { pid: Some(process.pid), bytes: Some(counted.unread_bytes), why });
        }
        counted
    }

    fn pages_of(&mut self, number: usize, process: &Process, counted: &mut Counted) -> Result<()> {
        let Self { options, started, known, seen, names, read_bytes, stopped, .. } = self;
        let pages = Pages::open(process, options.sample, options.frame_numbers)?;
        let mut numbers: HashMap<String, u32> = HashMap::new();
        for range in process.ranges()? {
            if range.end - range.start < options.range_bytes_min {
                continue;
            }
            let name = process::name(&range);
            let name = *numbers.entry(name.to_owned()).or_insert_with(|| {
                names.push(name.to_owned());
                u32::try_from(names.len() - 1).unwrap_or(u32::MAX)
            });
            let process = u32::try_from(number).unwrap_or(u32::MAX);
            let mut tell =
                |page: Page| seen.push(Seen { content: page.content, frame: page.frame, process, range: name });
            let mut go_on = |read: u64| {
                *read_bytes += read;
                if *read_bytes >= options.bytes_max {
                    *stopped = Some(format!("{} were read, as much as --max-read allows", size(options.bytes_max)));
                } else if started.elapsed() >= options.time_max {
                    *stopped = Some(format!("{} s went by, as long as allowed", options.time_max.as_secs()));
                }
                stopped.is_none()
            };
            if !pages.visit(&range, known, counted, &mut go_on, &mut tell)? {
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
        ranges.truncate(LISTED);
        let pairs = tally.pairs.iter();
        let pairs = pairs.map(|(&(a, b), &duplicate_bytes)| PairScan { pids: (pid(a), pid(b)), duplicate_bytes });
        let mut pairs: Vec<PairScan> = pairs.collect();
        pairs.sort_by_key(|pair| std::cmp::Reverse(pair.duplicate_bytes));
        pairs.truncate(LISTED);
        let notes = self.notes();
        if let Some(why) = &self.stopped {
            self.unread.push(Unread { pid: None, bytes: None, why: format!("what was left when {why}") });
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
        }
    }

    fn notes(&self) -> Vec<String> {
        let ScanOptions { sample, range_bytes_min, .. } = self.options;
        let mut notes = vec![format!(
            "only resident memory, in ranges of {range_bytes_min} bytes and more; memory that no process has mapped is not seen"
        )];
        if *sample > 1 {
            notes.push(format!("estimates, from one content of {sample}"));
        }
        if self.known.hidden {
            notes.push(
                "the kernel hides which physical pages these are (CAP_SYS_ADMIN sees them): what a fork left shared is \
                 known by its content, so equal pages of forked processes count as one"
                    .to_owned(),
            );
        }
        notes
    }
}

#[cfg(test)]
mod tests;
