//! Graphs with codes in the place of their matrices: every engine gives the results of the dequantized matrices.

use crate::support::edit;
use crate::support::onnx::*;
use cotensor_core::ErrorKind;
use cotensor_model::engine::{Engine, FileMode, LoadedGraph, RtenEngine};
use cotensor_model::graph::open_graph;
use cotensor_model::quantize::{Activations, QuantizeOptions, quantize_graph};
use cotensor_model::tensor::TensorRef;
use cotensor_quant::{QuantSpec, Scheme, Width, quantize, rotate};
use rten_onnx::onnx::{AttributeProto, AttributeType, DataType, GraphProto, ModelProto, NodeProto};
use std::path::Path;

pub(crate) const ROWS: usize = 96;
pub(crate) const COLUMNS: usize = 128;

fn float_attribute(name: &str, value: f32) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        f: Some(value),
        r#type: Some(AttributeType::FLOAT),
        ..AttributeProto::default()
    }
}

fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns).map(|at| values[at % rows * columns + at / rows]).collect()
}

/// A table, a product by its transposition, a `Gemm` with either orientation, and a product whose columns are not a multiple of 16.
/// `of` gives the matrix number 0, 1 or 2, `[rows, columns]`.
pub(crate) fn network(opset: i64, of: impl Fn(usize) -> Vec<f32>) -> ModelProto {
    let columns = Some(COLUMNS as i64);
    let (table, first, second) = (of(0), of(1), of(2));
    let graph = GraphProto {
        node: vec![
            node("Gather", &["table", "indices"], &["entries"], vec![]),
            node("Add", &["entries", "x"], &["sum"], vec![]),
            node("MatMul", &["sum", "first"], &["h"], vec![]),
            node("Reshape", &["h", "flat"], &["flat_h"], vec![]),
            node("Gemm", &["flat_h", "second", "bias"], &["g"], vec![int_attribute("transB", 1)]),
            node("Gemm", &["g", "odd", "odd_bias"], &["o"], vec![float_attribute("alpha", 1.0)]),
            node("Reshape", &["o", "back"], &["y"], vec![]),
        ],
        initializer: vec![
            f32_tensor("table", &[ROWS as i64, COLUMNS as i64], &table),
            f32_tensor("first", &[COLUMNS as i64, ROWS as i64], &transposed(&first, ROWS, COLUMNS)),
            f32_tensor("second", &[40, ROWS as i64], &second),
            f32_tensor("bias", &[40], &noise(40, 9)),
            f32_tensor("odd", &[40, 12], &noise(40 * 12, 10)),
            f32_tensor("odd_bias", &[12], &noise(12, 11)),
            raw_tensor(
                "flat",
                DataType::INT64,
                &[2],
                [-1i64, ROWS as i64].iter().flat_map(|n| n.to_le_bytes()).collect(),
            ),
            raw_tensor("back", DataType::INT64, &[3], [2i64, -1, 12].iter().flat_map(|n| n.to_le_bytes()).collect()),
        ],
        input: vec![
            value("indices", DataType::INT64, &[Some(2), None]),
            value("x", DataType::FLOAT, &[Some(2), None, columns]),
        ],
        output: vec![value("y", DataType::FLOAT, &[Some(2), None, Some(12)])],
        value_info: vec![],
    };
    let mut whole = model(graph);
    whole.opset_import[0].version = Some(opset);
    whole
}

pub(crate) fn matrix(number: usize) -> (Vec<f32>, usize, usize) {
    let (rows, columns) = [(ROWS, COLUMNS), (ROWS, COLUMNS), (40, ROWS)][number];
    (noise(rows * columns, 20 + number as u32), rows, columns)
}

pub(crate) fn options(width: Width, group: usize, scheme: Scheme, activations: Activations) -> QuantizeOptions {
    QuantizeOptions {
        width,
        group,
        scheme,
        rotates: false,
        activations,
        keep: vec![],
        mixed_bits: None,
        max_error: None,
    }
}

fn run(engine: &dyn Engine, path: &Path) -> Vec<f32> {
    run_graph(&*load_on(engine, path, &*store()))
}

