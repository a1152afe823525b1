use super::definition::StageDef;
use super::tables::variants;
use cotensor_core::{Error, Result};
use serde::Deserialize;

/// A precision in which exports store graphs, beside each other: `model.onnx`, `model_fp16.onnx`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// The name: `fp16`.
    pub name: String,
    /// Other names.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// What the names of its files have before `.onnx`. The first file that exists is used.
    pub suffixes: Vec<String>,
}

/// The variant of this name.
///
/// # Errors
/// `Invalid`; the message lists the variants.
pub fn variant(name: &str) -> Result<&'static Variant> {
    let is_named = |variant: &&Variant| variant.name == name || variant.aliases.iter().any(|alias| alias == name);
    variants().iter().find(is_named).ok_or_else(|| {
        let known: Vec<&str> = variants().iter().map(|variant| variant.name.as_str()).collect();
        Error::invalid(format!("{name:?} is no variant; variants: {}", known.join(", "))).in_field("variant")
    })
}

impl StageDef {
    /// Candidates for the graph's file, relative to the model's folder, in order, and whether they hold the whole model:
    /// of one variant, or of all variants in the order of families.toml.
    pub fn candidates(&self, only: Option<&Variant>) -> impl Iterator<Item = (String, bool)> {
        let wanted = variants().iter().filter(move |each| only.is_none_or(|only| only.name == each.name));
        wanted.flat_map(|variant| &variant.suffixes).flat_map(|suffix| {
            let files = self.files.iter().map(|file| (file, false));
            let files = files.chain(self.whole_files.iter().map(|file| (file, true)));
            files.map(move |(file, is_whole)| match file.strip_suffix(".onnx") {
                Some(stem) => (format!("{stem}{suffix}.onnx"), is_whole),
                None => (file.clone(), is_whole),
            })
        })
    }

    /// The file of the graph, and whether it holds the whole model: the first candidate for which `has_file` is true.
    pub fn graph_file(&self, only: Option<&Variant>, has_file: impl Fn(&str) -> bool) -> Option<(String, bool)> {
        self.candidates(only).find(|(file, _)| has_file(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::family_of;

    #[test]
    fn candidates_have_the_suffixes_of_the_variant() {
        let files = |family: &str, only: Option<&str>| -> Vec<(String, bool)> {
            let stage = &family_of(family).unwrap().stages[0];
            stage.candidates(only.map(|name| variant(name).unwrap())).collect()
        };
        let part = |name: &str| (name.to_owned(), false);
        assert_eq!(files("bert", Some("fp16")), [part("onnx/model_fp16.onnx"), part("model_fp16.onnx")]);
        let quantized = files("bert", Some("q8"));
        assert_eq!(quantized[..2], [part("onnx/model_quantized.onnx"), part("model_quantized.onnx")]);
        assert_eq!(quantized[2..], [part("onnx/model_int8.onnx"), part("model_int8.onnx")]);
        let all = files("bert", None);
        assert_eq!(all[..2], [part("onnx/model.onnx"), part("model.onnx")], "the plain file comes first");
        assert!(all.len() > 10 && all.contains(&part("onnx/model_q4.onnx")));
        // A whole model of a variant comes before the parts of the next one.
        let all = files("clip", None);
        assert_eq!(
            all[2..5],
            [("onnx/model.onnx".into(), true), ("model.onnx".into(), true), part("onnx/vision_model_fp16.onnx")]
        );
        let has_file = |file: &str| file == "onnx/model.onnx" || file == "onnx/vision_model_q4.onnx";
        let tower = family_of("clip").unwrap().stage("vision_tower").unwrap();
        assert_eq!(tower.graph_file(None, has_file), Some(("onnx/model.onnx".into(), true)));
        assert_eq!(tower.graph_file(Some(variant("q4").unwrap()), has_file), Some(part("onnx/vision_model_q4.onnx")));
        let error = variant("fp15").unwrap_err();
        assert!(error.field() == Some("variant") && error.to_string().contains("fp16"), "{error}");
    }
}
