//! ONNX graphs: structure, weights and fingerprint.
//!
//! Opening a graph reads its structure only. Weights stay in their files until a store has memory for them.

mod affine;
mod block;
mod cut;
mod encoder;
mod external;
mod fingerprint;
mod flow;
mod initializer;
mod limits;
mod onnx;
mod proto;
mod shapes;
mod transpose;
mod types;
mod wire;

pub use block::BlockEnd;
pub use encoder::{DecoderSize, EncoderSize};
pub use limits::{
    DEPTH_MAX, FIELDS_MAX, FILE_BYTES_MAX, INITIALIZERS_MAX, MADE_ELEMENTS_MAX, NODES_MAX, PRIVATE_BYTES_MAX,
    SHARED_BYTES_MIN, STRUCTURE_BYTES_MAX,
};
pub use onnx::Graph;
pub(crate) use proto::weight_location;
pub use types::{Port, Weight, WeightSource};