fn run_graph(graph: &dyn LoadedGraph) -> Vec<f32> {
    let x = noise(2 * 3 * COLUMNS, 4);
    let indices: Vec<i64> = vec![0, 5, 47, 5, 1, 33];
    let indices = TensorRef::i64(&[2, 3], &indices).unwrap();
    let x = TensorRef::f32(&[2, 3, COLUMNS], &x).unwrap();
    let y = graph.run_alone(&[("indices", indices), ("x", x)], &["y"]).unwrap().remove(0);
    y.as_f32().unwrap().to_vec()
}

/// The largest difference, as a share of the largest result.
pub(crate) fn differs(found: &[f32], wanted: &[f32]) -> f32 {
    let most = wanted.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    assert_eq!(found.len(), wanted.len());
    found.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / most
}

#[test]
fn engines_give_the_results_of_dequantized_matrices() {
    let folder = tempfile::tempdir().unwrap();
    for opset in [9, 11, 18, 21] {
        let full = save(folder.path(), &format!("full{opset}.onnx"), &network(opset, |number| matrix(number).0));
        for width in Width::ALL {
            for (scheme, group, rotates) in [
                (Scheme::Search, 16, false),
                (Scheme::Round, 32, true),
                (Scheme::Affine, 128, false),
                (Scheme::Affine, 32, true),
            ] {
                let name = format!("{opset}-{}-{scheme}-{group}", width.bits());
                let path = folder.path().join(format!("{name}.onnx"));
                let options = QuantizeOptions { rotates, ..options(width, group, scheme, Activations::Float32) };
                let report = quantize_graph(&full, &path, &options, &mut |_, _, _| {}).unwrap();
                assert_eq!(report.matrices.len(), 3, "{report:?}");
                assert_eq!(report.opens_in_onnxruntime, width != Width::Three);
                let dequantized = network(opset, |number| {
                    let (mut weights, rows, columns) = matrix(number);
                    let group = if columns == ROWS { group.min(32) } else { group };
                    // The largest powers of two that divide 128 and 96.
                    let block = if columns == ROWS { 32 } else { 128 };
                    if rotates {
                        rotate(&mut weights, block).unwrap();
                    }
                    let tensor = quantize(&weights, rows, columns, &QuantSpec::new(width, group, scheme).unwrap());
                    let mut found = vec![0.0; rows * columns];
                    tensor.unwrap().dequantize_into(0..rows, &mut found).unwrap();
                    if rotates {
                        rotate(&mut found, block).unwrap();
                    }
                    found
                });
                let dequantized = save(folder.path(), &format!("{name}-dequantized.onnx"), &dequantized);
                for engine in engines() {
                    let (found, wanted) = (run(&*engine, &path), run(&*engine, &dequantized));
                    let most = differs(&found, &wanted);
                    assert!(most < if rotates { 5e-6 } else { 2e-6 }, "{} {name}: {most}", engine.name());
                    assert!(differs(&found, &run(&*engine, &full)) > 1e-4, "the same weights");
                    if engine.name() != "ort" {
                        continue;
                    }
                    // As a program without Cotensor opens the file.
                    match engine.load_file(&path, FileMode::Read) {
                        Ok(alone) => {
                            let most = differs(&run_graph(&*alone), &wanted);
                            assert!(width != Width::Three && most < 1e-5, "onnxruntime alone {name}: {most}");
                        }
                        Err(error) => assert!(width == Width::Three, "onnxruntime alone {name}: {error}"),
                    }
                }
            }
        }
    }
}

/// `y = x · matrixᵀ`.
fn product(weights: &[f32]) -> ModelProto {
    model(GraphProto {
        node: vec![node("MatMul", &["x", "w"], &["y"], vec![])],
        initializer: vec![f32_tensor("w", &[COLUMNS as i64, ROWS as i64], &transposed(weights, ROWS, COLUMNS))],
        input: vec![value("x", DataType::FLOAT, &[None, Some(COLUMNS as i64)])],
        output: vec![value("y", DataType::FLOAT, &[None, Some(ROWS as i64)])],
        value_info: vec![],
    })
}

