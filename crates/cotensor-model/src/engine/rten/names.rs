//! Names of dimensions: rten takes the size of a dimension from any axis of the inputs that has its name. Where two axes with one
//! name have two sizes, the graph runs without names, and without the optimizations that need them.

use super::load::load;
use cotensor_core::{Error, Result};
use rten::{Dimension, Model, NodeId, ValueOrView};
use rten_tensor::Layout;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A model whose results do not depend on the names of dimensions.
pub(super) struct NamedModel {
    model: Model,
    /// The axes of the inputs by name, if several have it.
    shared: Vec<Vec<(NodeId, usize)>>,
    unnamed: Unnamed,
}

/// The model without names, loaded when it is first needed.
struct Unnamed {
    weights: Vec<&'static [u8]>,
    /// The file. `None` if no name is shared.
    file: Option<Vec<u8>>,
    model: OnceLock<Result<Model>>,
}

impl NamedModel {
    /// `weights` are those of `model`; `unnamed` makes its file without names.
    ///
    /// # Errors
    /// Those of `unnamed`.
    pub(super) fn new(
        model: Model,
        weights: Vec<&'static [u8]>,
        unnamed: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let shared = shared_axes(&model);
        let file = if shared.is_empty() { None } else { Some(unnamed()?) };
        Ok(Self { model, shared, unnamed: Unnamed { weights, file, model: OnceLock::new() } })
    }

    /// A model that takes its names from a file as it is.
    pub(super) fn plain(model: Model) -> Self {
        Self { model, shared: Vec::new(), unnamed: Unnamed { weights: Vec::new(), file: None, model: OnceLock::new() } }
    }

    /// The model with its names.
    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    /// The model for these inputs.
    ///
    /// # Errors
    /// Those of loading it.
    pub(super) fn for_inputs(&self, values: &[(NodeId, ValueOrView<'_>)]) -> Result<&Model> {
        let size = |&(id, axis): &(NodeId, usize)| {
            let (_, value) = values.iter().find(|(known, _)| *known == id)?;
            value.as_view().shape().get(axis).copied()
        };
        let is_one = |axes: &Vec<_>| {
            let mut sizes = axes.iter().filter_map(size);
            sizes.next().is_none_or(|first| sizes.all(|size| size == first))
        };
        if self.shared.iter().all(is_one) {
            return Ok(&self.model);
        }
        let loaded = self.unnamed.model.get_or_init(|| self.load_unnamed());
        loaded.as_ref().map_err(Clone::clone)
    }

    fn load_unnamed(&self) -> Result<Model> {
        let file = self.unnamed.file.clone().unwrap_or_default();
        let model = load(file, &self.unnamed.weights)?;
        // The files differ in names only, so the numbers of the nodes are the same.
        if (model.input_ids(), model.output_ids()) == (self.model.input_ids(), self.model.output_ids()) {
            Ok(model)
        } else {
            Err(Error::corrupt("rten numbered the nodes of a graph in two ways"))
        }
    }
}

fn shared_axes(model: &Model) -> Vec<Vec<(NodeId, usize)>> {
    let mut axes: BTreeMap<String, Vec<(NodeId, usize)>> = BTreeMap::new();
    for &id in model.input_ids() {
        let dims = model.node_info(id).and_then(|info| info.shape()).unwrap_or_default();
        for (axis, dim) in dims.into_iter().enumerate() {
            if let Dimension::Symbolic(name) = dim {
                axes.entry(name).or_default().push((id, axis));
            }
        }
    }
    axes.into_values().filter(|axes| axes.len() > 1).collect()
}
