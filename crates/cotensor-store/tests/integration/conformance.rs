//! The conformance suite on the embedded store.

use cotensor_core::Device;
use cotensor_core::testing::FakeDevice;
use cotensor_store::{EmbeddedStore, Store};
use std::sync::Arc;

#[test]
fn embedded_store_conforms() {
    cotensor_store::testing::conformance(&|max_bytes| {
        let store = EmbeddedStore::builder().max_memory_bytes(max_bytes).build();
        Box::new(move || Arc::clone(&store) as Arc<dyn Store>)
    });
}

#[test]
fn embedded_store_conforms_on_a_device() {
    let memory = FakeDevice::new(1);
    cotensor_store::testing::device_conformance(Device::Fake(1), &|max_bytes| {
        let memory = Arc::new(memory.clone());
        let store = EmbeddedStore::builder().memory(memory).max_device_bytes(Device::Fake(1), max_bytes).build();
        Box::new(move || Arc::clone(&store) as Arc<dyn Store>)
    });
    assert_eq!(memory.live_bytes(), 0);
}
