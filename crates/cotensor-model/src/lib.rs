//! Models as stages over a store: what models have in common is loaded once and computed once.
//!
//! A [`family::Family`] is data: which graphs, which roles, which preprocessing. A [`model::Model`] is a folder in the
//! usual hub layout, opened over a [`runtime::Runtime`] (shared) or privately (as a program without Cotensor would).
//! A [`pipeline::Pipeline`] lets several users run on the same input. No memory backend is named here: the
//! crate sees the trait [`cotensor_store::Store`] only.

/// Arrays in memory of their own.
pub mod array;
pub mod engine;
pub mod family;
mod folder;
pub mod graph;
pub mod labels;
pub mod model;
pub mod pipeline;
pub mod pool;
pub mod preprocess;
pub mod runtime;
pub mod stage;
pub mod value;
pub mod weights;
