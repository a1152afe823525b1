//! Matrices of GGUF files.

use super::file::TensorFile;
use super::names::{Architecture, permuted_row};
use super::parameter::{Parameter, name_of, of_tensor};
use cotensor_core::{Error, Result};
use cotensor_formats::{BlockType, Gguf};
use cotensor_quant::{GgufBlocks, RepackedMatrix};
use std::path::Path;

const ARCHITECTURE: &str = "general.architecture";
/// The number of files of a model.
const SPLIT: &str = "split.count";

/// A matrix of the file.
struct Blocks {
    tensor: String,
    blocks: GgufBlocks,
    rows: usize,
    columns: usize,
    offset: u64,
    bytes: u64,
    /// The rows of a head, if those have another order.
    rows_of_head: Option<usize>,
}

/// A GGUF file.
pub(super) struct GgufFile {
    file: TensorFile,
    matrices: Vec<Blocks>,
}

impl GgufFile {
    /// Reads the header. `is_kept` has names of tensors and parameters that are passed by.
    ///
    /// # Errors
    /// As [`Gguf::read`]; `Unsupported`, with the tensor as the field, for another architecture, for a type or a tensor that is not imported,
    /// and for a part of a model.
    pub(super) fn open(path: &Path, is_kept: &dyn Fn(&str) -> bool) -> Result<(Self, Vec<Parameter>)> {
        let file = TensorFile::open(path)?;
        Self::read(file, is_kept).map_err(|error| error.in_file(path))
    }

    fn read(file: TensorFile, is_kept: &dyn Fn(&str) -> bool) -> Result<(Self, Vec<Parameter>)> {
        let gguf = Gguf::read(&mut file.header(), file.bytes)?;
        if gguf.number(SPLIT)?.is_some_and(|count| count > 1) {
            return Err(Error::unsupported("a part of a model; merge its files first").in_field(SPLIT));
        }
        let architecture = Architecture::of(gguf.text(ARCHITECTURE)?).map_err(|error| error.in_field(ARCHITECTURE))?;
        let (mut matrices, mut parameters) = (Vec::new(), Vec::new());
        for tensor in gguf.tensors().iter().filter(|tensor| !tensor.kind.is_float() && !is_kept(&tensor.name)) {
            let refused = |error: Error| error.in_field(tensor.name.as_str());
            let blocks = blocks_of(tensor.kind).map_err(refused)?;
            let named = architecture.parameter(&tensor.name).map_err(refused)?;
            if is_kept(&name_of(&named.stem)) {
                continue;
            }
            let &[rows, columns] = tensor.shape.as_slice() else {
                return Err(refused(Error::unsupported(format!("{:?} is not a matrix", tensor.shape))));
            };
            let rows_of_head = rows_of_head(&gguf, architecture.name, named.heads, rows).map_err(refused)?;
            let bytes = tensor.size_bytes.unwrap_or_default();
            matrices.push(Blocks {
                tensor: tensor.name.clone(),
                blocks,
                rows,
                columns,
                offset: tensor.offset,
                bytes,
                rows_of_head,
            });
            let (source, format) = (tensor.name.clone(), tensor.kind.to_string());
            parameters.push(Parameter { stem: named.stem, source, format, rows, columns });
        }
        Ok((Self { file, matrices }, parameters))
    }

    /// # Errors
    /// As [`TensorFile::check_unchanged`].
    pub(super) fn check_unchanged(&self) -> Result<()> {
        self.file.check_unchanged()
    }

    /// The codes of a matrix.
    ///
    /// # Errors
    /// As [`GgufBlocks::matrix`], with the tensor as the field; `Io`.
    pub(super) fn matrix(&self, number: usize) -> Result<RepackedMatrix> {
        let one = &self.matrices[number];
        let bytes = self.file.read(one.offset, one.bytes).map_err(|error| error.in_field(one.tensor.as_str()))?;
        let found = one.blocks.matrix(one.rows, one.columns, &bytes);
        let found = found.map_err(|error| of_tensor(&one.tensor, &error).in_file(self.file.path()))?;
        Ok(match one.rows_of_head {
            Some(rows) => found.with_rows(|row| permuted_row(row, rows)),
            None => found,
        })
    }
}

fn blocks_of(kind: BlockType) -> Result<GgufBlocks> {
    Ok(match kind {
        BlockType::Q4_0 => GgufBlocks::Q4_0,
        BlockType::Q8_0 => GgufBlocks::Q8_0,
        BlockType::Q4_K => GgufBlocks::Q4K,
        BlockType::Q6_K => GgufBlocks::Q6K,
        other => return Err(Error::unsupported(format!("the type {other}; Q4_0, Q8_0, Q4_K and Q6_K are imported"))),
    })
}

/// The rows of a head of a tensor whose rows have another order. The first of `entries` that is there has the number of heads.
fn rows_of_head(gguf: &Gguf, architecture: &str, entries: &[&str], rows: usize) -> Result<Option<usize>> {
    if entries.is_empty() {
        return Ok(None);
    }
    let number = |entry: &&str| gguf.number(&format!("{architecture}.{entry}")).transpose();
    let heads = entries.iter().find_map(number).transpose()?;
    let heads = heads.ok_or_else(|| Error::corrupt(format!("{architecture}.{} is missing", entries[0])))?;
    if heads.checked_mul(2).is_some_and(|halves| rows.is_multiple_of(halves)) {
        Ok(Some(rows / heads))
    } else {
        Err(Error::corrupt(format!("{rows} rows of {heads} heads")))
    }
}
