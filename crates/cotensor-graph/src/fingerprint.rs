//! The identity of a graph's computation.
//!
//! Values are numbered in the order of their definition, so the fingerprint does not depend on their names. A use of a
//! constant is hashed as its content, so the fingerprint depends neither on the order of initializers nor on the
//! encoding of their bytes.

use super::proto::{dtype_of, normal_domain, tensor_bytes};
use super::types::{Port, Weight};
use cotensor_core::{ContentHash, Hasher};
use rten_onnx::onnx::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto};
use std::collections::HashMap;

/// The meaning of a name.
#[derive(Clone, Copy)]
enum Value {
    /// An input or a node's output.
    Number(u64),
    /// An initializer, by type, shape and content.
    Constant(ContentHash),
}

/// The names of a graph, and of the graphs that contain it.
struct Scope<'a> {
    values: HashMap<&'a str, Value>,
    outer: Option<&'a Scope<'a>>,
}

impl Scope<'_> {
    fn find(&self, name: &str) -> Option<Value> {
        self.values.get(name).copied().or_else(|| self.outer.and_then(|outer| outer.find(name)))
    }
}

pub(super) fn fingerprint(
    model: &ModelProto,
    weights: &[Weight],
    ports: [&[Port]; 2],
    hashes: &[ContentHash],
) -> ContentHash {
    let mut state = GraphHasher { hasher: Hasher::new("cotensor graph v1"), next: 0 };
    let mut opsets: Vec<_> = model
        .opset_import
        .iter()
        .map(|opset| (normal_domain(opset.domain.as_deref()), opset.version.unwrap_or_default()))
        .collect();
    opsets.sort_unstable();
    state.number(opsets.len() as u64);
    for (domain, version) in opsets {
        state.text(domain).number(version as u64);
    }
    let contents = weights.iter().zip(hashes).map(|(weight, hash)| (weight.name.as_str(), *hash)).collect();
    if let Some(graph) = &model.graph {
        state.graph(graph, None, &contents);
    }
    for port in ports.into_iter().flatten() {
        state.text(&port.name);
    }
    state.hasher.finish()
}

struct GraphHasher {
    hasher: Hasher,
    next: u64,
}

impl GraphHasher {
    fn text(&mut self, text: &str) -> &mut Self {
        self.hasher.field(text.as_bytes());
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.hasher.number(number);
        self
    }

    fn optional(&mut self, number: Option<u64>) -> &mut Self {
        match number {
            Some(number) => self.number(1).number(number),
            None => self.number(0),
        }
    }

