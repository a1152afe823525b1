use super::source::{Medium, Source};
use cotensor_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of the output from which a task reads its logits.
pub const LOGITS: &str = "logits";

/// A model family: the graphs of its models and the meaning of their tensors.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// Short name: `bert`.
    pub name: String,
    /// Display name: `BERT`.
    pub title: String,
    /// The values of `model_type` in config.json that belong to the family.
    pub model_types: Vec<String>,
    /// The file by which models of the family differ from those of another family with the same `model_type`.
    #[serde(default)]
    pub file: Option<String>,
    /// The model types that optimum's exporter does not know.
    #[serde(default)]
    pub unexported: Vec<String>,
    /// Beginnings of the names of classes in `auto_map` of config.json whose inputs, positions and padding are those of the
    /// family. Such a class is code of the model, which is not run.
    #[serde(default)]
    pub code: Vec<String>,
    /// The kinds of its tensors.
    #[serde(deserialize_with = "kinds")]
    pub kinds: Vec<Kind>,
    /// For each model type, the image processor class whose defaults apply when the model's configuration names no
    /// class.
    #[serde(default)]
    pub image_processors: BTreeMap<String, String>,
    /// The feature extractor class of audio when the model's configuration names none.
    #[serde(default)]
    pub audio_processor: Option<String>,
    /// How similarities become probabilities, for families with two towers of one space.
    #[serde(default)]
    pub similarity: Option<Similarity>,
    /// How the decoder's graphs work together, for a family that writes text.
    #[serde(default)]
    pub decoder: Option<DecoderDef>,
    /// The stages; empty for a family that is known but cannot run yet.
    #[serde(default, rename = "stage")]
    pub stages: Vec<StageDef>,
}

/// One stage of a family: a graph with named inputs and outputs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageDef {
    /// The role in the family: `encoder`, `vision_tower`, `decoder`.
    pub role: String,
    /// Candidates for the graph's file, relative to the model's folder. The first file that exists is used.
    pub files: Vec<String>,
    /// Candidates that hold the whole model, used when none of `files` exists. The stage is the part of the graph that
    /// gives its outputs.
    #[serde(default)]
    pub whole_files: Vec<String>,
    /// The kind of the outputs.
    #[serde(deserialize_with = "kind")]
    pub kind: Kind,
    /// From graph input to source.
    pub inputs: BTreeMap<String, Source>,
    /// From graph input to source, for inputs that some exports leave out. A name that ends in `*` is the beginning of the
    /// names of inputs.
    #[serde(default)]
    pub inputs_optional: BTreeMap<String, Source>,
    /// The outputs that other stages and tasks read.
    pub outputs: Vec<String>,
    /// Other names that exports give the first output.
    #[serde(default)]
    pub output_aliases: Vec<String>,
    /// Outputs that some exports have beside or instead of the others.
    #[serde(default)]
    pub outputs_optional: Vec<String>,
    /// The fields of config.json that state the size of the encoder. A graph that holds trunk and head is cut where an
    /// encoder of this size ends.
    #[serde(default)]
    pub encoder: Option<EncoderFields>,
    /// The role of the stage whose graph this stage continues: the part after that stage's encoder. A graph that cannot be cut
    /// there runs whole as this stage.
    #[serde(default)]
    pub rest_of: Option<String>,
    /// A place after an inner block, at which a shared stage is cut: models that read other layers of the same encoder
    /// share the blocks before it.
    #[serde(default)]
    pub blocks: Option<BlockFields>,
    /// Whether texts are filled up to the most tokens that the tokenizer gives, as the family was trained.
    #[serde(default)]
    pub fills_texts: bool,
}

/// The decoder of a family: its graphs, and the outputs that one run keeps for the next.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DecoderDef {
    /// The forms in which exports have the decoder, each with the roles of its graphs: one graph that reads the prompt
    /// and later tokens, or one for the prompt and one for later tokens. The first form whose files exist is used.
    pub forms: Vec<Vec<String>>,
    /// The beginning of the names of inputs that read values of earlier runs.
    #[serde(default = "past")]
    pub past: String,
    /// The beginning of the names of the outputs with these values; the rest of the name is equal.
    #[serde(default = "present")]
    pub present: String,
    /// A part of the names of values that the first run makes and later runs only read.
    #[serde(default = "fixed")]
    pub fixed: String,
    /// The role of the graph that embeds tokens, for graphs that read embeddings.
    #[serde(default)]
    pub embed: Option<String>,
    /// Images in a text, for a decoder that reads their features between its tokens.
    #[serde(default)]
    pub images: Option<ImageTokens>,
    /// The field of config.json with the token that starts a text, where this is not a parameter of generation. This
    /// field and those below may be in an inner object: `text_config.bos_token_id`.
    #[serde(default)]
    pub start: Option<String>,
    /// The field with the tokens that end a text, where these are not parameters of generation.
    #[serde(default)]
    pub ends: Option<String>,
    /// Fields with the number of positions; the first that exists counts. Empty for a model whose positions are not
    /// limited.
    #[serde(default)]
    pub positions: Vec<String>,
}

/// How a decoder reads images.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ImageTokens {
    /// Fields of config.json with the token that stands for an image in a text; the first that exists counts.
    pub token: Vec<String>,
    /// The source of the image's features, which the decoder reads in place of the token's embedding:
    /// `vision_encoder.image_features`.
    pub features: Source,
}

