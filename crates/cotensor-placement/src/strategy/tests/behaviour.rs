//! What each strategy does on small loops.

use super::all;
use crate::decision::{Expected, Move, Place, Strategy, View};
use crate::simulator::{Faults, Simulator, Theft};
use crate::strategy::{Flow, FlowState, Pinned};
use crate::trace::{Operation, Tensor, Trace, cyclic};
use crate::{Device, measure};

#[test]
fn every_failing_allocation_is_survived() {
    let trace = cyclic(8, 1000, 500).unwrap();
    let device = Device::new(5000, 1_000_000_000, 10).unwrap();
    for copy in 0..60 {
        for mut strategy in all(&trace, &device) {
            let faults = Faults { failing_copies: [copy, copy + 1].into(), ..Faults::default() };
            let mut simulator = Simulator::new(&trace, &device, faults);
            simulator.run_periods(12, strategy.as_mut()).unwrap();
            assert_eq!(simulator.take_outcome().operations, 96);
        }
    }
}

#[test]
fn flow_records_plans_and_resynchronises() {
    let trace = cyclic(20, 1000, 500).unwrap();
    let device = Device::new(10_000, 1_000_000_000, 0).unwrap();
    let mut flow = Flow::new(device);
    let mut simulator = Simulator::new(&trace, &device, Faults::default());
    assert_eq!(flow.state(), FlowState::Unknown);
    simulator.run(0..20, &mut flow).unwrap();
    assert_eq!(flow.state(), FlowState::Record);
    simulator.run(0..20, &mut flow).unwrap();
    assert_eq!((flow.state(), flow.plan().unwrap().operations), (FlowState::Planned, 20));
    simulator.run_periods(40, &mut flow).unwrap();
    simulator.take_outcome();
    simulator.run_periods(19, &mut flow).unwrap();
    let steady = simulator.take_outcome();
    // A conditional layer is skipped.
    simulator.run((0..5).chain(8..9), &mut flow).unwrap();
    assert_eq!(flow.state(), FlowState::Resync);
    simulator.run(9..20, &mut flow).unwrap();
    assert_eq!(flow.state(), FlowState::Planned);
    simulator.run_periods(40, &mut flow).unwrap();
    simulator.take_outcome();
    simulator.run_periods(19, &mut flow).unwrap();
    assert_eq!(simulator.take_outcome().copied_bytes, steady.copied_bytes);
}

#[test]
fn flow_shrinks_at_once_and_grows_when_a_period_begins() {
    let trace = cyclic(20, 1000, 500).unwrap();
    let device = Device::new(10_000, 1_000_000_000, 0).unwrap();
    let mut flow = Flow::new(device).with_forecast(trace.operations().to_vec());
    let mut simulator = Simulator::new(&trace, &device, Faults::default());
    simulator.run_periods(1, &mut flow).unwrap();
    let period_ns = simulator.take_outcome().elapsed_ns;
    let thefts = [(3 * period_ns / 2, 5000), (13 * period_ns / 2, 0)].map(|(at_ns, bytes)| Theft { at_ns, bytes });
    let mut flow = Flow::new(device).with_forecast(trace.operations().to_vec());
    let mut simulator = Simulator::new(&trace, &device, Faults { thefts: thefts.to_vec(), ..Faults::default() });
    let (mut now_ns, mut hash) = (0, None);
    // The steps after which the plan was another one, and those in which the budget changed.
    let (mut planned, mut changed) = (Vec::new(), Vec::new());
    for at in 0..400 {
        simulator.run([at % 20], &mut flow).unwrap();
        let before_ns = now_ns;
        now_ns += simulator.take_outcome().elapsed_ns;
        changed.extend(thefts.iter().filter(|theft| (before_ns..now_ns).contains(&theft.at_ns)).map(|_| at));
        let now = flow.plan().map(crate::Plan::hash);
        if std::mem::replace(&mut hash, now) != now {
            planned.push(at);
        }
    }
    assert!(changed.iter().all(|at| at % 20 > 0), "{changed:?}");
    assert_eq!(planned, [0, changed[0], changed[1].next_multiple_of(20)]);
}

#[test]
fn each_phase_gets_its_own_plan() {
    // Prefill: operations 0 to 11; decoding: 12 to 19, on some of the same tensors.
    let trace = cyclic(20, 1000, 500).unwrap();
    let device = Device::new(6000, 1_000_000_000, 0).unwrap();
    let mut flow = Flow::new(device);
    let mut simulator = Simulator::new(&trace, &device, Faults::default());
    let turn = || (0..12).chain((0..6).flat_map(|_| 12..20));
    (0..3).for_each(|_| simulator.run(turn(), &mut flow).unwrap());
    simulator.run(0..6, &mut flow).unwrap();
    assert_eq!((flow.state(), flow.plan().unwrap().operations), (FlowState::Planned, 12));
    simulator.run((6..12).chain(12..17), &mut flow).unwrap();
    assert_eq!((flow.state(), flow.plan().unwrap().operations), (FlowState::Planned, 8));
}

