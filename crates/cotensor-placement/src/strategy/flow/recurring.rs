use crate::trace::Operation;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Passes of a program that are compared.
const PASSES: usize = 4;
/// Operations that are tried as the start of a pass.
const STARTS_MAX: usize = 8;
/// At least one in this many operations of a pass must recur in all passes.
const RECURRING_MIN: usize = 8;

/// The operations that recur in every pass of a program whose other operations are chosen by data, such as the experts
/// of a mixture.
#[derive(Debug)]
pub(super) struct RecurringOperations {
    /// The recurring operations of one pass, in order. Each uses a tensor.
    pub(super) operations: Vec<Operation>,
    /// The most other operations between two of them.
    pub(super) gap: usize,
}

impl RecurringOperations {
    /// The operations that recur in the last passes of a recording; `places` are the positions of each key in it. Nothing if no
    /// operation recurs often enough, or the passes have little in common.
    pub(super) fn find(keys: &[u64], operations: &[Operation], places: &HashMap<u64, Vec<usize>>) -> Option<Self> {
        let often = |at: &Vec<usize>| at.len() > PASSES && !operations[at[0]].uses.is_empty();
        let mut starts: Vec<&Vec<usize>> = places.values().filter(|at| often(at)).collect();
        // The most frequent first: operations that are chosen by data are rarer.
        starts.sort_unstable_by_key(|at| (Reverse(at.len()), at[0]));
        let candidates = starts.into_iter().take(STARTS_MAX).filter_map(|at| {
            let bounds = &at[at.len() - PASSES - 1..];
            let passes: Vec<&[u64]> = bounds.windows(2).map(|ends| &keys[ends[0]..ends[1]]).collect();
            let last = bounds[PASSES - 1];
            let uses = |at: usize| !operations[last + at].uses.is_empty();
            let kept: Vec<usize> = recurring(&passes).into_iter().filter(|&at| uses(at)).collect();
            let all = (0..passes[PASSES - 1].len()).filter(|&at| uses(at)).count();
            let enough = kept.len() >= 2 && kept.len() * RECURRING_MIN >= all;
            enough.then(|| (kept.len(), last, kept, passes[PASSES - 1].len()))
        });
        let (_, last, kept, length) = candidates.max_by_key(|&(count, last, ..)| (count, last))?;
        let ends = kept.iter().skip(1).copied().chain([length]);
        let gap = kept.iter().zip(ends).map(|(&at, next)| next - at - 1).max().unwrap_or(0);
        Some(Self { operations: kept.iter().map(|&at| operations[last + at].clone()).collect(), gap })
    }
}

/// The positions in the last pass of keys that all passes have once, in the same order.
fn recurring(passes: &[&[u64]]) -> Vec<usize> {
    let Some((last, others)) = passes.split_last() else { return Vec::new() };
    let once = unique(last);
    let mut kept: Vec<usize> = (0..last.len()).filter(|&at| once[&last[at]].is_some()).collect();
    for pass in others {
        let at = unique(pass);
        let pairs: Vec<(usize, usize)> =
            kept.iter().filter_map(|&here| Some((here, at.get(&last[here]).copied().flatten()?))).collect();
        kept = longest_increasing(&pairs.iter().map(|&(_, there)| there).collect::<Vec<_>>())
            .into_iter()
            .map(|index| pairs[index].0)
            .collect();
    }
    kept
}

/// The position of each key; nothing for a key that is there twice.
fn unique(keys: &[u64]) -> HashMap<u64, Option<usize>> {
    let mut places = HashMap::new();
    for (at, &key) in keys.iter().enumerate() {
        places.entry(key).and_modify(|place| *place = None).or_insert(Some(at));
    }
    places
}

/// The indices of a longest increasing part of `values`, in order (patience sorting).
fn longest_increasing(values: &[usize]) -> Vec<usize> {
    let mut tails: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(values.len());
    for (index, value) in values.iter().enumerate() {
        let place = tails.partition_point(|&tail| values[tail] < *value);
        before.push(place.checked_sub(1).map(|previous| tails[previous]));
        if place == tails.len() {
            tails.push(index);
        } else {
            tails[place] = index;
        }
    }
    let mut found: Vec<usize> = std::iter::successors(tails.last().copied(), |&index| before[index]).collect();
    found.reverse();
    found
}