#[test]
fn the_identity_gives_the_dequantized_matrix() {
    let weights = noise(ROWS * COLUMNS, 5);
    let folder = tempfile::tempdir().unwrap();
    let full = save(folder.path(), "full.onnx", &product(&weights));
    let identity: Vec<f32> =
        (0..COLUMNS * COLUMNS).map(|at| f32::from(u8::from(at / COLUMNS == at % COLUMNS))).collect();
    for width in Width::ALL {
        for (scheme, group) in [(Scheme::Search, 16), (Scheme::Round, 32), (Scheme::Search, 128), (Scheme::Affine, 32)]
        {
            let path = folder.path().join(format!("{}-{scheme}-{group}.onnx", width.bits()));
            let options = options(width, group, scheme, Activations::Float32);
            quantize_graph(&full, &path, &options, &mut |_, _, _| {}).unwrap();
            let tensor = quantize(&weights, ROWS, COLUMNS, &QuantSpec::new(width, group, scheme).unwrap()).unwrap();
            let mut own = vec![0.0; ROWS * COLUMNS];
            tensor.dequantize_into(0..ROWS, &mut own).unwrap();
            for engine in engines() {
                let graph = load_on(&*engine, &path, &*store());
                let x = TensorRef::f32(&[COLUMNS, COLUMNS], &identity).unwrap();
                let y = graph.run_alone(&[("x", x)], &["y"]).unwrap().remove(0);
                let found = transposed(y.as_f32().unwrap(), COLUMNS, ROWS);
                let most = own.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                // Codes of 8 bits are a sum of three.
                let is_sum = width == Width::Eight;
                assert!(
                    most <= if is_sum { 5e-7 } else { 0.0 },
                    "{} {width:?} {scheme} {group}: {most}",
                    engine.name()
                );
            }
        }
    }
}

#[test]
fn codes_are_weights_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let full = save(folder.path(), "full.onnx", &product(&noise(ROWS * COLUMNS, 5)));
    for (width, scheme) in
        [(Width::Two, Scheme::Affine), (Width::Three, Scheme::Search), (Width::Eight, Scheme::Search)]
    {
        let path = folder.path().join(format!("{}.onnx", width.bits()));
        quantize_graph(&full, &path, &options(width, 16, scheme, Activations::Auto), &mut |_, _, _| {}).unwrap();
        for engine in engines() {
            let is_rten = engine.name() == RtenEngine::NAME;
            let mut graph = open_graph(&path).unwrap();
            engine.capabilities().fit(&mut graph);
            let names: Vec<&str> = graph.weights().iter().map(|weight| weight.name.as_str()).collect();
            let wanted: &[&str] = match (width, is_rten) {
                // onnxruntime has no groups of 16 with 2 bits.
                (Width::Two, _) => &["w.scales", "w.codes.of_4_bits", "w.offsets.by_group"],
                (Width::Three, _) => &["w.scales", "w.codes.of_4_bits"],
                (_, true) => &["w.scales", "w.codes.high", "w.codes.low", "y.scales.by_group"],
                (_, false) => &["w.codes", "w.scales"],
            };
            let sorted = |mut names: Vec<String>| {
                names.sort();
                names
            };
            let wanted = wanted.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(
                sorted(names.iter().map(|name| (*name).to_owned()).collect()),
                sorted(wanted),
                "{} {width:?}",
                engine.name()
            );
        }
    }
}

#[test]
fn matrices_that_are_too_small_for_their_scales_stay() {
    let folder = tempfile::tempdir().unwrap();
    // The second matrix has elements of at most `largest`.
    let quantized = |width: Width, largest: f32| {
        let small =
            |number| matrix(number).0.iter().map(|value| value * if number == 1 { largest } else { 1.0 }).collect();
        let full = save(folder.path(), "full.onnx", &network(18, small));
        let path = folder.path().join(format!("{}-{largest}.onnx", width.bits()));
        let options = options(width, 16, Scheme::Search, Activations::Float32);
        let report = quantize_graph(&full, &path, &options, &mut |_, _, _| {}).unwrap();
        assert!(report.matrices.iter().all(|matrix| matrix.relative_error < 0.4), "{report:?}");
        let reason = report.kept.iter().find(|kept| kept.name == "first").and_then(|kept| kept.reason.clone());
        assert_eq!(report.matrices.len(), if reason.is_some() { 2 } else { 3 });
        for engine in engines() {
            run(&*engine, &path);
        }
        reason
    };
    for (width, small, large) in
        [(Width::Two, 5e-8, 1e-6), (Width::Three, 1e-7, 1e-6), (Width::Four, 2e-7, 1e-6), (Width::Eight, 3e-6, 5e-6)]
    {
        assert_eq!(quantized(width, large), None, "{width:?}");
        let reason = quantized(width, small).unwrap();
        assert!(reason.contains("float16") && reason.contains(&format!("{} bits", width.bits())), "{reason}");
    }
    assert_eq!(quantized(Width::Eight, 0.0), None);
}

