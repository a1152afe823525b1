//! Products by codes on each engine that is installed, one row and one thread: the file as it is, and in the forms that loading gives the
//! engine. Where the file takes much longer, the engine expands the matrix for each run. The table is in docs/labs/low-bit.md.

#[allow(dead_code, clippy::unwrap_used)]
#[path = "../tests/integration/support/onnx.rs"]
mod onnx;

use cotensor_core::Result;
use cotensor_model::engine::{Engine, FileMode, LoadedGraph, RtenEngine};
use cotensor_model::tensor::TensorRef;
use onnx::*;
use rten_onnx::onnx::{DataType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows and columns of the matrix.
const SIZE: usize = 2048;
const GROUPS: [usize; 5] = [16, 32, 64, 128, 256];
const INT8: i64 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeros {
    None,
    Packed,
    Float,
}

struct Case {
    bits: usize,
    group: usize,
    zeros: Zeros,
    level: i64,
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    println!("{SIZE} x {SIZE}, one row, one thread; ms: the file as it is / as Cotensor loads it; - is refused");
    for engine in engines() {
        // The engine that packs nothing expands all codes.
        if engine.capabilities().expands_codes {
            continue;
        }
        println!("\n{} {}\nzero points, activations, bits; groups {GROUPS:?}", engine.name(), engine.version());
        for (zeros, name) in [(Zeros::None, "none"), (Zeros::Packed, "packed"), (Zeros::Float, "float")] {
            for (level, activations) in [(0, "float32"), (INT8, "int8")] {
                for bits in [2, 3, 4, 8] {
                    // Only `cotensor quantize` writes 3 bits, without zero points.
                    if bits == 3 && zeros != Zeros::None {
                        continue;
                    }
                    let cells = GROUPS.map(|group| cell(&*engine, &Case { bits, group, zeros, level }, folder.path()));
                    println!("{name:6} {activations:7} {bits}: {}", cells.join("  "));
                }
            }
        }
    }
}

fn cell(engine: &dyn Engine, case: &Case, folder: &Path) -> String {
    let path = save(folder, "model.onnx", &model_of(case));
    let plain = || match engine.name() {
        RtenEngine::NAME => RtenEngine::new(Some(1)).plain().load_file(&path, FileMode::Read),
        _ => engine.load_file(&path, FileMode::Read),
    };
    let own = std::panic::AssertUnwindSafe(|| load_on(engine, &path, &*store()));
    let own = std::panic::catch_unwind(own).ok();
    let show = |ms: Option<f64>| ms.map_or_else(|| "      -".to_owned(), |ms| format!("{ms:7.2}"));
    let file = plain().and_then(|graph| time(&graph)).ok();
    format!("{} / {}", show(file), show(own.and_then(|graph| time(&graph).ok())))
}

/// The shortest of some runs, in ms.
fn time(graph: &Arc<dyn LoadedGraph>) -> Result<f64> {
    let x = noise(SIZE, 4);
    let started = Instant::now();
    let mut shortest = f64::INFINITY;
    for run in 0.. {
        let before = Instant::now();
        graph.run_alone(&[("x", TensorRef::f32(&[1, SIZE], &x)?)], &["y"])?;
        // The first run warms up.
        if run > 0 {
            shortest = shortest.min(before.elapsed().as_secs_f64() * 1e3);
        }
        if run > 2 && started.elapsed() > Duration::from_millis(60) {
            break;
        }
    }
    Ok(shortest)
}

fn model_of(case: &Case) -> ModelProto {
    let Case { bits, group, zeros, level } = *case;
    let groups = SIZE / group;
    let bytes = |count: usize| noise(count, 3).iter().map(|value| (value * 127.0) as i8 as u8).collect::<Vec<u8>>();
    let dims = |last: &[usize]| last.iter().map(|&dim| dim as i64).collect::<Vec<i64>>();
    let mut initializer = vec![
        raw_tensor("codes", DataType::UINT8, &dims(&[SIZE, groups, group * bits / 8]), bytes(SIZE * SIZE * bits / 8)),
        f32_tensor("scales", &dims(&[SIZE, groups]), &noise(SIZE * groups, 6)),
    ];
    let mut inputs = vec!["x", "codes", "scales"];
    let in_row = (groups * bits).div_ceil(8);
    match zeros {
        Zeros::None => {}
        Zeros::Packed => {
            initializer.push(raw_tensor("zeros", DataType::UINT8, &dims(&[SIZE, in_row]), bytes(SIZE * in_row)));
        }
        Zeros::Float => initializer.push(f32_tensor("zeros", &dims(&[SIZE, groups]), &noise(SIZE * groups, 7))),
    }
    if zeros != Zeros::None {
        inputs.push("zeros");
    }
    let attributes = [("K", SIZE), ("N", SIZE), ("bits", bits), ("block_size", group)];
    let mut attributes = attributes.map(|(name, value)| int_attribute(name, value as i64)).to_vec();
    attributes.push(int_attribute("accuracy_level", level));
    let domain = Some(if bits == 3 { "cotensor" } else { "com.microsoft" }.to_owned());
    let product = NodeProto { domain: domain.clone(), ..node("MatMulNBits", &inputs, &["y"], attributes) };
    let columns = Some(SIZE as i64);
    let mut whole = model(GraphProto {
        node: vec![product],
        initializer,
        input: vec![value("x", DataType::FLOAT, &[None, columns])],
        output: vec![value("y", DataType::FLOAT, &[None, columns])],
        value_info: vec![],
    });
    for domain in [domain, Some("com.microsoft".to_owned())] {
        if !whole.opset_import.iter().any(|set| set.domain == domain) {
            whole.opset_import.push(OperatorSetIdProto { domain, version: Some(1) });
        }
    }
    whole
}
