//! Files that are damaged, of another model, or without an exact form: an error with the tensor and what is wrong, and no folder.

use super::*;
use crate::support::{copy, tiny};
use cotensor_core::{Error, ErrorKind};
use serde_json::Value;

/// The error of an import of a file into the tiny llama, which leaves nothing behind.
fn refused(model: &str, from: &Path) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let error = import(&tiny(model), from, &folder.path().join("new"), &[]).unwrap_err();
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    error
}

/// The error for a changed copy of the GGUF file.
fn refused_gguf(change: impl FnOnce(&mut Vec<u8>)) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.gguf");
    let mut bytes = fs::read(quantized("llama.gguf")).unwrap();
    change(&mut bytes);
    fs::write(&path, bytes).unwrap();
    refused("llama", &path)
}

fn find(bytes: &[u8], text: &str) -> usize {
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap()
}

#[test]
fn files_of_another_model_name_the_parameter() {
    for model in ["qwen2", "qwen3"] {
        for from in ["llama.gguf", "llama-gptq", "llama-awq"] {
            let error = refused(model, &quantized(from));
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.field().unwrap().ends_with(".weight"), "{error}");
            assert!(error.file().is_some(), "{error}");
        }
    }
    let error = refused("qwen2", &quantized("llama-awq"));
    assert!(error.message().contains("AWQ scales"), "{error}");
    for model in ["gpt2", "bert"] {
        let error = refused(model, &quantized("llama.gguf"));
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

#[test]
fn damaged_gguf_files_name_the_tensor() {
    let error = refused_gguf(|bytes| bytes.truncate(bytes.len() - 100));
    assert_eq!((error.kind(), error.field()), (ErrorKind::Corrupt, Some("output_norm.weight")), "{error}");
    let len = fs::metadata(quantized("llama.gguf")).unwrap().len() as usize;
    for cut in (0..len).step_by(997) {
        let error = refused_gguf(|bytes| bytes.truncate(cut));
        assert!(error.field().is_some() && error.file().is_some(), "{error}");
    }
    // Rank and dimensions follow the name, then the type.
    let after = |bytes: &[u8], text: &str| find(bytes, text) + text.len();
    let tensor = "blk.1.attn_v.weight";
    let error = refused_gguf(|bytes| {
        let at = after(bytes, tensor) + 4 + 16;
        bytes[at..at + 4].copy_from_slice(&13u32.to_le_bytes());
    });
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some(tensor)));
    assert!(error.message().contains("Q5_K"), "{error}");
    let error = refused_gguf(|bytes| {
        let at = after(bytes, tensor) + 4;
        bytes[at..at + 8].copy_from_slice(&(1u64 << 50).to_le_bytes());
    });
    assert_eq!((error.kind(), error.field()), (ErrorKind::Corrupt, Some(tensor)), "{error}");
    let error = refused_gguf(|bytes| {
        let at = find(bytes, tensor);
        bytes[at..at + 5].copy_from_slice(b"blk.x");
    });
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("blk.x.attn_v.weight")), "{error}");
    let error = refused_gguf(|bytes| {
        let at = after(bytes, "general.architecture") + 12;
        bytes[at..at + 5].copy_from_slice(b"mamba");
    });
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("general.architecture")), "{error}");
    let error = refused_gguf(|bytes| {
        let at = after(bytes, "llama.attention.head_count_kv") + 4;
        bytes[at..at + 4].copy_from_slice(&7u32.to_le_bytes());
    });
    assert_eq!((error.kind(), error.field()), (ErrorKind::Corrupt, Some("blk.0.attn_k.weight")), "{error}");
    // A scale that is infinite.
    let error = refused_gguf(|bytes| {
        let gguf = Gguf::read(&mut &bytes[..], bytes.len() as u64).unwrap();
        let found = gguf.tensors().iter().find(|one| one.name == tensor).unwrap();
        let at = found.offset as usize;
        bytes[at..at + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
    });
    assert_eq!((error.kind(), error.field()), (ErrorKind::Corrupt, Some(tensor)), "{error}");
    assert!(error.message().contains("row 0"), "{error}");
}