#[test]
fn inputs_without_rows_have_results_without_rows() {
    let folder = tempfile::tempdir().unwrap();
    let mut whole = product(&noise(ROWS * COLUMNS, 5));
    let graph = whole.graph.as_mut().unwrap();
    graph.input = vec![value("x", DataType::FLOAT, &[None, None, Some(COLUMNS as i64)])];
    graph.output = vec![value("y", DataType::FLOAT, &[None, None, Some(ROWS as i64)])];
    let full = save(folder.path(), "full.onnx", &whole);
    for width in Width::ALL {
        let path = folder.path().join(format!("{}.onnx", width.bits()));
        let options = options(width, 32, Scheme::Affine, Activations::Float32);
        quantize_graph(&full, &path, &options, &mut |_, _, _| {}).unwrap();
        for engine in engines() {
            let graph = load_on(&*engine, &path, &*store());
            for shape in [[2, 0, COLUMNS], [0, 3, COLUMNS]] {
                let y = graph.run_alone(&[("x", TensorRef::f32(&shape, &[]).unwrap())], &["y"]).unwrap().remove(0);
                assert_eq!(y.shape(), [shape[0], shape[1], ROWS], "{} {width:?}", engine.name());
            }
        }
    }
}

/// Sets an attribute of the product.
fn set(model: &mut ModelProto, name: &str, value: i64) {
    let node = product_of(model);
    node.attribute.iter_mut().find(|attribute| attribute.name.as_deref() == Some(name)).unwrap().i = Some(value);
}

fn product_of(model: &mut ModelProto) -> &mut NodeProto {
    let nodes = &mut model.graph.as_mut().unwrap().node;
    nodes.iter_mut().find(|node| node.op_type.as_deref() == Some("MatMulNBits")).unwrap()
}

/// Sets the dimensions of a tensor, and cuts or repeats its elements.
fn resize(model: &mut ModelProto, name: &str, dims: &[i64]) {
    let tensor =
        model.graph.as_mut().unwrap().initializer.iter_mut().find(|tensor| tensor.name.as_deref() == Some(name));
    let tensor = tensor.unwrap();
    let element = if name == "w.codes" { 1 } else { 2 };
    *tensor =
        raw_tensor(name, tensor.data_type.unwrap(), dims, vec![0x11; dims.iter().product::<i64>() as usize * element]);
}

