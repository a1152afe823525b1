//! The second module of the browser package: what a page needs of a model besides an engine.
//!
//! Families and graphs, the keys of results, preprocessing, and the rules of decoding are those of the Rust library. Bytes of
//! graphs and weights stay in JavaScript's memory; the module reads them piece by piece.

pub mod answers;
pub mod arrays;
pub mod audio;
pub mod bytes;
pub mod checkpoint;
pub mod decoder;
pub mod decoding;
pub mod errors;
pub mod family;
pub mod files;
pub mod graph;
pub mod host;
pub mod image;
pub mod keys;
pub mod pairs;
pub mod panics;
pub mod sentence;
pub mod speech;
pub mod stage;
pub mod task;
pub mod text;
pub mod writing;
