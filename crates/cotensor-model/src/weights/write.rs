use super::load::HashedWeights;
use crate::graph::WeightPlace;
use cotensor_core::{Error, Result};
use cotensor_store::BlobSource;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The multiple of bytes at which each weight starts in a file: the size of a page, so that each can be mapped alone.
const ALIGNMENT: u64 = 4096;

impl HashedWeights<'_> {
    /// Writes the weights to the new file `path`, transposed and converted as in the store. Returns the place of each of
    /// [`Graph::weights`](crate::graph::Graph::weights), in that order, for a graph beside the file.
    ///
    /// # Errors
    /// `Conflict` for a file that changes while it is read, `Io`.
    ///
    /// # Panics
    /// When `path` does not end in a name that is UTF-8.
    pub fn write(&self, path: &Path) -> Result<Vec<WeightPlace>> {
        let location = path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
        let io = |error: std::io::Error| Error::io("writing", &error).in_file(path);
        let mut file = File::create_new(path).map_err(io)?;
        let mut reader = self.reader();
        let mut places = Vec::with_capacity(self.weights.len());
        let mut content = Vec::new();
        let mut offset = 0;
        for (index, weight) in self.weights.iter().enumerate() {
            places.push(WeightPlace { location: location.to_owned(), offset });
            content.resize(weight.size_bytes(), 0);
            reader.fill(index, &mut content)?;
            // The end of the page is zeros.
            let end = (offset + content.len() as u64).next_multiple_of(ALIGNMENT);
            content.resize((end - offset) as usize, 0);
            file.write_all(&content).map_err(io)?;
            offset = end;
        }
        Ok(places)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::graph::open_graph;
    use cotensor_core::ContentHash;
    use cotensor_store::LocalStore;

    #[test]
    fn written_weights_have_their_hashes() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/vit/onnx/model.onnx");
        let (store, folder) = (LocalStore::builder().build(), tempfile::tempdir().unwrap());
        let graph = open_graph(&path).unwrap();
        let weights = HashedWeights::of(&graph, &*store).unwrap();
        let file = folder.path().join("weights");
        let places = weights.write(&file).unwrap();
        let written = std::fs::read(&file).unwrap();
        assert!(places.len() > 1 && places.len() == graph.weights().len());
        for ((weight, place), hash) in graph.weights().iter().zip(&places).zip(weights.hashes()) {
            let start = place.offset as usize;
            assert_eq!((place.location.as_str(), start % 4096), ("weights", 0));
            assert_eq!(ContentHash::of(&written[start..start + weight.size_bytes()]), *hash, "{}", weight.name);
        }
        // A file is never written twice.
        assert_eq!(weights.write(&file).unwrap_err().file(), Some(&*file));
    }
}
