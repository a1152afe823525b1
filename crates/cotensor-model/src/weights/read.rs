use super::file::WeightFile;
use crate::graph::Weight;
use cotensor_core::Result;

/// The content of a weight, from its file: little-endian elements of its type, transposed and converted as in a store.
///
/// # Errors
/// `Conflict` for a file that changes while it is read, `Io`.
pub fn read_weight(weight: &Weight) -> Result<Vec<u8>> {
    let file = WeightFile::open(&weight.source.file)?;
    let mut stored = vec![0; weight.source.length as usize];
    file.read_parallel(weight.source.offset, &mut stored)?;
    file.check_unchanged()?;
    let mut content = vec![0; weight.size_bytes()];
    weight.fill(&stored, &mut content);
    Ok(content)
}
