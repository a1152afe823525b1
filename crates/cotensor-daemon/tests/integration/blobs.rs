//! Blobs: the daemon verifies the hash of an upload before other clients can lease it.

use crate::support::{Running, spec};
use cotensor_client::ClientStore;
use cotensor_core::{ContentHash, DType, ErrorKind, Hasher, Result};
use cotensor_store::{BlobSource, BlobSpec, BlobStore, Claim, ComputationStore, CopyReason, Key, TensorStore};
use std::sync::Arc;

/// Blobs: each consists of one repeated byte.
struct Bytes(Vec<u8>);

impl BlobSource for Bytes {
    fn fill(&mut self, index: usize, target: &mut [u8]) -> Result<()> {
        target.fill(self.0[index]);
        Ok(())
    }
}

/// A blob of `len` bytes, all of them `byte`.
fn blob(byte: u8, len: usize) -> BlobSpec {
    let hash = ContentHash::of(&vec![byte; len]);
    BlobSpec {
        device: cotensor_core::Device::Cpu,
        hash,
        dtype: DType::U8,
        shape: vec![len],
        producer: "model".to_owned(),
        label: String::new(),
        metadata: None,
    }
}

fn assert_uploads(store: &Arc<ClientStore>, specs: &[BlobSpec], bytes: &[u8]) {
    let leases = store.blobs(specs, &mut Bytes(bytes.to_vec()), &store.holder("")).unwrap();
    for (lease, byte) in leases.iter().zip(bytes) {
        assert!(lease.bytes().unwrap().iter().all(|found| found == byte));
    }
}

#[test]
fn blob_that_does_not_match_its_hash_is_refused() {
    let running = Running::start(|_| {});
    let (hostile, honest) = (running.connect("hostile"), running.connect("honest"));
    // The second is longer than the piece that is hashed at a time. `LastByte` changes only its last byte.
    let specs = [blob(1, 5000), blob(2, 1_000_001)];
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
    assert_uploads(&honest, &specs, &[1, 2]);
    assert_uploads(&hostile, &specs, &[1, 2]);
}

#[test]
fn claim_result_does_not_replace_a_blob() {
    let running = Running::start(|_| {});
    let (hostile, honest) = (running.connect("hostile"), running.connect("honest"));
    let specs = [blob(1, 5000)];
    let key = Key(Hasher::new("cotensor weight v1").field(specs[0].hash.as_bytes()).finish());
    let Claim::Compute(ticket) = hostile.claim(&key, &hostile.holder("")).unwrap() else {
        panic!("the key has no result")
    };
    let name = format!("weight/{}", specs[0].hash);
    let mut forged = hostile.reserve(spec(&name, 5000), &hostile.holder("")).unwrap();
    forged.write(&[9; 5000], CopyReason::Put).unwrap();
    let _held = ticket.publish(vec![forged]).unwrap();
    assert_uploads(&honest, &specs, &[1]);
}
