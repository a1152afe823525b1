//! Graphs in files on a disk. [`cotensor_graph`] reads them.

mod disk;

pub use cotensor_graph::{
    BlockEnd, CodeForm, CodeRules, CodedProduct, Constants, Content, DEPTH_MAX, DecoderSize, EncoderSize, FIELDS_MAX,
    FILE_BYTES_MAX, Graph, INITIALIZERS_MAX, LowBitGraph, LowBits, MADE_ELEMENTS_MAX, Matrix, NODES_MAX,
    PRIVATE_BYTES_MAX, Port, SHARED_BYTES_MIN, STRUCTURE_BYTES_MAX, Weight, WeightPlace, WeightSource,
};
pub(crate) use cotensor_graph::{content, key, weight_location};
pub use disk::{open_graph, read_graph};
