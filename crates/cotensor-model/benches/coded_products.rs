//! Products by codes on each engine that is installed, with one thread. The tables are in docs/labs/low-bit.md.
//!
//! - A matrix that is in no cache: one row, and the rows of a prompt, beside the same matrix in `float32`.
//! - One that is in the cache, one row, all codes: the file as it is, and in the forms that loading gives the engine. Where the file takes
//!   much longer, the engine expands the matrix for each run.

#[allow(dead_code, clippy::unwrap_used)]
#[path = "../tests/integration/support/onnx.rs"]
mod onnx;

use cotensor_core::Result;
use cotensor_model::engine::{Engine, FileMode, LoadedGraph, MultipliedCodes, RtenEngine};
use cotensor_model::tensor::TensorRef;
use onnx::*;
use rten_onnx::onnx::{DataType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows and columns of a matrix that is in the cache.
const SIZE: usize = 2048;
/// Rows and columns of a matrix that is larger than the cache.
const LARGE: usize = 4096;
/// Rows of a prompt.
const PROMPT: usize = 128;
const GROUPS: [usize; 5] = [16, 32, 64, 128, 256];
const INT8: i64 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeros {
    None,
    Packed,
    Float,
}

#[derive(Clone, Copy)]
struct Case {
    size: usize,
    /// 32: a product with the matrix in `float32`.
    bits: usize,
    group: usize,
    zeros: Zeros,
    level: i64,
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    for engine in engines() {
        if engine.capabilities().multiplied_codes != MultipliedCodes::Expanded {
            print_large(&*engine, folder.path());
            print_all(&*engine, folder.path());
        }
    }
}

/// Ratios to `float32` of 4 bits in groups of 32, and to the same file as the engine loads it by itself.
fn print_large(engine: &dyn Engine, folder: &Path) {
    println!("\n{} {}: {LARGE} x {LARGE}, as Cotensor loads it, ms", engine.name(), engine.version());
    for rows in [1, PROMPT] {
        let [(float, _), four, int8] = [(32, 0), (4, 0), (4, INT8)].map(|(bits, level)| {
            let case = Case { size: LARGE, bits, group: 32, zeros: Zeros::None, level };
            let path = save(folder, "model.onnx", &model_of(&case));
            let loaded = [load_on(engine, &path, &*store()), plain(engine, &path).expect("a graph")];
            // In turns, so that other work on the machine affects both.
            let mut shortest = [f64::INFINITY; 2];
            for _ in 0..4 {
                for (shortest, graph) in shortest.iter_mut().zip(&loaded) {
                    *shortest = shortest.min(time(graph, rows, LARGE).expect("a product"));
                }
            }
            (shortest[0], shortest[1])
        });
        print!("{rows:3} rows: float32 {float:.2}");
        for (name, (own, plain)) in [("4 bits", four), ("with activations of 8 bits", int8)] {
            print!(
                "; {name} {own:.2} ({:.2} of the time; {:.2} of the engine's own loading)",
                own / float,
                own / plain
            );
        }
        println!();
    }
}

/// The file as it is, loaded by the engine alone.
fn plain(engine: &dyn Engine, path: &Path) -> Result<Arc<dyn LoadedGraph>> {
    match engine.name() {
        RtenEngine::NAME => RtenEngine::new(Some(1)).plain().load_file(path, FileMode::Read),
        _ => engine.load_file(path, FileMode::Read),
    }
}

fn print_all(engine: &dyn Engine, folder: &Path) {
    println!(
        "\n{} {}: {SIZE} x {SIZE}, one row; ms: the file as it is / as Cotensor loads it; - is refused",
        engine.name(),
        engine.version()
    );
    println!("zero points, activations, bits; groups {GROUPS:?}");
    for (zeros, name) in [(Zeros::None, "none"), (Zeros::Packed, "packed"), (Zeros::Float, "float")] {
        for (level, activations) in [(0, "float32"), (INT8, "int8")] {
            for bits in [2, 3, 4, 8] {
                // Only `cotensor quantize` writes 3 bits, without zero points.
                if bits == 3 && zeros != Zeros::None {
                    continue;
                }
                let cells = GROUPS.map(|group| cell(engine, &Case { size: SIZE, bits, group, zeros, level }, folder));
                println!("{name:6} {activations:7} {bits}: {}", cells.join("  "));
            }
        }
    }
}

fn cell(engine: &dyn Engine, case: &Case, folder: &Path) -> String {
    let path = save(folder, "model.onnx", &model_of(case));
    let own = std::panic::AssertUnwindSafe(|| load_on(engine, &path, &*store()));
    let own = std::panic::catch_unwind(own).ok();
    let show = |ms: Option<f64>| ms.map_or_else(|| "      -".to_owned(), |ms| format!("{ms:7.2}"));
    let file = plain(engine, &path).and_then(|graph| time(&graph, 1, SIZE)).ok();
    format!("{} / {}", show(file), show(own.and_then(|graph| time(&graph, 1, SIZE).ok())))
}

/// The shortest of some runs, in ms.
fn time(graph: &Arc<dyn LoadedGraph>, rows: usize, columns: usize) -> Result<f64> {
    let x = noise(rows * columns, 4);
    let started = Instant::now();
    let mut shortest = f64::INFINITY;
    for run in 0.. {
        let before = Instant::now();
        graph.run_alone(&[("x", TensorRef::f32(&[rows, columns], &x)?)], &["y"])?;
        // The first run warms up.
        if run > 0 {
            shortest = shortest.min(before.elapsed().as_secs_f64() * 1e3);
        }
        if run > 2 && started.elapsed() > Duration::from_millis(if columns == LARGE { 1000 } else { 60 }) {
            break;
        }
    }
    Ok(shortest)
}

fn model_of(case: &Case) -> ModelProto {
    let Case { size, bits, group, zeros, level } = *case;
    let columns = Some(size as i64);
    let graph = |node, initializer| GraphProto {
        node: vec![node],
        initializer,
        input: vec![value("x", DataType::FLOAT, &[None, columns])],
        output: vec![value("y", DataType::FLOAT, &[None, columns])],
        value_info: vec![],
    };
    if bits == 32 {
        let matrix = f32_tensor("matrix", &[size as i64; 2], &noise(size * size, 3));
        return model(graph(node("MatMul", &["x", "matrix"], &["y"], vec![]), vec![matrix]));
    }
    let groups = size / group;
    let bytes = |count: usize| noise(count, 3).iter().map(|value| (value * 127.0) as i8 as u8).collect::<Vec<u8>>();
    let dims = |last: &[usize]| last.iter().map(|&dim| dim as i64).collect::<Vec<i64>>();
    let mut initializer = vec![
        raw_tensor("codes", DataType::UINT8, &dims(&[size, groups, group * bits / 8]), bytes(size * size * bits / 8)),
        f32_tensor("scales", &dims(&[size, groups]), &noise(size * groups, 6)),
    ];
    let mut inputs = vec!["x", "codes", "scales"];
    let in_row = (groups * bits).div_ceil(8);
    match zeros {
        Zeros::None => {}
        Zeros::Packed => {
            initializer.push(raw_tensor("zeros", DataType::UINT8, &dims(&[size, in_row]), bytes(size * in_row)));
        }
        Zeros::Float => initializer.push(f32_tensor("zeros", &dims(&[size, groups]), &noise(size * groups, 7))),
    }
    if zeros != Zeros::None {
        inputs.push("zeros");
    }
    let attributes = [("K", size), ("N", size), ("bits", bits), ("block_size", group)];
    let mut attributes = attributes.map(|(name, value)| int_attribute(name, value as i64)).to_vec();
    attributes.push(int_attribute("accuracy_level", level));
    let domain = Some(if bits == 3 { "cotensor" } else { "com.microsoft" }.to_owned());
    let product = NodeProto { domain: domain.clone(), ..node("MatMulNBits", &inputs, &["y"], attributes) };
    let mut whole = model(graph(product, initializer));
    for domain in [domain, Some("com.microsoft".to_owned())] {
        if !whole.opset_import.iter().any(|set| set.domain == domain) {
            whole.opset_import.push(OperatorSetIdProto { domain, version: Some(1) });
        }
    }
    whole
}
