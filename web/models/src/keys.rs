//! The keys of results, and hashes of content.

use crate::arrays::dtype;
use crate::bytes::{Bytes, BytesReader};
use crate::errors::{Result, parsed};
use cotensor_core::{ContentHash, Error, Space};
use cotensor_graph::key::{self, Execution, StageIdentity};
use serde::Deserialize;
use std::collections::BTreeMap;
use wasm_bindgen::prelude::*;

/// `StageIdentity` of `web/src/models/core.ts`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    space: String,
    #[serde(flatten)]
    execution: Engine,
}

/// `Execution` of `web/src/models/core.ts`.
#[derive(Deserialize)]
struct Engine {
    engine: String,
    version: String,
    precision: String,
    #[serde(default)]
    variant: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRequest {
    stage: Identity,
    #[serde(default)]
    before: Option<Engine>,
    /// From the name of each input to its identity.
    inputs: BTreeMap<String, String>,
    outputs: Vec<String>,
}

impl Engine {
    fn execution(&self) -> cotensor_core::Result<Execution<'_>> {
        let Self { engine, version, precision, variant } = self;
        Ok(Execution { engine, version, precision: dtype(precision)?, variant })
    }
}

impl Identity {
    fn identity(&self) -> cotensor_core::Result<StageIdentity<'_>> {
        Ok(StageIdentity { space: Space(hash(&self.space, "space")?), execution: self.execution.execution()? })
    }
}

/// The key of outputs of a stage, 64 hexadecimal digits. `request` is JSON: `KeyRequest` of `web/src/models/core.ts`.
///
/// # Errors
/// `Invalid` for another text, for an unknown precision, and for a hash that does not have 64 digits.
#[wasm_bindgen(js_name = stageKey)]
pub fn stage_key(request: &str) -> Result<String> {
    let request: KeyRequest = parsed(request, "key")?;
    let before = request.before.as_ref().map(Engine::execution).transpose()?;
    let inputs = request.inputs.iter().map(|(name, digits)| Ok((name.as_str(), hash(digits, name)?)));
    let inputs = inputs.collect::<cotensor_core::Result<Vec<_>>>()?;
    let outputs: Vec<&str> = request.outputs.iter().map(String::as_str).collect();
    Ok(request.stage.identity()?.key(before, &inputs, &outputs).to_string())
}

/// The key of a result that takes several runs, such as a decoding: of its label and of what it depends on. `identity` is JSON:
/// `StageIdentity` of `web/src/models/core.ts`.
///
/// # Errors
/// As [`stage_key`].
#[wasm_bindgen(js_name = keyOnce)]
pub fn key_once(identity: &str, label: &str, extra: Vec<String>) -> Result<String> {
    let identity: Identity = parsed(identity, "key")?;
    let extra = extra.iter().map(|digits| hash(digits, "extra")).collect::<cotensor_core::Result<Vec<_>>>()?;
    Ok(identity.identity()?.key_once(label, &extra).to_string())
}

/// The key of a preprocessed file: of the input's name, of the fingerprint of its preprocessing, and of its content.
///
/// # Errors
/// As [`stage_key`].
#[wasm_bindgen(js_name = inputKey)]
pub fn input_key(label: &str, preprocessing: &str, content: &str) -> Result<String> {
    Ok(key::input_key(label, hash(preprocessing, "preprocessing")?, hash(content, "content")?).to_string())
}

/// The identity of an array: of its type, its dimensions in elements, and its row-major little-endian bytes, which are read in
/// pieces.
///
/// # Errors
/// `Invalid` for an unknown type, and for bytes that do not fill the shape.
#[wasm_bindgen(js_name = arrayIdentity)]
pub fn array_identity(dtype: &str, shape: Vec<u32>, bytes: &Bytes) -> Result<String> {
    let dtype = self::dtype(dtype)?;
    let shape: Vec<usize> = shape.into_iter().map(|dim| dim as usize).collect();
    let expected = shape.iter().try_fold(dtype.size_bytes(), |size, &dim| size.checked_mul(dim));
    let len = expected.filter(|&len| len as u64 == bytes.len()).ok_or_else(|| {
        let message = format!("{} bytes do not fill {dtype} {shape:?}", bytes.len());
        Error::invalid(message).in_field("shape")
    })?;
    let read = |at: usize, piece: &mut [u8]| bytes.read(at as u64, piece);
    Ok(key::array_identity_of_pieces(dtype, &shape, len, read)?.to_string())
}

/// The identity (provenance) of output number `index` of the result with this key.
///
/// # Errors
/// `Invalid` for a key that does not have 64 digits.
#[wasm_bindgen(js_name = outputIdentity)]
pub fn output_identity(key: &str, index: usize) -> Result<String> {
    Ok(key::output_identity(hash(key, "key")?, index).to_string())
}

/// The BLAKE3 hash of bytes, 64 hexadecimal digits.
///
/// # Errors
/// `Io` when the array changes meanwhile.
#[wasm_bindgen(js_name = contentHash)]
pub fn content_hash(bytes: &Bytes) -> Result<String> {
    Ok(bytes.hash(0, bytes.len())?.to_string())
}

/// The BLAKE3 hash of bytes that arrive piece by piece.
#[wasm_bindgen]
#[derive(Default)]
pub struct ContentHasher(blake3::Hasher);

#[wasm_bindgen]
impl ContentHasher {
    /// The hash of nothing.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes, in pieces: the memory of a module does not shrink after a copy of a whole weight.
    ///
    /// # Errors
    /// `Io` for an array whose bytes were transferred to another thread meanwhile.
    pub fn update(&mut self, bytes: &Bytes) -> Result<()> {
        self.0.update_reader(BytesReader::of(bytes)).map_err(|error| Error::io("hashing", &error))?;
        Ok(())
    }

    /// The hash of all bytes so far, 64 hexadecimal digits.
    pub fn digest(&self) -> String {
        ContentHash::from_bytes(*self.0.finalize().as_bytes()).to_string()
    }
}

pub(crate) fn hash(digits: &str, field: &str) -> cotensor_core::Result<ContentHash> {
    let hash = ContentHash::from_hex(digits);
    hash.ok_or_else(|| Error::invalid("a hash of 64 hexadecimal digits is required").in_field(field))
}
