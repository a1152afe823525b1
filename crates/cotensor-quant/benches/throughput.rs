//! Bytes a second of one thread beside a copy: outputs of `unpack`, inputs of `pack`.

use cotensor_quant::{QuantSpec, Scheme, Width, f16, quantize};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;

/// 16 MiB of float32: more than the caches have.
const ROWS: usize = 1024;
const COLUMNS: usize = 4096;

fn weights() -> Vec<f32> {
    // SplitMix64; the sum of four uniform numbers is close to a normal one.
    let mut state = 1u64;
    let mut one = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (bits >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..ROWS * COLUMNS).map(|_| one() + one() + one() + one()).collect()
}

fn copy(c: &mut Criterion) {
    let from = weights();
    let mut to = vec![0.0; from.len()];
    let mut group = c.benchmark_group("copy");
    group.throughput(Throughput::Bytes(4 * from.len() as u64));
    group.bench_function("f32", |b| b.iter(|| black_box(&mut to).copy_from_slice(black_box(&from))));
}

fn unpack(c: &mut Criterion) {
    let from = weights();
    let (mut floats, mut halves) = (vec![0.0; from.len()], vec![f16::from_bits(0); from.len()]);
    let mut group = c.benchmark_group("unpack");
    for width in Width::ALL {
        for scheme in [Scheme::Search, Scheme::TwoLevel] {
            let length = if scheme == Scheme::TwoLevel { 0 } else { 64 };
            let Ok(spec) = QuantSpec::new(width, length, scheme) else { continue };
            let tensor = quantize(&from, ROWS, COLUMNS, &spec).expect("finite weights");
            let name = format!("{} bits, {scheme}", width.bits());
            group.throughput(Throughput::Bytes(4 * from.len() as u64));
            group.bench_function(format!("{name}, f32"), |b| {
                b.iter(|| tensor.dequantize_into(0..ROWS, black_box(&mut floats)).expect("all rows"));
            });
            group.throughput(Throughput::Bytes(2 * from.len() as u64));
            group.bench_function(format!("{name}, f16"), |b| {
                b.iter(|| tensor.dequantize_f16_into(0..ROWS, black_box(&mut halves)).expect("all rows"));
            });
        }
    }
}

fn pack(c: &mut Criterion) {
    let from = weights();
    let mut group = c.benchmark_group("pack");
    group.throughput(Throughput::Bytes(4 * from.len() as u64)).sample_size(10);
    for width in Width::ALL {
        for scheme in Scheme::ALL {
            let length = if scheme == Scheme::TwoLevel { 0 } else { 64 };
            let Ok(spec) = QuantSpec::new(width, length, scheme) else { continue };
            group.bench_function(format!("{} bits, {scheme}", width.bits()), |b| {
                b.iter(|| quantize(black_box(&from), ROWS, COLUMNS, &spec).expect("finite weights"));
            });
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = copy, unpack, pack
}
criterion_main!(benches);
