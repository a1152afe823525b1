//! The files of a repository that this program reads.

use crate::cache::{RepoFile, read};
use crate::id::ModelId;
use cotensor_core::{Error, Result, size};
use cotensor_preprocess::JSON_BYTES_MAX;
use cotensor_preprocess::family::{EXPORTER, Family, family_of_model, variant, variants};
use serde_json::Value;
use std::path::Path;

/// The file that names the model's family.
pub(crate) const CONFIG_FILE: &str = "config.json";
/// The most bytes of a configuration file.
pub(crate) const CONFIGURATION_BYTES_MAX: u64 = 64 << 20;
/// The most bytes of a graph: the limit of protobuf.
const GRAPH_BYTES_MAX: u64 = (1 << 31) - 1;
/// The most bytes of a file with a graph's weights.
const WEIGHTS_BYTES_MAX: u64 = 1 << 40;
/// The files of a module of sentence-transformers: its configuration, that of the module Transformer, and its weights.
const MODULE_FILES: [&str; 3] = [CONFIG_FILE, "sentence_bert_config.json", "model.safetensors"];
/// JSON files that no part of this program reads, and that can be large.
const UNREAD: &[&str] = &["vocab.json", "trainer_state.json"];
/// The most graphs in an error message.
const GRAPHS_SHOWN_MAX: usize = 10;

/// The configuration of the model, of its tokenizer, its processors and its generation: the JSON files and templates in
/// the repository's folder, and the configuration and the weights of each of sentence-transformers' modules
/// (`1_Pooling/config.json`, `2_Dense/model.safetensors`).
pub(crate) fn configuration(files: &[RepoFile]) -> impl Iterator<Item = &RepoFile> {
    files.iter().filter(|file| match file.path.split_once('/') {
        Some((folder, name)) => MODULE_FILES.contains(&name) && folder.starts_with(|c: char| c.is_ascii_digit()),
        None => {
            let is_read = file.path.ends_with(".json") || file.path.ends_with(".jinja");
            is_read && !file.path.ends_with(".index.json") && !UNREAD.contains(&file.path.as_str())
        }
    })
}

/// The family that config.json names, of a model with the files for which `has_file` is true.
///
/// # Errors
/// `Invalid` without a `model_type`, `Unsupported` for an unknown one.
pub(crate) fn family(config: &Value, has_file: impl Fn(&str) -> bool) -> Result<&'static Family> {
    let model_type = config.get("model_type").and_then(Value::as_str);
    let model_type = model_type.ok_or_else(|| Error::invalid("a string is required").in_field("model_type"))?;
    family_of_model(model_type, has_file).map_err(|error| error.in_field("model_type"))
}

/// The family that config.json in a folder names, of a repository with `files`.
pub(crate) fn family_in(folder: &Path, files: &[RepoFile]) -> Result<&'static Family> {
    let path = folder.join(CONFIG_FILE);
    let bytes = read(&path, JSON_BYTES_MAX)?;
    let bytes = bytes.ok_or_else(|| Error::not_found("a model needs this file").in_file(&path))?;
    let config = serde_json::from_slice(&bytes).map_err(|error| Error::corrupt(error.to_string()).in_file(&path))?;
    let has_file = |name: &str| files.iter().any(|file| file.path == name);
    family(&config, has_file).map_err(|error| error.in_file(path))
}

