//! Planning a period of 10,000 operations, alone and with Flow's comparison. Target: at most 50 ms.
#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(clippy::unwrap_used)]

use cotensor_placement::{Device, Faults, Flow, Operation, Planner, Simulator, Tensor, Trace};
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;

/// Operations of a transformer, every other one with a weight of its own. With `on_host`, all may run on the host.
fn trace(operations: usize, on_host: bool) -> Trace {
    let tensors = operations / 2;
    let tensor = |index: usize| Tensor { id: index.to_string(), size_bytes: (1 + index as u64 % 4) << 20 };
    let operation = |index: usize| Operation {
        name: format!("op{index}"),
        uses: if index.is_multiple_of(2) { vec![index / 2] } else { Vec::new() },
        writes: Vec::new(),
        compute_ns: 20_000 + 7919 * index as u64 % 30_000,
        cpu_ns: on_host.then(|| 400_000 + 104_729 * index as u64 % 600_000),
        workspace_bytes: (index as u64 % 3) << 18,
    };
    Trace::new((0..tensors).map(tensor).collect(), (0..operations).map(operation).collect(), 1).unwrap()
}

fn planning(criterion: &mut Criterion) {
    for (operations, on_host) in [(100, false), (1000, false), (10_000, false), (1000, true), (10_000, true)] {
        let trace = trace(operations, on_host);
        let total: u64 = trace.sizes().iter().sum();
        let device = Device::new(total / 2, 12_000_000_000, 10_000).unwrap();
        let planner = Planner::new(device);
        let name = format!("{operations} operations{}", if on_host { " with times on the host" } else { "" });
        criterion.bench_function(&format!("plan {name}"), |bencher| {
            bencher.iter(|| planner.plan_trace(black_box(&trace)).unwrap());
        });
        // The first operation of an announced period.
        criterion.bench_function(&format!("flow {name}"), |bencher| {
            bencher.iter(|| {
                let mut flow = Flow::new(device).with_forecast(trace.operations().to_vec());
                Simulator::new(&trace, &device, Faults::default()).run(0..1, &mut flow).unwrap();
            });
        });
    }
}

criterion_group!(benches, planning);
criterion_main!(benches);
