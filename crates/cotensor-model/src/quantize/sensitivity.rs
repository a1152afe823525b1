//! How much the outputs of a graph change with one of its matrices.

use super::calibrate::Run;
use super::measure::Difference;
use super::watch::USER;
use crate::engine::{Engine, RtenEngine};
use crate::graph::{Graph, Matrix, Weight, open_graph};
use crate::tensor::{Array, TensorRef};
use crate::weights::{LoadedWeights, load_weights};
use cotensor_core::{DType, Result};
use cotensor_quant::{QuantTensor, rotate};
use cotensor_store::{CopyReason, Holder, Lease, LocalStore, TensorSpec, TensorStore};
use std::path::Path;
use std::sync::Arc;

/// A graph of full precision with the outputs of some runs.
pub(super) struct Sensitivity<'c> {
    engine: RtenEngine,
    graph: Graph,
    store: Arc<LocalStore>,
    holder: Holder,
    weights: LoadedWeights,
    runs: &'c [Run],
    by_tokens: bool,
    /// By run.
    outputs: Vec<Vec<Array>>,
}

impl<'c> Sensitivity<'c> {
    /// That of the graph in a file; `by_tokens`: its logits of next tokens count, instead of all outputs.
    ///
    /// # Errors
    /// As [`open_graph`]; the errors of running it.
    pub(super) fn open(path: &Path, runs: &'c [Run], by_tokens: bool) -> Result<Self> {
        let (engine, mut graph) = (RtenEngine::new(None), open_graph(path)?);
        engine.capabilities().fit(&mut graph);
        let store = LocalStore::builder().build();
        let holder = store.holder(USER);
        let weights = load_weights(&graph, &*store, &holder, USER)?;
        let mut full = Vec::new();
        let mut found = Self { engine, graph, store, holder, weights, runs, by_tokens, outputs: Vec::new() };
        let leases = found.leases(&[])?;
        found.run(leases, &mut |outputs| full.push(outputs))?;
        found.outputs = full;
        Ok(found)
    }

    /// The [loss](Difference::loss) of the outputs if `tensor` takes the place of one matrix, in all of its weights. `None` if nothing
    /// was compared. `weights` are those of the graph in the file, `rotation` is the block by which the rows of the tensor are rotated.
    pub(super) fn of(
        &self,
        weights: &[Weight],
        matrix: &Matrix,
        tensor: &QuantTensor,
        rotation: Option<usize>,
    ) -> Result<Option<f64>> {
        let mut values = vec![0.0; matrix.rows * matrix.columns];
        tensor.dequantize_into(0..matrix.rows, &mut values)?;
        if let Some(block) = rotation {
            rotate(&mut values, block)?;
        }
        let orientations: Vec<(usize, bool)> = matrix.orientations(weights).collect();
        let is_turned = orientations.iter().any(|(_, is_transposed)| *is_transposed);
        let turned = if is_turned { transposed(&values, matrix.columns) } else { Vec::new() };
        let mut others = Vec::new();
        for (number, is_transposed) in orientations {
            let Weight { name, shape, .. } = &weights[number];
            let at = self.graph.weights().iter().position(|known| known.name == *name && known.shape == *shape);
            let Some(at) = at else { return Ok(None) };
            others.push((at, if is_transposed { &turned[..] } else { &values }));
        }
        let mut difference = Difference::new(self.by_tokens);
        let mut known = self.runs.iter().zip(&self.outputs);
        self.run(self.leases(&others)?, &mut |outputs| {
            if let Some((run, full)) = known.next() {
                for (name, (full, other)) in run.outputs.iter().zip(full.iter().zip(&outputs)) {
                    difference.add_output(name, full, other);
                }
            }
        })?;
        Ok(difference.loss())
    }

    /// The weights, those with these numbers with other elements.
    fn leases(&self, others: &[(usize, &[f32])]) -> Result<Vec<Lease>> {
        let mut leases = self.weights.leases.iter().map(Lease::try_clone).collect::<Result<Vec<_>>>()?;
        for &(at, values) in others {
            let spec = TensorSpec::new(USER, DType::F32, &self.graph.weights()[at].shape);
            let mut reservation = self.store.reserve(spec, &self.holder)?;
            reservation.write(bytemuck::cast_slice(values), CopyReason::Put)?;
            leases[at] = reservation.publish()?;
        }
        Ok(leases)
    }

