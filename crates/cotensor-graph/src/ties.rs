//! `ArgMax` and `ArgMin` for an engine that takes the last of equal elements. ONNX requires the first one. Such an engine refuses
//! `select_last_index`.

use super::build::Builder;
use super::proto::{integer, operator};
use rten_onnx::onnx::{ModelProto, NodeProto};

/// Makes each such node read its axis in reverse: the last of equal elements there is the first one. The index is
/// `length - 1 - index`.
pub(super) fn reverse(model: &mut ModelProto) {
    let mut build = Builder::new(model);
    let Some(graph) = model.graph.as_mut() else { return };
    build.replace(graph, &mut |build, node| {
        let ("ArgMax" | "ArgMin", [input], [output]) = (operator(node), &node.input[..], &node.output[..]) else {
            return false;
        };
        let own = |part: &str| format!("{output}.{part}");
        let axis = integer(node, "axis").unwrap_or(0);
        // The first element that is read, and the step.
        let back = build.ints(own("back"), &[-1]);
        let end = build.ints(own("end"), &[i64::MIN]);
        let axes = build.ints(own("axes"), &[axis]);
        let reversed = build.op("Slice", &[input, &back, &end, &axes, &back], own("reversed"));
        let index = build.fresh(own("index"));
        build.nodes.push(NodeProto { input: vec![reversed], output: vec![index.clone()], ..node.clone() });
        let shape = build.op("Shape", &[input], own("shape"));
        let axis = build.int(own("axis"), axis);
        let length = build.op("Gather", &[&shape, &axis], own("length"));
        let one = build.int(own("one"), 1);
        let last = build.op("Sub", &[&length, &one], own("last"));
        build.give("Sub", &[&last, &index], output, Vec::new());
        true
    });
}
