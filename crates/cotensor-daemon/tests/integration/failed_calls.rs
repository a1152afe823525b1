//! Calls that fail. They end what the client had for them.

use crate::support::{Running, spec};
use cotensor_client::{ClientStore, protocol as p};
use cotensor_core::{ContentHash, DType, Result};
use cotensor_rpc::Connection;
use cotensor_store::{BlobSource, BlobSpec, BlobStore, Lease};
use std::time::Duration;

/// How long a claim that is stuck lasts here.
const CLAIM_WAIT: Duration = Duration::from_secs(2);

fn start() -> Running {
    Running::start(|config| config.claim_wait_max = CLAIM_WAIT)
}

/// A client that sends what the test wants.
fn raw(running: &Running) -> Connection {
    let connection = cotensor_client::connect(&running.socket, Box::new(|_, _, _| {})).unwrap();
    let hello = p::HelloParams { protocol: p::PROTOCOL, client: "raw".to_owned(), resume: None, lock: false };
    connection.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
    connection
}

/// The source of blobs, which consist of one repeated byte.
struct Byte(u8);

impl BlobSource for Byte {
    fn fill(&mut self, _: usize, target: &mut [u8]) -> Result<()> {
        target.fill(self.0);
        Ok(())
    }
}

fn blob(byte: u8) -> BlobSpec {
    BlobSpec {
        device: cotensor_core::Device::Cpu,
        hash: ContentHash::of(&[byte; 5000]),
        dtype: DType::U8,
        shape: vec![5000],
        producer: "model".to_owned(),
        label: String::new(),
        metadata: None,
    }
}

/// Uploads a blob, unless it is there.
fn upload(store: &ClientStore, byte: u8) -> Result<Vec<Lease>> {
    store.blobs(&[blob(byte)], &mut Byte(byte), &store.holder(""))
}

#[test]
fn failed_publication_ends_the_reservation() {
    let running = start();
    let connection = raw(&running);
    let reserve = p::ReserveParams { spec: p::Spec::from(&spec("x", 1 << 20)), holder: String::new() };
    for _ in 0..3 {
        let (p::ReserveResult { reservation }, _) =
            connection.call::<p::Reserve>(&reserve, Vec::new(), None).unwrap();
        let publish =
            p::PublishParams { reservation, ticket: None, expected: None, copies: Vec::new(), again: false };
        let error = connection.call::<p::Publish>(&publish, Vec::new(), None).unwrap_err();
        assert!(error.message().contains("needs a file descriptor"), "{error}");
    }
    running.settles_at(0);
}

#[test]
fn failed_publication_of_blobs_passes_the_upload_on() {
    let running = start();
    let connection = raw(&running);
    let content = p::BlobParams {
        hash: blob(1).hash.to_string(),
        dtype: "uint8".to_owned(),
        shape: vec![5000],
        device: cotensor_core::Device::Cpu,
        label: String::new(),
        metadata: None,
    };
    let plan = p::PlanUploadParams { blobs: vec![content], producer: "model".to_owned(), holder: String::new() };
    let (planned, _) = connection.call::<p::PlanUpload>(&plan, Vec::new(), None).unwrap();
    let publish = p::PublishBlobsParams { reservation: planned.upload.unwrap().reservation, micros: 1 };
    let error = connection.call::<p::PublishBlobs>(&publish, Vec::new(), None).unwrap_err();
    assert!(error.message().contains("needs a file descriptor"), "{error}");
    upload(&running.connect("other"), 1).unwrap();
}