/// The error for a changed copy of a checkpoint: of its configuration, or of its file, with the place of each tensor.
fn refused_checkpoint(
    name: &str,
    config: impl FnOnce(&mut Value),
    change: impl FnOnce(&mut Vec<u8>, &[PlacedTensor]),
) -> Error {
    let folder = tempfile::tempdir().unwrap();
    copy(&quantized(name), folder.path());
    let path = folder.path().join("config.json");
    let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config(&mut value["quantization_config"]);
    fs::write(path, value.to_string()).unwrap();
    let path = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let tensors = placed_tensors(&mut &bytes[..], bytes.len() as u64).unwrap();
    change(&mut bytes, &tensors);
    fs::write(path, bytes).unwrap();
    refused("llama", folder.path())
}

fn place(tensors: &[PlacedTensor], name: &str) -> usize {
    tensors.iter().find(|tensor| tensor.name == name).unwrap().offset as usize
}

#[test]
fn checkpoints_without_an_exact_form_name_the_tensor() {
    let layer = "model.layers.0.self_attn.q_proj";
    let plain = |_: &mut Value| {};
    let error = refused_checkpoint("llama-gptq", plain, |bytes, tensors| {
        // The first column in another group. The layer has one: 1 is none of them.
        bytes[place(tensors, &format!("{layer}.g_idx"))] = 1;
    });
    assert_eq!(
        (error.kind(), error.field()),
        (ErrorKind::Unsupported, Some(format!("{layer}.g_idx").as_str())),
        "{error}"
    );
    let error = refused_checkpoint("llama-gptq", plain, |bytes, tensors| {
        bytes[place(tensors, &format!("{layer}.qzeros"))] |= 0x0f;
    });
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some(layer)), "{error}");
    assert!(error.message().contains("qzeros"), "{error}");
    let error = refused_checkpoint("llama-gptq", plain, |bytes, tensors| {
        let at = place(tensors, &format!("{layer}.scales"));
        bytes[at..at + 2].copy_from_slice(&0x7e00u16.to_le_bytes());
    });
    assert_eq!((error.kind(), error.field()), (ErrorKind::Corrupt, Some(layer)), "{error}");
    for (field, value, wrong) in [
        ("bits", Value::from(8), "model.layers.0.mlp.down_proj.qzeros"),
        ("bits", Value::from(5), "bits"),
        ("group_size", Value::from(16), "model.layers.0.mlp.down_proj.qzeros"),
        ("group_size", Value::from(i64::MAX), "model.layers.0.mlp.down_proj.qzeros"),
        ("quant_method", Value::from("exl2"), "quant_method"),
        ("checkpoint_format", Value::from("marlin"), "checkpoint_format"),
    ] {
        let error = refused_checkpoint("llama-gptq", |config| config[field] = value, |_, _| {});
        assert!(error.field().unwrap().contains(wrong), "{field}: {error}");
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{field}: {error}");
    }
    for name in ["llama-gptq", "llama-awq"] {
        let error = refused_checkpoint(name, plain, |bytes, _| bytes.truncate(bytes.len() - 10));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.field().unwrap().starts_with("model.layers"), "{error}");
        let error = refused_checkpoint(name, plain, |bytes, _| {
            let at = find(bytes, "0.self_attn.q_proj.scales");
            bytes[at] = b'7';
        });
        assert_eq!(
            (error.kind(), error.field()),
            (ErrorKind::Corrupt, Some(format!("{layer}.scales").as_str())),
            "{error}"
        );
    }
    // The zero points of the other convention are off by one: larger errors than quantizers have, but not another model.
    let error =
        refused_checkpoint("llama-gptq", |config| config["checkpoint_format"] = Value::from("gptq_v2"), |_, _| {});
    assert!(
        error.message().contains("checkpoint_format") && error.message().contains("one larger or smaller"),
        "{error}"
    );
    assert!(error.field().unwrap().ends_with(".weight"), "{error}");
    let error = refused_checkpoint(
        "llama-gptq",
        |config| config["desc_act"] = Value::from(true),
        |bytes, _| {
            // The order of one layer under another name.
            let at = find(bytes, "0.self_attn.q_proj.g_idx") + "0.self_attn.q_proj.".len();
            bytes[at] = b'h';
        },
    );
    assert_eq!(error.field(), Some(format!("{layer}.g_idx").as_str()), "{error}");
    let error = refused_checkpoint("llama-awq", |config| config["version"] = Value::from("gemv"), |_, _| {});
    assert_eq!(error.field(), Some("version"), "{error}");
}