/// The graphs of the family's stages in a variant (`fp16`), the heads, and the files with the weights of each. Without a
/// variant, and for a stage that the repository does not have in it, the graph is that of the first variant that it has.
///
/// # Errors
/// `Invalid` for an unknown variant. `NotFound` when the repository has no graph of the family, or none of the variant;
/// without any graph, the message names the command that makes them.
pub(crate) fn graphs<'a>(
    id: &ModelId,
    family: &Family,
    files: &'a [RepoFile],
    name: Option<&str>,
) -> Result<Vec<&'a RepoFile>> {
    let variant = name.map(variant).transpose()?;
    let named = |path: &str| files.iter().find(|file| file.path == path);
    let has_file = |path: &str| named(path).is_some();
    family.check_variant(variant, has_file).map_err(|error| error.prefixed(format_args!("{id}")))?;
    // The graph of a whole model has its towers and, unlike their graphs, the scale of similarities.
    let plain = variant.or_else(|| variants().first());
    let whole =
        family.similarity.as_ref().and_then(|similarity| similarity.candidates(plain).find_map(|path| named(&path)));
    let mut graphs: Vec<&RepoFile> = match whole {
        Some(graph) => vec![graph],
        None => {
            let stages = family.stages_of_form(variant, has_file);
            stages.filter_map(|stage| named(&stage.graph_file(variant, has_file)?.0)).collect()
        }
    };
    graphs.sort_by_key(|graph| &graph.path);
    graphs.dedup();
    if graphs.is_empty() {
        return Err(without_graphs(id, family, files));
    }
    graphs.extend(files.iter().filter(|file| is_head(&file.path) && !graphs.contains(file)).collect::<Vec<_>>());
    let weights = files.iter().filter(|file| graphs.iter().any(|graph| is_weights_of(graph, file)));
    let weights: Vec<&RepoFile> = weights.collect();
    for (file, bytes_max) in
        graphs.iter().map(|file| (file, GRAPH_BYTES_MAX)).chain(weights.iter().map(|file| (file, WEIGHTS_BYTES_MAX)))
    {
        check_size(file, bytes_max)?;
    }
    graphs.extend(weights);
    graphs.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    graphs.dedup();
    Ok(graphs)
}

/// # Errors
/// `Invalid` for a file that is larger than `bytes_max`.
pub(crate) fn check_size(file: &RepoFile, bytes_max: u64) -> Result<()> {
    if file.size > bytes_max {
        let message = format!("{} by the list of files; at most {} are read", size(file.size), size(bytes_max));
        Err(Error::invalid(message).in_field(&*file.path))
    } else {
        Ok(())
    }
}

/// Whether `path` is a head: `onnx/head.onnx`, `onnx/head.NAME.onnx`.
fn is_head(path: &str) -> bool {
    path.strip_prefix("onnx/head.").is_some_and(|rest| rest.ends_with("onnx") && !rest.contains('/'))
}

/// Whether `file` has weights of `graph`: `model.onnx_data`, `model.onnx_data_1`, `model.onnx.data`.
fn is_weights_of(graph: &RepoFile, file: &RepoFile) -> bool {
    let rest = file.path.strip_prefix(graph.path.as_str());
    rest.is_some_and(|rest| rest.starts_with(['_', '.']) && !rest.contains('/'))
}

fn without_graphs(id: &ModelId, family: &Family, files: &[RepoFile]) -> Error {
    if family.stages.is_empty() {
        return Error::unsupported(format!("models of the {} family cannot run yet", family.title));
    }
    let expected: Vec<&str> =
        family.stages.iter().filter_map(|stage| stage.files.first()).map(String::as_str).collect();
    let other = shown(files);
    let other = if other.is_empty() { String::new() } else { format!(" (it has {other})") };
    let name = id.name();
    let folder = name.rsplit('/').next().unwrap_or(name);
    // The exporter leaves out the files of sentence-transformers.
    let way = if files.iter().any(|file| file.path == "modules.json") {
        format!(
            "download it by `hf download {name} --local-dir {folder}` and export it by \
             `optimum-cli export onnx --model {folder} --task feature-extraction {folder}/onnx`"
        )
    } else {
        format!("export the model by `optimum-cli export onnx --model {name} {folder}`")
    };
    Error::not_found(format!(
        "{id} has no ONNX graph {}{other}; {way} (`pip install {EXPORTER}`), then use the folder {folder} in place of the name",
        expected.join(", ")
    ))
}

