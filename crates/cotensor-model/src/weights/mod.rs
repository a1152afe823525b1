//! Loads the weights of a graph from its files into a store. Weights are identified by content; only weights that the
//! store lacks are read.

mod codes;
mod file;
mod hash;
mod load;
mod note;
mod write;

pub(crate) use codes::StoredCodes;
pub use hash::read_weight;
pub use load::{HashedWeights, LoadedWeights, load_weights};
