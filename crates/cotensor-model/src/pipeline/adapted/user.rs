//! Users that read the output of another model's encoder.

use super::encode::{encode, encoder_of};
use super::take::adapter_to;
use crate::adapter::{Adapter, AdapterInfo, load_adapter};
use crate::model::{Model, Runtime};
use crate::pipeline::encoded::Foreign;
use crate::pipeline::inputs::Inputs;
use crate::pipeline::opened::model_of_encoder;
use cotensor_core::{Error, Result};
use cotensor_pipeline::{EncoderOf, User};
use cotensor_preprocess::family::Medium;
use cotensor_store::Holder;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

/// The inputs of `user`, who runs `model`: if the user names another model's encoder, with its output. Folders and files
/// are relative to `base`.
///
/// # Errors
/// `Invalid` for a task without an encoder or for a user with texts of its own, as [`Runtime::open`], [`encode`] and
/// [`load_adapter`].
pub fn inputs_of(
    user: &User,
    model: &Model,
    inputs: &Inputs,
    base: &Path,
    runtime: &Arc<Runtime>,
    holder: &Holder,
) -> Result<Inputs> {
    let Some(encoder) = &user.encoder else { return Ok(inputs.clone()) };
    let medium = medium_of(user, model)?;
    // A stage without a space has no place for the output.
    model.space(&encoder_of(model, medium)?.role)?;
    let source = model_of_encoder(encoder, base, runtime)?;
    let encoded = encode(&source, medium, inputs, holder)?;
    Ok(inputs.clone().with_foreign(Foreign { medium, encoded, adapter: adapter_file(encoder, base)? }))
}

/// The encoder that a user reads instead of a stage.
#[derive(Clone, Debug, Serialize)]
pub struct EncoderUse {
    /// The user.
    pub user: String,
    /// The model of the user.
    pub model: String,
    /// The stage that is neither loaded nor run.
    pub role: String,
    /// The model whose encoder runs instead.
    pub source: String,
    /// The stage that runs instead.
    pub source_role: String,
    /// The adapter between the two spaces; `None` if they are equal.
    pub adapter: Option<AdapterInfo>,
}

/// The encoder that `user`, who runs `model`, reads instead of a stage, with the model that has it; `None` for a user of
/// the model's own encoder.
///
/// # Errors
/// As [`inputs_of`]; `Invalid` without an adapter between the spaces.
pub(in crate::pipeline) fn encoder_use(
    user: &User,
    model: &Model,
    base: &Path,
    runtime: &Arc<Runtime>,
) -> Result<Option<(EncoderUse, Arc<Model>)>> {
    let Some(encoder) = &user.encoder else { return Ok(None) };
    let medium = medium_of(user, model)?;
    let source = model_of_encoder(encoder, base, runtime)?;
    let (def, source_def) = (encoder_of(model, medium)?, encoder_of(&source, medium)?);
    let (file, holder) = (adapter_file(encoder, base)?, runtime.store().holder(&user.name));
    let adapter = adapter_to(model, def, &source.space(&source_def.role)?, file.as_ref(), &holder)?;
    let found = EncoderUse {
        user: user.name.clone(),
        model: model.name(),
        role: def.role.clone(),
        source: source.name(),
        source_role: source_def.role.clone(),
        adapter: adapter.map(|adapter| adapter.info.clone()),
    };
    Ok(Some((found, source)))
}

fn adapter_file(encoder: &EncoderOf, base: &Path) -> Result<Option<Arc<Adapter>>> {
    encoder.adapter.as_ref().map(|file| load_adapter(&base.join(file)).map(Arc::new)).transpose()
}

/// What the encoder reads that the user replaces: the first stage of the task that reads an input.
fn medium_of(user: &User, model: &Model) -> Result<Medium> {
    let family = model.family();
    let invalid = |message: String| Err(Error::invalid(message).in_field(format!("{}.encoder", user.name)));
    for role in &family.task(&user.task)?.stages {
        let def = family.stage(role)?;
        if let Some(medium) = Medium::ALL.into_iter().find(|medium| def.reads(*medium)) {
            if medium == Medium::Text && !user.texts.is_empty() {
                return invalid("the encoder reads the input text, and the user has texts of its own".to_owned());
            }
            return Ok(medium);
        }
    }
    invalid(format!("{} has no encoder", user.task))
}
