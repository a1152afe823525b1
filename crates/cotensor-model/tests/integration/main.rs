//! The crate's integration tests, in one program. `engine_leaks.rs` and `run_memory.rs` are programs of their own: they
//! measure their process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapters;
mod coded_tables;
mod configuration;
mod dequantized;
mod embedders;
mod embedding;
mod engine;
mod engine_choice;
mod engine_rten;
mod export_forms;
mod golden_answers;
mod golden_keys;
mod graph_behaviour;
mod graph_fingerprint;
mod graph_hostile;
mod greedy_decoding;
mod image_texts;
mod imports;
mod logit_ranking;
mod long_speech;
mod low_bit;
mod low_bit_engines;
mod object_detection;
mod pipeline;
mod pipeline_inputs;
mod pool;
mod quantize_reads;
mod quantized_groups;
mod quantized_stages;
mod relatives;
mod sentence_modules;
mod shared_model;
mod shared_tower;
mod similarity;
mod sounds;
mod stage_references;
mod streaming;
mod support;
mod text_generation;
mod trunk_and_head;
mod variants;
mod zero_points;