#[test]
fn forecasts_come_true_and_can_be_given() {
    let trace = cyclic(12, 1000, 500).unwrap();
    let device = Device::new(6000, 1_000_000_000, 0).unwrap();
    let mut flow = Flow::new(device).with_forecast(trace.operations().to_vec());
    assert!(flow.forecast(3).is_empty());
    let mut simulator = Simulator::new(&trace, &device, Faults::default());
    simulator.run(0..1, &mut flow).unwrap();
    assert_eq!(flow.plan().unwrap().operations, 12);
    simulator.run(1..8, &mut flow).unwrap();
    let forecast = flow.forecast(6);
    let names: Vec<&str> = forecast.iter().map(|expected| expected.name.as_str()).collect();
    assert_eq!(names, ["op8", "op9", "op10", "op11", "op0", "op1"]);
    assert!(forecast.iter().all(|expected| expected.place == Place::Device && expected.uses.len() == 1));
    // The moves of a cycle: what is copied to the device leaves it.
    let cycle = flow.forecast(flow.plan().unwrap().steps());
    let moved = |of: fn(&Expected) -> &Vec<usize>| cycle.iter().map(|expected| of(expected).len()).sum::<usize>();
    assert_eq!(moved(|expected| &expected.copied), moved(|expected| &expected.evicted));
}

#[test]
fn flow_follows_a_strategy_without_a_plan_that_is_faster() {
    // The planner expects that the copies back delay less than they do.
    let tensor = |(id, size_bytes): (usize, u64)| Tensor { id: id.to_string(), size_bytes };
    let operation = |(name, uses, writes): (&str, Vec<usize>, Vec<usize>)| Operation {
        name: name.to_owned(),
        uses,
        writes,
        compute_ns: 1000,
        cpu_ns: None,
        workspace_bytes: 0,
    };
    let operations = [("a", vec![0, 1], vec![0]), ("b", vec![2], vec![2]), ("c", vec![1], vec![])].map(operation);
    let tensors = [1000, 2000, 1000].into_iter().enumerate().map(tensor).collect();
    let trace = Trace::new(tensors, operations.to_vec(), 1).unwrap();
    let device = Device::new(3100, 1_000_000_000, 0).unwrap();
    let mut flow = Flow::new(device).with_forecast(trace.operations().to_vec());
    let pinned = measure(&trace, &device, &mut Pinned::new(&trace, &device)).unwrap();
    assert_eq!(measure(&trace, &device, &mut flow).unwrap().time_ns, pinned.time_ns);
    assert_eq!((flow.state(), flow.plan(), flow.alternative()), (FlowState::Planned, None, Some("pinned")));
    assert!(flow.forecast(3).iter().all(|expected| expected.copied.is_empty() && expected.evicted.is_empty()));
    // The program leaves operations out, starts with a full device, and loses memory.
    let faults = Faults { thefts: vec![Theft { at_ns: 100_000, bytes: 100 }], ..Faults::default() };
    let mut simulator = Simulator::new(&trace, &device, faults);
    let mut flow = Flow::new(device);
    simulator.run((0..3).chain(0..3).chain(0..3).chain(2..3).chain(1..3), &mut flow).unwrap();
    simulator.run_periods(30, &mut flow).unwrap();
    assert!(simulator.take_outcome().peak_bytes <= device.budget_bytes());
}

#[test]
fn pinned_learns_a_program_and_a_changed_budget() {
    let trace = cyclic(20, 1000, 500).unwrap();
    let device = Device::new(10_000, 1_000_000_000, 0).unwrap();
    let copied = |mut strategy: Pinned| {
        let mut simulator = Simulator::new(&trace, &device, Faults::default());
        simulator.run_periods(3, &mut strategy).unwrap();
        simulator.take_outcome();
        simulator.run_periods(4, &mut strategy).unwrap();
        simulator.take_outcome().copied_bytes
    };
    // Eight stay: two are for one operation and the next.
    assert_eq!(copied(Pinned::new(&trace, &device)), 4 * 12_000);
    assert_eq!(copied(Pinned::default()), 4 * 12_000);
    let larger = device.with_budget(15_000);
    let mut announced = Pinned::default();
    announced.announce(trace.operations().to_vec());
    let faults = Faults { thefts: vec![Theft { at_ns: 0, bytes: 5000 }], ..Faults::default() };
    let mut simulator = Simulator::new(&trace, &larger, faults);
    simulator.run_periods(2, &mut announced).unwrap();
    assert_eq!(simulator.take_outcome().copied_bytes, 20_000 + 12_000);
}

/// Evicts any tensor that is in the way.
#[derive(Default)]
struct Simplest;

impl Strategy for Simplest {
    fn name(&self) -> &str {
        "simplest"
    }

    fn arrive(&mut self, _: &Operation, _: &View<'_>) -> Place {
        Place::Device
    }

    fn next_move(&mut self, view: &View<'_>) -> Option<Move> {
        if view.short_bytes() > 0 {
            return view.on_device().find(|&tensor| !view.is_needed_now(tensor)).map(Move::Evict);
        }
        view.missing().filter(|&tensor| view.can_fetch(tensor)).map(Move::Fetch)
    }
}

/// Copies without looking at the memory.
struct Careless;

impl Strategy for Careless {
    fn name(&self) -> &str {
        "careless"
    }

    fn arrive(&mut self, _: &Operation, _: &View<'_>) -> Place {
        Place::Device
    }

    fn next_move(&mut self, view: &View<'_>) -> Option<Move> {
        view.missing().filter(|_| !view.is_copying()).map(Move::Fetch)
    }
}

#[test]
fn users_can_bring_strategies_which_must_keep_the_rules() {
    let trace = cyclic(4, 1000, 500).unwrap();
    let device = Device::new(3000, 1_000_000_000, 0).unwrap();
    let measured = measure(&trace, &device, &mut Simplest).unwrap();
    assert_eq!(measured.name, "simplest");
    assert!(measured.copied_bytes >= 1000.0 && measured.peak_bytes <= 3000);
    let error = measure(&trace, &device, &mut Careless).unwrap_err().to_string();
    assert!(error.contains("careless") && error.contains("op3") && error.contains("do not fit"), "{error}");
}
