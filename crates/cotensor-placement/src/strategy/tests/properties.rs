//! All strategies on random traces: the simulator checks memory, order and changed tensors at each event.

use super::all;
use crate::Flow;
use crate::simulator::{Faults, Simulator, Theft};
use crate::trace::{Operation, Tensor, Trace};
use crate::{Device, compare};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;

prop_compose! {
    fn operation(tensors: usize)(
        uses in prop::collection::vec(0..tensors, 0..4),
        writes in any::<bool>(),
        compute_ns in 0u64..5_000,
        cpu_ns in prop::option::of(0u64..20_000),
        workspace_bytes in 0..2 * KIB,
    ) -> Operation {
        let writes = if writes { uses.iter().take(1).copied().collect() } else { Vec::new() };
        Operation { name: String::new(), uses, writes, compute_ns, cpu_ns, workspace_bytes }
    }
}

prop_compose! {
    fn trace()(sizes in prop::collection::vec(0..4 * KIB, 1..10))(
        mut operations in prop::collection::vec(operation(sizes.len()), 1..16),
        names in 1usize..16,
        sizes in Just(sizes),
    ) -> Trace {
        // Some operations have equal names.
        operations.iter_mut().enumerate().for_each(|(index, operation)| operation.name = (index % names).to_string());
        let tensor = |(index, size_bytes): (usize, u64)| Tensor { id: index.to_string(), size_bytes };
        Trace::new(sizes.into_iter().enumerate().map(tensor).collect(), operations, 1).unwrap()
    }
}

prop_compose! {
    /// A trace, a device on which every operation without a time on the host fits, and memory that the trace does not need.
    fn setting()(trace in trace(), more in 0..8 * KIB, bandwidth in 1_000_000u64..5_000_000_000, latency in 0u64..500)
        -> (Trace, Device)
    {
        let need = trace.operations().iter().filter(|operation| operation.cpu_ns.is_none());
        let need = need.map(|operation| trace.needed_bytes(operation)).max().unwrap_or(0);
        let device = Device::new((need + more).max(1), bandwidth, latency).unwrap();
        (trace, device)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_strategy_keeps_the_rules((trace, device) in setting()) {
        for mut strategy in all(&trace, &device) {
            let mut simulator = Simulator::new(&trace, &device, Faults::default());
            simulator.run_periods(8, strategy.as_mut()).unwrap();
            let outcome = simulator.take_outcome();
            prop_assert!(outcome.peak_bytes <= device.budget_bytes());
            prop_assert_eq!(outcome.operations, 8 * trace.operations().len());
        }
    }

    #[test]
    fn operations_in_any_order_keep_the_rules(
        (trace, device) in setting(),
        chosen in prop::collection::vec((any::<bool>(), 0usize..16), 64..256),
    ) {
        // The first operations recur, each with one that is chosen.
        let count = trace.operations().len();
        let order: Vec<usize> = chosen.iter().enumerate().flat_map(|(index, &(is_chosen, choice))| {
            [index % 4 % count].into_iter().chain(is_chosen.then_some(choice % count))
        }).collect();
        for mut strategy in all(&trace, &device) {
            let mut simulator = Simulator::new(&trace, &device, Faults::default());
            simulator.run(order.iter().copied(), strategy.as_mut()).unwrap();
            let outcome = simulator.take_outcome();
            prop_assert!(outcome.peak_bytes <= device.budget_bytes());
            prop_assert_eq!(outcome.operations, order.len());
        }
    }

    #[test]
    fn several_devices_keep_the_rules((trace, device) in setting(), count in 1usize..4) {
        let devices = vec![device; count];
        let comparison = compare(&trace, &devices).unwrap();
        for measured in &comparison.strategies {
            prop_assert!(measured.time_ns >= comparison.bound_ns * 0.999 - 1.0, "{} {:?}", measured.name, comparison.places);
            prop_assert!(measured.peak_bytes <= device.budget_bytes());
        }
    }

    #[test]
    fn runs_are_deterministic((trace, device) in setting()) {
        let run = || {
            let mut flow = Flow::new(device);
            let mut simulator = Simulator::new(&trace, &device, Faults::default());
            simulator.run_periods(8, &mut flow).unwrap();
            (simulator.take_outcome(), flow.plan().map(crate::Plan::hash))
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn flow_is_never_slower_than_the_others((trace, device) in setting()) {
        let comparison = compare(&trace, &[device]).unwrap();
        let flow = &comparison.strategies[0];
        prop_assert!(flow.time_ns >= comparison.bound_ns * 0.999 - 1.0, "{comparison:?}");
        // The times of these traces are small, and the time of each copy is rounded to a nanosecond.
        let rounding = trace.operations().len() as f64;
        for other in &comparison.strategies[1..] {
            prop_assert!(flow.time_ns <= other.time_ns * 1.0001 + rounding, "{} {} {}", flow.time_ns, other.name, other.time_ns);
        }
    }

    #[test]
    fn memory_can_shrink_and_grow_at_any_time(
        (trace, device) in setting(),
        thefts in prop::collection::vec((0u64..200_000, 0.0..1.0), 1..6),
    ) {
        let need = trace.operations().iter().map(|operation| trace.needed_bytes(operation)).max().unwrap();
        let spare = device.budget_bytes().saturating_sub(need) as f64;
        let mut thefts: Vec<Theft> =
            thefts.into_iter().map(|(at_ns, share)| Theft { at_ns, bytes: (spare * share) as u64 }).collect();
        thefts.sort_by_key(|theft| theft.at_ns);
        for mut strategy in all(&trace, &device) {
            let mut simulator = Simulator::new(&trace, &device, Faults { thefts: thefts.clone(), ..Faults::default() });
            simulator.run_periods(12, strategy.as_mut()).unwrap();
        }
    }
}
