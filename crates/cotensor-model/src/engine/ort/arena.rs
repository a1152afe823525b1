//! The arena from which all sessions of the process allocate.

use super::native::{Session, SessionOptions, Tensor, share_arena};
use ort::editor::{Graph, Model, Node, ONNX_DOMAIN, Opset};
use ort::environment::Environment;
use ort::value::{Outlet, Shape, SymbolicDimensions, TensorElementType, ValueType};

/// The operator set of the graph that returns memory. Every supported release knows it.
const OPERATOR_SET: u32 = 17;

/// Makes the sessions that are built later share one arena.
pub(super) fn share(environment: &Environment) {
    // If another user of the library in this process has registered an arena, the sessions share that one.
    let _ = share_arena(environment);
}

/// Returns the free memory of the arena to the allocator, by a run of the smallest graph: onnxruntime returns memory at the end of runs
/// only. A run of a model that did so would take its pages from the next one.
pub(super) fn return_free_memory(environment: &Environment) -> ort::Result<()> {
    let number = |name: &str| {
        let (ty, shape) = (TensorElementType::Uint8, Shape::new([1]));
        Outlet::new(name, ValueType::Tensor { ty, shape, dimension_symbols: SymbolicDimensions::empty(1) })
    };
    let mut graph = Graph::new()?;
    graph.set_inputs([number("x")])?;
    graph.set_outputs([number("y")])?;
    graph.add_node(Node::new("Identity", ONNX_DOMAIN, "copy", ["x"], ["y"], [])?)?;
    let mut model = Model::new([Opset::new(ONNX_DOMAIN, OPERATOR_SET)?])?;
    model.set_graph(graph)?;
    let session =
        Session::shrinking(environment, &SessionOptions { threads: Some(1), ..SessionOptions::default() }, model)?;
    let (x, mut y) = ([0], [0]);
    let input = Tensor::read(TensorElementType::Uint8, &[1], &x)?;
    let output = Tensor::write(TensorElementType::Uint8, &[1], &mut y)?;
    session.run(&[(c"x", &input)], vec![(c"y", Some(output))]).map(drop)
}