#[test]
fn configurations_that_differ_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    copy(&quantized("llama-gptq"), folder.path());
    let config: Value = serde_json::from_slice(&fs::read(folder.path().join("config.json")).unwrap()).unwrap();
    let own = folder.path().join("quantize_config.json");
    fs::write(&own, config["quantization_config"].to_string()).unwrap();
    let target = tempfile::tempdir().unwrap();
    import(&tiny("llama"), folder.path(), &target.path().join("new"), &[]).unwrap();
    let mut other = config["quantization_config"].clone();
    other["checkpoint_format"] = Value::from("gptq_v2");
    fs::write(&own, other.to_string()).unwrap();
    let error = refused("llama", folder.path());
    assert_eq!((error.kind(), error.field()), (ErrorKind::Corrupt, Some("quantization_config")), "{error}");
    assert!(error.message().contains("quantize_config.json"), "{error}");
}

#[test]
fn things_that_are_no_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    assert_eq!(refused("llama", &path).kind(), ErrorKind::NotFound);
    assert_eq!(refused("llama", folder.path()).kind(), ErrorKind::NotFound);
    fs::write(&path, b"").unwrap();
    assert_eq!(refused("llama", &path).kind(), ErrorKind::Corrupt);
    fs::write(folder.path().join("model.safetensors"), b"").unwrap();
    assert_eq!(refused("llama", folder.path()).kind(), ErrorKind::NotFound, "no configuration");
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    fs::write(folder.path().join("quantize_config.json"), r#"{"bits": 4, "group_size": 32}"#).unwrap();
    fs::write(folder.path().join("model.safetensors.index.json"), r#"{"weight_map": {"a": "../x.gguf"}}"#).unwrap();
    let error = refused("llama", folder.path());
    assert_eq!((error.kind(), error.field()), (ErrorKind::Corrupt, Some("weight_map")), "{error}");
    // A model without codes.
    let error = refused("llama", &fixtures().join("modules"));
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let target = tempfile::tempdir().unwrap();
    let error = import(&tiny("llama"), &quantized("llama.gguf"), &target.path().join("new"), &["absent"]).unwrap_err();
    assert_eq!(error.field(), Some("keep"), "{error}");
    let error = import(&tiny("llama"), &quantized("llama.gguf"), target.path(), &[]).unwrap_err();
    assert!(error.message().contains("exists already"), "{error}");
}

/// Matrices of two states of a file are those of no model.
#[test]
fn files_that_change_meanwhile_are_refused() {
    for name in ["model/onnx/model.onnx_data", "model/config.json", "from.gguf"] {
        let folder = tempfile::tempdir().unwrap();
        let (model, from, target) =
            (folder.path().join("model"), folder.path().join("from.gguf"), folder.path().join("new"));
        copy(&tiny("llama"), &model);
        fs::copy(quantized("llama.gguf"), &from).unwrap();
        let options = ImportOptions { from, activations: Activations::Float32, keep: Vec::new() };
        let changed = folder.path().join(name);
        let mut longer = fs::read(&changed).unwrap();
        longer.push(b' ');
        let mut calls = 0;
        let error = import_folder(&model, &target, &options, &mut |_, _, _| {
            calls += 1;
            fs::write(&changed, &longer).unwrap();
        });
        let error = error.unwrap_err();
        assert!(calls > 1 && error.kind() == ErrorKind::Conflict, "{name}: {error}");
        assert!(error.to_string().contains("changed") && error.file().is_some(), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "{name}");
    }
}
