//! The scale and the bias that turn cosine similarities into logits. Both are trained, so they come from the files of
//! the model.

use crate::folder::ModelFolder;
use crate::graph::open_graph;
use cotensor_core::{Error, Result};
use cotensor_pipeline::LogitScale;
use cotensor_preprocess::checkpoint::{FILE as CHECKPOINT, Header, header_length};
use cotensor_preprocess::family::{CONFIG_FILE, Family, Similarity, Variant, family_of_model};
use cotensor_preprocess::find_json;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

/// The numbers of the model in `folder`. The first of these that has them: a graph of the whole model, which computes logits with
/// them (the plain one, then that of the variant); the checkpoint; for families with such a field, the value before training from
/// config.json.
///
/// # Errors
/// `Unsupported` for a family without similarities, `NotFound` when no file has the numbers, `Corrupt` for a
/// checkpoint that is damaged, or as [`open_graph`].
pub(super) fn scale_of(
    folder: &Path,
    config: &Value,
    family: &Family,
    variant: Option<&Variant>,
) -> Result<LogitScale> {
    let names = family.similarity()?;
    let graphs = names.files.iter().cloned().chain(names.candidates(variant));
    for file in graphs.filter(|file| folder.join(file).is_file()) {
        let found = open_graph(&folder.join(&file))?.scale_and_bias(&names.logits);
        if let Some((scale, bias)) = found.filter(|(scale, bias)| scale.is_finite() && bias.is_finite()) {
            return Ok(LogitScale { scale, bias, source: file, untrained: false });
        }
    }
    if let Some((scale, bias)) = of_checkpoint(&folder.join(CHECKPOINT), names)? {
        return Ok(LogitScale { scale, bias, source: CHECKPOINT.to_owned(), untrained: false });
    }
    if let Some(scale) = names.before_training(config) {
        return Ok(LogitScale { scale, bias: 0.0, source: CONFIG_FILE.to_owned(), untrained: true });
    }
    let files = names.files.join(" or ");
    let message = format!("the scale of similarities is in none of {files} (output {}) and {CHECKPOINT}", names.logits);
    Err(Error::not_found(message).in_file(folder).in_field(&names.scale))
}

/// A checkpoint with nothing but the scale and the bias of the similarities of the model in `folder`, if its checkpoint has them.
///
/// # Errors
/// `Corrupt` for a checkpoint that is damaged, `Io`.
pub(crate) fn checkpoint_of_scale(folder: &Path) -> Result<Option<Vec<u8>>> {
    let config = find_json(&ModelFolder::new(folder), CONFIG_FILE)?.unwrap_or_default();
    let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let family = family_of_model(model_type, |file| folder.join(file).is_file());
    let (Ok(family), path) = (family, folder.join(CHECKPOINT)) else { return Ok(None) };
    let Some(names) = family.similarity.as_ref().filter(|_| path.is_file()) else { return Ok(None) };
    let mut checkpoint = Checkpoint::open(&path).map_err(|error| error.in_file(&path))?;
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for name in std::iter::once(&names.scale).chain(&names.bias) {
        if let Some(number) = checkpoint.number(name).map_err(|error| error.in_file(&path).in_field(name))? {
            let offsets = [data.len(), data.len() + 4];
            header.insert(name.clone(), json!({"dtype": "F32", "shape": [], "data_offsets": offsets}));
            data.extend_from_slice(&number.to_le_bytes());
        }
    }
    if header.is_empty() {
        return Ok(None);
    }
    let header = Value::Object(header).to_string().into_bytes();
    Ok(Some([&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()))
}

/// Scale and bias from a checkpoint, if it has them.
fn of_checkpoint(path: &Path, names: &Similarity) -> Result<Option<(f32, f32)>> {
    if !path.is_file() {
        return Ok(None);
    }
    let mut checkpoint = Checkpoint::open(path).map_err(|error| error.in_file(path))?;
    let mut number = |name: &str| checkpoint.number(name).map_err(|error| error.in_file(path).in_field(name));
    let Some(scale) = number(&names.scale)? else { return Ok(None) };
    let bias = match &names.bias {
        None => Some(0.0),
        Some(bias) => number(bias)?,
    };
    Ok(bias.map(|bias| (scale.exp(), bias)))
}

/// An open checkpoint.
struct Checkpoint {
    file: File,
    header: Header,
}

impl Checkpoint {
    fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(|error| Error::io("opening", &error))?;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|error| read_error(&error))?;
        let mut header = vec![0; header_length(length)? as usize];
        file.read_exact(&mut header).map_err(|error| read_error(&error))?;
        Ok(Self { file, header: Header::parse(&header)? })
    }

    /// The only element of a tensor, if the file has the tensor.
    fn number(&mut self, name: &str) -> Result<Option<f32>> {
        let Some((dtype, offset)) = self.header.number(name)? else { return Ok(None) };
        let mut bytes = vec![0; dtype.size_bytes()];
        self.file.seek(SeekFrom::Start(offset)).map_err(|error| read_error(&error))?;
        self.file.read_exact(&mut bytes).map_err(|error| read_error(&error))?;
        Header::value(dtype, &bytes).map(Some)
    }
}

