//! Models as stages over a store: equal weights are loaded once, and equal results are computed once.
//!
//! A [`family::Family`] is data: graphs, roles, preprocessing. A [`model::Model`] is a folder in the layout of model
//! hubs, opened over a [`model::Runtime`] (shared) or privately (as a program without Cotensor would). A
//! [`pipeline::Pipeline`] runs several users on one input. The crate names no memory kind: it uses the trait
//! [`cotensor_store::Store`] only.
//!
//! A *stage* is a graph with named inputs and outputs. Its *space* is the fingerprint of graph, weights and preprocessing: equal spaces give
//! comparable numbers. The *key* of a result is the hash of space, engine, precision and inputs; `stage/graph_stage.rs` makes it with
//! [`cotensor_graph`]. An *engine* runs graphs and borrows weights from the store. No architecture is written by hand.

pub mod adapter;
pub mod engine;
mod folder;
pub mod graph;
pub mod model;
pub mod pipeline;
pub mod pool;
pub mod quantize;
mod quantized;
pub mod stage;
pub mod tensor;
pub mod weights;

pub use cotensor_preprocess as preprocess;
pub use cotensor_preprocess::family;
pub use folder::ModelFolder;
pub use model::Runtime;
