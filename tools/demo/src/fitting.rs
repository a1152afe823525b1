//! Fits the adapters of a scenario, in a process of its own: its memory is no part of any measured run.

use crate::assets;
use crate::options::WorkerOptions;
use crate::scenario::Scenario;
use crate::worker_report::Fit;
use cotensor::core::{Error, Result};
use cotensor::model::pipeline::{EncoderOf, Medium, encoder_of};
use cotensor::model::preprocess::decode_image;
use cotensor::{Adapter, Runtime, Samples, fit_adapter, load_adapter, save_adapter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The folder of adapters, below the cache folder.
const FOLDER: &str = "adapters";

/// The samples of an image: squares of the photograph.
const SQUARES: u32 = 40;

/// Fits the adapters that the users of a scenario read. Those of an earlier demo are reused.
///
/// # Errors
/// The errors of opening and running models, and of writing files.
pub(crate) fn fit_all(scenario: &Scenario, options: &WorkerOptions, runtime: &Arc<Runtime>) -> Result<Vec<Fit>> {
    let mut fits = Vec::new();
    for user in scenario.pipeline()?.users {
        let Some(EncoderOf { model: source, .. }) = &user.encoder else { continue };
        let medium = scenario.medium();
        let (source, target) = (runtime.open(options.folder(source)?)?, runtime.open(options.folder(&user.model)?)?);
        let (from, to) = (encoder_of(&source, medium)?, encoder_of(&target, medium)?);
        let name = Adapter::tensor_name(&source.space(&from.role)?, &target.space(&to.role)?).replace('/', "-");
        let folder = options.cache.join(FOLDER);
        let (file, note) = (folder.join(format!("{name}.safetensors")), folder.join(format!("{name}.json")));
        if load_adapter(&file).is_ok()
            && let Some(known) = std::fs::read(&note).ok().and_then(|text| serde_json::from_slice::<Fit>(&text).ok())
        {
            fits.push(Fit { user: user.name, ..known });
            continue;
        }
        let start = Instant::now();
        let samples = samples(medium)?;
        let holder = runtime.store().holder("fit");
        let adapter = fit_adapter(&source, &target, &samples.samples, &holder, &mut |_, _| {})?;
        let fit = Fit {
            user: user.name,
            role: to.role.clone(),
            file,
            samples: adapter.info.samples,
            quality: adapter.info.quality,
            fit_ms: start.elapsed().as_secs_f64() * 1e3,
            replaced_weight_bytes: weight_bytes(&*target.stage(&to.role)?),
        };
        std::fs::create_dir_all(&folder).map_err(|error| Error::io("cannot create", &error).in_file(&folder))?;
        save_adapter(&adapter, &fit.file)?;
        let text = serde_json::to_vec(&fit).map_err(|error| Error::invalid(error.to_string()))?;
        std::fs::write(&note, text).map_err(|error| Error::io("cannot write", &error).in_file(&note))?;
        fits.push(fit);
    }
    Ok(fits)
}

/// The bytes of the weights of a stage, and of the blocks that it continues.
fn weight_bytes(stage: &cotensor::model::stage::Stage) -> u64 {
    let before = stage.before().map_or(&[][..], |(before, _)| before.weights());
    stage.weights().iter().chain(before).map(|(_, bytes)| *bytes as u64).sum()
}

/// Samples, and the folder of their files.
struct Files {
    samples: Samples,
    _folder: Option<tempfile::TempDir>,
}

/// Samples of the demo's own texts and photograph.
fn samples(medium: Medium) -> Result<Files> {
    match medium {
        Medium::Text => {
            let sentences = assets::TEXTS.iter().flat_map(|text| text.split_inclusive(". ")).map(str::trim);
            let samples = Samples::of_texts(sentences.filter(|text| !text.is_empty()).map(str::to_owned));
            Ok(Files { samples, _folder: None })
        }
        Medium::Image => {
            let folder = tempfile::tempdir().map_err(|error| Error::io("cannot create a folder", &error))?;
            let files = (0..SQUARES).map(|index| square(folder.path(), index)).collect::<Result<Vec<_>>>()?;
            Ok(Files { samples: Samples::of_files(medium, files), _folder: Some(folder) })
        }
        Medium::Audio => Err(Error::unsupported("no scenario fits an adapter on audio")),
    }
}

/// Writes a square part of the photograph as a BMP file.
fn square(folder: &Path, index: u32) -> Result<PathBuf> {
    let photo = decode_image(assets::PHOTO)?;
    let (width, height) = (photo.width(), photo.height());
    // Sides of a multiple of four pixels: rows of a BMP file need no padding.
    let side = (height / 2 + (index * 13) % (height / 2)) / 4 * 4;
    let (left, top) = ((index * 29) % (width - side), (index * 17) % (height - side).max(1));
    let mut bytes = Vec::from(*b"BM");
    let pixels = side * side * 3;
    for field in [54 + pixels, 0, 54, 40, side, side, 1 | 24 << 16, 0, pixels, 2835, 2835, 0, 0] {
        bytes.extend(field.to_le_bytes());
    }
    for y in (0..side).rev() {
        bytes.extend((0..side).flat_map(|x| {
            let [red, green, blue] = photo.get_pixel(left + x, top + y).0;
            [blue, green, red]
        }));
    }
    let path = folder.join(format!("{index}.bmp"));
    std::fs::write(&path, bytes).map_err(|error| Error::io("cannot write", &error).in_file(&path))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_many_and_different() {
        let texts = samples(Medium::Text).unwrap().samples;
        assert!(texts.len() >= 60, "{}", texts.len());
        let folder = tempfile::tempdir().unwrap();
        let mut contents = std::collections::HashSet::new();
        for index in 0..SQUARES {
            let file = square(folder.path(), index).unwrap();
            let picture = decode_image(&std::fs::read(&file).unwrap()).unwrap();
            assert_eq!(picture.width(), picture.height());
            contents.insert(picture.into_raw());
        }
        assert_eq!(contents.len() as u32, SQUARES);
    }
}
