//! The manager of shared tensors of this crate infers kinds from the models' names.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cotensor::{DType, Kind, LocalStore, SharingConfig, tensor_sharing_manager};

#[test]
fn allowed_kind_is_inferred_from_model_names() {
    let sharing = SharingConfig { allowed_types: Some(vec![Kind::TextEmbedding]), ..SharingConfig::default() };
    let manager = tensor_sharing_manager(LocalStore::builder().config(sharing).build());
    let register = |name, producer, consumers: &[&str]| {
        manager.register_shared_tensor(name, &[1, 768], "cpu", producer, consumers, DType::F32).unwrap()
    };
    let shared = register("bert_embedding", "bert-base-uncased", &["t5-small"]);
    assert_eq!((shared.kind(), shared.is_private()), (Kind::TextEmbedding, false));
    let private = register("vit_embedding", "google/vit-base-patch16-224", &["openai/clip-vit-base-patch16"]);
    assert_eq!((private.kind(), private.is_private()), (Kind::VisionEmbedding, true));
    assert!(manager.get_shared_tensor("bert_embedding", "t5-small").is_ok());
}
