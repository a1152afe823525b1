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
        let mut found = Self { engine, graph, store, holder, weights, runs, by_tokens, outputs: Vec::new() };
        found.outputs = found.run(found.leases(None)?)?;
        Ok(found)
    }

    /// The [loss](Difference::loss) of the outputs if `tensor` takes the place of one matrix, whose first weight is `weight`. `None` if nothing
    /// was compared. `rotation` is the block by which its rows are rotated.
    pub(super) fn of(
        &self,
        weight: &Weight,
        matrix: &Matrix,
        tensor: &QuantTensor,
        rotation: Option<usize>,
    ) -> Result<Option<f64>> {
        let at = self.graph.weights().iter().position(|known| known.name == weight.name && known.shape == weight.shape);
        let Some(at) = at else { return Ok(None) };
        let mut values = vec![0.0; matrix.rows * matrix.columns];
        tensor.dequantize_into(0..matrix.rows, &mut values)?;
        if let Some(block) = rotation {
            rotate(&mut values, block)?;
        }
        if matrix.is_transposed {
            values = transposed(&values, matrix.columns);
        }
        let outputs = self.run(self.leases(Some((at, &values)))?)?;
        let mut difference = Difference::new(self.by_tokens);
        for (run, (full, others)) in self.runs.iter().zip(self.outputs.iter().zip(&outputs)) {
            for (name, (full, other)) in run.outputs.iter().zip(full.iter().zip(others)) {
                difference.add_output(name, full, other);
            }
        }
        Ok(difference.loss())
    }

    /// The weights, one of them with other elements.
    fn leases(&self, other: Option<(usize, &[f32])>) -> Result<Vec<Lease>> {
        let mut leases = self.weights.leases.iter().map(Lease::try_clone).collect::<Result<Vec<_>>>()?;
        if let Some((at, values)) = other {
            let spec = TensorSpec::new(USER, DType::F32, &self.graph.weights()[at].shape);
            let mut reservation = self.store.reserve(spec, &self.holder)?;
            reservation.write(bytemuck::cast_slice(values), CopyReason::Put)?;
            leases[at] = reservation.publish()?;
        }
        Ok(leases)
    }

    fn run(&self, weights: Vec<Lease>) -> Result<Vec<Vec<Array>>> {
        let loaded = self.engine.load(&self.graph, weights)?;
        let run = |run: &Run| {
            let inputs: Vec<_> =
                run.inputs.iter().map(|(name, array)| (name.as_str(), TensorRef::from(array))).collect();
            let outputs: Vec<&str> = run.outputs.iter().map(String::as_str).collect();
            loaded.run_alone(&inputs, &outputs)
        };
        self.runs.iter().map(run).collect()
    }
}

/// The elements of a matrix with rows of `columns` elements, column by column.
pub(super) fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    let places = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
    places.map(|at| values[at]).collect()
}
