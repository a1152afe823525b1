//! Use of an adapter: the output of another model's encoder, mapped to the rows of a stage that does not run.

use super::encode::{encoder_of, image_parts, text_parts};
use super::learn::align;
use crate::adapter::{Adapter, Rows};
use crate::model::Model;
use crate::pipeline::encoded::{Foreign, RowParts};
use crate::pipeline::inputs::Inputs;
use crate::pipeline::run::{Run, milliseconds};
use crate::stage::{Computation, compute_once};
use crate::tensor::{Array, Value};
use cotensor_core::{Error, ErrorKind, Hasher, Result, Space};
use cotensor_pipeline::StageReport;
use cotensor_preprocess::family::{Source, StageDef};
use cotensor_store::{Holder, Key};
use std::sync::Arc;
use std::time::Instant;

/// The beginning of the role of an adapter in reports; the rest is the role of the stage that it replaces.
pub const ADAPTER: &str = "adapter of ";

impl Run<'_> {
    /// The output of another model's encoder in place of the output of the stage `def`, if `inputs` has one for it. The
    /// stage is neither loaded nor run. An output of another space is mapped by the adapter between the two spaces; the
    /// result is shared like that of any stage.
    ///
    /// # Errors
    /// `Invalid` when the spaces differ and there is no adapter between them: the message names both. `Unsupported` when
    /// the rows do not fit the adapter, or as [`ComputationStore::claim`](cotensor_store::ComputationStore::claim).
    pub(in crate::pipeline) fn given(&mut self, def: &StageDef, inputs: &Inputs) -> Result<Option<Value>> {
        let is_for = |foreign: &&Foreign| encoder_of(self.model, foreign.medium).is_ok_and(|own| own.role == def.role);
        let Some(foreign) = inputs.foreign().iter().find(is_for) else { return Ok(None) };
        let output = def.outputs.first().ok_or_else(|| Error::unsupported("a stage without an output"))?;
        let start = Instant::now();
        let adapter = adapter_to(self.model, def, &foreign.encoded.space, foreign.adapter.as_ref(), self.holder)?;
        let value = if let Some(adapter) = adapter {
            let (value, computed) = self.adapted(def, foreign, &adapter, inputs)?;
            let info = &adapter.info;
            self.notice(adapter.info.described());
            let name = Adapter::tensor_name(&info.source.space, &info.target.space);
            self.stages.push(StageReport {
                space: Some(adapter.space().to_string()),
                run_ms: milliseconds(start.elapsed()),
                ..StageReport::without_stage(&format!("{ADAPTER}{}", def.role), &name, computed)
            });
            value
        } else {
            foreign.encoded.value.clone()
        };
        self.values.insert(Source::stage(&def.role, output), value.clone());
        Ok(Some(value))
    }

    /// The rows of `foreign`, aligned and mapped; and whether this call computed them.
    fn adapted(&self, def: &StageDef, foreign: &Foreign, adapter: &Adapter, inputs: &Inputs) -> Result<(Value, bool)> {
        let encoded = &foreign.encoded;
        let (_, width) = encoded.size()?;
        if width != adapter.map.inputs() {
            let message = format!("rows of {width} elements; the adapter reads {}", adapter.map.inputs());
            return Err(Error::unsupported(message).in_field("adapter"));
        }
        let target = match adapter.info.rows {
            Rows::Tokens => text_parts(self.model, inputs, adapter.info.target.pooled)?,
            Rows::Patches { .. } => image_parts(self.model, inputs)?,
            // The adapter knows the number of frames.
            Rows::Frames { .. } => RowParts::Unknown,
        };
        let alignment = align(encoded, &target, &adapter.info.rows)?;
        let mut hasher = Hasher::new("cotensor adapted v1");
        hasher.field(adapter.identity().as_bytes()).field(encoded.value.identity().as_bytes());
        hasher.field(format!("{:?} {target:?}", encoded.parts).as_bytes());
        let labels = [format!("adapted.{}", def.role)];
        let computation = Computation {
            store: self.model.store()?,
            key: Key(hasher.finish()),
            space: Some(adapter.space()),
            kind: def.kind,
            labels: &labels,
            holder: self.holder,
        };
        let (mut values, computed) = compute_once(&computation, |_| {
            let rows = adapter.map.apply(&alignment.apply(&encoded.value.to_f32()?, width));
            let mut shape = vec![1, alignment.rows(), adapter.map.outputs()];
            if adapter.info.target.pooled {
                shape.remove(1);
            }
            Ok(vec![Array::f32(shape, rows)?.into()])
        })?;
        let value = values.pop().ok_or_else(|| Error::not_found("the store lost an adapted tensor"))?;
        Ok((value, computed))
    }
}

/// The adapter from `space` to the space of the stage `def` of `model`: the given one, else that of the store. `None` if the
/// spaces are equal.
///
/// # Errors
/// `Invalid` for an adapter between other spaces and when the store has none; as [`Model::space`].
pub(in crate::pipeline) fn adapter_to(
    model: &Model,
    def: &StageDef,
    space: &Space,
    given: Option<&Arc<Adapter>>,
    holder: &Holder,
) -> Result<Option<Arc<Adapter>>> {
    let own = &model.space(&def.role)?;
    if own == space {
        return Ok(None);
    }
    let stage = || format!("{} of {}", def.role, model.name());
    if let Some(adapter) = given {
        let (from, to) = (&adapter.info.source.space, &adapter.info.target.space);
        if (from, to) != (space, own) {
            let message = format!(
                "the adapter maps space {from} to {to}, but the tensor has space {space} and {} has space {own}",
                stage()
            );
            return Err(Error::invalid(message).in_field("adapter"));
        }
        return Ok(Some(Arc::clone(adapter)));
    }
    match model.store()?.get(&Adapter::tensor_name(space, own), holder) {
        Ok(lease) => Ok(Some(Arc::new(Adapter::of_lease(&lease)?))),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::invalid(format!(
            "the tensor has space {space}, {} has space {own}, and the store has no adapter between them: \
             `cotensor fit-adapter` makes one",
            stage()
        ))),
        Err(error) => Err(error),
    }
}
