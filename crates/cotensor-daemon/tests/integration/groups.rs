//! Groups in the daemon: takeover, spilling, budget, lists, and descriptions that are refused.

use crate::support::processes::Processes;
use crate::support::{Running, until};
use cotensor_client::ClientStore;
use cotensor_client::protocol::{self as p, GroupMember};
use cotensor_core::{DType, ErrorKind, Result};
use cotensor_daemon::METADATA_BYTES;
use cotensor_store::backend::{DIMENSION_BYTES, TEXT_COPIES};
use cotensor_store::{CopyReason, Lease, MEMBERS_MAX, Members, Retention, StoreReports, TensorSpec, TensorStore};
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1 << 20;
const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };

/// The publisher's metadata of each group.
const METADATA: &str = r#"{"layer":7}"#;

fn group(name: &str, keys: usize, retention: Retention) -> TensorSpec {
    let members = Members::new([("keys", DType::F32, vec![keys / 4]), ("values", DType::U8, vec![1, 3])]).unwrap();
    let metadata = Some(METADATA.into());
    TensorSpec { retention, producer: "test".to_owned(), metadata, ..TensorSpec::group(name, members) }
}

fn put(store: &ClientStore, spec: TensorSpec, byte: u8) -> Result<Lease> {
    let keys = spec.members.as_ref().unwrap().find("keys")?.layout().size_bytes();
    let mut reservation = store.reserve(spec, &store.holder(""))?;
    reservation.write_member("keys", &vec![byte; keys], CopyReason::Put)?;
    reservation.write_member("values", &[byte, 2, 3], CopyReason::Put)?;
    reservation.publish()
}

fn assert_is(lease: &Lease, keys: usize, byte: u8) {
    assert_eq!(lease.metadata(), Some(METADATA));
    let [found, values] = ["keys", "values"].map(|name| lease.member(name).unwrap());
    assert_eq!((found.layout().dtype(), found.shape(), values.shape()), (DType::F32, &[keys / 4][..], &[1, 3][..]));
    assert!(found.bytes().unwrap().iter().all(|&each| each == byte) && values.bytes().unwrap() == [byte, 2, 3]);
}

fn get(store: &Arc<ClientStore>, name: &str) -> Lease {
    store.get(name, &store.holder("")).unwrap()
}

#[test]
fn groups_and_their_leases_outlive_the_server() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    let sizes = [100, MIB];
    let name = |keys: usize| format!("group of {keys}");
    let older: Vec<Lease> = sizes.iter().map(|&keys| put(&one, group(&name(keys), keys, KEPT), 1).unwrap()).collect();
    let newer: Vec<Lease> =
        sizes.iter().map(|&keys| put(&one, group(&name(keys), 2 * keys, Retention::WhileLeased), 2).unwrap()).collect();
    let check = |two: &Arc<ClientStore>| {
        for (&keys, (older, newer)) in sizes.iter().zip(older.iter().zip(&newer)) {
            let found = get(two, &name(keys));
            assert_eq!(found.id(), newer.id());
            assert_is(&found, 2 * keys, 2);
            assert_is(&two.lease(older.id(), &two.holder("")).unwrap(), keys, 1);
        }
    };
    processes.kill_server();
    check(&processes.connect("two"));
    // A new supervisor gets the state by other messages.
    processes.kill_foreground();
    let two = processes.connect("two");
    check(&two);
    let id = older[0].id();
    drop(older);
    until("the superseded versions are freed", || !two.has(id));
    newer.iter().zip(sizes).for_each(|(lease, keys)| assert_is(lease, 2 * keys, 2));
}

#[test]
fn spilled_group_keeps_its_members() {
    let processes =
        Processes::start_with(|folder| vec![(3 * MIB + (16 << 10)).to_string().into(), folder.join("spill").into()]);
    let one = processes.connect("one");
    for number in 0..5 {
        drop(put(&one, group(&number.to_string(), MIB - 256, KEPT), number).unwrap());
    }
    assert_eq!(one.stats().spilled_now, 2);
    let counts = |store: &ClientStore| {
        let found = store
            .request::<p::List>(&p::ListParams { prefix: String::new(), limit: 10, order: p::ListOrder::Name })
            .unwrap();
        assert!(found.tensors.iter().all(|tensor| tensor.member_count == 2 && tensor.spec.members.is_empty()));
        found.tensors.iter().filter(|tensor| tensor.state == p::TensorState::Spilled).count()
    };
    assert_eq!(counts(&one), 2);
    (0..5).for_each(|number| assert_is(&get(&one, &number.to_string()), MIB - 256, number));
    processes.kill_server();
    let two = processes.connect("two");
    assert_eq!(counts(&two), 2);
    (0..5).for_each(|number| assert_is(&get(&two, &number.to_string()), MIB - 256, number));
}

