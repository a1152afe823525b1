//! A view into a published tensor: a window on the same bytes that keeps them alive.

use cotensor::core::Kind;
use cotensor::store::{Retention, TensorSpec};
use cotensor::{DType, EmbeddedStore, Slice, Store};

fn main() -> cotensor::Result<()> {
    let store = EmbeddedStore::builder().build();
    let (producer, reader) = (store.holder("producer"), store.holder("reader"));
    let spec = TensorSpec {
        name: "embeddings".into(),
        dtype: DType::U8,
        shape: vec![4, 8],
        kind: Kind::TextEmbedding,
        space: None,
        producer: "producer".into(),
        retention: Retention::WhileLeased,
        provenance: None,
    };
    let mut reservation = store.reserve(spec, &producer)?;
    reservation.write(&(0..32).collect::<Vec<u8>>())?;
    let published = reservation.publish()?;
    // Rows 1 and 2, every other column; no byte is copied.
    let lease = store.get("embeddings", &reader)?;
    let view = lease.view(&[Slice { start: 1, len: 2, step: 1 }, Slice { start: 0, len: 4, step: 2 }])?;
    let (whole, window) = (published.bytes().unwrap_or_default(), view.bytes().unwrap_or_default());
    println!("shape {:?}, strides {:?}, first element {}", view.shape(), view.layout().strides(), window[0]);
    println!("the same memory: {}", window.as_ptr() == whole[8..].as_ptr());
    drop((published, lease));
    println!("held by {:?}", store.diagnostics().tensors[0].holders);
    drop(view);
    println!("bytes in use once the view is gone: {}", store.memory_usage_bytes());
    Ok(())
}
