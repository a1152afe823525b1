//! Families and tasks as data: read once from `families.toml`.

use cotensor_core::{Error, ErrorKind, Kind, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A model family: which graphs it consists of and what its tensors mean.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// Short name: `bert`.
    pub name: String,
    /// Name for people: `BERT`.
    pub title: String,
    /// The values of `model_type` in config.json that belong to it.
    pub model_types: Vec<String>,
    /// What its tensors mean.
    #[serde(deserialize_with = "kinds")]
    pub kinds: Vec<Kind>,
    /// The class whose defaults its image preprocessing has when its configuration names none.
    #[serde(default)]
    pub image_processor: Option<String>,
    /// Its stages; empty for a family that is known but cannot be run yet.
    #[serde(default, rename = "stage")]
    pub stages: Vec<StageDef>,
}

/// One stage of a family: a graph with named inputs and outputs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageDef {
    /// What it does in the family: `encoder`, `vision`, `decoder`.
    pub role: String,
    /// Candidates for its graph inside the model's folder.
    pub files: Vec<String>,
    /// What its outputs mean.
    #[serde(deserialize_with = "kind")]
    pub kind: Kind,
    /// Graph input to source.
    pub inputs: BTreeMap<String, String>,
    /// Graph input to source, for inputs that some exports leave out.
    #[serde(default)]
    pub inputs_optional: BTreeMap<String, String>,
    /// The outputs that other stages and tasks read.
    pub outputs: Vec<String>,
    /// Other names that exports give the first output.
    #[serde(default)]
    pub same: Vec<String>,
    /// Outputs that some exports have beside or instead of the others.
    #[serde(default)]
    pub outputs_optional: Vec<String>,
    /// Where config.json says how large its encoder is. A graph that is trunk and head in one is cut where that encoder ends.
    #[serde(default)]
    pub encoder: Option<EncoderFields>,
}

/// Fields of config.json.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncoderFields {
    /// The number of blocks.
    pub layers: String,
    /// The elements of a hidden state.
    pub width: String,
}

/// The output of a graph that is made for a task whose answer is read from logits.
pub(crate) const LOGITS: &str = "logits";

impl StageDef {
    /// The first output under the name that a graph with the outputs `given` has for it.
    pub(crate) fn trunk_output<'a>(&'a self, given: &[String]) -> Option<&'a str> {
        let names = self.outputs.first().into_iter().chain(&self.same);
        names.map(String::as_str).find(|name| given.iter().any(|output| output == name))
    }
}

/// What a user of a model can ask for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Its name in pipelines.
    pub name: String,
    /// Families that can do it this way.
    pub family: Vec<String>,
    /// Roles to run, in order.
    pub stages: Vec<String>,
    /// Whether a head graph runs on the last stage's output.
    #[serde(default)]
    pub head: bool,
    /// How the names of `architectures` in config.json end for a checkpoint whose own head does this.
    #[serde(default)]
    pub architectures: Vec<String>,
    /// The output of the last stage that is the answer as it is, where the graph has it.
    #[serde(default)]
    pub result: Option<String>,
    /// How the last output is read.
    pub answer: AnswerKind,
}

/// How many texts of their own a task's users may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Texts {
    None,
    One,
    Many,
}

impl Task {
    pub(crate) fn texts(&self) -> Texts {
        let family = self.family.first().and_then(|name| families().iter().find(|family| &family.name == name));
        let stages = family.into_iter().flat_map(|family| &family.stages);
        let reads_text = |stage: &StageDef| stage.inputs.values().any(|source| source.starts_with("text."));
        match stages.filter(|stage| self.stages.contains(&stage.role)).any(reads_text) {
            false => Texts::None,
            true if self.answer == AnswerKind::Similarity => Texts::Many,
            true => Texts::One,
        }
    }
}

/// How a task reads the last output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerKind {
    /// Logits `[1, labels]`: labels with probabilities, or a regression's numbers.
    Label,
    /// Logits `[1, tokens, labels]`: the best label of every token.
    LabelPerToken,
    /// Hidden states `[1, tokens, width]`, pooled as the folder's sentence-transformers files say.
    Sentence,
    /// Hidden states `[1, tokens, width]`: the first token's.
    FirstToken,
    /// `[1, width]` as it is, scaled to length 1.
    Embedding,
    /// Image and text embeddings: cosine similarities and their softmax over the texts.
    Similarity,
    /// Greedy decoding to text.
    Transcript,
    /// The language whose token the decoder finds likeliest.
    Language,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    family: Vec<Family>,
    task: Vec<Task>,
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

