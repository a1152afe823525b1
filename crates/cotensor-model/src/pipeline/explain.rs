//! Explains which users of a pipeline share which stages, and why other stages are not shared.

use super::adapted::{EncoderUse, encoder_use};
use super::opened::model_of_user;
use crate::model::{Model, Runtime};
use crate::quantized::QuantizedWeights;
use crate::stage::Stage;
use cotensor_core::{ContentHash, Hasher, Result};
use cotensor_pipeline::{Pipeline, User};
use cotensor_preprocess::family::{Medium, Source};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

/// The sharing in a pipeline.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The stages of all users, in order.
    pub stages: Vec<StageUse>,
    /// The encoders that users read instead of a stage of their model, in order.
    pub encoders: Vec<EncoderUse>,
    /// The weight bytes if each user loads its own copy.
    pub weight_bytes_unshared: u64,
    /// The weight bytes in the store: each content once.
    pub weight_bytes_shared: u64,
}

/// A stage of a user.
#[derive(Clone, Debug, Serialize)]
pub struct StageUse {
    /// The user.
    pub user: String,
    /// The model.
    pub model: String,
    /// The role of the stage.
    pub role: String,
    /// The kind of the outputs.
    pub kind: &'static str,
    /// The space of the outputs.
    pub space: String,
    /// The bytes of the weights.
    pub weight_bytes: u64,
    /// The users whose stage has the same space and the same sources. On equal input, they compute it once.
    pub shared_with: Vec<String>,
    /// For each similar stage that does not share: the reason, with both spaces.
    pub not_shared: Vec<String>,
    /// A condition of sharing besides the space.
    pub condition: Option<String>,
    /// What is known of the weights, if they are quantized.
    pub quantized: Option<QuantizedWeights>,
    /// The engine that runs the stage, with its version.
    pub engine: String,
    /// For each better engine that does not run the stage: its name and the reason.
    pub engine_reasons: Vec<String>,
    /// Why the engine is slower than it could be.
    pub engine_notice: Option<String>,
}

/// The name of the output that a head reads.
const TRUNK: &str = "output";

struct Use<'a> {
    user: &'a User,
    model: Arc<Model>,
    stage: Arc<Stage>,
    /// The sources of its inputs. A head reads the previous stage.
    sources: Vec<Source>,
    /// Its own space with the spaces of the stages that it reads. Two uses with equal values give equal results on
    /// equal input.
    whole: ContentHash,
}

impl<'a> Use<'a> {
    fn new(user: &'a User, model: &Arc<Model>, stage: Arc<Stage>, sources: Vec<Source>, before: &[Use<'_>]) -> Self {
        let mut hasher = Hasher::new("cotensor use v1");
        hasher.field(stage.space().map_or(ContentHash::of(b""), |space| space.0).as_bytes());
        for role in sources.iter().filter_map(Source::role) {
            let read = before.iter().rfind(|earlier| earlier.user.name == user.name && earlier.stage.role == role);
            if let Some(read) = read {
                hasher.field(read.whole.as_bytes());
            }
        }
        Self { user, model: Arc::clone(model), stage, sources, whole: hasher.finish() }
    }

    /// Whether the two are similar: they have a common source, or both are heads.
    fn is_comparable(&self, other: &Use<'_>) -> bool {
        let head = |each: &Use<'_>| {
            each.sources.iter().any(|source| matches!(source, Source::Stage { output, .. } if output == TRUNK))
        };
        head(self) && head(other) || self.sources.iter().any(|source| other.sources.contains(source))
    }
}

