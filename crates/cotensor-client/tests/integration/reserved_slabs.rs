//! Slabs that take the place of a reservation.

use crate::scripted::{Reply, Scripted};
use cotensor_client::{ClientStore, protocol as p};
use cotensor_core::testing::until;
use cotensor_core::{DType, Device, Error, ErrorKind, Memory, MemoryKind, Result, SegmentMut, SlabMemory};
use cotensor_memory::Slab;
use cotensor_rpc::Method;
use cotensor_store::{TensorSpec, TensorStore};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

const DEVICE: Device = Device::Fake(0);

/// Memory of a device whose slabs have no range.
struct Full;

struct FullSlab(Slab);

impl Memory for Full {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn device(&self) -> Device {
        DEVICE
    }

    fn reserve(&self, _: usize) -> Result<Box<dyn SegmentMut>> {
        panic!("a small tensor lies in a slab")
    }

    fn has_slabs(&self) -> bool {
        true
    }

    fn create_slab(&self, len: usize) -> Result<Arc<dyn SlabMemory>> {
        Ok(Arc::new(FullSlab(Slab::create(len)?)))
    }
}

impl Memory for FullSlab {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Slab
    }

    fn device(&self) -> Device {
        DEVICE
    }

    fn reserve(&self, _: usize) -> Result<Box<dyn SegmentMut>> {
        Err(Error::new(ErrorKind::Io, "the device fails"))
    }
}

impl SlabMemory for FullSlab {
    fn reserve_unzeroed(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        self.reserve(len)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn size_bytes(&self) -> usize {
        self.0.size_bytes()
    }

    fn is_unused(&self) -> bool {
        true
    }
}

#[test]
fn reservation_of_a_slab_that_fails_is_cancelled() {
    let daemon = Scripted::start(|_, method, _| match method {
        p::Reserve::NAME => Reply::of(&p::ReserveResult { reservation: 5 }),
        p::OpenSlab::NAME => Reply::of(&p::SlabResult { slab: 1, live: Vec::new() }),
        other => panic!("{other}"),
    });
    let store = ClientStore::builder("producer").socket(&daemon.socket).memory(Arc::new(Full)).connect().unwrap();
    let spec = TensorSpec::new("x", DType::U8, &[1000]).on(DEVICE);
    assert_eq!(store.reserve(spec, &store.holder("")).unwrap_err().kind(), ErrorKind::Io);
    assert!(daemon.calls::<p::OpenSlab>().is_empty());
    until("the client cancels the reservation", || !daemon.calls::<p::Discard>().is_empty());
}
