//! How rten loads a graph.

use crate::engine::guard::guarded;
use crate::graph::weight_location;
use cotensor_core::{Error, ErrorKind, Result};
use rten::{LoadError, LoadErrorKind, Model, ModelOptions};

/// Loads the file of a graph with these weights, in the order of the graph.
///
/// # Errors
/// As [`load_with`].
pub(super) fn load(file: Vec<u8>, weights: &[&'static [u8]]) -> Result<Model> {
    load_with(weights, |options| options.load(file))
}

/// Loads a graph with these weights by `load`, a method of its options.
///
/// # Errors
/// `Corrupt`, `Unsupported` or `Io`, as rten says; `Engine` for a panic of rten.
pub(super) fn load_with(
    weights: &[&'static [u8]],
    load: impl FnOnce(ModelOptions) -> std::result::Result<Model, LoadError>,
) -> Result<Model> {
    guarded("loading", || load(options(weights)).map_err(load_error))
}

/// rten's defaults, without prepacking: it would make private copies of all weights. `weights` are those of the graph, in order.
fn options(weights: &[&'static [u8]]) -> ModelOptions {
    let mut options = ModelOptions::with_all_ops();
    options.prepack_weights(false);
    for (index, bytes) in weights.iter().enumerate() {
        options.external_data_static(&weight_location(index), bytes);
    }
    options
}

/// The error of a graph that rten does not load.
fn load_error(error: LoadError) -> Error {
    let kind = match error.kind() {
        LoadErrorKind::IoError => ErrorKind::Io,
        LoadErrorKind::OperatorInvalid => ErrorKind::Unsupported,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, error.to_string())
}
