use super::definition::{Family, StageDef, Variant};
use super::source::Medium;
use super::task::{AnswerKind, Task, TextLimit};
use cotensor_core::{Error, Kind, Result};
use serde::Deserialize;
use std::sync::OnceLock;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    family: Vec<Family>,
    task: Vec<Task>,
    variant: Vec<Variant>,
    pooling: Vec<NamedPooling>,
}

/// The pooling of models whose names begin so.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedPooling {
    mode: String,
    names: Vec<String>,
}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        toml::from_str(include_str!("families.toml")).expect("families.toml is part of the program and tested")
    })
}

/// All families.
pub fn families() -> &'static [Family] {
    &tables().family
}

/// All tasks.
pub fn tasks() -> &'static [Task] {
    &tables().task
}

/// All variants of graphs, in the order in which they are chosen.
pub fn variants() -> &'static [Variant] {
    &tables().variant
}

/// The variant of this name.
///
/// # Errors
/// `Invalid`; the message lists the variants.
pub fn variant(name: &str) -> Result<&'static Variant> {
    let is_named = |variant: &&Variant| variant.name == name || variant.aliases.iter().any(|alias| alias == name);
    variants().iter().find(is_named).ok_or_else(|| {
        let known: Vec<&str> = variants().iter().map(|variant| variant.name.as_str()).collect();
        Error::invalid(format!("{name:?} is not a variant; variants: {}", known.join(", "))).in_field("variant")
    })
}

/// The pooling that a model's name stands for: that of the longest known beginning of its last part. `None` for an unknown name.
pub(crate) fn known_pooling(model: &str) -> Option<&'static str> {
    let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
    let named = tables().pooling.iter().flat_map(|table| table.names.iter().map(|begin| (begin, table.mode.as_str())));
    let longest = named.filter(|(begin, _)| name.starts_with(begin.as_str())).max_by_key(|(begin, _)| begin.len());
    longest.map(|(_, mode)| mode)
}

/// The family of a `model_type`.
///
/// # Errors
/// `Unsupported`; the message lists the known types.
pub fn family_of(model_type: &str) -> Result<&'static Family> {
    family_of_model(model_type, |_| false)
}

/// The family of a model with a `model_type`; `has_file` tells which files the model has.
///
/// # Errors
/// As [`family_of`].
pub fn family_of_model(model_type: &str, has_file: impl Fn(&str) -> bool) -> Result<&'static Family> {
    let is_of = |family: &&Family| {
        family.model_types.iter().any(|known| known == model_type) && family.file.as_deref().is_none_or(&has_file)
    };
    families().iter().find(is_of).ok_or_else(|| {
        let mut known: Vec<&str> = Vec::new();
        for model_type in families().iter().flat_map(|family| &family.model_types) {
            // A type may have several families, for other files.
            if !known.contains(&model_type.as_str()) {
                known.push(model_type);
            }
        }
        Error::unsupported(format!("unknown model_type {model_type:?}; known: {}", known.join(", ")))
    })
}

/// The kinds of the family that a model's name contains, the main kind first: `t5-small`,
/// `google/vit-base-patch16-224`. Empty for a name that contains no family. The configuration of a model is more
/// reliable than its name: see [`family_of`].
pub fn kinds_by_name(model: &str) -> Vec<Kind> {
    let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.find_map(|word| family_of(word).ok()).map_or_else(Vec::new, |family| family.kinds.clone())
}

impl Family {
    /// The tasks of the family's models.
    pub fn tasks(&self) -> impl Iterator<Item = &'static Task> {
        tasks().iter().filter(|task| task.family.contains(&self.name))
    }

    /// Whether a task reads the input of type `medium`.
    pub fn reads(&self, task: &Task, medium: Medium) -> bool {
        let mut stages = task.stages.iter().filter_map(|role| self.stage(role).ok());
        task.prompt && medium == Medium::Text || stages.any(|stage| stage.reads(medium))
    }

    /// The file with which models of this family's types belong to another family that has the task.
    fn file_for(&self, task: &str) -> Option<&'static str> {
        let is_other = |other: &&'static Family| {
            other.model_types.iter().any(|known| self.model_types.contains(known))
                && other.name != self.name
                && other.tasks().any(|known| known.name == task)
        };
        families().iter().filter(is_other).find_map(|other| other.file.as_deref())
    }

    /// The task of this name, in the variant for this family.
    ///
    /// # Errors
    /// `Invalid`; the message lists the family's tasks.
    pub fn task(&self, name: &str) -> Result<&'static Task> {
        // A translation may name its languages, as in `translation_en_to_de`.
        let plain = name.split_once('_').filter(|(_, pair)| pair.contains("_to_")).map_or(name, |(plain, _)| plain);
        self.tasks().find(|task| task.name == plain).ok_or_else(|| {
            let known: Vec<&str> = self.tasks().map(|task| task.name.as_str()).collect();
            let known = if known.is_empty() { "none yet".to_owned() } else { known.join(", ") };
            let way_out =
                self.file_for(plain).map_or_else(String::new, |file| format!("; a model with {file} can do it"));
            Error::invalid(format!("{} cannot do {name:?}; it can do: {known}{way_out}", self.title))
        })
    }
}

