//! The states of a name's versions.

use crate::support::processes::{Processes, content, put, settles_empty};
use crate::support::until;
use cotensor_client::ClientStore;
use cotensor_client::protocol::{List, ListHolders, ListOrder, ListParams, NameParams, TensorState};
use cotensor_store::{Retention, TensorStore};
use std::time::Duration;

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };
const MIB: usize = 1 << 20;

/// The states of a name's versions in the list, by version.
fn listed(store: &ClientStore, name: &str) -> Vec<(u64, TensorState)> {
    let list = store
        .request::<List>(&ListParams { prefix: name.to_owned(), limit: 100, order: ListOrder::Name })
        .unwrap()
        .tensors;
    list.iter().map(|tensor| (tensor.id.version, tensor.state)).collect()
}

/// The states of a name's versions. `tensor.list` and `tensor.holders` must agree.
fn states(store: &ClientStore, name: &str) -> Vec<(u64, TensorState)> {
    let listed = listed(store, name);
    let mut who = store.request::<ListHolders>(&NameParams { name: name.to_owned() }).unwrap().versions;
    who.sort_by_key(|tensor| tensor.id.version);
    assert_eq!(listed, who.iter().map(|tensor| (tensor.id.version, tensor.state)).collect::<Vec<_>>());
    listed
}

#[test]
fn version_states_survive_a_takeover() {
    use TensorState::{Published, Removed, Spilled, Superseded};
    let max = 3 * MIB + (16 << 10);
    let processes = Processes::start_with(|folder| vec![max.to_string().into(), folder.join("spill").into()]);
    let one = processes.connect("one");
    let first = put(&one, "x", &content(1, 100), KEPT);
    assert_eq!(states(&one, "x"), [(1, Published)]);
    let second = put(&one, "x", &content(2, 100), KEPT);
    assert_eq!(states(&one, "x"), [(1, Superseded), (2, Published)]);
    one.remove("x").unwrap();
    assert_eq!(states(&one, "x"), [(1, Superseded), (2, Removed)]);
    let third = put(&one, "x", &content(3, 100), KEPT);
    let expected = [(1, Superseded), (2, Removed), (3, Published)];
    assert_eq!(states(&one, "x"), expected);
    for number in 0..4 {
        drop(put(&one, &format!("large {number}"), &content(number, MIB), KEPT));
    }
    until("the oldest tensor is spilled", || listed(&one, "large 0") == [(1, Spilled)]);
    assert_eq!(states(&one, "large 3"), [(1, Published)]);

    processes.kill_server();
    let two = processes.connect("two");
    assert_eq!((&states(&two, "x")[..], &states(&two, "large 0")[..]), (&expected[..], &[(1, Spilled)][..]));
    drop(two.get("large 0", &two.holder("")).unwrap());
    assert_eq!(states(&two, "large 0"), [(1, Published)]);

    drop((first, second, third));
    until("superseded and removed versions are freed with their last lease", || listed(&two, "x") == [(3, Published)]);
    assert_eq!(states(&two, "x"), [(3, Published)]);
    two.remove("x").unwrap();
    (0..4).for_each(|number| two.remove(&format!("large {number}")).unwrap());
    drop((one, two));
    settles_empty(&processes);
}
