//! Ids, versions, tickets and tokens of other clients, and invalid ones.

use cotensor_attacks::{Raw, Target, assert_no_secrets, spec};
use cotensor_client::protocol as p;
use cotensor_core::{ContentHash, Memory};
use cotensor_memory::MemfdMemory;
use cotensor_store::{Claim, ComputationStore, Key, TensorStore};
use serde_json::{Value, json};
use std::os::fd::OwnedFd;

fn sealed(bytes: usize) -> OwnedFd {
    MemfdMemory.reserve(bytes).unwrap().freeze().unwrap().fd().unwrap().try_clone_to_owned().unwrap()
}

/// Calls that use a number as each kind of id.
fn calls(number: u64, id: &Value) -> Vec<(&'static str, Value)> {
    vec![
        ("tensor.discard", json!({"reservation": number})),
        ("blob.discard", json!({"reservation": number})),
        ("claim.finish", json!({"ticket": number, "results": [id]})),
        ("claim.finish", json!({"ticket": number, "results": []})),
        ("claim.abandon", json!({"ticket": number})),
        ("segment.fd", json!({"segment": number})),
        ("tensor.release", json!({"leases": [{"id": id}]})),
        ("tensor.release", json!({"leases": [{"id": id, "holder": "victim"}, {"id": id, "holder": "victim[1]"}]})),
        (
            "tensor.publish_slab",
            json!({"slab": number, "offset": 0, "spec": p::Spec::from(&spec("x", 1)), "holder": ""}),
        ),
    ]
}

#[test]
fn ids_of_other_sessions_are_refused() {
    let target = Target::start(|_| {});
    // The victim has one object of each kind.
    let victim = target.connect("second victim");
    let holder = victim.holder("");
    let key = Key(ContentHash::of(b"secret computation"));
    let Claim::Compute(ticket) = victim.claim(&key, &holder).unwrap() else { panic!("nothing is there") };
    let reserved = victim.reserve(spec("secret-reservation", 1 << 20), &holder).unwrap();
    let mut raw = target.raw();
    let ids = target.secrets().iter().map(|lease| json!(p::Id::from(lease.id())));
    for id in ids.chain([json!({"name_id": u64::MAX, "version": u64::MAX}), json!({"name_id": 0, "version": 0})]) {
        for number in [0, 1, 2, 3, u64::MAX, 1 << 53] {
            for (method, params) in calls(number, &id) {
                assert_no_secrets(&raw.refused(method, params, &[]));
            }
            for method in ["tensor.publish", "blob.publish"] {
                let params = json!({"reservation": number, "micros": u64::MAX});
                assert_no_secrets(&raw.refused(method, params, &[sealed(8192)]));
            }
        }
    }
    // Versions that do not exist, also of the victim's tensors.
    for lease in target.secrets() {
        for version in [0, 2, u64::MAX] {
            let id = json!({"name_id": lease.id().name_id, "version": version});
            assert_no_secrets(&raw.refused("tensor.lease", json!({"id": id}), &[]));
            assert_eq!(raw.call("tensor.has", json!({"id": id}), &[]), Ok(json!({"present": false})));
        }
    }
    drop(raw);
    reserved.publish().unwrap();
    ticket.publish(vec![victim.reserve(spec("secret-result", 10), &holder).unwrap()]).unwrap();
    drop(victim);
    target.assert_unharmed();
}

#[test]
fn session_releases_only_its_own_objects_and_once() {
    let target = Target::start(|_| {});
    let mut raw = target.raw();
    let found = raw.call("tensor.get", json!({"name": "secret-large"}), &[]).unwrap();
    let lease = json!({"leases": [{"id": found["id"]}, {"id": found["id"]}]});
    assert_no_secrets(&raw.refused("tensor.release", lease.clone(), &[]));
    assert_no_secrets(&raw.refused("tensor.release", lease, &[]));
    assert_no_secrets(&raw.refused("segment.fd", json!({"segment": found["segment"]["id"]}), &[]));
    // A ticket accepts only a result of its own computation.
    let claim = json!({"key": ContentHash::of(b"attack").to_string()});
    let ticket = raw.call("claim.begin", claim.clone(), &[]).unwrap()["compute"].clone();
    let found = raw.call("tensor.get", json!({"name": "secret-small"}), &[]).unwrap();
    let stolen = raw.refused("claim.finish", json!({"ticket": ticket, "results": [found["id"]]}), &[]);
    assert!(stolen.contains("not published under this ticket"), "{stolen}");
    assert!(raw.call("claim.begin", claim, &[]).unwrap()["compute"].is_u64(), "the claim was abandoned");
    drop(raw);
    target.assert_unharmed();
}

#[test]
fn session_is_resumed_only_with_its_token() {
    let target = Target::start(|_| {});
    let mut raw = Raw::connect(&target.socket);
    let mut other = target.raw();
    let sessions = other.call("session.list", json!({}), &[]).unwrap();
    let victim = sessions["sessions"][0]["session"].clone();
    let own = other.hello()["token"].clone();
    let leases = json!([{"name": "secret-large", "version": 1, "holder": "victim"}]);
    for token in [json!(""), json!("0".repeat(64)), json!("x".repeat(1 << 20)), own] {
        let resume = json!({"session": victim, "token": token, "leases": leases, "claims": []});
        let hello = json!({"protocol": p::PROTOCOL, "client": "attacker", "resume": resume});
        let error = raw.refused("session.hello", hello, &[]);
        assert!(error.contains("the token is not that of the session"), "{error}");
        assert_no_secrets(&error);
        assert!(
            raw.refused("session.list", json!({}), &[]).contains("session.hello"),
            "a hello that was refused is none"
        );
    }
    drop((raw, other));
    target.assert_unharmed();
}

#[test]
fn out_of_memory_error_names_holders_but_no_tensors() {
    let target = Target::start(|config| config.max_memory_bytes = 16 << 20);
    let mut raw = target.raw();
    let spec = p::Spec::from(&spec("more", 64 << 20));
    let error = raw.refused("tensor.reserve", json!({"spec": spec, "holder": ""}), &[]);
    assert!(error.contains("over_budget") && error.contains("victim"), "the holder is named: {error}");
    assert_no_secrets(&error);
    assert_no_secrets(&raw.refused("slab.open", json!({"bytes": 64 << 20}), &[sealed(64 << 10)]));
    assert_no_secrets(&raw.refused("tensor.get", json!({"name": "secre"}), &[]).replace("secre\\", ""));
    drop(raw);
    target.assert_unharmed();
}