impl Task {
    /// How many texts a user may specify.
    pub fn text_limit(&self) -> TextLimit {
        let family = self.family.first().and_then(|name| families().iter().find(|family| &family.name == name));
        let stages = family.into_iter().flat_map(|family| &family.stages);
        let reads_text = |stage: &StageDef| stage.reads(Medium::Text);
        match self.prompt || self.begins || stages.filter(|stage| self.stages.contains(&stage.role)).any(reads_text) {
            false => TextLimit::None,
            true if matches!(self.answer, AnswerKind::Similarity | AnswerKind::Scores) => TextLimit::Many,
            true => TextLimit::One,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Source;
    use super::*;
    use cotensor_core::ErrorKind;

    #[test]
    fn every_task_and_input_names_a_known_stage_or_source() {
        let documents = "bert t5 llama bart vit clip detr whisper wav2vec2 clap llava blip";
        assert!(documents.split(' ').all(|name| families().iter().any(|family| family.name == name)));
        for task in tasks() {
            for name in &task.family {
                let family = families().iter().find(|family| &family.name == name).expect("known family");
                for role in &task.stages {
                    family.stage(role).expect("known stage");
                }
            }
        }
        for family in families() {
            for role in family.decoder.iter().flat_map(|decoder| decoder.forms.iter().flatten()) {
                family.stage(role).expect("known stage");
            }
            for stage in &family.stages {
                for source in stage.inputs.values().chain(stage.inputs_optional.values()) {
                    if let Source::Stage { role, output } = source {
                        let before = family.stage(role).expect("known stage");
                        assert!(before.outputs.contains(output), "{source}");
                    }
                }
            }
        }
    }

    #[test]
    fn decoder_roles_are_those_of_the_form_that_the_model_has() {
        let family = family_of("t5").unwrap();
        let task = family.task("translation_en_to_de").unwrap();
        let in_variant = |variant, there: &[&str]| {
            let has_file = |file: &str| {
                let name = file.strip_prefix("onnx/").and_then(|name| name.strip_suffix(".onnx"));
                name.is_some_and(|name| there.contains(&name))
            };
            family.roles(&task.stages, variant, has_file).join(" ")
        };
        let roles = |there: &[&str]| in_variant(None, there);
        let (encoder, merged) = ("encoder_model", "decoder_model_merged");
        let pair = ["decoder_model", "decoder_with_past_model"];
        assert_eq!(roles(&[encoder, pair[0], pair[1], merged]), "encoder decoder decoder_with_past");
        assert_eq!(roles(&[encoder, pair[0], merged]), "encoder decoder_merged");
        // A form that the model has in the variant comes first.
        let half = Some(super::super::variant("fp16").unwrap());
        assert_eq!(
            in_variant(half, &[encoder, pair[0], pair[1], "decoder_model_merged_fp16"]),
            "encoder decoder_merged"
        );
        assert_eq!(in_variant(half, &["encoder_model_fp16", pair[0], pair[1]]), "encoder decoder decoder_with_past");
        // Without a complete form, opening the listed stages gives the error.
        assert_eq!(roles(&[encoder, pair[0]]), "encoder decoder decoder_with_past");
        assert!(family.task("transcription_en").is_err());
    }

    #[test]
    fn families_are_found_by_kind_and_by_name() {
        let family = |model_type| family_of(model_type).unwrap();
        let with = |kind: Kind| -> Vec<&str> {
            families()
                .iter()
                .filter(|family| family.kinds.contains(&kind))
                .map(|family| family.title.as_str())
                .collect()
        };
        assert_eq!(with(Kind::TextEmbedding), ["BERT", "T5", "LLaMA embeddings", "Gemma embeddings", "LLaMA", "BART"]);
        assert_eq!(with(Kind::VisionEmbedding), ["ViT", "CLIP", "SigLIP", "DETR"]);
        assert_eq!(with(Kind::AudioEmbedding), ["Whisper", "Wav2Vec2", "CLAP"]);
        assert_eq!(with(Kind::VisionTextJoint), ["CLIP", "SigLIP", "LLaVA", "BLIP"]);
        assert_eq!(with(Kind::AudioTextJoint), ["Whisper", "CLAP"]);
        assert_eq!(kinds_by_name("t5-small"), [Kind::TextEmbedding]);
        assert_eq!(kinds_by_name("google/vit-base-patch16-224"), [Kind::VisionEmbedding]);
        assert_eq!(kinds_by_name("clip-vit")[0], Kind::VisionEmbedding);
        assert_eq!(kinds_by_name("Salesforce/blip-image-captioning-base"), [Kind::VisionTextJoint]);
        assert_eq!(kinds_by_name("facebook/wav2vec2-base-960h"), [Kind::AudioEmbedding]);
        assert_eq!(kinds_by_name("cross-encoder/ms-marco-DistilBERT-base"), [Kind::TextEmbedding]);
        assert_eq!(kinds_by_name("FacebookAI/xlm-roberta-base"), [Kind::TextEmbedding]);
        assert!(kinds_by_name("bert/roberto").is_empty() && kinds_by_name("").is_empty());
        assert_eq!(family_of_model("qwen3", |file| file == "modules.json").unwrap().name, "llama-embedding");
        assert_eq!((family("qwen3").name.as_str(), family("qwen3").tasks().count()), ("llama", 1));
        let error = family("qwen3").task("rerank").unwrap_err().to_string();
        assert!(error.ends_with("it can do: text-generation; a model with modules.json can do it"), "{error}");
        assert_eq!(family_of("gpt_neox").unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(family("bert").task("transcription").unwrap_err().to_string().contains("sentence-embedding"));
    }
}
