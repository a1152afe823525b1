//! Counts duplicate pages.

use super::page::PAGE_BYTES;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A page that a process has mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seen {
    /// Hash of the content.
    pub(super) content: u64,
    /// Identity of the physical page.
    pub(super) frame: u64,
    /// Index of the process.
    pub(super) process: u32,
    /// Index of the mapping's name.
    pub(super) range: u32,
}

/// Pairs are not counted for a content that more processes have.
const PAIRED_MAX: usize = 32;

/// Totals of all processes, in bytes. A physical page counts once, regardless of the number of mappings, unless a field
/// says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Pages, counted once for each process that maps them.
    pub mapped_bytes: u64,
    /// Physical pages.
    pub physical_bytes: u64,
    /// Distinct contents.
    pub distinct_bytes: u64,
    /// Duplicates: physical pages minus distinct contents.
    pub duplicate_bytes: u64,
    /// Duplicates that disappear when processes share equal pages.
    pub between_processes_bytes: u64,
    /// The other duplicates: several equal pages within one process.
    pub within_processes_bytes: u64,
}

/// Pages of one process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Holding {
    /// All pages.
    pub physical_bytes: u64,
    /// Pages that another process maps too: already one copy.
    pub shared_bytes: u64,
    /// Pages whose content another process has in a separate physical page.
    pub duplicate_bytes: u64,
    /// Pages whose content the process has in a further page of its own.
    pub repeated_bytes: u64,
}

/// All counts; processes and mappings by index.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) total: Total,
    pub(super) holdings: HashMap<u32, Holding>,
    /// Duplicate or repeated bytes by process and mapping.
    pub(super) ranges: BTreeMap<(u32, u32), u64>,
    /// Bytes that two processes hold in separate physical pages.
    pub(super) pairs: BTreeMap<(u32, u32), u64>,
}

/// Counts `seen`. Each page represents `weight` pages.
pub(super) fn tally(mut seen: Vec<Seen>, weight: u64) -> Tally {
    let unit = weight * PAGE_BYTES as u64;
    let mut tally = Tally::default();
    seen.sort_unstable();
    for pages in seen.chunk_by(|a, b| a.content == b.content) {
        count(&mut tally, pages, unit);
    }
    tally.total.duplicate_bytes = tally.total.physical_bytes - tally.total.distinct_bytes;
    tally.total.within_processes_bytes = tally.total.duplicate_bytes - tally.total.between_processes_bytes;
    tally
}

/// Counts the pages of one content, sorted by frame and process.
fn count(tally: &mut Tally, pages: &[Seen], unit: u64) {
    let frames: Vec<&[Seen]> = pages.chunk_by(|a, b| a.frame == b.frame).collect();
    tally.total.mapped_bytes += unit * pages.len() as u64;
    tally.total.physical_bytes += unit * frames.len() as u64;
    tally.total.distinct_bytes += unit;
    tally.total.between_processes_bytes += unit * (covering(&frames) - 1);
    let mut own: BTreeMap<u32, Own> = BTreeMap::new();
    for frame in &frames {
        let alone = distinct_processes(frame).count() == 1;
        for page in distinct_processes(frame) {
            let counted = own.entry(page.process).or_default();
            counted.frames += 1;
            counted.alone += u64::from(alone);
            let holding = tally.holdings.entry(page.process).or_default();
            holding.physical_bytes += unit;
            holding.shared_bytes += if alone { 0 } else { unit };
        }
    }
    if frames.len() < 2 {
        return;
    }
    for (process, counted) in &own {
        if let Some(holding) = tally.holdings.get_mut(process) {
            holding.repeated_bytes += unit * (counted.frames - 1);
        }
    }
    let mut together = BTreeSet::new();
    for frame in &frames {
        let processes: Vec<&Seen> = distinct_processes(frame).collect();
        for page in &processes {
            // Frames of other processes, without this one.
            let others = frames.len() as u64 - own[&page.process].alone - u64::from(processes.len() > 1);
            if others > 0
                && let Some(holding) = tally.holdings.get_mut(&page.process)
            {
                holding.duplicate_bytes += unit;
            }
            *tally.ranges.entry((page.process, page.range)).or_default() += unit;
        }
        if own.len() <= PAIRED_MAX {
            together.extend(pairs(processes.iter().map(|page| page.process)));
        }
    }
    if own.len() <= PAIRED_MAX {
        for pair in pairs(own.keys().copied()) {
            // Processes that share one page of this content need no second copy.
            if !together.contains(&pair) {
                *tally.pairs.entry(pair).or_default() += unit;
            }
        }
    }
}