    /// Gives the outputs of each run, one after the other.
    fn run(&self, weights: Vec<Lease>, give: &mut dyn FnMut(Vec<Array>)) -> Result<()> {
        let loaded = self.engine.load(&self.graph, weights)?;
        for run in self.runs {
            let inputs: Vec<_> =
                run.inputs.iter().map(|(name, array)| (name.as_str(), TensorRef::from(array))).collect();
            let outputs: Vec<&str> = run.outputs.iter().map(String::as_str).collect();
            give(loaded.run_alone(&inputs, &outputs)?);
        }
        Ok(())
    }
}

/// The elements of a matrix with rows of `columns` elements, column by column.
pub(super) fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    let places = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
    places.map(|at| values[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::FileMode;
    use cotensor_quant::{QuantSpec, Scheme, Width, quantize};
    use rten_onnx::onnx::{
        DataType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    };
    use std::cell::RefCell;

    const SIZE: usize = 64;

    /// Products of the entries of a table by the transposed table.
    fn tied(table: &[f32]) -> ModelProto {
        let name = |name: &str| Some(name.to_owned());
        let node = |kind: &str, inputs: &[&str], output: &str| NodeProto {
            op_type: name(kind),
            name: name(output),
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            ..NodeProto::default()
        };
        let weight = TensorProto {
            name: name("table"),
            dims: vec![SIZE as i64; 2],
            data_type: Some(DataType::FLOAT),
            raw_data: Some(RefCell::new(table.iter().flat_map(|value| value.to_le_bytes()).collect())),
            ..TensorProto::default()
        };
        let port = |port: &str| ValueInfoProto { name: name(port), r#type: None };
        let graph = GraphProto {
            node: vec![
                node("Gather", &["table", "entries"], "x"),
                node("Transpose", &["table"], "head"),
                node("MatMul", &["x", "head"], "y"),
            ],
            initializer: vec![weight],
            input: vec![port("entries")],
            output: vec![port("y")],
            value_info: vec![],
        };
        let opset_import = vec![OperatorSetIdProto { domain: None, version: Some(18) }];
        ModelProto { ir_version: Some(8), opset_import, graph: Some(graph), ..ModelProto::default() }
    }

    #[test]
    fn the_loss_of_a_tied_matrix_is_that_of_all_its_readers() {
        let folder = tempfile::tempdir().unwrap();
        let save = |name: &str, table: &[f32]| {
            let path = folder.path().join(name);
            std::fs::write(&path, tied(table).write_buf().unwrap()).unwrap();
            path
        };
        let table: Vec<f32> = (0..SIZE * SIZE).map(|at| ((at * 7919 % 1009) as f32 / 500.0) - 1.0).collect();
        let tensor = quantize(&table, SIZE, SIZE, &QuantSpec::new(Width::Two, 32, Scheme::Search).unwrap()).unwrap();
        let mut values = vec![0.0; SIZE * SIZE];
        tensor.dequantize_into(0..SIZE, &mut values).unwrap();
        let (full, other) = (save("full.onnx", &table), save("other.onnx", &values));

        let entries = Array::i64(vec![3], vec![5, 0, 33]).unwrap();
        let engine = RtenEngine::new(Some(1));
        let [wanted, found] = [&full, &other].map(|path| {
            let graph = engine.load_file(path, FileMode::Read).unwrap();
            graph.run_alone(&[("entries", TensorRef::from(&entries))], &["y"]).unwrap().remove(0)
        });
        let mut difference = Difference::new(false);
        difference.add_output("y", &wanted, &found);

        let runs = [Run { inputs: vec![("entries".to_owned(), entries)], outputs: vec!["y".to_owned()] }];
        let graph = open_graph(&full).unwrap();
        let matrices = graph.matrices();
        assert_eq!((matrices.len(), matrices[0].weights.len()), (1, 2));
        let sensitivity = Sensitivity::open(&full, &runs, false).unwrap();
        let loss = sensitivity.of(graph.weights(), &matrices[0], &tensor, None).unwrap().unwrap();
        let wanted = difference.loss().unwrap();
        assert!((loss / wanted - 1.0).abs() < 1e-5, "{loss} {wanted}");
    }
}
