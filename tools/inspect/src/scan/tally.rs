//! From pages that were seen to what is held twice.

use super::PAGE_BYTES;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A page that a process has mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seen {
    /// Hash of what is in it.
    pub(super) content: u64,
    /// Which physical page it is.
    pub(super) frame: u64,
    /// Number of the process.
    pub(super) process: u32,
    /// Number of the range's name.
    pub(super) range: u32,
}

/// Processes of one content beyond which pairs are not counted: every pair is the same story.
const PAIRED_MAX: usize = 32;

/// What all processes hold together, in bytes. A page counts once however many processes have it mapped, unless it says
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Pages, counted for each process that has them mapped.
    pub mapped_bytes: u64,
    /// Pages.
    pub physical_bytes: u64,
    /// Pages, those of equal content counted once.
    pub distinct_bytes: u64,
    /// What is held more than once: the difference of the two.
    pub duplicate_bytes: u64,
    /// The part of it that would go if no process had a page that another has too.
    pub between_processes_bytes: u64,
    /// The rest: what a process holds several times by itself.
    pub within_processes_bytes: u64,
}

/// What one process holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Holding {
    /// Its pages.
    pub physical_bytes: u64,
    /// Those that another process has mapped too: one copy already.
    pub shared_bytes: u64,
    /// Those whose content another process has in a page of its own.
    pub duplicate_bytes: u64,
    /// Those whose content it has in another page itself.
    pub repeated_bytes: u64,
}

/// Everything that was counted; processes and ranges by number.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) total: Total,
    pub(super) holdings: HashMap<u32, Holding>,
    /// Duplicate or repeated bytes of a process's range.
    pub(super) ranges: BTreeMap<(u32, u32), u64>,
    /// Bytes that two processes both hold in pages of their own.
    pub(super) pairs: BTreeMap<(u32, u32), u64>,
}

/// Counts. Each page stands for `weight` of its kind.
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
            // Frames that others have too, but for this one.
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
            // One page that both have is one copy, whatever else they have.
            if !together.contains(&pair) {
                *tally.pairs.entry(pair).or_default() += unit;
            }
        }
    }
}

/// Frames of one content that a process has, and those of them that it has alone.
#[derive(Clone, Copy, Default)]
struct Own {
    frames: u64,
    alone: u64,
}

/// Every two of `processes`, which are sorted.
fn pairs(processes: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let processes: Vec<u32> = processes.collect();
    let with = |(index, &a): (usize, &u32)| processes[index + 1..].iter().map(move |&b| (a, b)).collect::<Vec<_>>();
    processes.iter().enumerate().flat_map(with).collect()
}

/// One page for each process that has a frame mapped, however often.
fn distinct_processes(frame: &[Seen]) -> impl Iterator<Item = &Seen> {
    frame.chunk_by(|a, b| a.process == b.process).map(|pages| &pages[0])
}

/// How few of the frames every process could do with, found greedily: those that most processes have come first.
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
        // A frame whose processes are served by others already is a repetition.
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
    fn copies_sharing_and_repetition_are_told_apart() {
        let page = PAGE_BYTES as u64;
        let tally = tally(
            vec![
                // One content, a page each for processes 1 and 2.
                seen(10, 1, 1),
                seen(10, 2, 2),
                // One page that both have mapped, 2 of them twice.
                seen(11, 3, 1),
                seen(11, 3, 2),
                seen(11, 3, 2),
                // Process 3 has it three times by itself.
                seen(12, 4, 3),
                seen(12, 5, 3),
                seen(12, 6, 3),
                // Shared by 1 and 2, and 2 has another.
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
    fn samples_count_for_what_they_stand_for() {
        let one = tally(vec![seen(1, 1, 1), seen(1, 2, 2)], 1).total;
        let ten = tally(vec![seen(1, 1, 1), seen(1, 2, 2)], 10).total;
        assert_eq!(ten.duplicate_bytes, 10 * one.duplicate_bytes);
        assert_eq!(tally(Vec::new(), 1).total, Total::default());
    }
}
