//! Loops over equal tensors: the planner against T*, the best known time.

use crate::trace::{Operation, Tensor, cyclic};
use crate::{Device, Planner, Trace, bound_ns, compare};

const TENSORS: usize = 80;
const COMPUTE_NS: u64 = 1_000_000;

/// The best time of a period of `n` operations of `c` whose tensors are copied in `tau`, with room for `k` tensors.
fn t_star(n: f64, k: f64, c: f64, tau: f64) -> f64 {
    // Copies of an optimal cache of k tensors.
    let copies = |k: f64| if k < 1.0 { n } else { (n - k) + (n - k) / (n - 1.0) };
    (n * c).max((n * c + copies(k) * tau).min(copies(k - 1.0) * tau))
}

#[test]
fn flow_is_close_to_the_optimum_of_loops() {
    for share in [0.25, 0.5, 0.75, 0.9] {
        for ratio in [0.5, 1.0, 2.0, 4.0, 10.0] {
            let slots = (TENSORS as f64 * share) as u64;
            let copy_ns = (COMPUTE_NS as f64 * ratio) as u64;
            let trace = cyclic(TENSORS, copy_ns, COMPUTE_NS).unwrap();
            // A byte per nanosecond.
            let device = Device::new(slots * copy_ns, 1_000_000_000, 0).unwrap();
            let comparison = compare(&trace, &[device]).unwrap();
            let best = t_star(TENSORS as f64, slots as f64, COMPUTE_NS as f64, copy_ns as f64);
            let limit = if share == 0.9 { 1.15 } else { 1.05 };
            let flow = &comparison.strategies[0];
            let shown = format!("share {share}, ratio {ratio}: {:.4} of T*, {best} ns", flow.time_ns / best);
            println!("{shown}");
            assert_eq!(flow.name, "flow");
            assert!(flow.time_ns <= limit * best && comparison.bound_ns <= best * 1.000_001, "{shown}");
            assert!(comparison.strategies.iter().all(|other| flow.time_ns <= other.time_ns), "{shown}");
            assert!(comparison.strategies.iter().all(|other| other.peak_bytes <= device.budget_bytes()), "{shown}");
        }
    }
}

#[test]
fn genoa_and_lru_take_the_times_of_the_formulas() {
    let trace = cyclic(TENSORS, 2 * COMPUTE_NS, COMPUTE_NS).unwrap();
    let device = Device::new(40 * 2 * COMPUTE_NS, 1_000_000_000, 0).unwrap();
    let comparison = compare(&trace, &[device]).unwrap();
    let time = |name: &str| comparison.strategies.iter().find(|each| each.name == name).unwrap().time_ns;
    assert_eq!(comparison.resident_ns, 80 * COMPUTE_NS);
    assert_eq!(time("genoa"), 80.0 * 3.0 * COMPUTE_NS as f64);
    assert_eq!(time("lru"), 80.0 * 2.0 * COMPUTE_NS as f64);
}

#[test]
fn plans_are_consistent_and_equal_for_equal_traces() {
    let trace = cyclic(20, 4000, 1000).unwrap();
    let plan = |slots: u64| {
        let device = Device::new(slots * 4000, 1_000_000_000, 0).unwrap();
        Planner::new(device).plan_trace(&trace).unwrap()
    };
    let planned = plan(12);
    assert_eq!(planned, plan(12));
    assert_eq!(planned.hash(), plan(12).hash());
    assert_ne!(planned.hash(), plan(13).hash());
    // Each copy into the device is followed by one eviction.
    assert_eq!(planned.prefetches.len(), planned.evictions.len());
    assert!(planned.prefetches.iter().all(|copy| !planned.residents.contains(&copy.tensor) && copy.lead >= 1));
    assert!(planned.prefetches.is_sorted_by_key(|copy| copy.start_ns));
    let fits = plan(20);
    assert_eq!((fits.residents.len(), fits.prefetches.len(), fits.period_ns.round()), (20, 0, 20_000.0));
}

#[test]
fn host_takes_operations_whose_copies_cost_more() {
    // Bandwidth-bound decoding: the device computes for nothing, a copy takes 10 units, the host 12.
    let on_host = |cpu_ns| {
        let trace = cyclic(40, 10_000, 100).unwrap();
        let operations =
            trace.operations().iter().map(|operation| Operation { cpu_ns: Some(cpu_ns), ..operation.clone() });
        let trace = Trace::new(trace.tensors().to_vec(), operations.collect(), 1).unwrap();
        let device = Device::new(10 * 10_000, 1_000_000_000, 0).unwrap();
        let comparison = compare(&trace, &[device]).unwrap();
        let time = |name: &str| comparison.strategies.iter().find(|each| each.name == name).unwrap().time_ns;
        assert!(time("flow") <= time("cpu").min(time("lru")).min(time("genoa")) * 1.0001);
        let plan = Planner::new(device).plan_trace(&trace).unwrap();
        (plan.on_cpu.len(), time("flow") / comparison.bound_ns)
    };
    let (some, ratio) = on_host(12_000);
    assert!((10..25).contains(&some) && ratio < 1.25, "{some} operations, {ratio} of the bound");
    assert_eq!(on_host(10_000_000).0, 0);
    assert_eq!(on_host(50).0, 40);
}

#[test]
fn operations_that_fit_nowhere_are_named() {
    let trace = cyclic(3, 4000, 1000).unwrap();
    let device = Device::new(3999, 1_000_000_000, 0).unwrap();
    let error = Planner::new(device).plan_trace(&trace).unwrap_err();
    assert_eq!(error.kind(), cotensor_core::ErrorKind::OverBudget);
    assert!(error.to_string().contains("\"op0\"") && error.to_string().contains("3999"), "{error}");
}

#[test]
fn large_tensors_stay_and_small_ones_are_copied_ahead() {
    // As a language model: an embedding and a head, and layers between them, a quarter of which does not fit.
    let size = |index: usize| if index.is_multiple_of(99) { 100_000_000 } else { 3_000_000 };
    let tensor = |index: usize| Tensor { id: index.to_string(), size_bytes: size(index) };
    let tensors: Vec<Tensor> = (0..100).map(tensor).collect();
    let total: u64 = tensors.iter().map(|tensor| tensor.size_bytes).sum();
    let trace = Trace::new(tensors, cyclic(100, 1, 70_000).unwrap().operations().to_vec(), 1).unwrap();
    for kept in [0.75, 0.9] {
        let device = Device::new((total as f64 * kept) as u64, 12_000_000_000, 0).unwrap();
        let plan = Planner::new(device).plan_trace(&trace).unwrap();
        assert!(plan.residents.contains(&0) && plan.residents.contains(&99));
        assert!(plan.period_ns <= 1.1 * bound_ns(&trace, &[device]), "{kept}: {}", plan.period_ns);
    }
}
