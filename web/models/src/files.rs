//! The configuration files of a model.

use crate::errors::Result;
use cotensor_core::{Error, size};
use cotensor_preprocess::ModelFiles;
use std::collections::HashMap;
use std::path::PathBuf;
use wasm_bindgen::prelude::*;

/// The most configuration files of a model.
const FILES_MAX: usize = 10_000;
/// The most bytes of all of them.
const BYTES_MAX: u64 = 256 << 20;

/// The configuration files of a model by name: config.json, tokenizer.json, preprocessor_config.json and the like. A name is
/// relative to the model's folder, with `/` between its parts.
#[wasm_bindgen]
#[derive(Default)]
pub struct ConfigFiles {
    files: HashMap<String, Vec<u8>>,
    bytes: u64,
}

#[wasm_bindgen]
impl ConfigFiles {
    /// No files.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file, or replaces it.
    ///
    /// # Errors
    /// `Invalid` past the limits of count and bytes.
    pub fn set(&mut self, name: String, text: String) -> Result<()> {
        self.set_bytes(name, text.into_bytes())
    }

    /// As [`set`](Self::set), for a file that is not a text: the weights of a module.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    #[wasm_bindgen(js_name = setBytes)]
    pub fn set_bytes(&mut self, name: String, content: Vec<u8>) -> Result<()> {
        let bytes = self.bytes.saturating_add(content.len() as u64);
        if bytes > BYTES_MAX {
            return Err(Error::invalid(format!("more than {} of configuration", size(BYTES_MAX))).in_file(name).into());
        }
        if self.files.len() >= FILES_MAX {
            return Err(Error::invalid(format!("more than {FILES_MAX} configuration files")).in_file(name).into());
        }
        self.bytes = bytes;
        self.files.insert(name, content);
        Ok(())
    }
}

impl ModelFiles for ConfigFiles {
    fn read(&self, name: &str, bytes_max: u64) -> cotensor_core::Result<Option<Vec<u8>>> {
        self.files.read(name, bytes_max)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path(name)
    }
}
