use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Adds one to its input, and counts its runs.
struct AddOne {
    runs: AtomicUsize,
}

impl LoadedGraph for AddOne {
    fn run(&self, inputs: &[(&str, TensorRef<'_>)], outputs: &[&str], _: &dyn OutputAllocator) -> Result<Vec<Output>> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let (shape, values) = (inputs[0].1.shape(), inputs[0].1.typed::<f32>()?);
        let add = |_| Array::f32(shape, values.iter().map(|value| value + 1.0).collect()).map(Output::from);
        outputs.iter().map(add).collect()
    }

    fn precision(&self) -> DType {
        DType::F32
    }

    fn inputs(&self) -> &[Port] {
        &[]
    }

    fn outputs(&self) -> &[Port] {
        &[]
    }
}

fn memoized(recorder: Option<Arc<Recorder>>) -> (Arc<AddOne>, Memoized) {
    let graph = Arc::new(AddOne { runs: AtomicUsize::new(0) });
    let inner = Arc::clone(&graph) as Arc<dyn LoadedGraph>;
    let path = PathBuf::from("add.onnx");
    (graph, Memoized { path, graph: inner, results: Mutex::default(), recorder })
}

#[test]
fn result_is_computed_once_for_equal_inputs_and_outputs() {
    let (graph, memoized) = memoized(None);
    let run = |values: &[f32], outputs: &[&str]| {
        memoized.run_alone(&[("x", TensorRef::f32(&[values.len()], values).unwrap())], outputs).unwrap()
    };
    assert_eq!(run(&[1.0, f32::NAN], &["y"])[0].as_f32().unwrap()[0], 2.0);
    run(&[1.0, f32::NAN], &["y"]);
    assert_eq!(graph.runs.load(Ordering::Relaxed), 1);
    for (values, outputs) in [(&[1.0, 2.0][..], &["y"][..]), (&[1.0, f32::NAN], &["z"]), (&[1.0], &["y"])] {
        run(values, outputs);
    }
    assert_eq!(graph.runs.load(Ordering::Relaxed), 4);
    // Steps of a loop are not memoized.
    for _ in 0..2 {
        run(&[1.0], &["y", "z"]);
    }
    assert_eq!(graph.runs.load(Ordering::Relaxed), 6);
}

#[test]
fn recorded_input_names_the_run_that_produced_it() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Arc::new(Recorder::new(folder.path()));
    let (_, memoized) = memoized(Some(Arc::clone(&recorder)));
    let first = memoized.run_alone(&[("x", TensorRef::f32(&[2], &[1.0, 2.0]).unwrap())], &["y"]).unwrap();
    memoized.run_alone(&[("x", (&first[0]).into())], &["y"]).unwrap();
    recorder.finish().unwrap();
    let plan: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join(crate::by_hand::record::PLAN_FILE)).unwrap()).unwrap();
    assert_eq!(plan[0]["inputs"]["x"], serde_json::json!({"file": "0.in.x", "dtype": "float32", "shape": [2]}));
    assert_eq!(plan[1]["inputs"]["x"], serde_json::json!({"run": 0, "output": "y"}));
    let expected = folder.path().join(plan[1]["expected"]["y"]["file"].as_str().unwrap());
    assert_eq!(std::fs::read(expected).unwrap(), [3f32, 4.0].map(f32::to_ne_bytes).concat());
}
