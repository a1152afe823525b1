//! Two models with one encoder: a text classifier and an entity tagger. The encoder is loaded once and runs once;
//! each model's own head reads its output in place.
//!
//! `cargo run --example share_encoder`

use cotensor::{Inputs, LocalOptions, Pipeline, Result, run_user};
use std::path::Path;

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny");

const PIPELINE: &str = r#"
[[user]]
name = "classifier"
model = "bert"
task = "text-classification"

[[user]]
name = "tagger"
model = "bert"
task = "token-classification"
head = "head.entities"
"#;

fn main() -> Result<()> {
    let runtime = LocalOptions::default().runtime()?;
    let inputs = Inputs::default().with_text("The harbour wakes before the city does.");
    for user in &Pipeline::parse(PIPELINE)?.users {
        let model = runtime.open(&Path::new(MODELS).join(&user.model))?;
        let report = run_user(&model, user, &inputs, &runtime.store().holder(&user.name))?;
        println!("{}: {:?}", user.name, report.answer);
        for stage in &report.stages {
            let source = if stage.computed { "was computed" } else { "was reused" };
            println!("  {} {source}", stage.role);
        }
    }
    let stats = runtime.store().stats();
    println!("{} hits, {} bytes held", stats.cache_hits, stats.memory_usage_bytes);
    Ok(())
}
