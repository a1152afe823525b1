//! The modules of sentence-transformers that change vectors beside the pooling: Dense, LayerNorm and Normalize.

use super::dense::{Activation, Dense, LayerNorm, Weights};
use super::fields::{file_in, flag};
use super::pooling::normalized;
use crate::checkpoint::{FILE as WEIGHTS_FILE, Header};
use crate::files::{ModelFiles, read_json};
use cotensor_core::{Error, Result, size};
use serde_json::Value;

/// The most numbers of a vector.
const WIDTH_MAX: u64 = 1 << 16;
/// The most bytes of the weights of a module.
const WEIGHTS_BYTES_MAX: u64 = 64 << 20;
/// The weights of PyTorch, which are a program in Python's pickle format.
const PICKLE_FILE: &str = "pytorch_model.bin";

/// A function of vectors.
#[derive(Clone, Debug)]
pub(super) enum Module {
    /// Length 1.
    Normalize,
    Dense(Dense),
    LayerNorm(LayerNorm),
}

/// The vectors that a module changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vectors {
    /// Those of the tokens.
    Tokens,
    /// That of the text, after the pooling.
    Text,
}

impl Module {
    /// Reads the module of a class in `folder`; `None` for a class that is not one of this file.
    ///
    /// # Errors
    /// As [`Folder::json`], [`Folder::weights`] and for a setting that is not supported; the error names file and field.
    pub(super) fn read(files: &dyn ModelFiles, folder: &str, class: &str) -> Result<Option<(Vectors, Self)>> {
        let folder = Folder { files, name: folder };
        Ok(Some(match class {
            // Older versions write no configuration.
            "Normalize" => (folder.vectors(&folder.json().or_else(unless_missing)?)?, Self::Normalize),
            "Dense" => {
                let config = folder.json()?;
                (folder.vectors(&config)?, Self::Dense(folder.dense(&config)?))
            }
            "LayerNorm" => (Vectors::Text, Self::LayerNorm(folder.layer_norm()?)),
            _ => return Ok(None),
        }))
    }

    /// The module's value for a vector.
    ///
    /// # Errors
    /// `Invalid` for a vector of another width.
    pub(super) fn apply(&self, vector: &[f32]) -> Result<Vec<f32>> {
        match self {
            Self::Normalize => Ok(normalized(vector)),
            Self::Dense(dense) => dense.apply(vector),
            Self::LayerNorm(norm) => norm.apply(vector),
        }
    }
}

/// The folder of a module.
struct Folder<'a> {
    files: &'a dyn ModelFiles,
    name: &'a str,
}

