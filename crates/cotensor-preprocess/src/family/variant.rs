use super::definition::{Family, Similarity, StageDef, Variant};
use super::tables::variants;
use cotensor_core::{Error, Result};
use std::collections::BTreeSet;

impl StageDef {
    /// Candidates for the graph's file, relative to the model's folder, in order, and whether they hold the whole model:
    /// of one variant, or of all variants in the order of families.toml.
    pub fn candidates(&self, only: Option<&Variant>) -> impl Iterator<Item = (String, bool)> {
        suffixes(only).flat_map(|suffix| {
            let files = self.files.iter().map(|file| (file, false));
            let files = files.chain(self.whole_files.iter().map(|file| (file, true)));
            files.map(move |(file, is_whole)| (with_suffix(file, suffix), is_whole))
        })
    }

    /// The file of the graph, and whether it holds the whole model: the first candidate for which `has_file` is true. A
    /// stage without the variant has the first graph of any variant: exports leave small graphs as they are.
    pub fn graph_file(&self, variant: Option<&Variant>, has_file: impl Fn(&str) -> bool) -> Option<(String, bool)> {
        let mut found = self.candidates(variant).chain(variant.into_iter().flat_map(|_| self.candidates(None)));
        found.find(|(file, _)| has_file(file))
    }

    /// Whether the stage has a graph in the variant.
    pub fn has_variant(&self, variant: Option<&Variant>, has_file: impl Fn(&str) -> bool) -> bool {
        self.candidates(variant).any(|(file, _)| has_file(&file))
    }
}

impl Similarity {
    /// Candidates for the graph of the whole model, of one variant or of all, in order.
    pub fn candidates(&self, only: Option<&Variant>) -> impl Iterator<Item = String> {
        suffixes(only).flat_map(|suffix| self.files.iter().map(move |file| with_suffix(file, suffix)))
    }
}

impl Family {
    /// Refuses a variant of which a model has no graph at all. A model without any graph gives its error later.
    ///
    /// # Errors
    /// `NotFound`; the message lists the graphs that the model has.
    pub fn check_variant(&self, variant: Option<&Variant>, has_file: impl Fn(&str) -> bool) -> Result<()> {
        let Some(only) = variant else { return Ok(()) };
        let all = self.stages.iter().flat_map(|stage| stage.candidates(None)).map(|(file, _)| file);
        let there: BTreeSet<String> = all.filter(|file| has_file(file)).collect();
        if there.is_empty() || self.stages.iter().any(|stage| stage.has_variant(variant, &has_file)) {
            return Ok(());
        }
        let there = there.into_iter().collect::<Vec<_>>().join(", ");
        let message = format!("no graph of the variant {:?}; there is {there}", only.name);
        Err(Error::not_found(message).in_field("variant"))
    }
}

/// What names of files have before `.onnx`.
fn suffixes(only: Option<&Variant>) -> impl Iterator<Item = &'static str> {
    let wanted = variants().iter().filter(move |each| only.is_none_or(|only| only.name == each.name));
    wanted.flat_map(|variant| &variant.suffixes).map(String::as_str)
}

fn with_suffix(file: &str, suffix: &str) -> String {
    match file.strip_suffix(".onnx") {
        Some(stem) => format!("{stem}{suffix}.onnx"),
        None => file.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::family::{family_of, variant};

    #[test]
    fn graphs_of_fastembed_and_of_the_exporter_of_sentence_transformers_are_found() {
        let encoder = &family_of("bert").unwrap().stages[0];
        let found = |name: Option<&str>, there: &[&str]| {
            let variant = name.map(|name| variant(name).unwrap());
            encoder.graph_file(variant, |file| there.contains(&file)).map(|(file, _)| file)
        };
        assert_eq!(found(None, &["model_optimized.onnx"]).unwrap(), "model_optimized.onnx");
        let exported =
            ["onnx/model_O1.onnx", "onnx/model_O3.onnx", "onnx/model_O4.onnx", "onnx/model_qint8_avx512_vnni.onnx"];
        assert_eq!(found(None, &exported).unwrap(), "onnx/model_O3.onnx");
        assert_eq!(found(Some("fp16"), &exported).unwrap(), "onnx/model_O4.onnx");
        assert_eq!(found(Some("int8"), &exported).unwrap(), "onnx/model_qint8_avx512_vnni.onnx");
        assert_eq!(found(Some("int8"), &["onnx/model_qint8_arm64.onnx"]).unwrap(), "onnx/model_qint8_arm64.onnx");
        assert_eq!(found(Some("uint8"), &["onnx/model_quint8_avx2.onnx"]).unwrap(), "onnx/model_quint8_avx2.onnx");
        let all = [&exported[..], &["onnx/model.onnx"]].concat();
        assert_eq!(found(None, &all).unwrap(), "onnx/model.onnx", "the plain file comes first");
    }

    #[test]
    fn candidates_have_the_suffixes_of_the_variant() {
        let files = |family: &str, only: Option<&str>| -> Vec<(String, bool)> {
            let stage = &family_of(family).unwrap().stages[0];
            stage.candidates(only.map(|name| variant(name).unwrap())).collect()
        };
        let part = |name: &str| (name.to_owned(), false);
        assert_eq!(files("bert", Some("fp16"))[..2], [part("onnx/model_fp16.onnx"), part("model_fp16.onnx")]);
        let quantized = files("bert", Some("q8"));
        assert_eq!(quantized[..2], [part("onnx/model_quantized.onnx"), part("model_quantized.onnx")]);
        assert_eq!(quantized[2..4], [part("onnx/model_int8.onnx"), part("model_int8.onnx")]);
        let all = files("bert", None);
        assert_eq!(all[..2], [part("onnx/model.onnx"), part("model.onnx")], "the plain file comes first");
        assert!(all.len() > 10 && all.contains(&part("onnx/model_q4.onnx")));
        // A whole model of a variant comes before the parts of the next one.
        let all = files("clip", None);
        assert_eq!(all[2..4], [("onnx/model.onnx".into(), true), ("model.onnx".into(), true)]);
        assert_eq!(all[4], part("onnx/vision_model_optimized.onnx"));
        let has_file = |file: &str| file == "onnx/model.onnx" || file == "onnx/vision_model_q4.onnx";
        let tower = family_of("clip").unwrap().stage("vision_tower").unwrap();
        assert_eq!(tower.graph_file(None, has_file), Some(("onnx/model.onnx".into(), true)));
        assert_eq!(tower.graph_file(Some(variant("q4").unwrap()), has_file), Some(part("onnx/vision_model_q4.onnx")));
        // A stage without the variant is used as it is, unless no stage has it.
        let clip = family_of("clip").unwrap();
        let texts = clip.stage("text_tower").unwrap();
        assert_eq!(texts.graph_file(Some(variant("q4").unwrap()), has_file), Some(("onnx/model.onnx".into(), true)));
        clip.check_variant(Some(variant("q4").unwrap()), has_file).unwrap();
        clip.check_variant(Some(variant("fp16").unwrap()), |_| false).unwrap();
        let error = clip.check_variant(Some(variant("fp16").unwrap()), has_file).unwrap_err();
        let message = error.to_string();
        assert!(
            error.field() == Some("variant") && message.contains("onnx/model.onnx, onnx/vision_model_q4"),
            "{message}"
        );
        let error = variant("fp15").unwrap_err();
        assert!(error.field() == Some("variant") && error.to_string().contains("fp16"), "{error}");
    }
}
