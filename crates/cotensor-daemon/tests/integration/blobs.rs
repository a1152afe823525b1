//! Contents are known by their hashes: what a client uploads is read before others get it.

use crate::support::{Running, spec};
use cotensor_client::ClientStore;
use cotensor_core::{ContentHash, DType, ErrorKind, Hasher, Result};
use cotensor_store::{BlobSource, BlobSpec, BlobStore, Claim, ComputationStore, CopyReason, Key, TensorStore};
use std::sync::Arc;

/// Contents, the first of these bytes, the second of those, and so on.
struct Bytes(Vec<u8>);

impl BlobSource for Bytes {
    fn fill(&mut self, index: usize, target: &mut [u8]) -> Result<()> {
        target.fill(self.0[index]);
        Ok(())
    }
}

/// A content of `len` bytes, all of them `byte`.
fn content(byte: u8, len: usize) -> BlobSpec {
    let hash = ContentHash::of(&vec![byte; len]);
    BlobSpec {
        device: cotensor_core::Device::Cpu,
        hash,
        dtype: DType::U8,
        shape: vec![len],
        producer: "model".to_owned(),
    }
}

fn assert_provides(store: &Arc<ClientStore>, specs: &[BlobSpec], bytes: &[u8]) {
    let leases = store.blobs(specs, &mut Bytes(bytes.to_vec()), &store.holder("")).unwrap();
    for (lease, byte) in leases.iter().zip(bytes) {
        assert!(lease.bytes().unwrap().iter().all(|found| found == byte));
    }
}

#[test]
fn contents_that_do_not_match_their_hashes_are_refused() {
    let running = Running::start(|_| {});
    let (hostile, honest) = (running.connect("hostile"), running.connect("honest"));
    // The second is longer than what is hashed at a time, and differs in its last byte alone.
    let specs = [content(1, 5000), content(2, 1_000_001)];
    struct LastByte;
    impl BlobSource for LastByte {
        fn fill(&mut self, index: usize, target: &mut [u8]) -> Result<()> {
            target.fill(index as u8 + 1);
            target[target.len() - 1] ^= u8::from(index == 1);
            Ok(())
        }
    }
    let forged: [&mut dyn BlobSource; 3] = [&mut Bytes(vec![9, 2]), &mut Bytes(vec![2, 1]), &mut LastByte];
    for source in forged {
        let error = hostile.blobs(&specs, source, &hostile.holder("")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    }
    assert_provides(&honest, &specs, &[1, 2]);
    assert_provides(&hostile, &specs, &[1, 2]);
}

#[test]
fn a_claims_result_does_not_stand_for_a_content() {
    let running = Running::start(|_| {});
    let (hostile, honest) = (running.connect("hostile"), running.connect("honest"));
    let specs = [content(1, 5000)];
    let key = Key(Hasher::new("cotensor weight v1").field(specs[0].hash.as_bytes()).finish());
    let Claim::Compute(ticket) = hostile.claim(&key, &hostile.holder("")).unwrap() else { panic!("nothing is there") };
    let name = format!("weight/{}", specs[0].hash);
    let mut forged = hostile.reserve(spec(&name, 5000), &hostile.holder("")).unwrap();
    forged.write(&[9; 5000], CopyReason::Put).unwrap();
    let _held = ticket.publish(vec![forged]).unwrap();
    assert_provides(&honest, &specs, &[1]);
}
