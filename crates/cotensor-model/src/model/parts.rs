//! The part of a graph that is a stage, and the stages that a task runs.

use super::open_model::{Model, StageSource};
use crate::graph::{BlockEnd, Graph, open_graph};
use crate::stage::Stage;
use cotensor_core::sync::lock;
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::{BlockFields, StageDef, Task};
use std::path::Path;
use std::sync::Arc;

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
        let (Some((encoder, output)), StageSource::Shared(_)) =
            (self.model_config().encoder_before(def)?, &self.source)
        else {
            return Ok(true);
        };
        let reads = |stage: &Arc<Stage>| stage.graph().inputs().iter().any(|port| port.name == output);
        let loaded = lock(&self.stages).get(&def.role).map(reads);
        if let Some(is_rest) = loaded {
            return Ok(!is_rest);
        }
        let (path, _) = self.graph_file(def)?;
        let graph = open_graph(&path).map_err(|error| error.in_file(&path))?;
        Ok(self.model_config().end_of(encoder, &graph).is_none())
    }

    /// As [`ModelConfig::part`](cotensor_preprocess::family::ModelConfig::part).
    pub(super) fn part(&self, def: &StageDef, graph: Graph, whole: bool) -> Result<Graph> {
        self.model_config().part(def, graph, whole)
    }

    /// The place after a block at which a shared stage is cut. `None` for a stage that is not cut there, and for a graph in
    /// which the place cannot be proved.
    pub(super) fn inner_cut<'a>(
        &self,
        def: &'a StageDef,
        path: &Path,
        whole: bool,
    ) -> Result<Option<(&'a BlockFields, BlockEnd)>> {
        let (Some(_), StageSource::Shared(_)) = (&def.blocks, &self.source) else { return Ok(None) };
        let graph = self.part(def, open_graph(path)?, whole)?;
        Ok(self.model_config().inner_cut(def, &graph))
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
}
