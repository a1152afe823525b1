//! The model API of docs/reference/api-names.md: models keep the tensors of their last input, and take those of other models.

use cotensor_core::{ErrorKind, Kind};
use cotensor_hub::{Hub, Settings};
use cotensor_model::Runtime;
use cotensor_model::engine::RtenEngine;
use cotensor_model::pipeline::{Inputs, SharedEmbedding, User};
use cotensor_model::pool::{HardwarePreferences, PooledModel, ResourcePool};
use cotensor_sharing::SharedTensor;
use cotensor_store::{LocalStore, Store};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny")
}

fn pool() -> ResourcePool {
    let hub = Hub::new(Settings { offline: true, ..Settings::from_env() });
    let runtime = Runtime::with_hub(LocalStore::builder().build(), Arc::new(RtenEngine::new(Some(1))), hub);
    ResourcePool::new(runtime, tiny(), 2).unwrap()
}

fn model(pool: &ResourcePool, family: &str) -> PooledModel {
    pool.get_model(family, family, &HardwarePreferences::default()).unwrap()
}

fn task(model: &PooledModel, task: &str) -> User {
    User { name: "any".into(), model: model.name().into(), task: task.into(), ..User::default() }
}

fn holders(tensor: &SharedTensor) -> BTreeMap<String, u32> {
    tensor.holders()
}

fn held(counts: &[(&str, u32)]) -> BTreeMap<String, u32> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn model_keeps_the_tensors_of_its_last_input() {
    let pool = pool();
    let (bert, t5) = (model(&pool, "bert"), model(&pool, "t5"));
    assert_eq!(bert.get_shared_tensor(Kind::TextEmbedding).unwrap_err().kind(), ErrorKind::NotFound);
    let text = Inputs::default().with_text("Sample text");
    let user = bert.user_of(&text).unwrap();
    let result = bert.process(&user, &text).unwrap();
    let shared = bert.get_shared_tensor(Kind::TextEmbedding).unwrap();
    let tensor = shared.tensor();
    assert_eq!(tensor.shape(), result.output_tensors["text_embedding"].shape());
    let bytes = result.output_tensors["text_embedding"].bytes().unwrap().as_ptr();
    assert_eq!(tensor.read(<[u8]>::as_ptr).unwrap(), bytes, "the same memory");
    assert_eq!(
        (tensor.space(), holders(tensor)),
        (result.output_tensors["text_embedding"].space(), held(&[("bert", 1)]))
    );
    // As in the example of the API: 1, 2, 1, 0.
    t5.use_shared_tensor(tensor).unwrap();
    assert_eq!(holders(tensor), held(&[("bert", 1), ("t5", 1)]));
    t5.release_shared_tensor(tensor).unwrap();
    assert_eq!(t5.release_shared_tensor(tensor).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(tensor.get_reference_count(), 1);
    // The next input replaces the tensor.
    bert.process(&user, &Inputs::default().with_text("Another text")).unwrap();
    assert_eq!(tensor.get_reference_count(), 0);
    let next = bert.get_shared_tensor(Kind::TextEmbedding).unwrap();
    assert!(!next.tensor().is_same(tensor) && next.tensor().get_reference_count() == 1);
    bert.dispose();
    assert_eq!(next.tensor().get_reference_count(), 0);
    assert_eq!(bert.get_shared_tensor(Kind::TextEmbedding).unwrap_err().kind(), ErrorKind::NotFound);
    // A model that is dropped releases its tensors, too.
    t5.use_shared_tensor(next.tensor()).unwrap();
    let clone = t5.clone();
    drop(t5);
    assert_eq!(next.tensor().get_reference_count(), 1);
    drop(clone);
    assert_eq!(next.tensor().get_reference_count(), 0);
}

#[test]
fn tensor_of_an_equal_space_replaces_the_own_stage() {
    let pool = pool();
    let (first, second) = (model(&pool, "bert"), model(&pool, "bert"));
    let text = Inputs::default().with_text("the harbour wakes");
    let embedding = task(&first, "sentence-embedding");
    let alone = first.process(&embedding, &text).unwrap();
    let shared = first.get_shared_tensor(Kind::TextEmbedding).unwrap();
    for name in ["sentence-embedding", "text-classification"] {
        let taken =
            second.process_with_shared_embeddings(&task(&second, name), &text, std::slice::from_ref(&shared)).unwrap();
        assert!(taken.report.stages.iter().all(|stage| stage.role != "encoder"), "{:?}", taken.report.stages);
        let own = first.run(&task(&first, name), &text).unwrap();
        assert_eq!(taken.report.answer, own.report.answer);
        assert_eq!(taken.report.outputs, own.report.outputs);
    }
    assert_eq!(alone.output_tensors.len(), 1);

    // Whisper's other task reads what the encoder made for the first one, and needs no audio.
    let whisper = model(&pool, "whisper");
    let audio = Inputs::default().with_audio(&tiny().join("audio/speech.flac")).unwrap();
    let language = task(&whisper, "language-identification");
    let own = whisper.process(&language, &audio).unwrap();
    let encoded = whisper.get_shared_tensor(Kind::AudioEmbedding).unwrap();
    let other = model(&pool, "whisper");
    let taken = other.process_with_shared_embeddings(&language, &Inputs::default(), &[encoded]).unwrap();
    assert_eq!(taken.report.answer, own.report.answer);
    assert!(taken.report.prepared.iter().all(|prepared| prepared.role != "audio"));
}

#[test]
fn tensor_of_another_space_is_refused_with_both_spaces() {
    let pool = pool();
    let photo = Inputs::default().with_image(&tiny().join("images/tall.png")).unwrap();
    let (vit, clip, bert) = (model(&pool, "vit"), model(&pool, "clip"), model(&pool, "bert"));
    vit.process(&task(&vit, "image-embedding"), &photo).unwrap();
    let vision = vit.get_shared_tensor(Kind::VisionEmbedding).unwrap();
    let ranking = task(&clip, "image-text-retrieval");
    let text = Inputs::default().with_text("a photo of a cat");
    let refused = |model: &PooledModel, inputs: &Inputs, embeddings: &[SharedEmbedding]| {
        model.process_with_shared_embeddings(&ranking, inputs, embeddings).unwrap_err()
    };
    let error = refused(&clip, &text, std::slice::from_ref(&vision));
    let own = clip.model().space("vision_tower").unwrap().to_string();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    for part in [vision.tensor().space().unwrap().to_string(), own, "fit-adapter".to_owned()] {
        assert!(error.to_string().contains(&part), "{error} lacks {part}");
    }
    // A text model reads no image: the message lists what it takes.
    let error = refused(&bert, &text, std::slice::from_ref(&vision));
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("encoder (text_embedding)"), "{error}");
    // A tensor that no encoder made has no space.
    let plain = SharedTensor::new("plain", &[1, 4], cotensor_core::DType::F32, "cpu", "vit").unwrap();
    assert!(refused(&clip, &text, &[plain.into()]).to_string().contains("no space"));
    // Two tensors for one stage.
    let images = task(&clip, "image-embedding");
    clip.process(&images, &photo).unwrap();
    let own = clip.get_shared_tensor(Kind::VisionTextJoint).unwrap();
    let error = refused(&clip, &text, &[own.clone(), own.clone()]);
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    // Its own space is taken, and the photo is not needed.
    let ranked = clip.process_with_shared_embeddings(&ranking, &text, &[own]).unwrap();
    let photo_and_text = photo.clone().with_text("a photo of a cat");
    let whole = clip.run(&ranking, &photo_and_text).unwrap().report;
    assert_eq!(ranked.report.answer, whole.answer);
    // Both embeddings: the tensor of the text brings its text, and no other text is accepted beside it.
    clip.process(&images, &photo).unwrap();
    let seen = clip.get_shared_tensor(Kind::VisionTextJoint).unwrap();
    let other = model(&pool, "clip");
    other.process(&task(&other, "text-embedding"), &text).unwrap();
    let read = other.get_shared_tensor(Kind::VisionTextJoint).unwrap();
    let both = [seen, read];
    let ranked = clip.process_with_shared_embeddings(&ranking, &Inputs::default(), &both).unwrap();
    assert_eq!((ranked.report.answer, ranked.report.outputs), (whole.answer, whole.outputs));
    assert!(ranked.report.stages.is_empty(), "no stage is loaded: {:?}", ranked.report.stages);
    let error = refused(&clip, &Inputs::default().with_text("another text"), &both);
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("text")));
}

