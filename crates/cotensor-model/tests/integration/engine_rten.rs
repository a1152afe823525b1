//! Where rten by itself differs from ONNX, the engine does not.

use crate::support::onnx::*;
use cotensor_model::engine::{Engine, FileMode, RtenEngine};
use cotensor_model::tensor::TensorRef;
use rten_onnx::onnx::{AttributeProto, AttributeType, DataType, GraphProto, ModelProto, NodeProto, ValueInfoProto};

/// rten alone takes the last of equal elements.
#[test]
fn index_of_equal_elements_is_the_first_one() {
    let folder = tempfile::tempdir().unwrap();
    // Two rows of a mask: their first largest elements are at 1 and 0, their first smallest at 0 and 2.
    let x = [0i64, 1, 1, 0, 1, 1, 0, 0];
    for (op, expected) in [("ArgMax", [1, 0]), ("ArgMin", [0, 2])] {
        for (axis, keepdims, shape) in [(1, 1, vec![2, 1]), (-1, 0, vec![2])] {
            let graph = model(GraphProto {
                node: vec![node(
                    op,
                    &["x"],
                    &["y"],
                    vec![int_attribute("axis", axis), int_attribute("keepdims", keepdims)],
                )],
                input: vec![value("x", DataType::INT64, &[None, Some(4)])],
                output: vec![value("y", DataType::INT64, &vec![None; shape.len()])],
                ..GraphProto::default()
            });
            let path = save(folder.path(), "model.onnx", &graph);
            for engine in engines() {
                for graph in [load_on(&*engine, &path, &*store()), engine.load_file(&path, FileMode::Read).unwrap()] {
                    let output = graph.run_alone(&[("x", TensorRef::i64(&[2, 4], &x).unwrap())], &["y"]).unwrap();
                    assert_eq!(output[0].shape(), shape, "{} {op} {axis}", engine.name());
                    assert_eq!(output[0].as_i64().unwrap(), expected, "{} {op} {axis}", engine.name());
                }
            }
        }
    }
}

/// The second dimension of `between`, which `made` makes of `x`. The file declares `between`.
fn second_size(made: NodeProto, x: ValueInfoProto, between: ValueInfoProto) -> ModelProto {
    model(GraphProto {
        node: vec![
            made,
            node("Shape", &["between"], &["shape"], vec![]),
            node("Gather", &["shape", "one"], &["y"], vec![]),
        ],
        initializer: vec![
            raw_tensor("one", DataType::INT64, &[1], 1i64.to_le_bytes().to_vec()),
            raw_tensor("condition", DataType::BOOL, &[], vec![1]),
        ],
        input: vec![x],
        output: vec![value("y", DataType::INT64, &[Some(1)])],
        value_info: vec![between],
    })
}

/// `between = If(true, Relu(x), Relu(x))`; the branches declare `output`.
fn branches(output: ValueInfoProto) -> NodeProto {
    let branch = |name: &str| AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(AttributeType::GRAPH),
        g: Some(GraphProto {
            node: vec![node("Relu", &["x"], &["between_inside"], vec![])],
            output: vec![output.clone()],
            ..GraphProto::default()
        }),
        ..AttributeProto::default()
    };
    node("If", &["condition"], &["between"], vec![branch("then_branch"), branch("else_branch")])
}

/// A file names dimensions, and declares shapes of values inside the graph. Both are what an exporter wrote: they may be wrong.
/// onnxruntime uses declared sizes, which are part of the fingerprint. Names are not.
#[test]
fn rten_takes_sizes_from_inputs_only() {
    let folder = tempfile::tempdir().unwrap();
    let input = |names: [&str; 2]| {
        let mut x = value("x", DataType::FLOAT, &[None, None]);
        let shape = x.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().shape.as_mut().unwrap();
        shape.dim.iter_mut().zip(names).for_each(|(dim, name)| dim.dim_param = Some(name.to_owned()));
        x
    };
    let declared = |dims: &[Option<i64>]| value("between", DataType::FLOAT, dims);
    let (relu, nonzero) =
        (|| node("Relu", &["x"], &["between"], vec![]), node("NonZero", &["x"], &["between"], vec![]));
    let inside = |dims: &[Option<i64>]| branches(value("between_inside", DataType::FLOAT, dims));
    let cases = [
        ("one name for both axes", relu(), input(["n", "n"]), declared(&[None, None]), 4),
        ("sizes of an example", relu(), input(["rows", "columns"]), declared(&[Some(1), Some(7)]), 4),
        (
            "a name of the engine's own",
            nonzero,
            input(["unknown_1", "n"]),
            value("between", DataType::INT64, &[None, None]),
            8,
        ),
        ("the size of a branch", inside(&[None, None]), input(["rows", "columns"]), declared(&[Some(1), Some(7)]), 4),
        ("names in a branch", inside(&[None, None]), input(["n", "m"]), declared(&[None, None]), 4),
    ];
    for (case, made, x, between, expected) in cases {
        let path = save(folder.path(), "model.onnx", &second_size(made, x, between));
        for graph in [load(&path, &*store()), RtenEngine::new(Some(1)).load_file(&path, FileMode::Read).unwrap()] {
            let output = graph.run_alone(&[("x", TensorRef::f32(&[2, 4], &[1.0; 8]).unwrap())], &["y"]).unwrap();
            assert_eq!(output[0].as_i64().unwrap(), [expected], "{case}");
        }
    }
}

/// Inputs with one name for their lengths run with equal lengths and with others, in any order.
#[test]
fn one_name_holds_for_equal_sizes_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = save(
        folder.path(),
        "model.onnx",
        &model(GraphProto {
            node: vec![node("Relu", &["b"], &["between"], vec![]), node("Shape", &["between"], &["y"], vec![])],
            input: vec![value("a", DataType::FLOAT, &[None]), value("b", DataType::FLOAT, &[None])],
            output: vec![value("y", DataType::INT64, &[Some(1)])],
            ..GraphProto::default()
        }),
    );
    let graph = load(&path, &*store());
    let numbers = [1.0; 5];
    for (a, b) in [([3], [3]), ([2], [3]), ([5], [1]), ([4], [4])] {
        let inputs = [
            ("a", TensorRef::f32(&a, &numbers[..a[0]]).unwrap()),
            ("b", TensorRef::f32(&b, &numbers[..b[0]]).unwrap()),
        ];
        assert_eq!(graph.run_alone(&inputs, &["y"]).unwrap()[0].as_i64().unwrap(), [b[0] as i64]);
    }
}