/// Number of frames of one content in a process, and of those that no other process maps.
#[derive(Clone, Copy, Default)]
struct Own {
    frames: u64,
    alone: u64,
}

/// All pairs of the sorted `processes`.
fn pairs(processes: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let processes: Vec<u32> = processes.collect();
    let with = |(index, &a): (usize, &u32)| processes[index + 1..].iter().map(move |&b| (a, b)).collect::<Vec<_>>();
    processes.iter().enumerate().flat_map(with).collect()
}

/// One entry for each process that maps the frame.
fn distinct_processes(frame: &[Seen]) -> impl Iterator<Item = &Seen> {
    frame.chunk_by(|a, b| a.process == b.process).map(|pages| &pages[0])
}

/// Size of a greedy set cover: the number of frames with which every process has one. Frames with most processes come
/// first.
fn covering(frames: &[&[Seen]]) -> u64 {
    if frames.len() == 1 {
        return 1;
    }
    let mut order: Vec<&&[Seen]> = frames.iter().collect();
    order.sort_by_key(|frame| std::cmp::Reverse(distinct_processes(frame).count()));
    let mut served = HashSet::new();
    let mut needed = 0;
    for frame in order {
        let before = served.len();
        let unserved: Vec<u32> =
            distinct_processes(frame).map(|seen| seen.process).filter(|process| !served.contains(process)).collect();
        // Frames that add no process are repetitions.
        served.extend(unserved);
        needed += u64::from(served.len() > before);
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(content: u64, frame: u64, process: u32) -> Seen {
        Seen { content, frame, process, range: process }
    }

    #[test]
    fn copies_shared_pages_and_repetitions_are_distinguished() {
        let page = PAGE_BYTES as u64;
        let tally = tally(
            vec![
                // Content 10: separate pages in processes 1 and 2.
                seen(10, 1, 1),
                seen(10, 2, 2),
                // Content 11: one page mapped by both, twice by process 2.
                seen(11, 3, 1),
                seen(11, 3, 2),
                seen(11, 3, 2),
                // Content 12: three pages in process 3.
                seen(12, 4, 3),
                seen(12, 5, 3),
                seen(12, 6, 3),
                // Content 13: a page shared by 1 and 2, and a further page in 2.
                seen(13, 7, 1),
                seen(13, 7, 2),
                seen(13, 8, 2),
            ],
            1,
        );
        let expected = Total {
            mapped_bytes: 11 * page,
            physical_bytes: 8 * page,
            distinct_bytes: 4 * page,
            duplicate_bytes: 4 * page,
            between_processes_bytes: page,
            within_processes_bytes: 3 * page,
        };
        assert_eq!(tally.total, expected);
        let holding = |process| tally.holdings[&process];
        assert_eq!((holding(1).physical_bytes, holding(1).shared_bytes), (3 * page, 2 * page));
        assert_eq!((holding(1).duplicate_bytes, holding(1).repeated_bytes), (2 * page, 0));
        assert_eq!((holding(3).duplicate_bytes, holding(3).repeated_bytes), (0, 2 * page));
        assert_eq!(tally.pairs, BTreeMap::from([((1, 2), page)]));
        assert_eq!(tally.ranges[&(3, 3)], 3 * page);
    }

    #[test]
    fn sampled_pages_are_scaled() {
        let one = tally(vec![seen(1, 1, 1), seen(1, 2, 2)], 1).total;
        let ten = tally(vec![seen(1, 1, 1), seen(1, 2, 2)], 10).total;
        assert_eq!(ten.duplicate_bytes, 10 * one.duplicate_bytes);
        assert_eq!(tally(Vec::new(), 1).total, Total::default());
    }
}
