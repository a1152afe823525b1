//! `ArgMax` and `ArgMin` for an engine that takes the last of equal elements. ONNX requires the first one. Such an engine refuses
//! `select_last_index`.

use super::proto::{integer, normal_domain};
use rten_onnx::onnx::{DataType, GraphProto, NodeProto, TensorProto};

/// Whether the node gives the index of an element.
fn gives_index(node: &NodeProto) -> bool {
    matches!(node.op_type.as_deref(), Some("ArgMax" | "ArgMin")) && normal_domain(node.domain.as_deref()).is_empty()
}

/// Makes each such node read its axis in reverse: the last of equal elements there is the first one. The index is
/// `length - 1 - index`.
pub(super) fn reverse(graph: &mut GraphProto) {
    for mut node in std::mem::take(&mut graph.node) {
        for subgraph in node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_mut()) {
            reverse(subgraph);
        }
        let (input, output) = match (node.input.as_slice(), node.output.as_slice()) {
            ([input], [output]) if gives_index(&node) => (input.clone(), output.clone()),
            _ => {
                graph.node.push(node);
                continue;
            }
        };
        let axis = integer(&node, "axis").unwrap_or(0);
        let own = |part: &str| format!("{output}/{part} of ties");
        for (part, dims, value) in [
            ("start", vec![1], -1),
            ("end", vec![1], i64::MIN),
            ("axes", vec![1], axis),
            ("axis", vec![], axis),
            ("one", vec![], 1),
        ] {
            graph.initializer.push(constant(own(part), dims, value));
        }
        let slice = [input.clone(), own("start"), own("end"), own("axes"), own("start")];
        node.input = vec![own("reversed")];
        node.output = vec![own("index")];
        graph.node.extend([
            operator("Slice", slice.into(), own("reversed")),
            node,
            operator("Shape", vec![input], own("shape")),
            operator("Gather", vec![own("shape"), own("axis")], own("length")),
            operator("Sub", vec![own("length"), own("one")], own("last")),
            operator("Sub", vec![own("last"), own("index")], output),
        ]);
    }
}

fn operator(kind: &str, input: Vec<String>, output: String) -> NodeProto {
    NodeProto {
        op_type: Some(kind.into()),
        name: Some(output.clone()),
        input,
        output: vec![output],
        ..NodeProto::default()
    }
}

fn constant(name: String, dims: Vec<i64>, value: i64) -> TensorProto {
    TensorProto {
        name: Some(name),
        dims,
        data_type: Some(DataType::INT64),
        int64_data: vec![value],
        ..TensorProto::default()
    }
}