fn past() -> String {
    "past_key_values.".to_owned()
}

fn present() -> String {
    "present.".to_owned()
}

fn fixed() -> String {
    ".encoder.".to_owned()
}

/// How the cosine similarity of two embeddings becomes a probability: of the logit `cosine * exp(scale) + bias`. Scale
/// and bias are trained, so a file of the model has them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Similarity {
    /// The output with the logits in a graph of the whole model.
    pub logits: String,
    /// Candidates for the file of that graph.
    pub files: Vec<String>,
    /// The checkpoint's tensor with the scale's logarithm.
    pub scale: String,
    /// The checkpoint's tensor with the bias, in families that have one.
    #[serde(default)]
    pub bias: Option<String>,
    /// The field of config.json with the value of `scale` before training.
    #[serde(default)]
    pub scale_before_training: Option<String>,
    /// The field of config.json with the exponential of the value of `scale` before training.
    #[serde(default)]
    pub factor_before_training: Option<String>,
    /// The function of the logits.
    pub probability: Probability,
}

/// How logits of several texts become probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probability {
    /// One of the texts fits: softmax over the texts.
    Softmax,
    /// Each text fits or not by itself: sigmoid.
    Sigmoid,
}

/// Fields of config.json. Of several names, the first that a configuration has is used.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncoderFields {
    /// The field with the number of blocks.
    #[serde(deserialize_with = "one_or_more")]
    pub layers: Vec<String>,
    /// The field with the number of elements of a hidden state.
    #[serde(deserialize_with = "one_or_more")]
    pub width: Vec<String>,
    /// The field with the number of blocks of the decoder, for a graph that holds encoder and decoder.
    #[serde(default)]
    pub decoder_layers: Option<String>,
}

/// The blocks that a stage begins with. Fields of config.json may be in an inner object: `vision_config.hidden_size`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockFields {
    /// The role of the part up to the place.
    pub role: String,
    /// The kind of its output.
    #[serde(deserialize_with = "kind")]
    pub kind: Kind,
    /// The name of its output.
    pub output: String,
    /// The field with the number of blocks.
    pub layers: String,
    /// The field with the number of elements of a hidden state.
    pub width: String,
    /// The field with the number of the hidden state at which the graph's blocks end; 0 is the state before the first
    /// block, -1 the last. Without a field, the graph has all blocks and the place is before the last one.
    #[serde(default)]
    pub hidden_state: Option<String>,
}

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

impl Similarity {
    /// The scale before training, from the content of config.json.
    pub fn before_training(&self, config: &serde_json::Value) -> Option<f32> {
        let number = |field: &Option<String>| config.get(field.as_deref()?).and_then(serde_json::Value::as_f64);
        let scale = number(&self.scale_before_training).map(f64::exp);
        scale.or_else(|| number(&self.factor_before_training)).map(|scale| scale as f32)
    }
}

impl StageDef {
    /// The source of an input of the graph.
    pub fn source(&self, input: &str) -> Option<&Source> {
        let named = self.inputs.get(input).or_else(|| self.inputs_optional.get(input));
        let fits = |name: &str| name.strip_suffix('*').is_some_and(|start| input.starts_with(start));
        let by_start = || self.inputs_optional.iter().find(|(name, _)| fits(name)).map(|(_, source)| source);
        named.or_else(by_start)
    }

    /// Whether the stage reads an input of type `medium`.
    pub fn reads(&self, medium: Medium) -> bool {
        self.inputs.values().any(|source| source.medium() == Some(medium))
    }

    /// The inputs that the stage reads beside the data that it encodes: masks.
    pub fn masks(&self) -> impl Iterator<Item = &str> {
        let all = self.inputs.iter().chain(&self.inputs_optional);
        all.filter(|(_, source)| source.is_mask()).map(|(name, _)| name.as_str())
    }

    /// The name of the first output in a graph; `has_output` tells whether the graph has an output of a name.
    pub fn trunk_output(&self, has_output: impl Fn(&str) -> bool) -> Option<&str> {
        let names = self.outputs.first().into_iter().chain(&self.output_aliases);
        names.map(String::as_str).find(|name| has_output(name))
    }
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

    /// The stage that continues the graph of stage `role`.
    pub fn rest_of(&self, role: &str) -> Option<&StageDef> {
        self.stages.iter().find(|stage| stage.rest_of.as_deref() == Some(role))
    }

    /// How similarities become probabilities.
    ///
    /// # Errors
    /// `Unsupported` for a family that compares nothing with texts.
    pub fn similarity(&self) -> Result<&Similarity> {
        let found = self.similarity.as_ref();
        found.ok_or_else(|| Error::unsupported(format!("the {} family has no similarity to texts", self.title)))
    }
}

/// A string, or a list of strings.
fn one_or_more<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Names {
        One(String),
        More(Vec<String>),
    }
    Ok(match Names::deserialize(deserializer)? {
        Names::One(name) => vec![name],
        Names::More(names) => names,
    })
}

fn kind<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn kinds<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Kind>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    names.iter().map(|name| name.parse().map_err(serde::de::Error::custom)).collect()
}
