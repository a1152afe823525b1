//! Spilling: the limit, a full disk, and removed files.

use crate::support::Running;
use crate::support::processes::{PROGRAM, Processes, content, put};
use cotensor_client::{ClientStore, protocol as p};
use cotensor_core::ErrorKind;
use cotensor_store::{CopyReason, Retention, StoreReports, TensorStore};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1 << 20;
/// Three tensors, and the metadata of five.
const MEMORY_BYTES: usize = 3 * MIB + (16 << 10);
const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };

/// Publishes tensors 0 to `count`, each of a MiB.
fn put_all(store: &ClientStore, count: u64) {
    (0..count).for_each(|number| drop(put(store, &number.to_string(), &content(number, MIB), KEPT)));
}

fn assert_has(store: &Arc<ClientStore>, number: u64) {
    let found = store.get(&number.to_string(), &store.holder("")).unwrap();
    assert!(found.bytes().unwrap() == content(number, MIB), "{number}");
}

fn over_budget_message(store: &Arc<ClientStore>) -> String {
    let spec = cotensor_store::TensorSpec { retention: KEPT, ..crate::support::spec("new", MIB) };
    let new = store.reserve(spec, &store.holder("")).and_then(|mut new| {
        new.write(&content(9, MIB), CopyReason::Put)?;
        new.publish()
    });
    let error = new.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
    error.message().to_owned()
}

#[test]
fn spill_limit_loses_no_tensor() {
    let spill = tempfile::tempdir().unwrap();
    let running = Running::start(|config| {
        (config.max_memory_bytes, config.max_spill_bytes) = (MEMORY_BYTES as u64, 2 * MIB as u64);
        config.spill = Some(spill.path().to_path_buf());
    });
    let store = running.connect("one");
    put_all(&store, 5);
    for number in (0..5).chain(0..5) {
        assert_has(&store, number);
        assert_eq!((store.stats().spilled_now, store.stats().memory_usage_bytes), (2, 3 * MIB as u64));
    }
    assert!(over_budget_message(&store).contains("spilling failed"));
    (0..5).for_each(|number| assert_has(&store, number));
}

#[test]
fn full_disk_loses_no_tensor() {
    let mount = |at: &Path| format!("mount -t tmpfs -o size=2200k,mode=700 none '{}'", at.display());
    let tried = tempfile::tempdir().unwrap();
    match Command::new("unshare").args(["--mount", "sh", "-c", &mount(tried.path())]).output() {
        Ok(output) if output.status.success() => {}
        other => return eprintln!("not tested: a small file system cannot be mounted here: {other:?}"),
    }
    let command = |folder: &Path| -> Vec<OsString> {
        let spill = folder.join("spill");
        std::fs::create_dir(&spill).unwrap();
        let script = format!("{} && exec \"$0\" \"$@\"", mount(&spill));
        vec!["unshare".into(), "--mount".into(), "sh".into(), "-c".into(), script.into(), PROGRAM.into()]
    };
    let processes =
        Processes::start_by(command, |folder| vec![MEMORY_BYTES.to_string().into(), folder.join("spill").into()]);
    let store = processes.connect("one");
    put_all(&store, 5);
    for number in (0..5).chain(0..5) {
        assert_has(&store, number);
        assert_eq!((store.stats().spilled_now, store.stats().memory_usage_bytes), (2, 3 * MIB as u64));
    }
    assert!(over_budget_message(&store).contains("No space left"));
    (0..5).for_each(|number| assert_has(&store, number));
}

#[test]
fn tensors_with_removed_files_are_listed_as_lost() {
    let folder = tempfile::tempdir().unwrap();
    let spill = folder.path().join("spill");
    let running = Running::start(|config| {
        config.max_memory_bytes = MEMORY_BYTES as u64;
        config.spill = Some(spill.clone());
    });
    let store = running.connect("one");
    put_all(&store, 5);
    std::fs::remove_dir_all(&spill).unwrap();
    let lost = || -> Vec<String> {
        let list = store
            .request::<p::List>(&p::ListParams { prefix: String::new(), limit: 100, order: p::ListOrder::Name })
            .unwrap();
        let lost = |tensor: p::TensorInfo| {
            tensor.lost.map(|why| assert!(why.contains("No such file"), "{why}")).map(|()| tensor.spec.name)
        };
        list.tensors.into_iter().filter_map(lost).collect()
    };
    assert_eq!(lost(), ["0", "1"]);
    let error = store.get("0", &store.holder("")).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("0")), "{error}");
    assert_eq!(store.stats().spills, 2, "no tensor was spilled for a tensor that cannot be read");
    (2..5).for_each(|number| assert_has(&store, number));
    // Spilling continues in a new folder, and a lost name can be published again.
    drop(put(&store, "0", &content(0, MIB), KEPT));
    for number in [0, 2, 3, 4, 0] {
        assert_has(&store, number);
    }
    assert_eq!(lost(), ["1"]);
}
