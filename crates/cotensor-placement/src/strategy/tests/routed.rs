//! Programs whose data chooses operations.

use crate::Device;
use crate::cache::policies::{fixed, lfu, lru};
use crate::random::Random;
use crate::simulator::{Faults, Outcome, Simulator};
use crate::strategy::{Flow, FlowState, Genoa, Lru, Strategy};
use crate::trace::{Operation, Routing, Tensor, Trace};

const LAYERS: usize = 4;
const EXPERTS: usize = 64;
/// Operations of a layer: its own, and one for each expert.
const WIDTH: usize = EXPERTS + 1;
const SIZE: u64 = 1000;

/// A mixture of experts whose layers have a tensor of `own_bytes` each, and experts of `SIZE` bytes.
fn mixture(own_bytes: u64) -> Trace {
    let names: Vec<String> = (0..LAYERS * WIDTH).map(|index| index.to_string()).collect();
    let operation = |(index, name): (usize, &String)| Operation {
        name: name.clone(),
        uses: vec![index],
        writes: Vec::new(),
        compute_ns: 500,
        cpu_ns: None,
        workspace_bytes: 0,
    };
    let size = |index| if index % WIDTH == 0 { own_bytes } else { SIZE };
    let tensor = |(index, name): (usize, &String)| Tensor { id: name.clone(), size_bytes: size(index) };
    Trace::new(names.iter().enumerate().map(tensor).collect(), names.iter().enumerate().map(operation).collect(), 1)
        .unwrap()
}

/// The operations of `passes`: in each layer its own one, and those of `chosen` different experts.
fn order(passes: usize, chosen: usize, mut choose: impl FnMut(usize) -> usize) -> Vec<usize> {
    let mut order = Vec::new();
    for layer in (0..passes).flat_map(|_| 0..LAYERS) {
        order.push(layer * WIDTH);
        let mut experts = Vec::new();
        while experts.len() < chosen {
            let expert = choose(layer);
            if !experts.contains(&expert) {
                experts.push(expert);
            }
        }
        order.extend(experts.into_iter().map(|expert| layer * WIDTH + 1 + expert));
    }
    order
}

/// A router for each layer, of the published skew.
fn recent(seed: u64) -> impl FnMut(usize) -> usize {
    let mut layers: Vec<Routing> =
        (0..LAYERS as u64).map(|layer| Routing::new(EXPERTS, 0.67, seed * 100 + layer)).collect();
    move |layer| layers[layer].next().unwrap()
}

/// Expert i is chosen about as often as 1 / (i + 1).
fn popular(seed: u64) -> impl FnMut(usize) -> usize {
    let mut random = Random::new(seed);
    move |_| {
        let mut expert = random.below(EXPERTS);
        while !random.chance(1.0 / (expert + 1) as f64) {
            expert = random.below(EXPERTS);
        }
        expert
    }
}

/// What happens in the second half of `order`.
fn second_half(trace: &Trace, device: &Device, order: &[usize], strategy: &mut dyn Strategy) -> Outcome {
    let mut simulator = Simulator::new(trace, device, Faults::default());
    let (first, second) = order.split_at(order.len() / 2);
    simulator.run(first.iter().copied(), strategy).unwrap();
    simulator.take_outcome();
    simulator.run(second.iter().copied(), strategy).unwrap();
    simulator.take_outcome()
}

fn device(bytes: u64) -> Device {
    Device::new(bytes, 1_000_000_000, 0).unwrap()
}

#[test]
fn experts_are_kept_as_well_as_by_the_best_policy() {
    const PASSES: usize = 1000;
    let trace = mixture(SIZE);
    for slots in [32, 128] {
        for is_recent in [true, false] {
            let mut ratios = 0.0;
            for seed in 0..10 {
                let order = if is_recent { order(PASSES, 1, recent(seed)) } else { order(PASSES, 1, popular(seed)) };
                let device = device((slots + LAYERS) as u64 * SIZE);
                let mut flow = Flow::new(device);
                let outcome = second_half(&trace, &device, &order, &mut flow);
                assert_eq!((flow.state(), flow.plan().unwrap().residents.len()), (FlowState::Planned, LAYERS));
                let experts: Vec<usize> = order.iter().copied().filter(|&index| index % WIDTH > 0).collect();
                let hits = outcome.hits as f64 - (outcome.uses / 2) as f64;
                let count = LAYERS * WIDTH;
                let policies = [lru(&experts, slots), lfu(&experts, count, slots), fixed(&experts, count, slots)];
                ratios += hits / (outcome.uses / 2) as f64 / policies.into_iter().fold(0.0, f64::max);
            }
            assert!(ratios / 10.0 >= 0.98, "{slots} slots, recent {is_recent}: {}", ratios / 10.0);
        }
    }
}

#[test]
fn plan_and_experts_divide_the_memory() {
    // The layers' own tensors alone are a loop that does not fit.
    let trace = mixture(20 * SIZE);
    for (slots, chosen) in [(50, 1), (70, 2), (100, 4)] {
        let device = device(slots * SIZE);
        let order = order(600, chosen, recent(1));
        let mut flow = Flow::new(device);
        let planned = second_half(&trace, &device, &order, &mut flow);
        assert_eq!(flow.plan().unwrap().operations, LAYERS);
        for mut other in [Box::new(Lru::default()) as Box<dyn Strategy>, Box::new(Genoa::default())] {
            let others = second_half(&trace, &device, &order, other.as_mut());
            assert!(planned.elapsed_ns < others.elapsed_ns, "{slots} {}", other.name());
        }
    }
}

#[test]
fn layers_that_passes_leave_out_get_no_plan() {
    let trace = crate::cyclic(20, SIZE, 500).unwrap();
    let device = device(10 * SIZE);
    let mut flow = Flow::new(device);
    let mut simulator = Simulator::new(&trace, &device, Faults::default());
    simulator.run_periods(10, &mut flow).unwrap();
    assert_eq!(flow.plan().unwrap().operations, 20);
    let mut random = Random::new(0);
    for _ in 0..60 {
        let skips = random.chance(0.5);
        simulator.run((0..20).filter(|&layer| !(skips && (7..9).contains(&layer))), &mut flow).unwrap();
    }
    assert_eq!(flow.plan().unwrap().operations, 18);
    simulator.run(0..20, &mut flow).unwrap();
    assert_eq!((flow.state(), flow.plan().unwrap().operations), (FlowState::Planned, 18));
}