#[test]
fn products_whose_tensors_do_not_fit_are_refused_before_an_engine_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let full = save(folder.path(), "full.onnx", &product(&noise(ROWS * COLUMNS, 5)));
    let (rows, groups) = (ROWS as i64, COLUMNS as i64 / 32);
    type Change = Box<dyn Fn(&mut ModelProto)>;
    for width in Width::ALL {
        let bytes = 4 * i64::from(width.bits());
        let changes: Vec<Change> = vec![
            Box::new(|model| set(model, "K", 64)),
            Box::new(|model| set(model, "K", i64::MAX)),
            Box::new(|model| set(model, "N", 95)),
            Box::new(|model| set(model, "N", -1)),
            Box::new(|model| set(model, "bits", 5)),
            Box::new(|model| set(model, "bits", 0)),
            Box::new(|model| set(model, "block_size", 16)),
            Box::new(|model| set(model, "block_size", 1 << 40)),
            Box::new(|model| product_of(model).attribute.clear()),
            Box::new(|model| product_of(model).input.truncate(2)),
            Box::new(|model| product_of(model).input.clear()),
            Box::new(move |model| resize(model, "w.codes", &[rows, groups, bytes - 1])),
            Box::new(move |model| resize(model, "w.codes", &[rows + 1, groups, bytes])),
            Box::new(move |model| resize(model, "w.codes", &[rows, groups * bytes])),
            Box::new(move |model| resize(model, "w.scales", &[rows - 1, groups])),
            Box::new(move |model| resize(model, "w.scales", &[rows, 2 * groups])),
            Box::new(move |model| resize(model, "w.scales", &[groups, rows])),
            Box::new(move |model| resize(model, "w.scales", &[0, groups])),
        ];
        for (number, change) in changes.iter().enumerate() {
            let path = folder.path().join(format!("{}-{number}.onnx", width.bits()));
            let options = options(width, 32, Scheme::Search, Activations::Float32);
            quantize_graph(&full, &path, &options, &mut |_, _, _| {}).unwrap();
            edit(&path, change);
            let Err(error) = open_graph(&path) else { panic!("{width:?}: change {number}") };
            assert_eq!((error.kind(), error.file()), (ErrorKind::Corrupt, Some(path.as_path())), "{error}");
            assert!(error.field().is_some_and(|field| field.starts_with("MatMulNBits")), "{error}");
        }
        // Of other programs, the layout of codes of 3 bits is not known.
        let path = folder.path().join(format!("{}-foreign.onnx", width.bits()));
        let plain = options(width, 32, Scheme::Search, Activations::Float32);
        quantize_graph(&full, &path, &plain, &mut |_, _, _| {}).unwrap();
        edit(&path, |model| product_of(model).domain = Some("com.microsoft".to_owned()));
        let refused = open_graph(&path).err().map(|error| error.kind());
        assert_eq!(refused, (width == Width::Three).then_some(ErrorKind::Unsupported));
        // Engines differ in which of two definitions they take.
        for (number, twice) in ["w.codes", "w.scales"].into_iter().enumerate() {
            let path = folder.path().join(format!("{}-twice{number}.onnx", width.bits()));
            let options = options(width, 32, Scheme::Search, Activations::Float32);
            quantize_graph(&full, &path, &options, &mut |_, _, _| {}).unwrap();
            edit(&path, |model| {
                let scales = product_of(model).input[2].clone();
                let name = if twice == "w.codes" { "w.codes" } else { scales.as_str() };
                let constant = f32_tensor("value", &[1], &[0.5]);
                let value =
                    AttributeProto { t: Some(constant), name: Some("value".into()), ..AttributeProto::default() };
                model.graph.as_mut().unwrap().node.insert(0, node("Constant", &[], &[name], vec![value]));
            });
            let Err(error) = open_graph(&path) else { panic!("{width:?}: {twice}") };
            assert!(error.to_string().contains("more than once"), "{error}");
        }
        // Codes that are an input of the graph: nothing is known of their dimensions.
        let path = folder.path().join(format!("{}-input.onnx", width.bits()));
        let options = options(width, 32, Scheme::Search, Activations::Float32);
        quantize_graph(&full, &path, &options, &mut |_, _, _| {}).unwrap();
        edit(&path, |model| {
            product_of(model).input[1] = "given".to_owned();
            model.graph.as_mut().unwrap().input.push(value("given", DataType::UINT8, &[None, None, None]));
        });
        let error = RtenEngine::new(Some(1)).check(&open_graph(&path).unwrap()).unwrap_err();
        assert!(error.to_string().contains("are not constants") && error.field().is_some(), "{error}");
    }
}

