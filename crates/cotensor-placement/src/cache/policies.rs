//! Policies that a cache is compared with: each gives its hit rate on the second half of some choices.

use std::collections::VecDeque;

/// Share of the second half of `choices` that a cache has, after the first half.
pub(crate) fn hit_rate(choices: &[usize], mut is_hit: impl FnMut(usize) -> bool) -> f64 {
    let hits: Vec<bool> = choices.iter().map(|&choice| is_hit(choice)).collect();
    let scored = &hits[choices.len() / 2..];
    scored.iter().filter(|&&hit| hit).count() as f64 / scored.len() as f64
}

pub(crate) fn lru(choices: &[usize], capacity: usize) -> f64 {
    let mut kept = VecDeque::new();
    hit_rate(choices, |choice| {
        let found = kept.iter().position(|&other| other == choice);
        found.map(|at| kept.remove(at));
        kept.push_back(choice);
        if kept.len() > capacity {
            kept.pop_front();
        }
        found.is_some()
    })
}

/// Evicts the least used of all time.
pub(crate) fn lfu(choices: &[usize], experts: usize, capacity: usize) -> f64 {
    let (mut counts, mut kept) = (vec![0; experts], Vec::new());
    hit_rate(choices, |choice| {
        counts[choice] += 1;
        if kept.contains(&choice) {
            return true;
        }
        if kept.len() == capacity {
            let least = (0..capacity).min_by_key(|&at| counts[kept[at]]).unwrap();
            kept.swap_remove(least);
        }
        kept.push(choice);
        false
    })
}

/// The most used of the first half, without changes.
pub(crate) fn fixed(choices: &[usize], experts: usize, capacity: usize) -> f64 {
    let mut counts = vec![0; experts];
    choices[..choices.len() / 2].iter().for_each(|&choice| counts[choice] += 1);
    let mut order: Vec<usize> = (0..experts).collect();
    order.sort_by_key(|&expert| std::cmp::Reverse(counts[expert]));
    hit_rate(choices, |choice| order[..capacity].contains(&choice))
}