    fn graph(&mut self, graph: &GraphProto, outer: Option<&Scope<'_>>, contents: &HashMap<&str, ContentHash>) {
        let mut scope = Scope { values: HashMap::new(), outer };
        let inputs = graph.input.iter().filter_map(|input| input.name.as_deref());
        let outputs = graph.node.iter().flat_map(|node| &node.output).map(String::as_str);
        for name in inputs.chain(outputs).filter(|name| !name.is_empty()) {
            scope.values.entry(name).or_insert_with(|| {
                self.next += 1;
                Value::Number(self.next)
            });
        }
        for tensor in &graph.initializer {
            let name = tensor.name.as_deref().unwrap_or_default();
            scope.values.insert(name, Value::Constant(constant(tensor, contents.get(name).copied())));
        }
        self.number(graph.node.len() as u64);
        for node in &graph.node {
            self.node(node, &scope);
        }
        self.values(&graph.input, &scope).values(&graph.output, &scope);
        // Engines choose kernels by the declared types of values, so the types are part of the computation.
        let mut known: Vec<_> = graph.value_info.iter().filter_map(|value| numbered(value, &scope)).collect();
        known.sort_by_key(|(number, _)| *number);
        self.number(known.len() as u64);
        for (number, value) in known {
            self.number(number).value_type(value.r#type.as_ref());
        }
    }

    fn node(&mut self, node: &NodeProto, scope: &Scope<'_>) {
        self.text(node.op_type.as_deref().unwrap_or_default()).text(normal_domain(node.domain.as_deref()));
        for names in [&node.input, &node.output] {
            self.number(names.len() as u64);
            for name in names {
                self.reference(name, scope);
            }
        }
        let mut attributes: Vec<_> = node.attribute.iter().collect();
        attributes.sort_by_key(|attribute| attribute.name.as_deref());
        self.number(attributes.len() as u64);
        for attribute in attributes {
            self.attribute(attribute, scope);
        }
    }

    fn reference(&mut self, name: &str, scope: &Scope<'_>) {
        match scope.find(name) {
            _ if name.is_empty() => self.text("none"),
            Some(Value::Number(number)) => self.text("value").number(number),
            Some(Value::Constant(hash)) => {
                self.text("constant").hasher.field(hash.as_bytes());
                self
            }
            // An undefined value is identified by its name.
            None => self.text("undefined").text(name),
        };
    }

    fn attribute(&mut self, attribute: &AttributeProto, scope: &Scope<'_>) {
        self.text(attribute.name.as_deref().unwrap_or_default());
        self.optional(attribute.r#type.map(|kind| kind.0 as u64));
        self.optional(attribute.f.map(|value| u64::from(value.to_bits())));
        self.optional(attribute.i.map(|value| value as u64));
        self.number(u64::from(attribute.s.is_some())).text(attribute.s.as_deref().unwrap_or_default());
        self.number(attribute.floats.len() as u64);
        for value in &attribute.floats {
            self.number(u64::from(value.to_bits()));
        }
        self.number(attribute.ints.len() as u64);
        for &value in &attribute.ints {
            self.number(value as u64);
        }
        self.number(attribute.strings.len() as u64);
        for value in &attribute.strings {
            self.text(value);
        }
        self.number(u64::from(attribute.t.is_some()));
        if let Some(tensor) = &attribute.t {
            self.hasher.field(constant(tensor, None).as_bytes());
        }
        self.number(u64::from(attribute.g.is_some()));
        if let Some(graph) = &attribute.g {
            self.graph(graph, Some(scope), &HashMap::new());
        }
    }

    /// Inputs or outputs: their values and types.
    fn values(&mut self, values: &[ValueInfoProto], scope: &Scope<'_>) -> &mut Self {
        // Old files list constants as inputs. They do not count.
        let count = values.iter().filter(|value| numbered(value, scope).is_some()).count();
        self.number(count as u64).number(values.len() as u64 - count as u64);
        for value in values {
            self.reference(value.name.as_deref().unwrap_or_default(), scope);
            self.value_type(value.r#type.as_ref());
        }
        self
    }

    /// Element type and fixed dimensions, without the names of varying dimensions.
    fn value_type(&mut self, value: Option<&TypeProto>) {
        self.number(u64::from(value.is_some_and(|value| value.sequence.is_some())));
        let tensor = value.and_then(|value| value.tensor_type.as_ref());
        self.optional(tensor.and_then(|tensor| tensor.elem_type).map(|dtype| dtype.0 as u64));
        let dims = tensor.and_then(|tensor| tensor.shape.as_ref()).map(|shape| &shape.dim);
        self.optional(dims.map(|dims| dims.len() as u64));
        for dim in dims.into_iter().flatten() {
            self.optional(dim.dim_value.map(|value| value as u64));
        }
    }
}

/// A value that is not a constant, with its number.
fn numbered<'v>(value: &'v ValueInfoProto, scope: &Scope<'_>) -> Option<(u64, &'v ValueInfoProto)> {
    match scope.find(value.name.as_deref()?)? {
        Value::Number(number) => Some((number, value)),
        Value::Constant(_) => None,
    }
}

/// The bytes that decide the elements of a tensor. Types that no weight has (of 4 bits, complex numbers) are not decoded: their
/// data fields as the file has them.
fn content_of(tensor: &TensorProto) -> Vec<u8> {
    if tensor.raw_data.is_some() || dtype_of(tensor.data_type).is_ok() {
        return tensor_bytes(tensor);
    }
    let TensorProto { int32_data, float_data, double_data, int64_data, .. } = tensor;
    let integers = int32_data.iter().flat_map(|value| value.to_le_bytes());
    let bytes = integers.chain(float_data.iter().flat_map(|value| value.to_le_bytes()));
    let bytes = bytes.chain(double_data.iter().flat_map(|value| value.to_le_bytes()));
    bytes.chain(int64_data.iter().flat_map(|value| value.to_le_bytes())).collect()
}

/// Type, shape and content of a tensor. `content` is its hash if the bytes are in another file.
fn constant(tensor: &TensorProto, content: Option<ContentHash>) -> ContentHash {
    let mut hasher = Hasher::new("cotensor constant v1");
    hasher.number(tensor.data_type.map_or(0, |dtype| dtype.0) as u64).number(tensor.dims.len() as u64);
    for &dim in &tensor.dims {
        hasher.number(dim as u64);
    }
    hasher.field(content.unwrap_or_else(|| ContentHash::of(&content_of(tensor))).as_bytes());
    hasher.finish()
}
