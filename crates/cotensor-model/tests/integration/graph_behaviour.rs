//! Operators that join rows or draw random numbers, found in graphs.

use crate::support::onnx::*;
use cotensor_core::ErrorKind;
use cotensor_model::graph::{Graph, open_graph};
use rten_onnx::onnx::{DataType, GraphProto, NodeProto};

/// A graph with one node, in a subgraph if `nested`. Its constants are `yes`, the copy `again`, and the conversion of a zero `no`.
fn with_node(mut inner: NodeProto, nested: bool) -> Graph {
    inner.output = vec!["y".to_owned()];
    let initializer =
        vec![raw_tensor("yes", DataType::BOOL, &[], vec![1]), raw_tensor("zero", DataType::INT32, &[], vec![0; 4])];
    let copies = [
        self::node("Identity", &["yes"], &["again"], vec![]),
        self::node("Cast", &["zero"], &["no"], vec![int_attribute("to", DataType::BOOL.0.into())]),
    ];
    let output = vec![value("y", DataType::FLOAT, &[Some(1)])];
    let node = if nested {
        let body = GraphProto { node: vec![inner], output: output.clone(), ..GraphProto::default() };
        let mut branch = int_attribute("then_branch", 0);
        (branch.i, branch.g) = (None, Some(body));
        node("If", &["yes"], &["y"], vec![branch])
    } else {
        inner
    };
    let input = vec![value("x", DataType::FLOAT, &[Some(1)])];
    let graph = GraphProto {
        node: copies.into_iter().chain([node]).collect(),
        initializer,
        input,
        output,
        ..GraphProto::default()
    };
    let folder = tempfile::tempdir().unwrap();
    open_graph(&save(folder.path(), "model.onnx", &model(graph))).unwrap()
}

#[test]
fn operators_that_join_rows_are_found() {
    let made = |op, attributes| node(op, &["x"], &[], attributes);
    for nested in [false, true] {
        for (joining, node) in [
            (true, made("DynamicQuantizeLinear", vec![])),
            (true, NodeProto { domain: Some("com.microsoft".into()), ..made("DynamicQuantizeMatMul", vec![]) }),
            (true, made("BatchNormalization", vec![int_attribute("training_mode", 1)])),
            (false, made("BatchNormalization", vec![])),
            (false, made("LayerNormalization", vec![])),
            (false, NodeProto { domain: Some("own".into()), ..made("DynamicQuantizeLinear", vec![]) }),
        ] {
            let operator = node.op_type.clone().unwrap();
            let found = with_node(node, nested).joins_rows();
            assert_eq!(found, joining.then(|| format!("{operator} \"{operator} node\"")), "nested: {nested}");
        }
    }
}

#[test]
fn random_operators_are_refused() {
    let made = |op, inputs: &[&str]| node(op, inputs, &[], vec![]);
    for nested in [false, true] {
        for random in [
            made("RandomNormalLike", &["x"]),
            made("Bernoulli", &["x"]),
            made("Dropout", &["x", "", "yes"]),
            made("Dropout", &["x", "", "again"]),
            // A mode that is not constant may be true.
            made("Dropout", &["x", "", "x"]),
        ] {
            let operator = random.op_type.clone().unwrap();
            let error = with_node(random, nested).check_repeatable().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(error.field(), Some(format!("{operator} \"{operator} node\"").as_str()));
            assert!(error.file().is_some());
        }
        for repeatable in [made("Relu", &["x"]), made("Dropout", &["x"]), made("Dropout", &["x", "", "no"])] {
            with_node(repeatable, nested).check_repeatable().unwrap();
        }
    }
}
