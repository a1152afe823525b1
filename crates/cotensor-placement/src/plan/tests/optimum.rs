//! The planner against an exhaustive search on small traces.

use super::super::Planner;
use crate::Device;
use crate::random::Random;
use crate::trace::{Operation, Tensor, Trace};
use std::collections::HashMap;

/// One unit of time of the exhaustive search, and the bytes that are copied in it.
const UNIT: u64 = 1000;

/// Everything that decides the future of a program on a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    operation: usize,
    /// Units until the operation ends; 0 if it has not started.
    left: u64,
    on_device: u32,
    /// The tensor that arrives, and the units until then.
    arriving: Option<(usize, u64)>,
}

/// The mean time of a period in units, by trying every copy and every eviction at every unit of time. `units` is the
/// length of the search; the result is exact up to one operation in it.
fn optimum(trace: &Trace, budget: u64, units: u64) -> f64 {
    let sizes: Vec<u64> = trace.tensors().iter().map(|tensor| tensor.size_bytes / UNIT).collect();
    let budget = budget / UNIT;
    let of =
        |set: u32| (0..sizes.len()).filter(|tensor| set >> tensor & 1 == 1).map(|tensor| sizes[tensor]).sum::<u64>();
    let needs: Vec<u32> =
        trace.operations().iter().map(|operation| operation.uses.iter().map(|tensor| 1 << tensor).sum()).collect();
    let times: Vec<u64> = trace.operations().iter().map(|operation| operation.compute_ns / UNIT).collect();
    // The largest number of operations finished in each state.
    let mut states = HashMap::from([(State { operation: 0, left: 0, on_device: 0, arriving: None }, 0u64)]);
    let mut halfway = 0;
    for unit in 0..units {
        if unit == units / 2 {
            halfway = states.values().copied().max().unwrap();
        }
        let mut after: HashMap<State, u64> = HashMap::new();
        for (&state, &finished) in &states {
            let in_use = if state.left > 0 { needs[state.operation] } else { 0 };
            let mut choices = vec![state];
            if state.arriving.is_none() {
                for tensor in (0..sizes.len()).filter(|tensor| state.on_device >> tensor & 1 == 0) {
                    let may_leave = state.on_device & !in_use;
                    let mut leaving = may_leave;
                    loop {
                        let on_device = state.on_device & !leaving;
                        // Evictions that are not needed make no later choice better.
                        let minimal = (0..sizes.len()).all(|each| {
                            leaving >> each & 1 == 0 || of(on_device) + sizes[tensor] + sizes[each] > budget
                        });
                        if of(on_device) + sizes[tensor] <= budget && minimal {
                            choices.push(State { on_device, arriving: Some((tensor, sizes[tensor])), ..state });
                        }
                        if leaving == 0 {
                            break;
                        }
                        leaving = (leaving - 1) & may_leave;
                    }
                }
            }
            for mut state in choices {
                let mut finished = finished;
                if state.left == 0 && needs[state.operation] & !state.on_device == 0 {
                    state.left = times[state.operation];
                }
                if let Some((tensor, left)) = state.arriving {
                    state.arriving = (left > 1).then_some((tensor, left - 1));
                    state.on_device |= if left == 1 { 1 << tensor } else { 0 };
                }
                if state.left > 0 {
                    state.left -= 1;
                    if state.left == 0 {
                        state.operation = (state.operation + 1) % needs.len();
                        finished += 1;
                    }
                }
                after.entry(state).and_modify(|best| *best = finished.max(*best)).or_insert(finished);
            }
        }
        // A state that is some periods behind cannot catch up.
        let best = after.values().copied().max().unwrap();
        after.retain(|_, finished| *finished + 2 * needs.len() as u64 >= best);
        states = after;
    }
    let finished = states.values().copied().max().unwrap() - halfway;
    (units - units / 2) as f64 / finished as f64 * needs.len() as f64
}

fn random_trace(random: &mut Random, tensors: usize, more: usize, sizes: usize, times: usize, unit: u64) -> Trace {
    let tensor = |index: usize, random: &mut Random| {
        let size_bytes = UNIT * unit * (1 + random.below(sizes) as u64);
        Tensor { id: index.to_string(), size_bytes }
    };
    let all = (0..tensors).map(|index| tensor(index, random)).collect();
    let operation = |index: usize, random: &mut Random| Operation {
        name: index.to_string(),
        uses: vec![if index < tensors { index } else { random.below(tensors) }],
        writes: Vec::new(),
        compute_ns: UNIT * (1 + random.below(times) as u64),
        cpu_ns: None,
        workspace_bytes: 0,
    };
    let operations = (0..tensors + more).map(|index| operation(index, random)).collect();
    Trace::new(all, operations, 1).unwrap()
}

#[test]
fn small_traces_reach_the_optimum() {
    const CASES: usize = 24;
    let mut random = Random::new(11);
    let mut optimal = 0;
    for case in 0..CASES {
        let tensors = 3 + random.below(4);
        // Equal tensors with slow copies, different ones, and tensors with several uses.
        let trace = match case % 3 {
            0 => {
                let unit = 1 + random.below(4) as u64;
                random_trace(&mut random, tensors, 0, 1, 1, unit)
            }
            1 => random_trace(&mut random, tensors.min(5), 0, 3, 2, 1),
            _ => random_trace(&mut random, tensors.min(4), 2, 2, 2, 1),
        };
        let sizes = trace.sizes();
        let (total, largest) = (sizes.iter().sum::<u64>(), sizes.iter().copied().max().unwrap());
        let step = if case % 3 == 0 { largest } else { UNIT };
        let budget = largest + step * random.below(((total - largest) / step) as usize) as u64;
        let device = Device::new(budget, 1_000_000_000, 0).unwrap();
        let planned = Planner::new(device).plan_trace(&trace).unwrap().period_ns / UNIT as f64;
        let best = optimum(&trace, budget, 600);
        // The search is exact up to one operation.
        assert!(planned >= best * 0.98 && planned <= best * 1.15, "case {case}: {planned} instead of {best}");
        optimal += usize::from(planned <= best * 1.02);
    }
    assert!(optimal >= CASES - 1, "{optimal} of {CASES} plans are optimal");
}
