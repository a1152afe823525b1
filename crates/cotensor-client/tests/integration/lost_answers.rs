//! Publications whose answer was lost with the daemon.

use crate::scripted::{Reply, Scripted};
use cotensor_client::{ClientStore, protocol as p};
use cotensor_core::{DType, Error, ErrorKind};
use cotensor_rpc::Method;
use cotensor_store::{Lease, TensorSpec, TensorStore};
use serde_json::Value as Json;

fn put(store: &ClientStore, name: &str) -> Result<Lease, Error> {
    store.reserve(TensorSpec::new(name, DType::U8, &[1000]), &store.holder(""))?.publish()
}

/// The first daemon publishes a tensor and ends before its answer. The next one has the tensor, and refuses to publish it again.
#[test]
fn range_of_a_published_tensor_is_kept_when_the_next_attempt_is_refused() {
    let mut sent = None;
    let daemon = Scripted::start(move |connection, method, params: &Json| match (connection, method) {
        (0, p::PublishSlab::NAME) => {
            sent = params["offset"].as_u64();
            Reply::End
        }
        (_, p::OpenSlab::NAME) => Reply::of(&p::SlabResult { slab: 1, live: sent.into_iter().collect() }),
        (_, p::PublishSlab::NAME) => Reply::Refuse(ErrorKind::Conflict),
        (_, other) => panic!("{other}"),
    });
    let store = ClientStore::connect(Some(&daemon.socket), "producer").unwrap();
    for name in ["published", "refused", "refused too"] {
        assert_eq!(put(&store, name).unwrap_err().kind(), ErrorKind::Conflict, "{name}");
    }
    let requests = daemon.calls::<p::PublishSlab>();
    let offsets: Vec<_> = requests.iter().map(|request| (&*request.spec.name, request.offset)).collect();
    let [(first, kept), (again, same), (_, other), (_, reused)] = offsets[..] else { panic!("{offsets:?}") };
    assert_eq!((first, again, kept), ("published", "published", same));
    assert_ne!(other, kept, "a tensor lies there");
    assert_eq!(reused, other, "the range of a refused tensor is used again");
}
