//! The files of a graph's weights, and the content hashes of the weights.

use super::file::WeightFile;
use crate::graph::content::to_f32;
use crate::graph::{Graph, Weight};
use cotensor_core::{ContentHash, Hasher, Result};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The bytes of a file that are read, converted and hashed at a time.
pub(super) const CHUNK_BYTES: usize = 8 << 20;

/// The files with the weights of a graph, each opened once.
#[derive(Default)]
pub(super) struct WeightFiles {
    files: Vec<WeightFile>,
    by_path: HashMap<PathBuf, usize>,
}

impl WeightFiles {
    pub(super) fn open(&mut self, path: &Path) -> Result<()> {
        if !self.by_path.contains_key(path) {
            self.files.push(WeightFile::open(path)?);
            self.by_path.insert(path.to_path_buf(), self.files.len() - 1);
        }
        Ok(())
    }

    pub(super) fn of(&self, weight: &Weight) -> &WeightFile {
        &self.files[self.by_path[&weight.source.file]]
    }

    /// The identity of the graph and its files. It changes when a file is written.
    pub(super) fn identity(&self, graph: &Graph) -> ContentHash {
        let mut hasher = Hasher::new("cotensor weight hashes v2");
        hasher.field(graph.structure_hash().as_bytes());
        for file in &self.files {
            file.add_identity(&mut hasher);
        }
        // The structure does not contain the offsets of embedded weights, nor what loading makes of a weight for an engine.
        for weight in graph.weights() {
            let source = &weight.source;
            hasher.number(self.by_path[&source.file] as u64).number(source.offset);
            hasher.field(format!("{} {:?} {:?}", weight.dtype, source.permutation, source.repacks).as_bytes());
        }
        hasher.finish()
    }

    pub(super) fn settled(&self, now: SystemTime) -> bool {
        self.files.iter().all(|file| file.settled(now))
    }
}

/// Hashes the weights as the store would hold them, in one pass over the files.
pub(super) fn hash_weights(weights: &[Weight], files: &WeightFiles) -> Result<Vec<ContentHash>> {
    // Allocated once: zeroing them for each weight would cost as much as reading.
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut converted = Vec::new();
    let hashes = weights
        .iter()
        .map(|weight| hash_one(weight, files.of(weight), &mut buffer, &mut converted))
        .collect::<Result<_>>()?;
    for file in &files.files {
        file.check_unchanged()?;
    }
    Ok(hashes)
}

/// Hashes one weight. `buffer` has `CHUNK_BYTES` bytes.
fn hash_one(weight: &Weight, file: &WeightFile, buffer: &mut [u8], converted: &mut Vec<u8>) -> Result<ContentHash> {
    let source = &weight.source;
    let mut hasher = blake3::Hasher::new();
    if source.is_rearranged() {
        converted.resize(weight.size_bytes(), 0);
        read_whole(file, weight, converted)?;
        hasher.update_rayon(converted);
    } else {
        let mut done = 0;
        while done < source.length {
            let len = (source.length - done).min(CHUNK_BYTES as u64) as usize;
            let chunk = &mut buffer[..len];
            file.read(source.offset + done, chunk)?;
            if source.dtype == weight.dtype {
                hasher.update_rayon(chunk);
            } else {
                converted.resize(len / source.dtype.size_bytes() * weight.dtype.size_bytes(), 0);
                to_f32(source.dtype, chunk, converted);
                hasher.update_rayon(converted);
            }
            done += len as u64;
        }
    }
    Ok(ContentHash::from_bytes(*hasher.finalize().as_bytes()))
}

/// The content of a weight, from its file: little-endian elements of its type, transposed and converted as in a store.
///
/// # Errors
/// `Conflict` for a file that changes while it is read, `Io`.
pub fn read_weight(weight: &Weight) -> Result<Vec<u8>> {
    let file = WeightFile::open(&weight.source.file)?;
    let mut content = vec![0; weight.size_bytes()];
    read_whole(&file, weight, &mut content)?;
    file.check_unchanged()?;
    Ok(content)
}

/// Fills `target` with a weight as in a store, which may be rearranged, so that all of it is read at once.
pub(super) fn read_whole(file: &WeightFile, weight: &Weight, target: &mut [u8]) -> Result<()> {
    let mut stored = vec![0; weight.source.length as usize];
    file.read_parallel(weight.source.offset, &mut stored)?;
    weight.fill(&stored, target);
    Ok(())
}