#[test]
fn table_of_members_counts_in_the_budget() {
    let running = Running::start(|config| config.max_memory_bytes = MIB as u64);
    let store = running.connect("one");
    let held = put(&store, group("small", 8, Retention::WhileLeased), 1).unwrap();
    let own = METADATA_BYTES + DIMENSION_BYTES + TEXT_COPIES * ("small".len() + "test".len()) as u64;
    let members = TEXT_COPIES * ("keys".len() + "values".len() + METADATA.len()) as u64 + 3 * DIMENSION_BYTES;
    let counted = store.stats().metadata_bytes;
    assert_eq!(counted, own + members + 2 * 128);
    let many = |count: usize| {
        let members = (0..count).map(|index| (format!("{index:060}"), DType::U8, [1]));
        let spec = TensorSpec::group("many", Members::new(members).unwrap());
        store.reserve(spec, &store.holder(""))?.publish()
    };
    let error = many(MEMBERS_MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
    let many = many(1000).unwrap();
    assert!(store.stats().metadata_bytes > counted + 1000 * (128 + TEXT_COPIES * 60));
    let found = running.connect("two");
    assert_eq!(get(&found, "many").members(), many.members());
    drop((held, many, found));
    until("all metadata is returned", || store.stats().metadata_bytes == 0);
}

#[test]
fn largest_table_passes_in_messages() {
    let running = Running::start(|_| {});
    let (one, two) = (running.connect("one"), running.connect("two"));
    // Escaped characters take six bytes in JSON.
    let members = (0..MEMBERS_MAX).map(|index| (format!("{index:04}{}", "\u{1}".repeat(60)), DType::BF16, [1; 16]));
    let members = Members::new(members).unwrap();
    let made =
        one.reserve(TensorSpec::group("many", Arc::clone(&members)), &one.holder("")).unwrap().publish().unwrap();
    let found = get(&two, "many");
    assert_eq!((found.id(), found.members()), (made.id(), Some(&*members)));
    let held = two.request::<p::ListHolders>(&p::NameParams { name: "many".to_owned() }).unwrap();
    assert_eq!((held.versions[0].member_count, held.versions[0].spec.members.len()), (MEMBERS_MAX, MEMBERS_MAX));
}

#[test]
fn invalid_members_are_refused_with_their_names() {
    let running = Running::start(|_| {});
    let store = running.connect("one");
    let refused = |shape: &[usize], members: &[(&str, &str, &[usize])]| {
        let member = |&(name, dtype, shape): &(&str, &str, &[usize])| GroupMember {
            name: name.to_owned(),
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
        };
        let members = members.iter().map(member).collect();
        let spec = p::Spec { shape: shape.to_vec(), members, ..p::Spec::from(&TensorSpec::new("x", DType::U8, &[1])) };
        let error = store.request::<p::Reserve>(&p::ReserveParams { spec, holder: String::new() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        error.field().unwrap().to_owned()
    };
    assert_eq!(refused(&[4], &[("codes", "uint8", &[3])]), "members");
    assert_eq!(refused(&[3, 1], &[("codes", "uint8", &[3])]), "members");
    assert_eq!(refused(&[3], &[("codes", "uint3", &[3])]), "codes");
    assert_eq!(refused(&[65], &[("codes", "uint8", &[1]), ("codes", "uint8", &[1])]), "codes");
    assert_eq!(refused(&[0], &[("codes", "uint8", &[usize::MAX, usize::MAX, 0])]), "codes");
    assert_eq!(refused(&[0], &vec![("codes", "uint8", &[0usize][..]); MEMBERS_MAX + 1]), "members");
    assert!(store.stats().metadata_bytes == 0 && store.stats().memory_usage_bytes == 0);
}
