//! Checks the protobuf of an ONNX file before a parser allocates memory for it: lengths stay inside their message,
//! nesting and counts stay inside limits, and the graph module supports or may ignore each field.
//!
//! Large data of the main graph's initializers stays in the file. The rest, the structure, is copied into a small
//! buffer. The positions of the data are returned, so that it can be read directly into a segment of the store.

mod check;
mod graph_names;
mod scan;
mod schema;

pub(super) use graph_names::name_graphs;
pub(super) use scan::{Span, read_structure};
pub(super) use schema::DataField;
