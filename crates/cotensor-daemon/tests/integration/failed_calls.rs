//! Calls that fail. They end what the client had for them, and the client returns what it cannot use.

use crate::support::{Running, put, spec, until};
use cotensor_client::{ClientStore, protocol as p};
use cotensor_core::{ContentHash, DType, ErrorKind, HeapMemory, Result};
use cotensor_rpc::Connection;
use cotensor_store::{
    BlobSource, BlobSpec, BlobStore, Claim, ComputationStore, Key, Lease, Reservation, SharingConfig, TensorStore,
};
use std::os::unix::fs::symlink;
use std::sync::Arc;
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

/// A client whose memory is of this process only: it can send no descriptor of it, and can open none of other processes.
fn unshared(running: &Running) -> Arc<ClientStore> {
    ClientStore::builder("unshared").socket(&running.socket).memory(Arc::new(HeapMemory)).connect().unwrap()
}

/// The number of leases of that client.
fn leases_of_unshared(store: &ClientStore) -> usize {
    let sessions = store.request::<p::Sessions>(&p::Empty {}).unwrap().sessions;
    sessions.iter().find(|session| session.client.starts_with("unshared")).unwrap().leases
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
        let (p::ReserveResult { reservation }, _) = connection.call::<p::Reserve>(&reserve, Vec::new(), None).unwrap();
        let publish = p::PublishParams { reservation, ticket: None, expected: None, copies: Vec::new(), again: false };
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

#[test]
fn client_that_cannot_send_its_blobs_passes_the_upload_on() {
    let running = start();
    let client = unshared(&running);
    let error = upload(&client, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    upload(&running.connect("other"), 1).unwrap();
}

#[test]
fn client_that_cannot_open_a_blob_passes_the_upload_of_others_on() {
    let running = start();
    let (other, client) = (running.connect("other"), unshared(&running));
    let _held = [1, 2].map(|byte| upload(&other, byte).unwrap());
    let error = client.blobs(&[1, 2, 3].map(blob), &mut Byte(3), &client.holder("")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    upload(&other, 3).unwrap();
    until("no blob is leased", || leases_of_unshared(&other) == 0);
}

#[test]
fn client_that_cannot_open_a_result_leases_no_other() {
    let running = start();
    let (other, client) = (running.connect("other"), unshared(&running));
    let key = Key(ContentHash::of(b"stage"));
    let Claim::Compute(ticket) = other.claim(&key, &other.holder("")).unwrap() else { panic!("the key has no result") };
    let result = |number: usize| other.reserve(spec(&format!("r{number}"), 3), &other.holder("")).unwrap();
    let results: Vec<Reservation> = (0..3).map(result).collect();
    let _held = ticket.publish(results).unwrap();
    let error = client.claim(&key, &client.holder("")).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    until("no result is leased", || leases_of_unshared(&other) == 0);
}

#[test]
fn reservation_of_a_daemon_with_other_rules_is_returned() {
    let start = |max: Option<u64>| {
        Running::start(|config| {
            config.sharing = SharingConfig { max_shared_tensor_size_bytes: max, ..SharingConfig::default() };
            config.small_bytes_max = 0;
        })
    };
    let (strict, later) = (start(Some(10)), start(None));
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cotensor.sock");
    symlink(&strict.socket, &socket).unwrap();
    let store = ClientStore::connect(Some(&socket), "one").unwrap();
    let refused = store.reserve(spec("x", 1000), &store.holder("")).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
    std::fs::remove_file(&socket).unwrap();
    symlink(&later.socket, &socket).unwrap();
    drop(strict);
    drop(put(&*store, "x", &[1; 1000]));
    later.settles_at(0);
}