impl Folder<'_> {
    fn file(&self, name: &str) -> String {
        file_in(self.name, name)
    }

    /// An error of a field of the configuration.
    fn refused(&self, error: Error, field: &str) -> Error {
        error.in_file(self.files.path(&self.file("config.json"))).in_field(field)
    }

    /// The configuration.
    ///
    /// # Errors
    /// As [`read_json`].
    fn json(&self) -> Result<Value> {
        read_json(self.files, &self.file("config.json"))
    }

    fn dense(&self, config: &Value) -> Result<Dense> {
        let (reads, gives) = (self.width(config, "in_features")?, self.width(config, "out_features")?);
        let flag = |field: &str, default: bool| {
            flag(config, field, default).map_err(|error| error.in_file(self.files.path(&self.file("config.json"))))
        };
        if flag("use_residual", false)? {
            return Err(self.refused(Error::unsupported("a residual connection is not supported"), "use_residual"));
        }
        let activation = match config.get("activation_function") {
            None => Activation::Tanh,
            Some(name) => Activation::named(name.as_str().unwrap_or_default()).ok_or_else(|| {
                let message = format!("{name} is not supported; classes of torch are: {}", Activation::names());
                self.refused(Error::unsupported(message), "activation_function")
            })?,
        };
        let shapes = [("linear.weight", vec![gives, reads]), ("linear.bias", vec![gives])];
        let count = if flag("bias", true)? { 2 } else { 1 };
        let mut weights = self.weights(&shapes[..count])?.into_iter();
        let weight = weights.next().ok_or_else(|| Error::corrupt("no weight"))?;
        Ok(Dense { folder: self.name.to_owned(), reads, weight, bias: weights.next(), activation })
    }

    fn layer_norm(&self) -> Result<LayerNorm> {
        let width = self.width(&self.json()?, "dimension")?;
        let shapes = [("norm.weight", vec![width]), ("norm.bias", vec![width])];
        let [weight, bias] =
            <[Weights; 2]>::try_from(self.weights(&shapes)?).map_err(|_| Error::corrupt("two tensors are required"))?;
        Ok(LayerNorm { folder: self.name.to_owned(), weight, bias })
    }

    fn width(&self, config: &Value, field: &str) -> Result<usize> {
        let width = config.get(field).and_then(Value::as_u64).filter(|width| (1..=WIDTH_MAX).contains(width));
        width
            .and_then(|width| usize::try_from(width).ok())
            .ok_or_else(|| self.refused(Error::invalid(format!("a number from 1 to {WIDTH_MAX} is required")), field))
    }

    /// The vectors that the module changes.
    fn vectors(&self, config: &Value) -> Result<Vectors> {
        let named = |field: &str| config.get(field).filter(|name| !name.is_null());
        let input = match named("module_input_name").map(Value::as_str) {
            None | Some(Some("sentence_embedding")) => Vectors::Text,
            Some(Some("token_embeddings")) => Vectors::Tokens,
            Some(_) => {
                let message = "not supported; sentence_embedding and token_embeddings are";
                return Err(self.refused(Error::unsupported(message), "module_input_name"));
            }
        };
        let expected = if input == Vectors::Text { "sentence_embedding" } else { "token_embeddings" };
        match named("module_output_name") {
            Some(output) if output.as_str() != Some(expected) => Err(self.refused(
                Error::unsupported("a module that writes other vectors than it reads is not supported"),
                "module_output_name",
            )),
            _ => Ok(input),
        }
    }

    /// The tensors of model.safetensors, which has these and no others.
    ///
    /// # Errors
    /// `NotFound` without the file, `Unsupported` for weights in PyTorch's format only, `Corrupt` for other tensors and for
    /// numbers that are not finite.
    fn weights(&self, shapes: &[(&str, Vec<usize>)]) -> Result<Vec<Weights>> {
        let name = self.file(WEIGHTS_FILE);
        let path = self.files.path(&name);
        let Some(bytes) = self.files.read(&name, WEIGHTS_BYTES_MAX)? else {
            let pickle = self.file(PICKLE_FILE);
            let error = match self.files.read(&pickle, 0) {
                Ok(None) => {
                    Error::not_found(format!("the module needs this file, of at most {}", size(WEIGHTS_BYTES_MAX)))
                }
                _ => Error::unsupported(format!(
                    "the weights are in {pickle} only, which is not read: it is a program in Python's pickle format; \
                     sentence-transformers' SentenceTransformer(FOLDER).save(FOLDER) writes this file"
                )),
            };
            return Err(error.in_file(path));
        };
        let read = || {
            let header = Header::of_file(&bytes)?;
            if let Some(other) = header.names().find(|name| shapes.iter().all(|(known, _)| known != name)) {
                return Err(Error::corrupt("the module has no such tensor").in_field(other));
            }
            let tensors = shapes.iter().map(|(name, shape)| {
                let values = header.floats(&bytes, name, shape).map_err(|error| error.in_field(*name))?;
                Ok(Weights::of(values))
            });
            tensors.collect()
        };
        read().map_err(|error: Error| error.in_file(path))
    }
}

/// An empty configuration in place of a missing one.
fn unless_missing(error: Error) -> Result<Value> {
    if error.kind() == cotensor_core::ErrorKind::NotFound { Ok(Value::Null) } else { Err(error) }
}
