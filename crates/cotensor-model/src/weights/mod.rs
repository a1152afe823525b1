//! Loads the weights of a graph from its files into a store. Weights are identified by content; only weights that the
//! store lacks are read.

mod file;
mod hash;
mod load;
mod note;
mod read;
mod write;

pub use load::{HashedWeights, LoadedWeights, load_weights};
pub use read::read_weight;