/// The graphs of a repository, for an error message.
fn shown(files: &[RepoFile]) -> String {
    let graphs = files.iter().filter(|file| file.path.ends_with(".onnx")).map(|file| file.path.as_str());
    graphs.take(GRAPHS_SHOWN_MAX).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;
    use serde_json::json;

    fn repository(paths: &[&str]) -> Vec<RepoFile> {
        let file = |path: &&str| RepoFile {
            path: (*path).to_owned(),
            size: 1,
            git_sha1: "0".repeat(40),
            sha256: None,
            xet_hash: None,
        };
        paths.iter().map(file).collect()
    }

    fn paths(files: &[&RepoFile]) -> Vec<String> {
        files.iter().map(|file| file.path.clone()).collect()
    }

    const WHISPER: &[&str] = &[
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "onnx/decoder_model.onnx",
        "onnx/decoder_model_fp16.onnx",
        "onnx/decoder_model_merged.onnx",
        "onnx/decoder_with_past_model.onnx",
        "onnx/encoder_model.onnx",
        "onnx/encoder_model.onnx_data",
        "onnx/encoder_model.onnx_data_1",
        "onnx/encoder_model_fp16.onnx",
        "onnx/encoder_model_fp16.onnx_data",
        "onnx/head.audio.onnx",
        "onnx/headless.onnx",
        "pytorch_model.bin",
        "tokenizer.json",
        "vocab.json",
    ];

    #[test]
    fn only_files_that_are_read_are_needed() {
        let files = repository(WHISPER);
        let configuration: Vec<&RepoFile> = configuration(&files).collect();
        assert_eq!(paths(&configuration), ["config.json", "generation_config.json", "tokenizer.json"]);
        let id = ModelId::parse("openai/whisper-base").unwrap();
        let whisper = family(&json!({"model_type": "whisper"}), |_| false).unwrap();
        let plain = graphs(&id, whisper, &files, None).unwrap();
        let expected = [
            "onnx/decoder_model.onnx",
            "onnx/decoder_with_past_model.onnx",
            "onnx/encoder_model.onnx",
            "onnx/encoder_model.onnx_data",
            "onnx/encoder_model.onnx_data_1",
            "onnx/head.audio.onnx",
        ];
        assert_eq!(paths(&plain), expected);
        // Without the pair of graphs, the merged one is needed.
        let merged = files.iter().filter(|file| !file.path.contains("with_past")).cloned().collect::<Vec<_>>();
        let merged = paths(&graphs(&id, whisper, &merged, None).unwrap());
        assert_eq!(merged[..2], ["onnx/decoder_model_merged.onnx", "onnx/encoder_model.onnx"]);
        // A stage without the variant is needed as it is.
        let half = paths(&graphs(&id, whisper, &files, Some("fp16")).unwrap());
        assert!(half.contains(&"onnx/encoder_model_fp16.onnx_data".into()), "{half:?}");
        assert!(half.contains(&"onnx/decoder_with_past_model.onnx".into()), "{half:?}");
        assert!(!half.contains(&"onnx/encoder_model.onnx".into()), "{half:?}");
        let error = graphs(&id, whisper, &files, Some("q4")).unwrap_err();
        assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("decoder_model_fp16"), "{error}");
    }

    #[test]
    fn configuration_and_weights_of_modules_are_needed() {
        let needed = [
            "0_Transformer/sentence_bert_config.json",
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "modules.json",
            "chat_template.jinja",
        ];
        let others = ["onnx/config.json", "2_Dense/pytorch_model.bin", "model.safetensors", "onnx/model.safetensors"];
        let files = repository(&[&needed[..], &others].concat());
        let found: Vec<&RepoFile> = configuration(&files).collect();
        assert_eq!(paths(&found), needed);
    }

    #[test]
    fn repository_without_graphs_names_the_command_that_makes_them() {
        let id = ModelId::parse("google/vit-base").unwrap();
        let vit = family(&json!({"model_type": "vit"}), |_| false).unwrap();
        let error = graphs(&id, vit, &repository(&["config.json", "model.safetensors"]), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let text = error.to_string();
        assert!(text.contains("`optimum-cli export onnx --model google/vit-base vit-base`"), "{text}");
        let bert = family(&json!({"model_type": "bert"}), |_| false).unwrap();
        let sentence = graphs(&id, bert, &repository(&["modules.json"]), None).unwrap_err().to_string();
        assert!(sentence.contains("`hf download google/vit-base --local-dir vit-base`"), "{sentence}");
        assert!(sentence.contains("--model vit-base --task feature-extraction vit-base/onnx`"), "{sentence}");
        let other = graphs(&id, vit, &repository(&["other.onnx"]), None).unwrap_err().to_string();
        assert!(other.contains("it has other.onnx"), "{other}");
        for config in [json!({}), json!({"model_type": 5}), json!({"model_type": "unknown"})] {
            assert_eq!(family(&config, |_| false).unwrap_err().field(), Some("model_type"));
        }
    }

    #[test]
    fn oversized_files_are_refused() {
        let id = ModelId::parse("a/b").unwrap();
        let bert = family(&json!({"model_type": "bert"}), |_| false).unwrap();
        let mut files = repository(&["onnx/model.onnx"]);
        files[0].size = GRAPH_BYTES_MAX + 1;
        assert_eq!(graphs(&id, bert, &files, None).unwrap_err().field(), Some("onnx/model.onnx"));
    }
}