#[test]
fn new_names_are_free_in_all_scopes_and_branches_read_codes() {
    let folder = tempfile::tempdir().unwrap();
    let weights = noise(ROWS * COLUMNS, 5);
    // Both branches have a value `y`, and a value that has the name of a new one.
    let branch = |factor: f32| GraphProto {
        node: vec![
            node("MatMul", &["x", "w"], &["y.sums"], vec![]),
            node("Mul", &["y.sums", "factor"], &["scaled"], vec![]),
            node("MatMul", &["x", "w"], &["plain"], vec![]),
            node("Add", &["plain", "scaled"], &["y"], vec![]),
        ],
        initializer: vec![f32_tensor("factor", &[1], &[factor])],
        input: vec![],
        output: vec![value("y", DataType::FLOAT, &[None, None])],
        value_info: vec![],
    };
    let graph_attribute = |name: &str, graph: GraphProto| AttributeProto {
        name: Some(name.to_owned()),
        g: Some(graph),
        r#type: Some(AttributeType::GRAPH),
        ..AttributeProto::default()
    };
    let mut whole = product(&weights);
    let graph = whole.graph.as_mut().unwrap();
    graph.node = vec![
        node("ReduceSum", &["x"], &["sum"], vec![int_attribute("keepdims", 0)]),
        node("Greater", &["sum", "zero"], &["is_positive"], vec![]),
        node(
            "If",
            &["is_positive"],
            &["z"],
            vec![graph_attribute("then_branch", branch(2.0)), graph_attribute("else_branch", branch(3.0))],
        ),
        node("Add", &["z", "w.codes"], &["result"], vec![]),
    ];
    graph.initializer.extend([f32_tensor("zero", &[], &[0.0]), f32_tensor("w.codes", &[1], &[0.25])]);
    graph.output = vec![value("result", DataType::FLOAT, &[None, None])];
    let full = save(folder.path(), "full.onnx", &whole);
    for width in Width::ALL {
        let path = folder.path().join(format!("{}.onnx", width.bits()));
        let options = options(width, 32, Scheme::Affine, Activations::Float32);
        let report = quantize_graph(&full, &path, &options, &mut |_, _, _| {}).unwrap();
        assert_eq!(report.matrices.len(), 1);
        let tensor = quantize(&weights, ROWS, COLUMNS, &QuantSpec::new(width, 32, Scheme::Affine).unwrap()).unwrap();
        let mut matrix = vec![0.0; ROWS * COLUMNS];
        tensor.dequantize_into(0..ROWS, &mut matrix).unwrap();
        for engine in engines() {
            let graph = load_on(&*engine, &path, &*store());
            for sign in [1.0, -1.0] {
                let x: Vec<f32> = noise(COLUMNS, 8).iter().map(|element| sign * element.abs()).collect();
                let y = graph.run_alone(&[("x", TensorRef::f32(&[1, COLUMNS], &x).unwrap())], &["result"]).unwrap();
                let factor = if sign > 0.0 { 3.0 } else { 4.0 };
                let product = |row: &[f32]| row.iter().zip(&x).map(|(a, b)| a * b).sum::<f32>();
                let wanted: Vec<f32> = matrix.chunks(COLUMNS).map(|row| factor * product(row) + 0.25).collect();
                let most = differs(y[0].as_f32().unwrap(), &wanted);
                assert!(most < 2e-6, "{} {width:?}: {most}", engine.name());
            }
        }
    }
}

#[test]
fn weights_at_one_place_with_other_shapes_are_matrices_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = f32_bytes(&noise(ROWS * COLUMNS, 5));
    std::fs::write(folder.path().join("weights.data"), bytes).unwrap();
    let (rows, columns) = (ROWS as i64, COLUMNS as i64);
    let length = (ROWS * COLUMNS * 4).to_string();
    let entries = [("location", "weights.data"), ("offset", "0"), ("length", length.as_str())];
    let graph = GraphProto {
        node: vec![node("MatMul", &["x", "one"], &["h"], vec![]), node("MatMul", &["h", "other"], &["y"], vec![])],
        initializer: vec![
            external_tensor("one", &[columns, rows], &entries),
            external_tensor("other", &[rows, columns], &entries),
        ],
        input: vec![value("x", DataType::FLOAT, &[None, Some(columns)])],
        output: vec![value("y", DataType::FLOAT, &[None, Some(columns)])],
        value_info: vec![],
    };
    let full = save(folder.path(), "full.onnx", &model(graph));
    let path = folder.path().join("small.onnx");
    let options = options(Width::Eight, 32, Scheme::Search, Activations::Float32);
    let report = quantize_graph(&full, &path, &options, &mut |_, _, _| {}).unwrap();
    let shapes: Vec<_> = report.matrices.iter().map(|matrix| (matrix.rows, matrix.columns)).collect();
    assert_eq!(shapes, [(ROWS, COLUMNS), (COLUMNS, ROWS)]);
    for engine in engines() {
        let run = |path: &Path| {
            let x = noise(COLUMNS, 4);
            let graph = load_on(&*engine, path, &*store());
            let y = graph.run_alone(&[("x", TensorRef::f32(&[1, COLUMNS], &x).unwrap())], &["y"]).unwrap().remove(0);
            y.as_f32().unwrap().to_vec()
        };
        assert!(differs(&run(&path), &run(&full)) < 0.05, "{}", engine.name());
    }
}
