//! New nodes and constants of a graph.

use crate::proto::{operator, tensor_bytes};
use rten_onnx::onnx::{AttributeProto, AttributeType, DataType, GraphProto, ModelProto, NodeProto, TensorProto};
use std::cell::RefCell;

/// Collects nodes, which have the names of their outputs, and the constants that they read.
pub(super) struct Builder {
    /// The version of ONNX's operators.
    opset: i64,
    pub(super) nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
}

impl Builder {
    pub(super) fn new(model: &ModelProto) -> Self {
        let own = model.opset_import.iter().find(|set| matches!(set.domain.as_deref(), None | Some("" | "ai.onnx")));
        let opset = own.and_then(|set| set.version).unwrap_or_default();
        Self { opset, nodes: Vec::new(), constants: Vec::new() }
    }

    /// Calls `replace` with each node of a graph and its subgraphs. A node for which it gives true goes; those that it added take the
    /// place. Constants are added to the graph.
    pub(super) fn replace(
        &mut self,
        graph: &mut GraphProto,
        replace: &mut dyn FnMut(&mut Self, &mut NodeProto) -> bool,
    ) {
        self.replace_nodes(graph, replace);
        for constant in self.constants.drain(..) {
            // Branches may have nodes of one name, whose constants are equal.
            let same =
                |known: &TensorProto| known.name == constant.name && tensor_bytes(known) == tensor_bytes(&constant);
            if !graph.initializer.iter().any(same) {
                graph.initializer.push(constant);
            }
        }
    }

    fn replace_nodes(&mut self, graph: &mut GraphProto, replace: &mut dyn FnMut(&mut Self, &mut NodeProto) -> bool) {
        let before = std::mem::take(&mut self.nodes);
        for mut node in std::mem::take(&mut graph.node) {
            for subgraph in node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_mut()) {
                self.replace_nodes(subgraph, replace);
            }
            if !replace(self, &mut node) {
                self.nodes.push(node);
            }
        }
        graph.node = std::mem::replace(&mut self.nodes, before);
    }

    /// Adds a node and returns its output.
    pub(super) fn op(&mut self, kind: &str, inputs: &[&str], output: String) -> String {
        self.op_with(kind, inputs, output, Vec::new())
    }

    pub(super) fn op_with(
        &mut self,
        kind: &str,
        inputs: &[&str],
        output: String,
        attribute: Vec<AttributeProto>,
    ) -> String {
        self.nodes.push(NodeProto {
            op_type: Some(kind.to_owned()),
            name: Some(output.clone()),
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.clone()],
            attribute,
            ..NodeProto::default()
        });
        output
    }

    /// `float32` elements.
    pub(super) fn as_float(&mut self, input: &str, output: String) -> String {
        self.op_with("Cast", &[input], output, vec![int("to", i64::from(DataType::FLOAT.0))])
    }

    /// A constant of 64-bit integers, one-dimensional.
    pub(super) fn ints(&mut self, name: String, values: &[i64]) -> String {
        self.constants.push(TensorProto {
            name: Some(name.clone()),
            dims: vec![values.len() as i64],
            data_type: Some(DataType::INT64),
            int64_data: values.to_vec(),
            ..TensorProto::default()
        });
        name
    }

    /// A `float32` scalar.
    pub(super) fn float(&mut self, name: String, value: f32) -> String {
        self.constants.push(TensorProto {
            name: Some(name.clone()),
            data_type: Some(DataType::FLOAT),
            raw_data: Some(RefCell::new(value.to_le_bytes().to_vec())),
            ..TensorProto::default()
        });
        name
    }

    /// The dimensions of a value but the last one.
    pub(super) fn shape_without_last(&mut self, input: &str, prefix: &str) -> String {
        let shape = self.op("Shape", &[input], format!("{prefix}.all"));
        if self.opset < 10 {
            let ints = |name: &str, value| AttributeProto {
                name: Some(name.into()),
                ints: vec![value],
                r#type: Some(AttributeType::INTS),
                ..AttributeProto::default()
            };
            let attributes = vec![ints("starts", 0), ints("ends", -1)];
            return self.op_with("Slice", &[&shape], prefix.to_owned(), attributes);
        }
        let [start, end] =
            [("start", 0), ("end", -1)].map(|(part, value)| self.ints(format!("{prefix}.{part}"), &[value]));
        self.op("Slice", &[&shape, &start, &end], prefix.to_owned())
    }

    /// The sum over the last axis, which goes.
    pub(super) fn sum_last(&mut self, input: &str, output: String) -> String {
        let keep = int("keepdims", 0);
        if self.opset < 13 {
            let axes = AttributeProto {
                name: Some("axes".into()),
                ints: vec![-1],
                r#type: Some(AttributeType::INTS),
                ..AttributeProto::default()
            };
            return self.op_with("ReduceSum", &[input], output, vec![axes, keep]);
        }
        let axes = self.ints(format!("{output}.axes"), &[-1]);
        self.op_with("ReduceSum", &[input, &axes], output, vec![keep])
    }
}

pub(super) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        i: Some(value),
        r#type: Some(AttributeType::INT),
        ..AttributeProto::default()
    }
}

/// An integer attribute of a node.
pub(super) fn int_of(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))?.i
}

/// A number attribute of a node, 1 by default.
fn one_by_default(node: &NodeProto, name: &str) -> f32 {
    let found = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name));
    found.and_then(|attribute| attribute.f).unwrap_or(1.0)
}

/// Whether a node is a `Gemm` that is a product and at most a sum.
pub(super) fn is_plain_gemm(node: &NodeProto) -> bool {
    operator(node) == "Gemm"
        && int_of(node, "transA").unwrap_or(0) == 0
        && one_by_default(node, "alpha") == 1.0
        && one_by_default(node, "beta") == 1.0
}
