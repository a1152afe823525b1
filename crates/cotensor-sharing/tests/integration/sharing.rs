//! Shared tensors and their manager: holders, versions, views, kinds, reports and logging.

use cotensor_core::{DType, ErrorKind, Kind};
use cotensor_sharing::{Registration, SharedTensor, TensorSharingManager};
use cotensor_store::{CopyReason, LocalStore, SharingConfig};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

fn register(manager: &TensorSharingManager, name: &str, bytes: usize, producer: &str, fill: u8) -> SharedTensor {
    let tensor = manager.register_shared_tensor(name, &[bytes], "cpu", producer, &[], DType::U8).unwrap();
    tensor.write(|bytes| bytes.fill(fill)).unwrap();
    tensor
}

fn bytes(tensor: &SharedTensor) -> Vec<u8> {
    tensor.read(<[u8]>::to_vec).unwrap()
}

#[test]
fn handle_keeps_its_version() {
    let manager = TensorSharingManager::new(1);
    let old = register(&manager, "x", 4, "a", 1);
    manager.release_model_tensors("a").unwrap();
    manager.optimize_memory_usage();
    let new = register(&manager, "x", 2, "b", 2);
    manager.get_shared_tensor("x", "c").unwrap();
    assert_eq!(old.acquire("z").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(old.is_freed());
    assert_eq!(bytes(&new), [2, 2]);
}

#[test]
fn handle_is_unaffected_by_another_publisher_of_its_name() {
    let store = LocalStore::builder().build();
    let manager = TensorSharingManager::with_store(store.clone());
    let tensor = register(&manager, "x", 4, "a", 1);
    manager.get_shared_tensor("x", "b").unwrap();
    let other = TensorSharingManager::with_store(store);
    register(&other, "x", 2, "a", 2);
    other.get_shared_tensor("x", "b").unwrap();
    // The version is superseded but held: old and new holders of the handle read it.
    manager.get_shared_tensor("x", "c").unwrap();
    assert_eq!(bytes(&tensor), [1; 4]);
    for model in ["a", "b", "c"] {
        manager.release_model_tensors(model).unwrap();
    }
    assert_eq!(manager.get_shared_tensor("x", "c").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn held_name_cannot_be_registered_again() {
    let manager = TensorSharingManager::new(1);
    let old = register(&manager, "x", 4, "a", 1);
    let view = manager.create_tensor_view("x", "v", &[0], &[2]).unwrap();
    manager.release_model_tensors("a").unwrap();
    let again = || manager.register_shared_tensor("x", &[100], "cpu", "b", &[], DType::U8);
    assert_eq!(again().unwrap_err().kind(), ErrorKind::Conflict);
    drop(view);
    again().unwrap().write(|bytes| bytes.fill(2)).unwrap();
    assert_eq!(old.acquire("e").unwrap_err().kind(), ErrorKind::NotFound, "no model could release it by its name");
    manager.get_shared_tensor("x", "c").unwrap();
    let seen = manager.get_shared_tensor("x", "d").unwrap();
    assert_eq!((seen.shape(), bytes(&seen)), ([100].as_slice(), vec![2; 100]));
    assert_eq!(seen.create_view("w", &[50], &[10]).unwrap().read(<[u8]>::to_vec).unwrap(), [2; 10]);
}

#[test]
fn optimize_frees_only_tensors_without_holders() {
    let manager = TensorSharingManager::new(1);
    register(&manager, "viewed", 4, "a", 1);
    register(&manager, "unheld", 4, "a", 2);
    manager.get_shared_tensor("viewed", "b").unwrap();
    let view = manager.create_tensor_view("viewed", "v", &[0], &[2]).unwrap();
    manager.release_model_tensors("a").unwrap();
    manager.release_model_tensors("b").unwrap();
    let report = manager.optimize_memory_usage();
    assert_eq!((report.freed_tensors, report.remaining_tensor_count), (vec!["unheld".to_owned()], 1));
    assert_eq!(bytes(&manager.get_shared_tensor("viewed", "c").unwrap()), [1; 4]);
    drop(view);
    assert_eq!(manager.get_tensor_memory_usage("viewed").unwrap(), 4);
    assert_eq!(manager.get_tensor_memory_usage("unheld").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn evicted_tensor_is_not_listed() {
    let manager = TensorSharingManager::new(1);
    let big = 700 << 10;
    manager.register_shared_tensor("old", &[big], "cpu", "a", &["t"], DType::U8).unwrap();
    manager.release_model_tensors("a").unwrap();
    assert_eq!(manager.analyze_sharing_opportunities()["old"], ["t"]);
    manager.register_shared_tensor("new", &[big], "cpu", "b", &[], DType::U8).unwrap();
    assert!(manager.analyze_sharing_opportunities().is_empty());
    assert_eq!(manager.get_tensor_memory_usage("old").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn view_holds_the_tensor_and_is_not_a_model() {
    let manager = TensorSharingManager::new(1);
    register(&manager, "x", 4, "a", 7);
    let view = manager.create_tensor_view("x", "v", &[1], &[2]).unwrap();
    let inner = view.create_view("w", &[1], &[1]).unwrap();
    manager.get_shared_tensor("x", "b").unwrap();
    manager.release_model_tensors("a").unwrap();
    manager.release_model_tensors("b").unwrap();
    drop(view);
    let held = |manager: &TensorSharingManager| manager.get_diagnostics().tensors[0].holders.clone();
    assert_eq!(held(&manager), [("view w".to_owned(), 1)].into());
    assert_eq!(manager.get_stats().models, [""; 0]);
    assert_eq!(inner.read(<[u8]>::to_vec).unwrap(), [7]);
    drop(inner);
    assert!(held(&manager).is_empty());
}

#[test]
fn view_keeps_an_unpublished_tensor() {
    let tensor = SharedTensor::new("x", &[4], DType::U8, "cpu", "a").unwrap();
    let view = tensor.create_view("v", &[0], &[4]).unwrap();
    tensor.write(|bytes| bytes.fill(3)).unwrap();
    tensor.release("a").unwrap();
    assert_eq!(tensor.get_reference_count(), 0);
    tensor.acquire("b").unwrap();
    assert_eq!(tensor.holders(), [("b".to_owned(), 1)].into());
    tensor.release("b").unwrap();
    assert_eq!(view.read(<[u8]>::to_vec).unwrap(), [3; 4]);
    drop(view);
    assert!(tensor.is_freed());
}

#[test]
fn thousands_of_models_acquire_and_release() {
    let tensor = SharedTensor::new("x", &[1], DType::U8, "cpu", "a").unwrap();
    let models: Vec<String> = (0..3000).map(|number| format!("m{number}")).collect();
    for model in &models {
        tensor.acquire(model).unwrap();
    }
    assert_eq!(tensor.get_reference_count(), 3001);
    for model in &models {
        tensor.release(model).unwrap();
    }
    assert_eq!(tensor.holders(), [("a".to_owned(), 1)].into());
}

#[test]
fn read_callback_can_use_a_published_tensor() {
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        let tensor = SharedTensor::new("x", &[1], DType::U8, "cpu", "a").unwrap();
        tensor.acquire("b").unwrap();
        let view = tensor.create_view("v", &[0], &[1]).unwrap();
        let read = tensor.read(|bytes| {
            drop(view);
            tensor.release("a").unwrap();
            tensor.release("b").unwrap();
            bytes[0]
        });
        done.send((read.unwrap(), tensor.is_freed())).unwrap();
    });
    assert_eq!(finished.recv_timeout(Duration::from_secs(60)), Ok((0, true)));
}

#[test]
fn share_between_models_acquires_for_all_or_none() {
    let config = SharingConfig { allowed_types: Some(vec![Kind::TextEmbedding]), ..SharingConfig::default() };
    let manager = TensorSharingManager::with_store(LocalStore::builder().config(config).build());
    register(&manager, "text_embedding", 4, "a", 1);
    let error = manager.share_tensor_between_models("text_embedding", "stranger", &["b", "c"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    manager.share_tensor_between_models("text_embedding", "a", &["b", "c", "b"]).unwrap();
    let tensor = manager.share_tensor_between_models("text_embedding", "b", &[]).unwrap();
    assert_eq!(tensor.holders(), [("a".into(), 1), ("b".into(), 2), ("c".into(), 1)].into());
    register(&manager, "image", 4, "a", 1);
    let error = manager.share_tensor_between_models("image", "a", &["a", "b"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(manager.release_model_tensors("a").unwrap(), 2, "the refused call acquired nothing");
}

#[test]
fn lookups_by_name_are_counted() {
    let manager = TensorSharingManager::new(1);
    register(&manager, "x", 4, "a", 1);
    manager.get_shared_tensor("x", "a").unwrap();
    assert_eq!(manager.get_diagnostics().tensors[0].hits, 1, "before publishing");
    for _ in 0..9 {
        manager.get_shared_tensor("x", "b").unwrap();
    }
    for _ in 0..10 {
        manager.get_shared_tensor("unknown", "b").unwrap_err();
    }
    let stats = manager.get_stats();
    assert_eq!((stats.cache_hits, stats.cache_misses, stats.hit_rate), (10, 10, 0.5));
    assert_eq!(manager.get_optimization_recommendations().cache_efficiency, 0.5);
    assert_eq!(manager.store().diagnostics().tensors[0].hits, 9);
}

#[test]
fn unpublished_tensor_is_in_every_report() {
    let manager = TensorSharingManager::new(1);
    manager.register_shared_tensor("x", &[4], "cpu", "a", &["b"], DType::U8).unwrap();
    let stats = manager.get_stats();
    assert_eq!((stats.total_tensors, stats.total_models, stats.memory_usage_bytes), (1, 1, 4));
    assert_eq!(stats.models, ["a"]);
    assert_eq!(stats.sharing_opportunities, [("x".to_owned(), vec!["b".to_owned()])].into());
    let report = manager.optimize_memory_usage();
    assert_eq!((report.current_memory_bytes, report.remaining_tensor_count), (4, 1));
    let found = manager.get_optimization_recommendations();
    assert_eq!(found.largest_tensors, [("x".to_owned(), 4)]);
    assert_eq!(found.low_reference_tensors, [("x".to_owned(), 1)]);
    assert_eq!(found.sharing_opportunities, stats.sharing_opportunities);
    let _view = manager.create_tensor_view("x", "v", &[0], &[2]).unwrap();
    assert_eq!(manager.get_stats().models, ["a"]);
    let tensors = manager.get_diagnostics().tensors;
    assert_eq!((tensors.len(), tensors[0].version, tensors[0].device.as_str()), (1, 0, "cpu"));
    assert_eq!(tensors[0].holders, [("a".to_owned(), 1), ("view v".to_owned(), 1)].into());
}

#[test]
fn published_and_unpublished_tensors_are_counted_once() {
    let manager = TensorSharingManager::new(1);
    register(&manager, "big", 40, "a", 1);
    register(&manager, "small", 4, "a", 1);
    manager.get_shared_tensor("small", "b").unwrap();
    assert_eq!(manager.get_stats().total_tensors, 2);
    let names: Vec<String> = manager.get_diagnostics().tensors.into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["big", "small"]);
    let found = manager.get_optimization_recommendations();
    assert_eq!(found.largest_tensors, [("big".to_owned(), 40), ("small".to_owned(), 4)]);
    assert_eq!(found.low_reference_tensors, [("big".to_owned(), 1)], "two hold the small one");
}

#[test]
fn opportunities_list_consumers_without_the_tensor() {
    let manager = TensorSharingManager::new(1);
    manager.register_shared_tensor("x", &[4], "cpu", "bert", &["t5", "llama"], DType::U8).unwrap();
    manager.get_shared_tensor("x", "t5").unwrap();
    let open = [("x".to_owned(), vec!["llama".to_owned()])].into();
    assert_eq!(manager.analyze_sharing_opportunities(), open);
    assert_eq!(manager.get_stats().sharing_opportunities, open);
    assert_eq!(manager.get_optimization_recommendations().sharing_opportunities, open);
    manager.get_shared_tensor("x", "llama").unwrap();
    assert!(manager.get_stats().sharing_opportunities.is_empty(), "all consumers hold the tensor");
}

/// The kinds of some models.
fn kinds_of(model: &str) -> Vec<Kind> {
    match model {
        "bert" => vec![Kind::TextEmbedding],
        "clip" => vec![Kind::VisionEmbedding, Kind::VisionTextJoint],
        "blip" => vec![Kind::VisionTextJoint],
        _ => Vec::new(),
    }
}

#[test]
fn kind_is_inferred_from_the_name_or_the_models() {
    let manager = TensorSharingManager::new(1).with_model_kinds(kinds_of);
    let kind = |name, producer, consumers: &[&str]| {
        manager.register_shared_tensor(name, &[1], "cpu", producer, consumers, DType::U8).unwrap().kind()
    };
    assert_eq!(kind("bert_embedding", "bert", &["t5"]), Kind::TextEmbedding);
    assert_eq!(kind("clip_embedding", "clip", &["t5"]), Kind::VisionEmbedding);
    assert_eq!(kind("clip_for_blip", "clip", &["blip"]), Kind::VisionTextJoint);
    assert_eq!(kind("my_audio_embedding", "bert", &[]), Kind::AudioEmbedding);
    assert_eq!(kind("context_embedding", "unknown", &[]), Kind::Other, "a kind is a whole word");
    assert_eq!(kind("attention_weight", "unknown", &[]), Kind::Other, "weights are exempt from the configuration");
    let registration = Registration { kind: Some(Kind::AudioTextJoint), ..Registration::new("x", &[1], "bert") };
    let tensor = manager.register(&registration).unwrap();
    assert_eq!((tensor.kind(), tensor.dtype()), (Kind::AudioTextJoint, DType::F32));
}

#[test]
fn refused_tensor_is_private_and_counted() {
    let config = SharingConfig { allowed_types: Some(vec![Kind::TextEmbedding]), ..SharingConfig::default() };
    let store = LocalStore::builder().config(config).max_memory_bytes(100).build();
    let manager = TensorSharingManager::with_store(store).with_model_kinds(kinds_of);
    let shared = manager.register_shared_tensor("bert_embedding", &[10], "cpu", "bert", &["t5"], DType::U8).unwrap();
    assert!(!shared.is_private());
    let private = manager.register_shared_tensor("clip_embedding", &[10], "cpu", "clip", &["blip"], DType::U8).unwrap();
    assert!(private.is_private());
    private.write(|bytes| bytes.fill(5)).unwrap();
    assert_eq!(bytes(&manager.get_shared_tensor("clip_embedding", "clip").unwrap()), [5; 10]);
    assert_eq!(manager.get_shared_tensor("clip_embedding", "blip").unwrap_err().kind(), ErrorKind::Refused);
    let stats = manager.get_stats();
    assert_eq!(stats.refused, [("kind not allowed".to_owned(), 1)].into());
    assert_eq!((stats.total_tensors, stats.memory_usage_bytes), (2, 20), "the budget covers it");
    assert_eq!(stats.sharing_opportunities, [("bert_embedding".to_owned(), vec!["t5".to_owned()])].into());
    let error = manager.register_shared_tensor("more", &[81], "cpu", "clip", &[], DType::U8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert_eq!(manager.release_model_tensors("clip").unwrap(), 2);
    assert!(private.is_freed());
    assert_eq!(manager.get_stats().memory_usage_bytes, 10);
    assert_eq!(manager.get_shared_tensor("clip_embedding", "clip").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn two_tensors_of_one_kind_are_an_opportunity() {
    let manager = TensorSharingManager::new(1);
    let opportunities = || manager.store().stats().sharing_opportunities;
    for (name, model) in [("a_weight", "a"), ("b_weight", "b"), ("a_text_embedding", "a"), ("b_text_embedding", "b")] {
        assert!(opportunities().is_empty());
        let kind = if name.ends_with("weight") { Kind::Weight } else { Kind::TextEmbedding };
        manager.register(&Registration { kind: Some(kind), ..Registration::new(name, &[1], model) }).unwrap();
        manager.share_tensor_between_models(name, model, &["c"]).unwrap();
    }
    let all = ["a", "b", "c"].map(str::to_owned).to_vec();
    assert_eq!(opportunities(), [("text_embedding".to_owned(), all)].into());
}

#[test]
fn verbose_logging_reports_tensor_events() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    // The sink also receives lines of other tests in this process.
    SharedTensor::set_log_sink(Some(Arc::new(move |line| {
        if line.contains("logged") {
            sink.lock().unwrap().push(line.to_owned());
        }
    })));
    let manager = TensorSharingManager::new(1);
    register(&manager, "quiet logged", 4, "a", 1);
    SharedTensor::set_verbose_logging(true);
    register(&manager, "logged", 4, "a", 1);
    manager.get_shared_tensor("logged", "b").unwrap();
    manager.store().record_copy("logged", CopyReason::EngineOutput, 4);
    drop(manager.create_tensor_view("logged", "v", &[0], &[1]).unwrap());
    manager.release_model_tensors("a").unwrap();
    manager.release_model_tensors("b").unwrap();
    manager.optimize_memory_usage();
    SharedTensor::set_verbose_logging(false);
    manager.get_shared_tensor("logged", "b").unwrap_err();
    SharedTensor::set_log_sink(None);
    let mut lines = lines.lock().unwrap().clone();
    lines.retain(|line| !line.contains("quiet"));
    let expected = [
        "register logged: 4 bytes of other by a",
        "publish logged: version 1",
        "acquire logged: b",
        "copy logged: 4 bytes, engine output",
        "view logged: view v",
        "release logged: a",
        "release logged: b",
        "evict logged: 4 bytes",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn diagnostics_list_all_tensors_of_the_process() {
    let mine = || {
        let mut found = SharedTensor::get_diagnostics();
        found.tensors.retain(|info| info.name.starts_with("diagnosed"));
        found.recent_copies.retain(|copy| copy.tensor.starts_with("diagnosed"));
        found
    };
    let own = SharedTensor::new("diagnosed own", &[2, 2], DType::F32, "cpu", "a").unwrap();
    let manager = TensorSharingManager::new(1);
    let kept = register(&manager, "diagnosed kept", 4, "a", 1);
    own.acquire("b").unwrap();
    own.acquire("b").unwrap();
    manager.store().record_copy("diagnosed kept", CopyReason::Put, 4);
    let found = mine();
    let names: Vec<(&str, u64)> = found.tensors.iter().map(|info| (info.name.as_str(), info.version)).collect();
    assert_eq!(names, [("diagnosed own", 1), ("diagnosed kept", 0)]);
    let info = &found.tensors[0];
    assert_eq!(info.holders, [("a".to_owned(), 1), ("b".to_owned(), 2)].into());
    assert_eq!((info.bytes, info.device.as_str(), info.memory.as_str()), (16, "cpu", "heap"));
    assert_eq!((found.recent_copies.len(), &*found.recent_copies[0].reason), (1, "put"));
    assert!(found.copies.iter().any(|copies| copies.reason == "put"));
    manager.get_shared_tensor("diagnosed kept", "b").unwrap();
    assert_eq!((mine().tensors[1].version, mine().tensors[1].hits), (1, 1));
    for model in ["a", "b", "b"] {
        own.release(model).unwrap();
    }
    drop(manager);
    assert_eq!(mine().tensors.len(), 1, "the tensor with a handle remains");
    drop(kept);
    assert!(mine().tensors.is_empty());
}
