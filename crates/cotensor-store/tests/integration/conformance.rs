//! The embedded store keeps what [`Store`](cotensor_store::Store) promises.

use cotensor_store::{EmbeddedStore, Store};
use std::sync::Arc;

#[test]
fn the_embedded_store_conforms() {
    cotensor_store::testing::conformance(&|max_bytes| {
        let store = EmbeddedStore::builder().max_memory_bytes(max_bytes).build();
        Box::new(move || Arc::clone(&store) as Arc<dyn Store>)
    });
}
