//! The fields of config.json that a family names: where a graph is cut for the stages of a model.

use super::definition::{BlockFields, Family, StageDef};
use super::source::Medium;
use cotensor_core::{Error, Result};
use cotensor_graph::{BlockEnd, DecoderSize, EncoderSize, Graph};
use serde_json::Value;
use std::path::Path;

/// The file with the configuration of a model.
pub const CONFIG_FILE: &str = "config.json";

/// config.json of a model, and the family that reads it.
#[derive(Clone, Copy, Debug)]
pub struct ModelConfig<'a> {
    /// The family of the model.
    pub family: &'static Family,
    /// The content of config.json.
    pub values: &'a Value,
    /// The model's folder, for error messages.
    pub folder: &'a Path,
}

impl<'a> ModelConfig<'a> {
    /// A value of config.json, which may be in an inner object: `vision_config.hidden_size`. `None` for null.
    pub fn at(&self, path: &str) -> Option<&'a Value> {
        path.split('.').try_fold(self.values, |value, name| value.get(name)).filter(|value| !value.is_null())
    }

    /// The number of positions of the decoder, if they are limited.
    pub fn decoder_positions(&self) -> Option<usize> {
        let number = |path: &String| {
            let (object, field) = match path.rsplit_once('.') {
                Some((object, field)) => (self.at(object)?, field),
                None => (self.values, path.as_str()),
            };
            scaled_positions(object, field)
        };
        let positions = self.family.decoder.as_ref()?.positions.iter().find_map(number)?;
        usize::try_from(positions).ok()
    }

    /// What each answer says if `auto_map` names a class that the family does not know: code of the model, which is not run. The
    /// graph has what this code computes; only the limits and the inputs are read from the configuration as the family says.
    pub fn code_notice(&self) -> Option<String> {
        if self.family.code.is_empty() {
            return None;
        }
        let map = self.values.get("auto_map").and_then(Value::as_object);
        let models = map.into_iter().flatten().filter(|(name, _)| name.starts_with("AutoModel"));
        // "owner/repository--module.Class"
        let mut classes = models.filter_map(|(_, class)| class.as_str()?.rsplit(['.', '-']).next());
        let class = classes.find(|class| !self.family.code.iter().any(|known| class.starts_with(known.as_str())))?;
        Some(format!(
            "auto_map in {CONFIG_FILE} names {class}, which is code of the model and not known: its graph is run, with the limits \
             and the inputs of {}",
            self.family.title
        ))
    }

    /// The part of a graph that is the stage: the trunk of a graph with trunk and head, what follows it, or its part of the
    /// graph of a whole model. `whole` tells whether the graph holds the whole model.
    ///
    /// # Errors
    /// As [`Graph::trunk`] and [`encoder_size`](Self::encoder_size).
    pub fn part(&self, def: &StageDef, graph: Graph, whole: bool) -> Result<Graph> {
        if let Some((encoder, output)) = self.encoder_before(def)? {
            return match self.end_of(encoder, &graph) {
                Some(size) => graph.rest(output, &size),
                None => Ok(graph),
            };
        }
        match (&def.encoder, def.outputs.first()) {
            (Some(_), Some(output)) if !def.has_result(&graph) => graph.trunk(output, &self.encoder_size(def)?),
            _ if whole => Ok(graph.part(&def.result_names().collect::<Vec<_>>())),
            _ => Ok(graph),
        }
    }

    /// The part of the graph of stage `def` that follows its encoder: the model's own head. `None` for a graph that gives the
    /// result of the stage itself, and for a stage that is not an encoder.
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub fn head_part(&self, def: &StageDef, graph: Graph) -> Result<Option<Graph>> {
        match (&def.encoder, def.outputs.first()) {
            (Some(_), Some(output)) if !def.has_result(&graph) => {
                graph.rest(output, &self.encoder_size(def)?).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The place after a block at which the graph of a shared stage is cut. `None` for a stage that is not cut there, and for a
    /// graph in which the place cannot be proved.
    pub fn inner_cut<'d>(&self, def: &'d StageDef, graph: &Graph) -> Option<(&'d BlockFields, BlockEnd)> {
        let blocks = def.blocks.as_ref()?;
        let place = self.block_end(blocks)?;
        graph.has_blocks(place).then_some((blocks, place))
    }

    /// The size of the encoder whose end the graph provably has.
    pub fn end_of(&self, encoder: &StageDef, graph: &Graph) -> Option<EncoderSize> {
        self.encoder_size(encoder).ok().filter(|size| graph.has_trunk(size))
    }

    /// The stage whose graph `def` continues, and the name of its result.
    ///
    /// # Errors
    /// As [`Family::stage`].
    pub fn encoder_before(&self, def: &StageDef) -> Result<Option<(&'static StageDef, &'static str)>> {
        let Some(role) = &def.rest_of else { return Ok(None) };
        let encoder = self.family.stage(role)?;
        Ok(encoder.outputs.first().map(|output| (encoder, output.as_str())))
    }

    /// The size of a stage's encoder.
    ///
    /// # Errors
    /// `Unsupported` for a stage that is not an encoder, `Invalid` without one of the numbers; the error names file and field.
    pub fn encoder_size(&self, def: &StageDef) -> Result<EncoderSize> {
        let fields =
            def.encoder.as_ref().ok_or_else(|| Error::unsupported(format!("{} is not an encoder", def.role)))?;
        let number = |fields: &[String]| {
            let field = fields.iter().find(|field| self.values.get(field.as_str()).is_some()).or(fields.first());
            let field = field.map_or("", String::as_str);
            let value = self.values.get(field).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
            value.filter(|&value| value > 0).ok_or_else(|| {
                Error::invalid("a number is required to find the end of the encoder in a graph that holds more")
                    .in_file(self.folder.join(CONFIG_FILE))
                    .in_field(field)
            })
        };
        let decoder = fields.decoder_layers.as_ref().map(|field| {
            let inputs = def.masks().map(str::to_owned).collect();
            Ok::<_, Error>(DecoderSize { layers: number(std::slice::from_ref(field))?, inputs })
        });
        Ok(EncoderSize {
            layers: number(&fields.layers)?,
            width: number(&fields.width)?,
            decoder: decoder.transpose()?,
        })
    }

    /// The place at which a stage is cut.
    fn block_end(&self, blocks: &BlockFields) -> Option<BlockEnd> {
        let number = |field: &str| usize::try_from(self.at(field)?.as_u64()?).ok();
        let (layers, width) = (number(&blocks.layers)?, number(&blocks.width)?);
        match &blocks.hidden_state {
            // Hidden state 0 is the input of the first block, -1 the result of the last.
            Some(field) => {
                let index = self.at(field)?.as_i64()?;
                let before = if index < 0 {
                    (layers + 1).checked_sub(usize::try_from(-index).ok()?)?
                } else {
                    usize::try_from(index).ok()?
                };
                Some(BlockEnd { blocks: before, before, width })
            }
            None => Some(BlockEnd { blocks: layers, before: layers.checked_sub(1)?, width }),
        }
    }
}

impl StageDef {
    /// The names that graphs give the result of the stage.
    pub fn result_names(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().chain(&self.output_aliases).chain(&self.outputs_optional).map(String::as_str)
    }

    /// Whether the graph has the result of the stage as an output, under any of its names. Such a graph is not cut.
    pub fn has_result(&self, graph: &Graph) -> bool {
        self.result_names().any(|name| graph.outputs().iter().any(|output| output.name == name))
    }

    /// The media of the inputs whose preprocessing is part of the stage's space, in the order of their names.
    pub fn media(&self) -> Vec<Medium> {
        let media = [Medium::Audio, Medium::Image, Medium::Text];
        media.into_iter().filter(|medium| self.reads(*medium)).collect()
    }
}

/// Scalings of rotary positions that multiply the number of positions in the same object. Other types (`llama3`, `longrope`)
/// state the extended number there.
const MULTIPLYING: [&str; 3] = ["linear", "dynamic", "yarn"];

/// The number of positions in `field` of this object, with the scaling of rotary positions beside it, as vLLM computes it: the
/// factor times `original_max_position_embeddings`, or times the field.
pub(crate) fn scaled_positions(config: &Value, field: &str) -> Option<u64> {
    let plain = config.get(field)?.as_u64()?;
    // Gemma 3 states the extended number.
    let is_gemma = config.get("model_type").and_then(Value::as_str).is_some_and(|name| name.starts_with("gemma3"));
    let scaling = ["rope_scaling", "rope_parameters"].iter().find_map(|name| config.get(*name)?.as_object());
    let Some(scaling) = scaling.filter(|_| !is_gemma) else { return Some(plain) };
    let name = ["rope_type", "type"].iter().find_map(|name| scaling.get(*name)?.as_str());
    if !name.is_some_and(|name| MULTIPLYING.contains(&name)) {
        return Some(plain);
    }
    let original = scaling.get("original_max_position_embeddings").and_then(Value::as_u64).unwrap_or(plain);
    let factor = scaling.get("factor").and_then(Value::as_f64).filter(|&factor| factor >= 1.0).unwrap_or(1.0);
    Some((original as f64 * factor) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::family_of;
    use serde_json::json;

    #[test]
    fn code_of_a_model_has_a_notice_unless_the_family_knows_it() {
        let notice = |model_type, auto_map: Value| {
            let values = json!({"auto_map": auto_map});
            ModelConfig { family: family_of(model_type).unwrap(), values: &values, folder: Path::new("") }.code_notice()
        };
        for (model_type, class) in [
            ("bert", "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"),
            ("xlm-roberta", "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"),
            ("nomic_bert", "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"),
            ("new", "Alibaba-NLP/new-impl--modeling.NewModel"),
            ("gte", "modeling_hf_alibaba_nlp_gte.GteModel"),
            ("eurobert", "modeling_eurobert.EuroBertModel"),
        ] {
            assert_eq!(notice(model_type, json!({"AutoConfig": "own.Config", "AutoModel": class})), None, "{class}");
        }
        assert_eq!(notice("bert", Value::Null), None);
        assert_eq!(notice("bert", json!({"AutoConfig": "configuration.OwnConfig"})), None);
        let text = notice("bert", json!({"AutoModel": "owner/name--modeling.OwnBert"})).unwrap();
        assert!(text.contains("OwnBert") && text.contains("limits"), "{text}");
    }

    #[test]
    fn positions_of_a_decoder_include_the_scaling_beside_them() {
        let positions = |model_type, values: &Value| {
            let family = family_of(model_type).unwrap();
            ModelConfig { family, values, folder: Path::new("") }.decoder_positions()
        };
        let yarn = json!({"max_position_embeddings": 40_960, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}});
        assert_eq!(positions("qwen3", &yarn), Some(131_072));
        assert_eq!(positions("llava", &json!({"text_config": yarn})), Some(131_072));
        assert_eq!(positions("gpt2", &json!({"n_positions": 1024})), Some(1024));
        assert_eq!(positions("t5", &json!({"n_positions": 512})), None);
    }
}
