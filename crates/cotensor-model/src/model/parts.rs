//! The part of a graph that is a stage, and the stages that a task runs.

use super::open_model::{Model, StageSource};
use crate::graph::{BlockEnd, DecoderSize, EncoderSize, Graph};
use crate::stage::Stage;
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::{BlockFields, StageDef, Task};
use std::path::Path;
use std::sync::{Arc, PoisonError};

impl Model {
    /// The roles of the stages of a task, in order: in the form in which the model has its decoder, and without a stage that
    /// another one contains because their graph runs whole.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    pub fn roles<'a>(&'a self, task: &'a Task) -> Result<Vec<&'a str>> {
        let family = self.family();
        let mut roles = family.roles(&task.stages, self.variant, |file| self.folder().join(file).is_file());
        for (role, rest) in task.stages.iter().filter_map(|role| Some((role, family.rest_of(role)?))) {
            if self.runs_whole(rest)? {
                roles.retain(|known| known != role);
            }
        }
        Ok(roles)
    }

    /// Whether a stage that continues another one runs the whole graph, so that the other stage does not run: in a private
    /// copy, and if the graph cannot be cut.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    fn runs_whole(&self, def: &StageDef) -> Result<bool> {
        let (Some((encoder, output)), StageSource::Shared(_)) = (self.encoder_before(def)?, &self.source) else {
            return Ok(true);
        };
        let reads = |stage: &Arc<Stage>| stage.graph().inputs().iter().any(|port| port.name == output);
        let loaded = self.stages.lock().unwrap_or_else(PoisonError::into_inner).get(&def.role).map(reads);
        if let Some(is_rest) = loaded {
            return Ok(!is_rest);
        }
        let (path, _) = self.graph_file(def)?;
        let graph = Graph::open(&path).map_err(|error| error.in_file(&path))?;
        Ok(self.end_of(encoder, &graph).is_none())
    }

    /// The size of the encoder whose end the graph provably has.
    fn end_of(&self, encoder: &StageDef, graph: &Graph) -> Option<EncoderSize> {
        self.encoder_size(encoder).ok().filter(|size| graph.has_trunk(size))
    }

    /// The part of a graph that is the stage: the trunk of a graph with trunk and head, what follows it, or its part of the
    /// graph of a whole model.
    pub(super) fn part(&self, def: &StageDef, graph: Graph, whole: bool) -> Result<Graph> {
        if let Some((encoder, output)) = self.encoder_before(def)? {
            return match self.end_of(encoder, &graph) {
                Some(size) => graph.rest(output, &size),
                None => Ok(graph),
            };
        }
        match (&def.encoder, def.outputs.first()) {
            (Some(_), Some(output)) if !has_result(def, &graph) => graph.trunk(output, &self.encoder_size(def)?),
            _ if whole => Ok(graph.part(&result_names(def).collect::<Vec<_>>())),
            _ => Ok(graph),
        }
    }

    /// The stage whose graph `def` continues, and the name of its result.
    fn encoder_before(&self, def: &StageDef) -> Result<Option<(&'static StageDef, &'static str)>> {
        let Some(role) = &def.rest_of else { return Ok(None) };
        let encoder = self.family.stage(role)?;
        Ok(encoder.outputs.first().map(|output| (encoder, output.as_str())))
    }

    /// The place after a block at which a shared stage is cut. `None` for a stage that is not cut there, and for a graph in
    /// which the place cannot be proved.
    pub(super) fn inner_cut<'a>(
        &self,
        def: &'a StageDef,
        path: &Path,
        whole: bool,
    ) -> Result<Option<(&'a BlockFields, BlockEnd)>> {
        let (Some(blocks), StageSource::Shared(_)) = (&def.blocks, &self.source) else { return Ok(None) };
        let Some(place) = self.block_end(blocks) else { return Ok(None) };
        let graph = self.part(def, Graph::open(path)?, whole)?;
        Ok(graph.has_blocks(place).then_some((blocks, place)))
    }

    /// The place at which a stage is cut, from config.json.
    fn block_end(&self, blocks: &BlockFields) -> Option<BlockEnd> {
        let number = |field: &str| usize::try_from(self.config_at(field)?.as_u64()?).ok();
        let (layers, width) = (number(&blocks.layers)?, number(&blocks.width)?);
        match &blocks.hidden_state {
            // Hidden state 0 is the input of the first block, -1 the result of the last.
            Some(field) => {
                let index = self.config_at(field)?.as_i64()?;
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

    /// Refuses an encoder that gives rows of another width than config.json has. A graph may leave the width open.
    pub(super) fn check_width(&self, def: &StageDef, stage: &Stage) -> Result<()> {
        let fields = def.encoder.iter().flat_map(|encoder| &encoder.width);
        let declared = fields.filter_map(|field| Some((field, self.config_at(field)?.as_u64()?))).next();
        let port = stage.graph().outputs().iter().find(|port| def.outputs.contains(&port.name));
        let found = port.and_then(|port| port.dims.as_ref()?.last().copied().flatten());
        match (declared, found) {
            (Some((field, width)), Some(found)) if found as u64 != width => {
                let message = format!("{width} numbers for each row; the graph gives {found}");
                Err(Error::invalid(message).in_file(self.folder.join("config.json")).in_field(field.as_str()))
            }
            _ => Ok(()),
        }
    }

    /// The size of a stage's encoder, from config.json.
    pub(super) fn encoder_size(&self, def: &StageDef) -> Result<EncoderSize> {
        let fields =
            def.encoder.as_ref().ok_or_else(|| Error::unsupported(format!("{} is not an encoder", def.role)))?;
        let number = |fields: &[String]| {
            let field = fields.iter().find(|field| self.config.get(field.as_str()).is_some()).or(fields.first());
            let field = field.map_or("", String::as_str);
            let value =
                self.config.get(field).and_then(serde_json::Value::as_u64).and_then(|n| usize::try_from(n).ok());
            value.filter(|&value| value > 0).ok_or_else(|| {
                Error::invalid("a number is required to find the end of the encoder in a graph that holds more")
                    .in_file(self.folder.join("config.json"))
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
}

/// The names that graphs give the result of the stage.
fn result_names(def: &StageDef) -> impl Iterator<Item = &str> {
    def.outputs.iter().chain(&def.output_aliases).chain(&def.outputs_optional).map(String::as_str)
}

/// Whether the graph has the result of the stage as an output, under any of its names. Such a graph is not cut.
pub(super) fn has_result(def: &StageDef, graph: &Graph) -> bool {
    result_names(def).any(|name| graph.outputs().iter().any(|output| output.name == name))
}
