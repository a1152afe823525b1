//! Programs whose data chooses operations.

use crate::Device;
use crate::cache::policies::{fixed, lfu, lru};
use crate::decision::Strategy;
use crate::random::Random;
use crate::simulator::{Faults, Outcome, Simulator};
use crate::strategy::{Flow, FlowState, Genoa, Lru};
use crate::trace::{Operation, Routing, Tensor, Trace};

const LAYERS: usize = 4;
const EXPERTS: usize = 64;
const SIZE: u64 = 1000;

/// A mixture of experts: layers with an operation of their own, and one for each of their experts.
#[derive(Clone, Copy)]
struct Mixture {
    layers: usize,
    experts: usize,
}

const MIXTURE: Mixture = Mixture { layers: LAYERS, experts: EXPERTS };

impl Mixture {
    /// Operations of a layer.
    fn width(self) -> usize {
        self.experts + 1
    }

    fn is_expert(self, index: usize) -> bool {
        !index.is_multiple_of(self.width())
    }
}

/// The operations of a mixture whose layers have a tensor of `own_bytes` each, and experts of `SIZE` bytes.
fn operations(mixture: Mixture, own_bytes: u64) -> Trace {
    let names: Vec<String> = (0..mixture.layers * mixture.width()).map(|index| index.to_string()).collect();
    let operation = |(index, name): (usize, &String)| Operation {
        name: name.clone(),
        uses: vec![index],
        writes: Vec::new(),
        compute_ns: 500,
        cpu_ns: None,
        workspace_bytes: 0,
    };
    let size = |index| if mixture.is_expert(index) { SIZE } else { own_bytes };
    let tensor = |(index, name): (usize, &String)| Tensor { id: name.clone(), size_bytes: size(index) };
    Trace::new(names.iter().enumerate().map(tensor).collect(), names.iter().enumerate().map(operation).collect(), 1)
        .unwrap()
}

/// The operations of `passes`: in each layer its own one, and those of `chosen` different experts.
fn order(mixture: Mixture, passes: usize, chosen: usize, mut choose: impl FnMut(usize) -> usize) -> Vec<usize> {
    let mut order = Vec::new();
    for layer in (0..passes).flat_map(|_| 0..mixture.layers) {
        order.push(layer * mixture.width());
        let mut experts = Vec::new();
        while experts.len() < chosen {
            let expert = choose(layer);
            if !experts.contains(&expert) {
                experts.push(expert);
            }
        }
        order.extend(experts.into_iter().map(|expert| layer * mixture.width() + 1 + expert));
    }
    order
}

/// A router for each layer, whose younger half of the experts serves `share` of the choices.
fn recent(mixture: Mixture, share: f64, seed: u64) -> impl FnMut(usize) -> usize {
    let router = |layer| Routing::new(mixture.experts, share, seed * 100 + layer);
    let mut layers: Vec<Routing> = (0..mixture.layers as u64).map(router).collect();
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

/// Flow's hit rate on the experts of `order`, and the best of LRU, LFU and a fixed list, all with room for `slots` experts. The second
/// half counts; the list is that of the first half.
fn hit_rates(mixture: Mixture, slots: usize, order: &[usize]) -> (f64, f64) {
    let trace = operations(mixture, SIZE);
    let device = device((slots + mixture.layers) as u64 * SIZE);
    let mut flow = Flow::new(device);
    let outcome = second_half(&trace, &device, order, &mut flow);
    assert_eq!((flow.state(), flow.plan().unwrap().residents.len()), (FlowState::Planned, mixture.layers));
    let experts: Vec<usize> = order.iter().copied().filter(|&index| mixture.is_expert(index)).collect();
    let hits = outcome.hits as f64 - (outcome.uses / 2) as f64;
    let count = trace.operations().len();
    let policies = [lru(&experts, slots), lfu(&experts, count, slots), fixed(&experts, count, slots)];
    (hits / (outcome.uses / 2) as f64, policies.into_iter().fold(0.0, f64::max))
}

/// The mean over ten seeds of Flow's hit rate over the best policy's.
fn mean_ratio(mixture: Mixture, slots: usize, order: impl Fn(u64) -> Vec<usize>) -> f64 {
    let ratios = (0..10).map(|seed| {
        let (flow, best) = hit_rates(mixture, slots, &order(seed));
        flow / best
    });
    ratios.sum::<f64>() / 10.0
}

#[test]
fn experts_are_kept_as_well_as_by_the_best_policy() {
    const PASSES: usize = 1000;
    for slots in [32, 128] {
        let of_recent = mean_ratio(MIXTURE, slots, |seed| order(MIXTURE, PASSES, 1, recent(MIXTURE, 0.67, seed)));
        let of_popular = mean_ratio(MIXTURE, slots, |seed| order(MIXTURE, PASSES, 1, popular(seed)));
        assert!(of_recent >= 0.98 && of_popular >= 0.98, "{slots} slots: {of_recent} {of_popular}");
    }
}

#[test]
fn experts_of_the_published_skew_are_kept_as_well_as_by_the_best_policy() {
    // LRU-64 of 128 experts serves 67 %, LRU-128 of 256 81 %.
    for (experts, share) in [(128, 0.67), (256, 0.81)] {
        let mixture = Mixture { layers: 1, experts };
        let ratio = mean_ratio(mixture, experts / 2, |seed| order(mixture, 4000, 1, recent(mixture, share, seed)));
        println!("{experts} experts: Flow's hit rate over the best of LRU, LFU and a fixed list {ratio:.4}");
        assert!(ratio >= 0.98, "{experts} experts: {ratio}");
    }
}

#[test]
fn plan_and_experts_divide_the_memory() {
    // The layers' own tensors alone are a loop that does not fit.
    let trace = operations(MIXTURE, 20 * SIZE);
    for (slots, chosen) in [(50, 1), (70, 2), (100, 4)] {
        let device = device(slots * SIZE);
        let order = order(MIXTURE, 600, chosen, recent(MIXTURE, 0.67, 1));
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
