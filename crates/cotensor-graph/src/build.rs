//! New nodes and constants of a graph.

use super::proto::{definitions, normal_domain};
use cotensor_core::DType;
use rten_onnx::onnx::{AttributeProto, AttributeType, DataType, GraphProto, ModelProto, NodeProto, TensorProto};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// Collects nodes, which have the names of their outputs, and the constants that they read. New values have names that no value of the
/// graph and its subgraphs has.
pub(super) struct Builder {
    /// The version of ONNX's operators.
    opset: i64,
    pub(super) nodes: Vec<NodeProto>,
    /// Nodes at the start of the main graph.
    first: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    taken: HashSet<String>,
    /// The number of the graph or subgraph whose nodes are visited, and of those before.
    scope: usize,
    scopes: usize,
    /// Values that several nodes of a graph read, by its number and what they are.
    shared: HashMap<(usize, String), String>,
}

impl Builder {
    pub(super) fn new(model: &ModelProto) -> Self {
        let own = model.opset_import.iter().find(|set| normal_domain(set.domain.as_deref()).is_empty());
        let opset = own.and_then(|set| set.version).unwrap_or_default();
        let mut taken = HashSet::new();
        if let Some(graph) = &model.graph {
            taken.extend(definitions(graph).into_iter().map(str::to_owned));
            taken.extend(graph.input.iter().filter_map(|input| input.name.clone()));
        }
        Self {
            opset,
            nodes: Vec::new(),
            first: Vec::new(),
            constants: Vec::new(),
            taken,
            scope: 0,
            scopes: 0,
            shared: HashMap::new(),
        }
    }

    /// A name that no value has: `name`, or one that begins so.
    pub(super) fn fresh(&mut self, name: String) -> String {
        let numbered = (1..).map(|number| format!("{name}.{number}"));
        let found = std::iter::once(name.clone()).chain(numbered).find(|name| !self.taken.contains(name));
        let found = found.expect("some number is free");
        self.taken.insert(found.clone());
        found
    }

    /// Calls `replace` with each node of a graph and its subgraphs. A node for which it gives true goes; those that it added take the
    /// place. Constants are added to the graph.
    pub(super) fn replace(
        &mut self,
        graph: &mut GraphProto,
        replace: &mut dyn FnMut(&mut Self, &mut NodeProto) -> bool,
    ) {
        self.replace_nodes(graph, replace);
        let mut nodes = std::mem::take(&mut self.first);
        nodes.append(&mut graph.node);
        graph.node = nodes;
        graph.initializer.append(&mut self.constants);
    }

