//! ONNX graphs: what they compute, which weights they need, and where those lie.
//!
//! Opening a graph reads its structure only. Weights stay in their files until a store has memory for them.

mod cut;
mod encoder;
mod external;
mod fingerprint;
mod graph;
mod initializer;
mod limits;
mod proto;
mod shapes;
mod transpose;
mod types;
mod wire;

pub use encoder::EncoderSize;
pub use graph::Graph;
pub use limits::{
    DEPTH_MAX, FIELDS_MAX, FILE_BYTES_MAX, INITIALIZERS_MAX, MADE_ELEMENTS_MAX, NODES_MAX, PRIVATE_BYTES_MAX,
    SHARED_BYTES_MIN, STRUCTURE_BYTES_MAX,
};
pub(crate) use proto::weight_location;
pub use types::{Port, Weight, WeightSource};
