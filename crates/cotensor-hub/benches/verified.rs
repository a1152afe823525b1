//! Finding a model in the hub's cache, whose files are verified already or are not.
//!
//! Target: at most 1 ms for a verified model.
#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(clippy::unwrap_used)]

use cotensor_hub::testing::{HubServer, files_of};
use cotensor_hub::{Hub, Limits, ModelId, Settings};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::path::Path;

/// The size of a small encoder's weights.
const WEIGHTS_BYTES: usize = 90 << 20;

fn benches(criterion: &mut Criterion) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/bert");
    let mut files = files_of(&fixture);
    files.insert("onnx/model.onnx_data".to_owned(), vec![7; WEIGHTS_BYTES]);
    let server = HubServer::start();
    server.serve("owner/model", files);
    let folder = tempfile::tempdir().unwrap();
    let id = ModelId::parse("owner/model").unwrap();
    let settings = |verify| Settings {
        cache: folder.path().join("hub"),
        endpoint: Some(server.address().to_owned()),
        token: None,
        offline: false,
        records: Some(folder.path().join("records")),
        verify,
        limits: Limits::default(),
    };
    Hub::new(settings(false)).pull(&id, None).unwrap();
    let mut group = criterion.benchmark_group("find a model");
    group.bench_function("verified", |bencher| bencher.iter(|| Hub::new(settings(false)).find(&id, None).unwrap()));
    group.throughput(Throughput::Bytes(WEIGHTS_BYTES as u64)).sample_size(10);
    group.bench_function("not verified", |bencher| bencher.iter(|| Hub::new(settings(true)).find(&id, None).unwrap()));
    group.finish();
}

criterion_group!(group, benches);
criterion_main!(group);
