//! Reads the scale and the bias that a graph applies to a matrix product: the logits of CLIP and its relatives.

use super::onnx::Graph;
use super::proto::{dtype_of, operator, with_bytes};
use cotensor_core::DType;
use cotensor_core::elements::to_f32;
use rten_onnx::onnx::{GraphProto, NodeProto, TensorProto};

impl Graph {
    /// The numbers `(a, b)` of an output that is `a * x + b`, where `x` is a matrix product. `None` for an output of
    /// another form, or when the numbers are not constants of the graph.
    pub fn scale_and_bias(&self, output: &str) -> Option<(f32, f32)> {
        let graph = self.graph();
        let (mut scale, mut bias) = (1.0, 0.0);
        let mut name = output;
        // Each step leads to an earlier node. A graph with a circle has at most this many steps without a repetition.
        for _ in 0..=graph.node.len() {
            let node = maker(graph, name)?;
            let inputs = || node.input.iter().map(String::as_str);
            match operator(node) {
                "MatMul" => return Some((scale, bias)),
                "Identity" | "Transpose" | "Cast" => name = node.input.first()?,
                operator @ ("Mul" | "Add") => {
                    let (at, number) =
                        inputs().enumerate().find_map(|(at, name)| Some((at, number(graph, name, 0)?)))?;
                    match operator {
                        "Mul" => scale *= number,
                        _ => bias += scale * number,
                    }
                    name = inputs().enumerate().find(|(other, _)| *other != at)?.1;
                }
                _ => return None,
            }
        }
        None
    }
}

/// The most nodes between a number and the initializer that it is made of.
const DEPTH_MAX: usize = 8;

/// The number that a value holds, if it is one constant number or the exponential of one.
fn number(graph: &GraphProto, name: &str, depth: usize) -> Option<f32> {
    let known = |tensor: &&TensorProto| tensor.name.as_deref() == Some(name);
    if let Some(tensor) = graph.initializer.iter().find(known) {
        return element(tensor);
    }
    let node = maker(graph, name).filter(|_| depth < DEPTH_MAX)?;
    let input = || number(graph, node.input.first()?, depth + 1);
    match operator(node) {
        "Constant" => element(node.attribute.iter().find_map(|attribute| attribute.t.as_ref())?),
        "Exp" => input().map(f32::exp),
        "Identity" | "Cast" | "Reshape" | "Squeeze" | "Unsqueeze" => input(),
        _ => None,
    }
}

/// The only element of a floating-point tensor.
fn element(tensor: &TensorProto) -> Option<f32> {
    let dtype = dtype_of(tensor.data_type).ok()?;
    let is_float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    with_bytes(tensor, |bytes| (is_float && bytes.len() == dtype.size_bytes()).then(|| to_f32(dtype, bytes)[0]))
}

fn maker<'g>(graph: &'g GraphProto, name: &str) -> Option<&'g NodeProto> {
    graph.node.iter().find(|node| node.output.iter().any(|output| output == name))
}
