//! The conformance suite on the local store.

use cotensor_core::Device;
use cotensor_core::testing::FakeDevice;
use cotensor_store::{LocalStore, Store};
use std::sync::Arc;

#[test]
fn local_store_conforms() {
    cotensor_store::testing::conformance(&|max_bytes| {
        let store = LocalStore::builder().max_memory_bytes(max_bytes).build();
        Box::new(move || Arc::clone(&store) as Arc<dyn Store>)
    });
}

#[test]
fn local_store_conforms_on_a_device() {
    let memory = FakeDevice::new(1);
    cotensor_store::testing::device_conformance(Device::Fake(1), &|max_bytes| {
        let memory = Arc::new(memory.clone());
        let store = LocalStore::builder().memory(memory).max_device_bytes(Device::Fake(1), max_bytes).build();
        Box::new(move || Arc::clone(&store) as Arc<dyn Store>)
    });
    assert_eq!(memory.live_bytes(), 0);
}
