//! ONNX graphs: structure, weights, cuts and fingerprint, and the keys of the results that graphs make.
//!
//! Reading a graph reads its structure only. Weights stay in their files until a store has memory for them. The crate opens no
//! file and runs no graph, so it builds for wasm32: a [`GraphFiles`] gives the files.

mod affine;
mod behaviour;
mod block;
mod build;
mod casts;
mod coded_product;
mod constants;
pub mod content;
mod cut;
mod declared;
mod encoder;
mod external;
mod files;
mod fingerprint;
mod flow;
mod initializer;
pub mod key;
mod limits;
mod low_bit;
mod onnx;
mod proto;
mod repack;
mod shapes;
mod ties;
mod transpose;
mod types;
mod wire;

pub use block::BlockEnd;
pub use constants::Constants;
pub use encoder::{DecoderSize, EncoderSize};
pub use files::{GraphFiles, check_location, outside_folder};
pub use limits::{
    DEPTH_MAX, FIELDS_MAX, FILE_BYTES_MAX, INITIALIZERS_MAX, MADE_ELEMENTS_MAX, NODES_MAX, PRIVATE_BYTES_MAX,
    SHARED_BYTES_MIN, STRUCTURE_BYTES_MAX,
};
pub use low_bit::{CodeForm, CodeRules, CodedProduct, Content, LowBitGraph, LowBits, Matrix};
pub use onnx::Graph;
pub use proto::weight_location;
pub use repack::Repack;
pub use types::{Port, Weight, WeightPlace, WeightSource};