#[test]
fn model_tokenizes_and_loads_before_its_first_input() {
    let pool = pool();
    for (family, roles) in [("bert", vec!["encoder"]), ("clip", vec!["vision_tower", "text_tower"])] {
        let model = model(&pool, family);
        model.initialize().unwrap();
        let tokens = model.tokenize("a photo of a cat").unwrap();
        assert_eq!(tokens.ids.shape()[0], 1);
        assert!(tokens.ids.shape()[1] > 2 && tokens.ids.shape() == tokens.mask.shape());
        let loaded = pool.runtime().store().stats().memory_usage_bytes;
        assert!(loaded > 0);
        for role in roles {
            model.model().stage(role).unwrap();
        }
        assert_eq!(pool.runtime().store().stats().memory_usage_bytes, loaded, "all weights were loaded");
    }
    assert_eq!(model(&pool, "vit").tokenize("x").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn private_tensor_is_not_used_by_another_model() {
    let config = cotensor_store::SharingConfig { enable_shared_tensors: false, ..Default::default() };
    let store: Arc<dyn Store> = LocalStore::builder().config(config).build();
    let pool = ResourcePool::new(Runtime::new(store, Arc::new(RtenEngine::new(Some(1)))), tiny(), 1).unwrap();
    let (bert, t5) = (model(&pool, "bert"), model(&pool, "t5"));
    let text = Inputs::default().with_text("Sample text");
    bert.process(&task(&bert, "sentence-embedding"), &text).unwrap();
    let shared = bert.get_shared_tensor(Kind::TextEmbedding).unwrap();
    assert!(shared.tensor().is_private());
    assert_eq!(t5.use_shared_tensor(shared.tensor()).unwrap_err().kind(), ErrorKind::Refused);
    bert.use_shared_tensor(shared.tensor()).unwrap();
    assert_eq!(shared.tensor().get_reference_count(), 2);
    bert.dispose();
    assert!(shared.tensor().is_freed());
}
