//! The memory of a run returns to the system. A program of its own: it measures the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "the other test program uses the rest")]
#[path = "integration/support/onnx.rs"]
mod onnx;

use cotensor_core::sync::lock;
use cotensor_memory::process::{anonymous_rss_bytes, return_memory, trim_heap};
use cotensor_model::engine::{Keep, LoadedGraph, OwnMemory, RunState};
use cotensor_model::tensor::{Array, TensorRef};
use onnx::*;
use rten_onnx::onnx::{DataType, GraphProto};
use std::sync::Mutex;

/// The tests measure the process, so one runs at a time.
static MEASURING: Mutex<()> = Mutex::new(());

/// What a process may keep beside a fifth of its memory.
const KEPT_BYTES_MAX: u64 = 16 << 20;

/// `y = softmax(x · xᵀ) · x`: attention, whose memory is proportional to the squared number of rows.
fn attention() -> GraphProto {
    GraphProto {
        node: vec![
            node("Transpose", &["x"], &["turned"], vec![]),
            node("MatMul", &["x", "turned"], &["scores"], vec![]),
            node("Softmax", &["scores"], &["weights"], vec![int_attribute("axis", -1)]),
            node("MatMul", &["weights", "x"], &["mixed"], vec![]),
            node("Add", &["mixed", "b"], &["y"], vec![]),
        ],
        initializer: vec![f32_tensor("b", &[SIZE as i64], &noise(SIZE, 2))],
        input: vec![value("x", DataType::FLOAT, &[None, Some(SIZE as i64)])],
        output: vec![value("y", DataType::FLOAT, &[None, Some(SIZE as i64)])],
        value_info: vec![],
    }
}

fn run(graph: &dyn LoadedGraph, rows: usize) -> Array {
    let input = Array::f32([rows, SIZE], noise(rows * SIZE, 3)).unwrap();
    graph.run_alone(&[("x", TensorRef::from(&input))], &["y"]).unwrap().remove(0)
}

#[test]
fn memory_of_a_long_input_returns_after_the_run() {
    let _alone = lock(&MEASURING);
    let used = || anonymous_rss_bytes(std::process::id()).unwrap();
    for engine in engines() {
        let folder = tempfile::tempdir().unwrap();
        let store = store();
        let graph = load_on(&*engine, &save(folder.path(), "model.onnx", &model(attention())), &*store);
        run(&*graph, 16);
        trim_heap();
        let before = used();
        // Each matrix has 137 MiB.
        assert_eq!(run(&*graph, 6000).shape(), [6000, SIZE]);
        let after = used();
        let limit = before + before / 5 + KEPT_BYTES_MAX;
        assert!(after <= limit, "{}: {after} bytes after the run, {before} before", engine.name());
    }
}

/// `present = past + x`, row by row behind the past: the cache of a decoder.
fn cache() -> GraphProto {
    let rows = |name: &str| value(name, DataType::FLOAT, &[None, Some(SIZE as i64)]);
    GraphProto {
        node: vec![
            node("Add", &["x", "b"], &["row"], vec![]),
            node("Concat", &["past", "row"], &["present"], vec![int_attribute("axis", 0)]),
            node("ReduceSum", &["x"], &["y"], vec![]),
        ],
        initializer: vec![f32_tensor("b", &[SIZE as i64], &noise(SIZE, 2))],
        input: vec![rows("x"), rows("past")],
        output: vec![value("y", DataType::FLOAT, &[None, None]), rows("present")],
        value_info: vec![],
    }
}

#[test]
fn memory_of_a_cache_returns_when_no_request_runs() {
    let _alone = lock(&MEASURING);
    let used = || anonymous_rss_bytes(std::process::id()).unwrap();
    for engine in engines() {
        let folder = tempfile::tempdir().unwrap();
        let store = store();
        let graph = load_on(&*engine, &save(folder.path(), "model.onnx", &model(cache())), &*store);
        let decode = |rows: usize| {
            let keep = Keep { output: "present", input: "past", rows_max: Some(rows) };
            let (x, past) =
                (Array::f32([rows, SIZE], noise(rows * SIZE, 3)).unwrap(), Array::f32([0, SIZE], vec![]).unwrap());
            let inputs = [("x", TensorRef::from(&x)), ("past", TensorRef::from(&past))];
            let mut state = RunState::new();
            graph.run_keeping(&inputs, &["y"], &mut state, &[keep], &OwnMemory::default()).unwrap();
            assert!(state.has("past"));
        };
        decode(16);
        trim_heap();
        let before = used();
        // 128 MiB.
        decode((32 << 20) / SIZE);
        return_memory();
        let after = used();
        let limit = before + before / 5 + KEPT_BYTES_MAX;
        assert!(after <= limit, "{}: {after} bytes after the decoding, {before} before", engine.name());
    }
}