/// The family of a `model_type`.
///
/// # Errors
/// `Unsupported` naming the types that are known.
pub fn family_of(model_type: &str) -> Result<&'static Family> {
    families().iter().find(|family| family.model_types.iter().any(|known| known == model_type)).ok_or_else(|| {
        let known: Vec<&str> = families().iter().flat_map(|family| &family.model_types).map(String::as_str).collect();
        Error::unsupported(format!("unknown model_type {model_type:?}; known: {}", known.join(", ")))
    })
}

/// The kinds of the family that a model's name speaks of, its main one first: `t5-small`,
/// `google/vit-base-patch16-224`. None for a name that speaks of no family. For names only; a model that is at hand
/// says what it is in its own config, see [`family_of`].
pub fn kinds_by_name(model: &str) -> Vec<Kind> {
    let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.find_map(|word| family_of(word).ok()).map_or_else(Vec::new, |family| family.kinds.clone())
}

impl Family {
    /// The stage with this role.
    ///
    /// # Errors
    /// `Unsupported` when the family has no such stage.
    pub fn stage(&self, role: &str) -> Result<&StageDef> {
        self.stages
            .iter()
            .find(|stage| stage.role == role)
            .ok_or_else(|| Error::unsupported(format!("the {} family has no stage {role:?}", self.title)))
    }

    /// The task of this name as this family does it.
    ///
    /// # Errors
    /// `Invalid` naming the tasks that it can do.
    pub fn task(&self, name: &str) -> Result<&'static Task> {
        let mine = || tasks().iter().filter(|task| task.family.contains(&self.name));
        mine().find(|task| task.name == name).ok_or_else(|| {
            let known: Vec<&str> = mine().map(|task| task.name.as_str()).collect();
            let known = if known.is_empty() { "none yet".to_owned() } else { known.join(", ") };
            Error::new(ErrorKind::Invalid, format!("{} cannot do {name:?}; it can do: {known}", self.title))
        })
    }

    /// Whether the two may share tensors: they have a kind in common. Whether they can, their spaces say.
    pub fn may_share_with(&self, other: &Family) -> bool {
        self.kinds.iter().any(|kind| other.kinds.contains(kind))
    }
}

fn kind<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn kinds<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Kind>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    names.iter().map(|name| name.parse().map_err(serde::de::Error::custom)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_consistent() {
        assert_eq!(families().len(), 12);
        for task in tasks() {
            for name in &task.family {
                let family = families().iter().find(|family| &family.name == name).expect("known family");
                for role in &task.stages {
                    family.stage(role).expect("known stage");
                }
            }
        }
        for family in families() {
            for stage in &family.stages {
                for source in stage.inputs.values().chain(stage.inputs_optional.values()) {
                    let (from, output) = source.split_once('.').expect("SOURCE.NAME");
                    if let Ok(before) = family.stage(from) {
                        assert!(before.outputs.iter().any(|known| known == output), "{source}");
                    } else {
                        assert!(["text", "image", "audio", "tokens"].contains(&from), "{source}");
                    }
                }
            }
        }
    }

    #[test]
    fn compatibility_table() {
        let family = |model_type| family_of(model_type).unwrap();
        let with = |kind: Kind| -> Vec<&str> {
            families()
                .iter()
                .filter(|family| family.kinds.contains(&kind))
                .map(|family| family.title.as_str())
                .collect()
        };
        assert_eq!(with(Kind::TextEmbedding), ["BERT", "T5", "LLaMA", "BART"]);
        assert_eq!(with(Kind::VisionEmbedding), ["ViT", "CLIP", "DETR"]);
        assert_eq!(with(Kind::AudioEmbedding), ["Whisper", "Wav2Vec2", "CLAP"]);
        assert_eq!(with(Kind::VisionTextJoint), ["CLIP", "LLaVA", "BLIP"]);
        assert_eq!(with(Kind::AudioTextJoint), ["Whisper", "CLAP"]);
        assert_eq!(kinds_by_name("t5-small"), [Kind::TextEmbedding]);
        assert_eq!(kinds_by_name("google/vit-base-patch16-224"), [Kind::VisionEmbedding]);
        assert_eq!(kinds_by_name("clip-vit")[0], Kind::VisionEmbedding);
        assert_eq!(kinds_by_name("Salesforce/blip-image-captioning-base"), [Kind::VisionTextJoint]);
        assert_eq!(kinds_by_name("facebook/wav2vec2-base-960h"), [Kind::AudioEmbedding]);
        assert!(kinds_by_name("bert/roberto").is_empty() && kinds_by_name("").is_empty());
        assert!(family("vit").may_share_with(family("clip")));
        assert!(!family("bert").may_share_with(family("whisper")));
        assert_eq!(family_of("gpt_neox").unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(family("bert").task("transcription").unwrap_err().to_string().contains("sentence-embedding"));
    }
}