/// Opens every model of `pipeline` (folders relative to `base`, or names) and compares their stages.
///
/// # Errors
/// As [`Runtime::open`] and [`Model::stage`]; `Invalid` for a task that a family does not have.
pub fn explain(pipeline: &Pipeline, base: &Path, runtime: &Arc<Runtime>) -> Result<Explanation> {
    let (mut uses, mut encoders) = (Vec::new(), Vec::new());
    for user in &pipeline.users {
        let model = model_of_user(user, base, runtime)?;
        let task = model.family().task(&user.task).map_err(|error| error.in_field(format!("{}.task", user.name)))?;
        user.check_task(task)?;
        let replaced = encoder_use(user, &model, base, runtime)?;
        for role in model.roles(task)? {
            if let Some((encoder, source)) = replaced.as_ref().filter(|(encoder, _)| encoder.role == role) {
                let sources = source.family().stage(&encoder.source_role)?.inputs.values().cloned().collect();
                uses.push(Use::new(user, source, source.stage(&encoder.source_role)?, sources, &uses));
                encoders.push(encoder.clone());
                continue;
            }
            let mut sources: Vec<Source> = model.family().stage(role)?.inputs.values().cloned().collect();
            let stage = model.stage(role)?;
            if let Some((before, input)) = stage.before() {
                uses.push(Use::new(user, &model, Arc::clone(before), sources, &uses));
                sources = vec![Source::stage(&before.role, input)];
            }
            uses.push(Use::new(user, &model, stage, sources, &uses));
        }
        if task.head {
            let trunk = task.stages.last().map_or("", String::as_str);
            let stage = match &user.head {
                Some(name) => Some(model.head(name)?),
                None => model.own_head(trunk)?,
            };
            if let Some(stage) = stage {
                uses.push(Use::new(user, &model, stage, vec![Source::stage(trunk, TRUNK)], &uses));
            }
        }
    }
    let contents: HashMap<_, _> = uses.iter().flat_map(|each| each.stage.weights()).copied().collect();
    Ok(Explanation {
        weight_bytes_unshared: uses.iter().map(|each| each.stage.weight_bytes()).sum(),
        weight_bytes_shared: contents.values().map(|&bytes| bytes as u64).sum(),
        stages: uses.iter().map(|each| describe(each, &uses)).collect::<Result<_>>()?,
        encoders,
    })
}

fn describe(this: &Use<'_>, uses: &[Use<'_>]) -> Result<StageUse> {
    let others = || uses.iter().filter(|other| other.user.name != this.user.name);
    let same = |other: &&Use<'_>| other.whole == this.whole;
    let not_shared: BTreeMap<_, _> = others()
        .filter(|other| !same(other) && this.is_comparable(other))
        .map(|other| (other.user.name.as_str(), difference(this, other)))
        .collect();
    Ok(StageUse {
        user: this.user.name.clone(),
        model: this.model.name(),
        role: this.stage.role.clone(),
        kind: this.stage.kind.name(),
        space: space(&this.stage),
        weight_bytes: this.stage.weight_bytes(),
        quantized: this.model.quantized(&this.stage)?,
        shared_with: others().filter(same).map(|other| other.user.name.clone()).collect(),
        not_shared: not_shared.into_values().collect(),
        condition: condition(this),
        engine: this.stage.runs_on().engine.clone(),
        engine_reasons: this.stage.runs_on().reasons.clone(),
        engine_notice: this.stage.runs_on().notice.clone(),
    })
}

/// The reason why two similar stages do not share.
fn difference(this: &Use<'_>, other: &Use<'_>) -> String {
    if this.stage.space() == other.stage.space() {
        return format!(
            "{} of {} and of {} are both in space {}, but read the results of different encoders: {}",
            this.stage.role,
            this.user.name,
            other.user.name,
            space(&this.stage),
            this.sources.iter().map(Source::to_string).collect::<Vec<_>>().join(", ")
        );
    }
    let (mine, theirs) = (this.stage.weights(), other.stage.weights());
    let common = mine.iter().filter(|(hash, _)| theirs.iter().any(|(known, _)| known == hash)).count();
    let why = match (common == mine.len(), mine.len() == theirs.len()) {
        (true, true) => "the weights are equal, the graph or the preprocessing differs".to_owned(),
        _ if common == 0 => "no weight is equal".to_owned(),
        _ => format!("{common} of {} weights are equal (and stored once), the rest differ", mine.len()),
    };
    format!(
        "{} of {} is in space {}, {} of {} in space {}: {why}; values of one would be wrong for the other without an adapter",
        this.stage.role,
        this.user.name,
        space(&this.stage),
        other.stage.role,
        other.user.name,
        space(&other.stage)
    )
}

/// The dependencies of the result besides the common input.
fn condition(this: &Use<'_>) -> Option<String> {
    let def = this.model.family().stage(&this.stage.role).ok()?;
    if def.reads(Medium::Text) && !this.user.texts.is_empty() {
        Some(format!("reads {} text(s) of its own: users with an equal text compute it once", this.user.texts.len()))
    } else if def.inputs.values().any(Source::is_of_decoder) {
        Some("users share the first step; users with equal settings share the whole decoding".to_owned())
    } else {
        None
    }
}

fn space(stage: &Stage) -> String {
    stage.space().map_or_else(|| "none".to_owned(), |space| space.to_string())
}
