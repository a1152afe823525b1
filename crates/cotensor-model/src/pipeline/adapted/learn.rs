//! Fits an adapter between the encoders of two models on samples.

use super::encode::{encode, encoder_of};
use super::samples::Samples;
use crate::adapter::{Adapter, Alignment, Encoder, Fitter, Patches, Rows, SAMPLES_MIN};
use crate::model::Model;
use crate::pipeline::encoded::{Encoded, RowParts};
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::Medium;
use cotensor_store::Holder;

/// Fits an adapter from the encoder of `source` to the encoder of `target`: the first stage of each that reads the medium
/// of the samples. Equal samples count once. `done` is called with the number of finished samples and of all.
///
/// Both encoders run once for each sample, and the store keeps their outputs like those of any stage.
///
/// # Errors
/// `Invalid` with fewer than [`SAMPLES_MIN`] different samples and for encoders of the same space, which need no
/// adapter; `Unsupported` when the rows of the two cannot be aligned; the errors of running a stage.
pub fn fit_adapter(
    source: &Model,
    target: &Model,
    samples: &Samples,
    holder: &Holder,
    done: &mut dyn FnMut(usize, usize),
) -> Result<Adapter> {
    let medium = samples.medium();
    let mut ends = [encoder(source, medium)?, encoder(target, medium)?];
    if ends[0].space == ends[1].space {
        let message = format!("{} and {} have the same space: no adapter is needed", source.name(), target.name());
        return Err(Error::invalid(message));
    }
    let distinct = samples.distinct()?;
    if distinct.len() < SAMPLES_MIN {
        let message = format!("{} different samples; at least {SAMPLES_MIN} are required", distinct.len());
        return Err(Error::invalid(message).in_field("data"));
    }
    let mut fitter: Option<(Fitter, Rows)> = None;
    for (count, &index) in distinct.iter().enumerate() {
        let sample = samples.inputs(index)?;
        let (from, to) = (encode(source, medium, &sample, holder)?, encode(target, medium, &sample, holder)?);
        let ((_, inputs), (_, outputs)) = (from.size()?, to.size()?);
        for (end, encoded) in ends.iter_mut().zip([&from, &to]) {
            end.pooled = encoded.value.shape().len() == 2;
        }
        let rows = rows(&from, &to)?;
        let alignment = align(&from, &to.parts, &rows)?;
        let (fitter, known) = fitter.get_or_insert_with(|| (Fitter::new(inputs, outputs), rows));
        *known = known.of_both(&rows).ok_or_else(|| {
            let message = format!("the samples have different rows: {known:?} and {rows:?}");
            Error::unsupported(message).in_field("data")
        })?;
        let aligned = alignment.apply(&from.value.to_f32()?, inputs);
        fitter.add(&aligned, &to.value.to_f32()?)?;
        done(count + 1, distinct.len());
    }
    let (fitter, rows) = fitter.ok_or_else(|| Error::invalid("no samples").in_field("data"))?;
    let [source, target] = ends;
    let (map, quality) = fitter.finish()?;
    Ok(Adapter::new(source, target, rows, distinct.len(), map, quality))
}

fn encoder(model: &Model, medium: Medium) -> Result<Encoder> {
    let def = encoder_of(model, medium)?;
    let space = model.stage(&def.role)?.space();
    let space = space.ok_or_else(|| Error::invalid("a private copy of a model has no space"))?;
    Ok(Encoder { model: model.name(), stage: def.role.clone(), space, pooled: false })
}

/// How the rows of `from` become rows of `to`.
fn rows(from: &Encoded, to: &Encoded) -> Result<Rows> {
    let ((source, _), (target, _)) = (from.size()?, to.size()?);
    match (&from.parts, &to.parts) {
        (RowParts::Tokens(_), RowParts::Tokens(_)) => Ok(Rows::Tokens),
        (&RowParts::Image(height, width), &RowParts::Image(target_height, target_width)) => Ok(Rows::Patches {
            source: Patches::of_image(source, height, width)?,
            target: Patches::of_image(target, target_height, target_width)?,
        }),
        (RowParts::Audio, RowParts::Audio) => Ok(Rows::Frames { target }),
        _ => Err(Error::invalid("the encoders read inputs of different types")),
    }
}

/// The alignment of the rows of `from` for an adapter with `rows`. `target` is needed for tokens, and for patches if the
/// samples were images of different sizes.
pub(super) fn align(from: &Encoded, target: &RowParts, rows: &Rows) -> Result<Alignment> {
    let (count, _) = from.size()?;
    match (rows, &from.parts, target) {
        (Rows::Tokens, RowParts::Tokens(source), RowParts::Tokens(target)) => {
            if source.len() != count {
                let message = format!("{count} rows for {} tokens: padded graphs have no alignment", source.len());
                return Err(Error::unsupported(message));
            }
            Alignment::of_tokens(source, target)
        }
        (Rows::Tokens, RowParts::Unknown, _) => Err(Error::unsupported(
            "the adapter aligns tokens, and the text of the tensor is not known: only the process that made it knows it",
        )),
        (Rows::Patches { source, target: patches }, ..) => {
            let (source, target) = (source.grid(from.parts.image())?, patches.grid(target.image())?);
            if source.rows() != count {
                return Err(Error::unsupported(format!("{count} rows do not fit {source:?}")));
            }
            Ok(Alignment::of_grids(&source, &target))
        }
        (Rows::Frames { target }, ..) => Alignment::of_frames(count, *target),
        _ => Err(Error::unsupported(format!("{count} rows do not fit {rows:?}"))),
    }
}
