//! What is known of the weights of few bits of a loaded stage.

use crate::support::{copy, fixtures, runtime, tiny};
use cotensor_model::quantize::{Activations, OutputErrors, QuantizeOptions, REPORT_FILE, quantize_folder};
use cotensor_quant::{Scheme, Width};
use cotensor_store::LocalStore;
use std::fs;

/// The whole model is one graph, and each stage a part of it.
#[test]
fn a_part_of_a_graph_has_the_bits_of_its_own_matrices() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("siglip");
    let options = QuantizeOptions {
        width: Width::Four,
        group: 16,
        scheme: Scheme::Search,
        rotates: false,
        activations: Activations::Auto,
        keep: Vec::new(),
        mixed_bits: None,
        max_error: None,
    };
    quantize_folder(&tiny("siglip-whole"), &target, &options, None, &mut |_, _, _| {}).unwrap();
    let model = runtime(LocalStore::builder()).open(&target).unwrap();
    let text = model.quantized(&model.stage("text_tower").unwrap()).unwrap().unwrap();
    // The scales of the table of tokens are too small to be shared.
    assert_eq!((text.stored_bits, text.run_bits), (5.0, 4.0), "{text:?}");
    assert!(text.relative_error.is_some_and(|error| error > 0.0 && error < 0.2), "{text:?}");
    let vision = model.quantized(&model.stage("vision_tower").unwrap()).unwrap();
    assert_eq!(vision, None, "its codes are too small to be shared");
}

#[test]
fn codes_of_another_program_have_bits_and_no_errors() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixtures().join("low-bit/bert"), folder.path());
    fs::remove_file(folder.path().join(REPORT_FILE)).unwrap();
    let model = runtime(LocalStore::builder()).open(folder.path()).unwrap();
    let found = model.quantized(&model.stage("encoder").unwrap()).unwrap().unwrap();
    // Scales of less than 1 KiB are in the file of the graph.
    assert!((4.0..=4.5).contains(&found.stored_bits) && found.run_bits >= 4.0, "{found:?}");
    assert_eq!((found.relative_error, found.layer_error, found.weights), (None, None, None));
    assert_eq!((found.errors, found.held_out), (OutputErrors::default(), 0));
    let text = serde_json::to_value(&found).unwrap();
    assert!(text["relative_error"].is_null() && text["cosine"].is_null(), "{text}");
}
