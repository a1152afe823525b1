//! Memory where memfds must not be executable, as in sandboxes.

use cotensor_core::{Memory, MemoryKind};
use cotensor_memory::testing::refuse_executable_memfds;
use cotensor_memory::{
    Guarantee, LocalMemory, MemfdPool, SealedMemfd, SharedIndex, SimulatedMemory, Slab, check_sealed,
};

#[test]
fn every_memory_works_where_executable_memfds_are_refused() {
    if let Err(error) = refuse_executable_memfds() {
        return eprintln!("not tested: no seccomp filter can be set: {error}");
    }
    let pool = MemfdPool::new(1 << 20);
    let local = LocalMemory::default();
    let slab = Slab::create(1 << 16).unwrap();
    let device = SimulatedMemory::default();
    let memories: [&dyn Memory; 4] = [&pool, &local, &slab, &device];
    for memory in memories {
        let segment = memory.copy_of(&[7; 5000]).unwrap().freeze().unwrap();
        let mut read = [0; 5000];
        segment.read_at(0, &mut read).unwrap();
        assert_eq!(read, [7; 5000]);
    }
    check_sealed(slab.fd(), slab.len(), Guarantee::ProducerOnly).unwrap();
    let segment = pool.reserve(300_000).unwrap().freeze().unwrap();
    assert_eq!(segment.kind(), MemoryKind::Memfd);
    let fd = segment.fd().unwrap().try_clone_to_owned().unwrap();
    assert_eq!(SealedMemfd::open_once(fd, 300_000, Guarantee::Immutable).unwrap().guarantee(), Guarantee::Immutable);
    assert!(SharedIndex::create(16).is_ok());
}
