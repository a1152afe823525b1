//! The conformance suite of [`Store`] for clients of a daemon, in another process or in their own.

use crate::support::{Running, until};
use cotensor_client::ClientStore;
use cotensor_core::Device;
use cotensor_daemon::{Config, Embedded};
use cotensor_fake_cuda::FakeCuda;
use cotensor_memory::SimulatedMemory;
use cotensor_store::testing::{conformance, device_conformance};
use cotensor_store::{LocalStore, Store};
use std::sync::Arc;

#[test]
fn store_of_a_client_conforms() {
    conformance(&|max_bytes| {
        let running = Running::start(|config| config.max_memory_bytes = max_bytes);
        Box::new(move || running.connect("user") as Arc<dyn Store>)
    });
}

#[test]
fn store_of_a_client_conforms_on_a_device() {
    let device = Device::Fake(1);
    device_conformance(device, &|max_bytes| {
        let running = Running::start(|config| config.max_device_bytes = [(device, max_bytes)].into());
        Box::new(move || {
            let memory = Arc::new(SimulatedMemory::new(1));
            ClientStore::builder("user").socket(&running.socket).memory(memory).connect().unwrap() as Arc<dyn Store>
        })
    });
}

#[test]
fn store_of_a_client_conforms_on_cuda() {
    let device = Device::Cuda(0);
    let fake = FakeCuda::start().unwrap();
    let memory = crate::cuda::memory_of(&fake.library());
    device_conformance(device, &|max_bytes| {
        let running = Running::start(|config| config.max_device_bytes = [(device, max_bytes)].into());
        let memory = Arc::clone(&memory);
        Box::new(move || {
            let builder = ClientStore::builder("user").socket(&running.socket).memory(Arc::clone(&memory));
            builder.connect().unwrap() as Arc<dyn Store>
        })
    });
    until("the device is empty", || fake.used_bytes(0).unwrap() == 0);
}

#[test]
fn local_store_conforms_on_cuda() {
    let device = Device::Cuda(0);
    let fake = FakeCuda::start().unwrap();
    let memory = crate::cuda::memory_of(&fake.library());
    device_conformance(device, &|max_bytes| {
        let store = LocalStore::builder().memory(Arc::clone(&memory)).max_device_bytes(device, max_bytes).build();
        Box::new(move || Arc::clone(&store) as Arc<dyn Store>)
    });
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
}

#[test]
fn store_of_an_embedded_daemon_conforms() {
    conformance(&|max_bytes| {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cotensor.sock");
        let config = Config { socket: socket.clone(), max_memory_bytes: max_bytes, ..Config::default() };
        let embedded = Embedded::start(config).unwrap();
        Box::new(move || {
            let _alive = (&folder, &embedded);
            ClientStore::connect(Some(&socket), "user").unwrap() as Arc<dyn Store>
        })
    });
}