    fn replace_nodes(&mut self, graph: &mut GraphProto, replace: &mut dyn FnMut(&mut Self, &mut NodeProto) -> bool) {
        let before = std::mem::take(&mut self.nodes);
        self.scopes += 1;
        let outer = std::mem::replace(&mut self.scope, self.scopes);
        for mut node in std::mem::take(&mut graph.node) {
            for subgraph in node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_mut()) {
                self.replace_nodes(subgraph, replace);
            }
            if !replace(self, &mut node) {
                self.nodes.push(node);
            }
        }
        graph.node = std::mem::replace(&mut self.nodes, before);
        self.scope = outer;
    }

    /// The value `key`, which `make` adds for the first node of this graph that reads it.
    pub(super) fn once(&mut self, key: String, make: impl FnOnce(&mut Self) -> String) -> String {
        let key = (self.scope, key);
        if let Some(known) = self.shared.get(&key) {
            return known.clone();
        }
        let made = make(self);
        self.shared.insert(key, made.clone());
        made
    }

    /// As [`once`](Self::once), for a constant of the main graph, which all graphs read.
    pub(super) fn once_for_all(&mut self, name: String, make: impl FnOnce(&mut Self, String) -> String) -> String {
        let scope = std::mem::replace(&mut self.scope, 0);
        let made = self.once(name.clone(), |build| make(build, name));
        self.scope = scope;
        made
    }

    /// Adds the nodes of `make` at the start of the main graph.
    pub(super) fn at_the_start<R>(&mut self, make: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::take(&mut self.nodes);
        let made = make(self);
        self.first.append(&mut std::mem::replace(&mut self.nodes, before));
        made
    }

    /// Adds a node with a new value, and returns the name of that.
    pub(super) fn op(&mut self, kind: &str, inputs: &[&str], name: String) -> String {
        self.op_with(kind, inputs, name, Vec::new())
    }

    pub(super) fn op_with(
        &mut self,
        kind: &str,
        inputs: &[&str],
        name: String,
        attribute: Vec<AttributeProto>,
    ) -> String {
        let name = self.fresh(name);
        self.give(kind, inputs, &name, attribute);
        name
    }

    /// Adds a node that gives a value of the graph.
    pub(super) fn give(&mut self, kind: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>) {
        self.nodes.push(NodeProto {
            op_type: Some(kind.to_owned()),
            name: Some(output.to_owned()),
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            attribute,
            ..NodeProto::default()
        });
    }

    /// `float32` elements.
    pub(super) fn as_float(&mut self, input: &str, output: String) -> String {
        self.op_with("Cast", &[input], output, vec![int("to", i64::from(DataType::FLOAT.0))])
    }

    /// `float32` elements of a value of a known type: itself, if it has them.
    pub(super) fn as_float_from(&mut self, dtype: DType, input: &str, output: String) -> String {
        if dtype == DType::F32 { input.to_owned() } else { self.as_float(input, output) }
    }

    /// A constant of 64-bit integers, one-dimensional.
    pub(super) fn ints(&mut self, name: String, values: &[i64]) -> String {
        let content =
            TensorProto { data_type: Some(DataType::INT64), int64_data: values.to_vec(), ..TensorProto::default() };
        self.constant(name, &[values.len()], content)
    }

    /// A scalar of 64-bit integers.
    pub(super) fn int(&mut self, name: String, value: i64) -> String {
        let content =
            TensorProto { data_type: Some(DataType::INT64), int64_data: vec![value], ..TensorProto::default() };
        self.constant(name, &[], content)
    }

    /// A `float32` scalar.
    pub(super) fn float(&mut self, name: String, value: f32) -> String {
        self.floats(name, &[], &[value])
    }

    /// A `float32` constant.
    pub(super) fn floats(&mut self, name: String, dims: &[usize], values: &[f32]) -> String {
        let content = TensorProto {
            data_type: Some(DataType::FLOAT),
            raw_data: Some(RefCell::new(values.iter().flat_map(|value| value.to_le_bytes()).collect())),
            ..TensorProto::default()
        };
        self.constant(name, dims, content)
    }

    fn constant(&mut self, name: String, dims: &[usize], content: TensorProto) -> String {
        let name = self.fresh(name);
        let dims = dims.iter().map(|&dim| dim as i64).collect();
        self.constants.push(TensorProto { name: Some(name.clone()), dims, ..content });
        name
    }

    /// The dimensions of a value but the last one.
    pub(super) fn shape_without_last(&mut self, input: &str, prefix: &str) -> String {
        let shape = self.op("Shape", &[input], format!("{prefix}.all"));
        self.slice(&shape, [0, -1], 0, prefix.to_owned())
    }

    /// The elements from a start to an end of an axis.
    pub(super) fn slice(&mut self, input: &str, [start, end]: [i64; 2], axis: i64, output: String) -> String {
        let parts = [("starts", start), ("ends", end), ("axes", axis)];
        if self.opset < 10 {
            return self.op_with("Slice", &[input], output, parts.map(|(name, value)| ints(name, &[value])).into());
        }
        let [start, end, axis] = parts.map(|(part, value)| self.ints(format!("{output}.{part}"), &[value]));
        self.op("Slice", &[input, &start, &end, &axis], output)
    }

    /// The sum over the last axis, which goes.
    pub(super) fn sum_last(&mut self, input: &str, output: String) -> String {
        let keep = int("keepdims", 0);
        if self.opset < 13 {
            return self.op_with("ReduceSum", &[input], output, vec![ints("axes", &[-1]), keep]);
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

pub(super) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        ints: values.to_vec(),
        r#type: Some(AttributeType::INTS),
        ..AttributeProto::default()
    }
}
