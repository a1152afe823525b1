//! Planning a period of 10,000 operations. Target: at most 50 ms.
#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(clippy::unwrap_used)]

use cotensor_placement::{Device, Operation, Planner, Tensor, Trace};
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;

/// Operations of a transformer: in each group of four, two with a weight of their own.
fn trace(operations: usize) -> Trace {
    let tensors = operations / 2;
    let tensor = |index: usize| Tensor { id: index.to_string(), size_bytes: (1 + index as u64 % 4) << 20 };
    let operation = |index: usize| Operation {
        name: format!("op{index}"),
        uses: if index.is_multiple_of(2) { vec![index / 2] } else { Vec::new() },
        writes: Vec::new(),
        compute_ns: 20_000 + 7919 * index as u64 % 30_000,
        cpu_ns: None,
        workspace_bytes: (index as u64 % 3) << 18,
    };
    Trace::new((0..tensors).map(tensor).collect(), (0..operations).map(operation).collect(), 1).unwrap()
}

fn planning(criterion: &mut Criterion) {
    for operations in [100, 1000, 10_000] {
        let trace = trace(operations);
        let total: u64 = trace.sizes().iter().sum();
        let planner = Planner::new(Device::new(total / 2, 12_000_000_000, 10_000).unwrap());
        criterion.bench_function(&format!("plan {operations} operations"), |bencher| {
            bencher.iter(|| planner.plan_trace(black_box(&trace)).unwrap());
        });
    }
}

criterion_group!(benches, planning);
criterion_main!(benches);
