//! A view of a published tensor: one row of an encoder's output, and every other number of that row, without a copy.
//!
//! `cargo run --example tensor_view`

use cotensor::model::tensor::Value;
use cotensor::{Error, LocalOptions, Result, Slice};
use std::path::Path;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny/bert");

fn main() -> Result<()> {
    let runtime = LocalOptions::default().runtime()?;
    let store = runtime.store();
    let model = runtime.open(Path::new(MODEL))?;

    // One holder runs the encoder, which publishes its output.
    let batch = model.text()?.encode(&["The harbour wakes."])?;
    let [ids, mask, types] = [batch.ids, batch.mask, batch.type_ids].map(Value::from);
    let inputs = [("input_ids", &ids), ("attention_mask", &mask), ("token_type_ids", &types)];
    let run = model.stage("encoder")?.run(&inputs, &["last_hidden_state"], &store.holder("encoder"))?;
    let name = run.outputs[0].lease().map(|lease| lease.name().to_owned());
    let name = name.ok_or_else(|| Error::not_found("the output is in no store"))?;

    // Another holder finds it by name and reads the first token's row: no byte is copied.
    let tensor = store.get(&name, &store.holder("reader"))?;
    let [_, _, width] = *tensor.shape() else { return Err(Error::invalid("three dimensions are expected")) };
    let all = |len| Slice { start: 0, len, step: 1 };
    let row = tensor.view(&[all(1), all(1), all(width)])?;
    println!("{name} {:?}, row {:?} starts with {:.3?}", tensor.shape(), row.shape(), &row.typed::<f32>()?[..4]);

    // A view of the view, with a step. A range out of bounds is an error.
    let halved = row.view(&[all(1), all(1), Slice { start: 1, len: width / 2, step: 2 }])?;
    println!("every other number: shape {:?}, strides {:?}", halved.shape(), halved.layout().strides());
    let beyond = row.view(&[all(1), all(2), all(width)]);
    println!("two rows of one: {}", beyond.err().map_or_else(String::new, |error| error.to_string()));

    // The views keep the tensor after its lease is released and its name is removed.
    let address = tensor.bytes().map(<[u8]>::as_ptr);
    drop((tensor, run));
    store.remove(&name)?;
    println!("same memory: {}", row.bytes().map(<[u8]>::as_ptr) == address);
    println!("first number: {:.3}", row.typed::<f32>()?[0]);
    Ok(())
}