fn read_error(error: &std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => Error::corrupt("the file ends early"),
        _ => Error::io("reading", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind as Kind;

    fn names() -> &'static Similarity {
        let family = cotensor_preprocess::family::family_of("siglip").unwrap();
        family.similarity.as_ref().unwrap()
    }

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    #[test]
    fn numbers_of_a_checkpoint_are_read_in_every_floating_point_type() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        assert_eq!(of_checkpoint(&path, names()).unwrap(), None);
        // 2 as BF16, -10 as F16.
        let header = r#"{"logit_scale": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]},
            "logit_bias": {"dtype": "F16", "shape": [], "data_offsets": [2, 4]}}"#;
        std::fs::write(&path, file(header, &[0x00, 0x40, 0x00, 0xc9])).unwrap();
        assert_eq!(of_checkpoint(&path, names()).unwrap(), Some((2f32.exp(), -10.0)));
        // Without the bias, the scale alone would be wrong.
        let header = r#"{"logit_scale": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}"#;
        std::fs::write(&path, file(header, &1f32.to_le_bytes())).unwrap();
        assert_eq!(of_checkpoint(&path, names()).unwrap(), None);
    }

    #[test]
    fn damaged_checkpoint_is_an_error_that_names_file_and_tensor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let tensor = |dtype: &str, offsets: &str| {
            let header =
                format!(r#"{{"logit_scale": {{"dtype": "{dtype}", "shape": [], "data_offsets": {offsets}}}}}"#);
            file(&header, &f32::NAN.to_le_bytes())
        };
        let cases = [
            (vec![1, 2, 3], None),
            (u64::MAX.to_le_bytes().to_vec(), None),
            (file("{", b""), None),
            (tensor("I64", "[0, 8]"), Some("logit_scale")),
            (tensor("F32", "[0, 8]"), Some("logit_scale")),
            (tensor("F32", "[4, 0]"), Some("logit_scale")),
            (tensor("F32", "[2, 6]"), Some("logit_scale")),
            (tensor("F32", "[18446744073709551611, 18446744073709551615]"), Some("logit_scale")),
            (tensor("F32", "[0, 4]"), Some("logit_scale")),
            (tensor("F32", "0"), Some("logit_scale")),
        ];
        for (index, (bytes, field)) in cases.into_iter().enumerate() {
            std::fs::write(&path, bytes).unwrap();
            let error = of_checkpoint(&path, names()).unwrap_err();
            assert_eq!(
                (error.kind(), error.file(), error.field()),
                (Kind::Corrupt, Some(&*path), field),
                "case {index}"
            );
        }
    }
}
