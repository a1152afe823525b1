//! The precision of a model of the pool: a variant of its graphs, or a copy with weights of few bits.

use super::devices::HardwarePreferences;
use crate::model::{Model, Runtime};
use crate::pipeline::{Samples, default_task};
use crate::quantize::{Activations, Progress, QuantizeOptions, REPORT_FILE, quantized_copy};
use cotensor_core::{DerivedFiles, Error, ErrorKind, Hold, Result};
use cotensor_preprocess::family::{Medium, Variant, variant};
use cotensor_quant::{QuantSpec, Scheme, Width};
use std::path::Path;
use std::sync::Arc;

/// Weights that share a scale.
const GROUP: usize = 32;
/// Rotated matrices have smaller errors, for a twentieth of the time of a small encoder.
const ROTATES: bool = true;
/// The texts on which widths are chosen for a model that reads texts.
const TEXTS: &str = include_str!("texts.txt");

/// What the preferences ask for.
#[derive(Debug, PartialEq)]
enum Precision {
    /// Graphs that the model has: of one variant, or any.
    Variant(Option<&'static str>),
    /// Graphs of this variant, or else weights of these bits.
    VariantOrBits(&'static str, Width),
    /// Weights of these bits, and whether each matrix has a width of its own.
    Bits(Width, bool),
}

impl Precision {
    fn of(preferences: &HardwarePreferences) -> Result<Self> {
        let Some(name) = preferences.precision.as_deref() else {
            return if preferences.mixed_precision {
                Err(Error::invalid("needs the precision: 2, 3, 4 or 8 bits").in_field("mixed_precision"))
            } else {
                Ok(Self::Variant(None))
            };
        };
        let width = name.parse().ok().and_then(|bits| Width::of(bits).ok());
        let named = variant(name).map(|found: &Variant| found.name.as_str());
        match (named, width, preferences.mixed_precision) {
            (_, Some(width), true) => Ok(Self::Bits(width, true)),
            (_, None, true) => {
                let message = format!("{name:?}: widths are mixed for a precision of 2, 3, 4 or 8 bits");
                Err(Error::unsupported(message).in_field("mixed_precision"))
            }
            (Ok(variant), Some(width), false) => Ok(Self::VariantOrBits(variant, width)),
            (Ok(variant), None, false) => Ok(Self::Variant(Some(variant))),
            (Err(_), Some(width), false) => Ok(Self::Bits(width, false)),
            (Err(error), None, false) => {
                let message = format!("{}; weights of 2, 3, 4 and 8 bits are possible, too", error.message());
                Err(Error::unsupported(message).in_field("precision"))
            }
        }
    }
}

/// How a model gets weights of few bits, if it has none.
pub struct Quantizing<'q> {
    /// Keeps the copies; by default, the cache of the engines.
    pub copies: Option<&'q dyn DerivedFiles>,
    /// Told of the steps.
    pub progress: &'q mut Progress<'q>,
}

/// Opens the model `name` in the folder `models`, or of the hub, with a precision. `check` sees the model of full precision before it is
/// quantized. With a copy, gives what holds it in the cache.
///
/// # Errors
/// `Unsupported` for a precision that is not possible, and without a folder for copies; `Invalid` for mixed precision without samples of a
/// model that reads no texts; as [`Runtime::open_variant`] and [`quantized_copy`].
pub(super) fn open(
    runtime: &Arc<Runtime>,
    name: &Path,
    models: &Path,
    preferences: &HardwarePreferences,
    check: &dyn Fn(&Model) -> Result<()>,
    quantizing: Quantizing<'_>,
) -> Result<(Arc<Model>, Option<Hold>)> {
    let open = |variant| runtime.open_variant(name, models, variant);
    let (width, is_mixed) = match Precision::of(preferences)? {
        Precision::Variant(variant) => return Ok((open(variant)?, None)),
        Precision::VariantOrBits(variant, width) => match open(Some(variant)) {
            Err(error) if error.kind() == ErrorKind::NotFound && error.field() == Some("variant") => (width, false),
            found => return Ok((found?, None)),
        },
        Precision::Bits(width, is_mixed) => (width, is_mixed),
    };
    let model = open(None)?;
    check(&model)?;
    if let Some(report) = model.quantization()? {
        if report.has_bits(width.bits(), is_mixed) {
            return Ok((model, None));
        }
        let message = format!("{} is quantized already: {REPORT_FILE} has its bits; name the full model", model.name());
        return Err(Error::unsupported(message).in_field("precision"));
    }
    let Some(copies) = quantizing.copies.or(runtime.engines().derived_files().map(|files| &**files)) else {
        let message = "the model is kept with weights of few bits in a cache, and there is none: set HOME, XDG_CACHE_HOME or COTENSOR_CACHE";
        return Err(Error::unsupported(message).in_field("precision"));
    };
    let options = options(width, is_mixed)?;
    let own = if is_mixed && preferences.calibration.is_none() { Some(texts_for(&model)?) } else { None };
    let samples = preferences.calibration.as_deref().or(own.as_ref());
    let (copy, hold) = quantized_copy(copies, model.folder(), &model.name(), &options, samples, quantizing.progress)?;
    Ok((runtime.open(&copy)?, Some(hold)))
}

fn options(width: Width, is_mixed: bool) -> Result<QuantizeOptions> {
    let scheme = Scheme::Search;
    let bits = QuantSpec::new(width, GROUP, scheme)?.bits_per_weight();
    let mixed_bits = is_mixed.then_some(bits);
    let (activations, keep, max_error) = (Activations::Auto, Vec::new(), None);
    Ok(QuantizeOptions { width, group: GROUP, scheme, rotates: ROTATES, activations, keep, mixed_bits, max_error })
}

/// Texts on which a model runs.
///
/// # Errors
/// `Invalid` for a model without a task that reads a text alone.
fn texts_for(model: &Model) -> Result<Samples> {
    default_task(model, &[Medium::Text]).map_err(|_| {
        let message =
            format!("mixed precision of {} needs samples: {} reads no texts", model.name(), model.family().title);
        Error::invalid(message).in_field("calibration")
    })?;
    Ok(Samples::of_texts(TEXTS.lines().map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_bits_are_variants_first_and_mixed_widths_always_codes() {
        let of = |precision: Option<&str>, mixed_precision| {
            let precision = precision.map(str::to_owned);
            Precision::of(&HardwarePreferences { precision, mixed_precision, ..HardwarePreferences::default() })
        };
        assert_eq!(of(None, false).unwrap(), Precision::Variant(None));
        assert_eq!(of(Some("fp16"), false).unwrap(), Precision::Variant(Some("fp16")));
        assert_eq!(of(Some("16"), false).unwrap(), Precision::Variant(Some("fp16")));
        assert_eq!(of(Some("q4"), false).unwrap(), Precision::Variant(Some("q4")));
        assert_eq!(of(Some("4"), false).unwrap(), Precision::VariantOrBits("q4", Width::Four));
        assert_eq!(of(Some("2"), false).unwrap(), Precision::Bits(Width::Two, false));
        assert_eq!(of(Some("8"), true).unwrap(), Precision::Bits(Width::Eight, true));
        for (precision, is_mixed, field) in
            [(None, true, "mixed_precision"), (Some("16"), true, "mixed_precision"), (Some("5"), false, "precision")]
        {
            assert_eq!(of(precision, is_mixed).unwrap_err().field(), Some(field), "{precision:?}");
        }
    }

    #[test]
    fn texts_are_enough_samples_and_differ() {
        let texts: std::collections::BTreeSet<&str> = TEXTS.lines().collect();
        assert_eq!(texts.len(), TEXTS.lines().count());
        assert!(texts.len() >= 64 && texts.iter().all(|text| text.len() > 20));
    }
}
