//! Fits the adapters of a scenario, in a process of its own: its memory is not part of any measured run.

use crate::assets;
use crate::options::WorkerOptions;
use crate::scenario::Scenario;
use crate::worker_report::Fit;
use cotensor::core::{Error, Result};
use cotensor::model::pipeline::{EncoderOf, Medium, encoder_of};
use cotensor::model::preprocess::decode_image;
use cotensor::{Adapter, Runtime, Samples, fit_adapter, load_adapter, save_adapter};
use std::sync::Arc;
use std::time::Instant;

/// The folder of adapters, below the cache folder.
const FOLDER: &str = "adapters";

/// The samples of an image: squares of the photograph.
const SQUARES: u32 = 40;

/// The samples of a sound: parts of the speech clip.
const PARTS: usize = 24;

/// The bytes before the samples of the speech clip, a WAV file with one channel of 16 bits.
const WAV_HEADER_BYTES: usize = 44;

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
        Medium::Image => files(medium, (0..SQUARES).map(square)),
        Medium::Audio => files(medium, (0..PARTS).map(|index| Ok((format!("{index}.wav"), part(index))))),
    }
}

/// Writes files, each with its name and content, into a new folder.
fn files(medium: Medium, made: impl Iterator<Item = Result<(String, Vec<u8>)>>) -> Result<Files> {
    let folder = tempfile::tempdir().map_err(|error| Error::io("cannot create a folder", &error))?;
    let write = |made: Result<(String, Vec<u8>)>| {
        let (name, bytes) = made?;
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).map_err(|error| Error::io("cannot write", &error).in_file(&path))?;
        Ok(path)
    };
    let files = made.map(write).collect::<Result<Vec<_>>>()?;
    Ok(Files { samples: Samples::of_files(medium, files), _folder: Some(folder) })
}

/// Five to nine seconds of the speech clip, as a WAV file.
fn part(index: usize) -> Vec<u8> {
    let (header, samples) = assets::SPEECH.split_at(WAV_HEADER_BYTES);
    // Half a second of two bytes for each sample, at 8 kHz.
    let step = 8_000;
    let len = step * (10 + index % 9);
    let start = (samples.len() - len) * index / PARTS / 2 * 2;
    let mut bytes = header.to_vec();
    for (at, field) in [(4, 36 + len), (WAV_HEADER_BYTES - 4, len)] {
        bytes[at..at + 4].copy_from_slice(&(field as u32).to_le_bytes());
    }
    bytes.extend(&samples[start..start + len]);
    bytes
}

/// A square part of the photograph as a BMP file, with its name.
fn square(index: u32) -> Result<(String, Vec<u8>)> {
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
    Ok((format!("{index}.bmp"), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor::model::preprocess::decode_audio;

    #[test]
    fn samples_are_many_and_different() {
        let texts = samples(Medium::Text).unwrap().samples;
        assert!(texts.len() >= 60, "{}", texts.len());
        let mut contents = std::collections::HashSet::new();
        for index in 0..SQUARES {
            let picture = decode_image(&square(index).unwrap().1).unwrap();
            assert_eq!(picture.width(), picture.height());
            contents.insert(picture.into_raw());
        }
        assert_eq!(contents.len() as u32, SQUARES);
        let mut contents = std::collections::HashSet::new();
        for index in 0..PARTS {
            let sound = decode_audio(&part(index)).unwrap();
            let samples = sound.samples.len();
            assert!(sound.sample_rate_hz == 8_000 && (40_000..=72_000).contains(&samples), "{samples}");
            contents.insert(part(index));
        }
        assert_eq!(contents.len(), PARTS);
    }
}
