//! Loading and dropping a graph a hundred times releases all memory. A program of its own: it measures the whole
//! process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "the other test program uses the rest")]
#[path = "integration/support/onnx.rs"]
mod onnx;

use cotensor_core::ErrorKind;
use cotensor_model::engine::{self, FileMode};
use cotensor_store::{MemoryControl, StoreReports};
use onnx::*;
use std::path::Path;

/// A leak of one mapping for each load is a hundred; threads that end may leave a few.
const MAPPINGS_MAX: usize = 32;

/// Rows of the weight, 4 MiB in total: a hundred leaked copies are visible.
const ROWS: usize = 32 * 1024;

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn hundred_loads_release_all_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = embedded_linear();
    let graph = model.graph.as_mut().unwrap();
    graph.initializer[0] = f32_tensor("w", &[ROWS as i64, SIZE as i64], &noise(ROWS * SIZE, 1));
    graph.node[0] = node("Gather", &["w", "rows"], &["product"], vec![]);
    graph.input[0] = value("rows", rten_onnx::onnx::DataType::INT64, &[None]);
    let path = save(folder.path(), "model.onnx", &model);
    drop(model);

    for engine in engines() {
        let name = engine.name();
        check(name, &path);
        std::fs::rename(&path, folder.path().join("moved")).unwrap();
        assert_eq!(engine.load_file(&path, FileMode::Read).map(drop).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::rename(folder.path().join("moved"), &path).unwrap();
    }
}

fn check(name: &str, path: &Path) {
    let store = store();
    let open = || {
        // Each engine starts threads, which must end with it.
        let engine = engine::open(name, Some(1)).unwrap();
        for graph in [load_on(&*engine, path, &*store), engine.load_file(path, FileMode::Map).unwrap()] {
            let rows = cotensor_model::tensor::TensorRef::i64(&[2], &[5, 6]).unwrap();
            assert_eq!(graph.run_alone(&[("rows", rows)], &["y"]).unwrap()[0].shape(), [2, SIZE]);
        }
    };
    for _ in 0..5 {
        open();
    }
    store.optimize();
    let (mappings_before, resident_before) = (mappings(), resident_bytes());
    for _ in 0..100 {
        open();
    }
    store.optimize();
    let (mappings_after, resident_after) = (mappings(), resident_bytes());
    assert!(
        mappings_after <= mappings_before + MAPPINGS_MAX,
        "{name}: {mappings_before} mappings became {mappings_after}"
    );
    let grown = resident_after.saturating_sub(resident_before);
    assert!(grown < 32 << 20, "{name}: {grown} bytes more than before");
    assert_eq!(store.stats().memory_usage_bytes, 0);
}
