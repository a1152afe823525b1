//! Two models with the same encoder: the text goes through it once.
//!
//! `cargo run --example share_encoder [MODEL_FOLDER]`, a BERT with `onnx/head.onnx` and `onnx/head.entities.onnx`.

use cotensor::{Inputs, LocalOptions, Pipeline, Runtime, run_user};
use std::path::{Path, PathBuf};

fn main() -> cotensor::Result<()> {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/bert");
    let folder = std::env::args_os().nth(1).map_or(tiny, PathBuf::from);
    let pipeline = Pipeline::parse(
        "[[user]]\nname = 'mood'\nmodel = 'bert'\ntask = 'text-classification'\n\
         [[user]]\nname = 'names'\nmodel = 'bert'\ntask = 'token-classification'\nhead = 'head.entities'\n",
    )?;
    let runtime = Runtime::local(&LocalOptions::default())?;
    let inputs = Inputs::default().with_text("The harbour wakes before the town does.");
    for user in &pipeline.users {
        let model = runtime.open(&folder)?;
        let report = run_user(&model, user, &inputs, &runtime.store().holder(&user.name))?;
        for stage in &report.stages {
            println!("{}: {} {}", user.name, stage.role, if stage.computed { "ran" } else { "shared" });
        }
    }
    let copies = runtime.store().stats().copies;
    println!("every copy that was made: {copies:?}");
    Ok(())
}
