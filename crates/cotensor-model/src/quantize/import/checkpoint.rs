//! Linear layers of checkpoints of GPTQ and AWQ: `.safetensors` files with a configuration beside them.

use super::config::{CheckpointConfig, Method};
use super::file::TensorFile;
use super::parameter::{Parameter, name_of, of_tensor};
use crate::folder::read_bounded;
use cotensor_core::elements::to_f32;
use cotensor_core::{DType, Error, Result};
use cotensor_formats::{PlacedTensor, placed_tensors};
use cotensor_quant::{AwqLinear, GptqLinear, RepackedMatrix};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

const ONE_FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// The most files of a model.
const FILES_MAX: usize = 1000;
/// The end of the names of codes.
const CODES: &str = ".qweight";

/// A linear layer.
struct Layer {
    stem: String,
    rows: usize,
    columns: usize,
    group: usize,
}

/// The files of a checkpoint.
pub(super) struct Checkpoint {
    config: CheckpointConfig,
    files: Vec<TensorFile>,
    /// The number of the file of each tensor, and its place there.
    tensors: HashMap<String, (usize, PlacedTensor)>,
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Reads the configuration and the headers.
    ///
    /// # Errors
    /// `NotFound` for a folder without a checkpoint; `Corrupt` or `Unsupported`, with the field or the tensor, for one that is damaged or not
    /// imported.
    pub(super) fn open(path: &Path, is_kept: &dyn Fn(&str) -> bool) -> Result<(Self, Vec<Parameter>)> {
        let (folder, paths) = files_of(path)?;
        let config = CheckpointConfig::open(&folder)?;
        let mut found = Self { config, files: Vec::new(), tensors: HashMap::new(), layers: Vec::new() };
        for (number, path) in paths.iter().enumerate() {
            let file = TensorFile::open(path)?;
            let tensors = placed_tensors(&mut file.header(), file.bytes).map_err(|error| error.in_file(path))?;
            for tensor in tensors {
                let name = tensor.name.clone();
                if found.tensors.insert(name.clone(), (number, tensor)).is_some() {
                    return Err(Error::corrupt("another file has it, too").in_field(name).in_file(path));
                }
            }
            found.files.push(file);
        }
        let stems: BTreeSet<String> =
            found.tensors.keys().filter_map(|name| name.strip_suffix(CODES)).map(str::to_owned).collect();
        let mut parameters = Vec::new();
        for stem in stems.into_iter().filter(|stem| !is_kept(&name_of(stem))) {
            let layer = found.layer(&stem)?;
            parameters.push(Parameter {
                stem: stem.clone(),
                source: format!("{stem}{CODES}"),
                format: found.config.method.name().to_owned(),
                rows: layer.rows,
                columns: layer.columns,
            });
            found.layers.push(layer);
        }
        Ok((found, parameters))
    }

    /// The shape of a layer by its tensors, which are checked.
    fn layer(&self, stem: &str) -> Result<Layer> {
        let (file, codes) = self.tensor(stem, "qweight")?;
        let path = self.files[*file].path();
        let refused =
            |part: &str, message: String| Err(Error::corrupt(message).in_field(format!("{stem}.{part}")).in_file(path));
        let bits = self.config.width.bits() as usize;
        let &[first, second] = codes.shape.as_slice() else {
            return refused("qweight", format!("{:?} is not a matrix", codes.shape));
        };
        if first == 0 || second == 0 {
            return refused("qweight", format!("{first} × {second} words"));
        }
        let shape = match self.config.method {
            Method::Gptq { .. } if !(first * 32).is_multiple_of(bits) => {
                return refused("qweight", format!("{first} words of {bits} bits"));
            }
            Method::Gptq { .. } => (second, first * 32 / bits),
            Method::Awq => (second * 8, first),
        };
        let (rows, columns) = shape;
        let group = self.config.group.unwrap_or(columns);
        let groups = columns.div_ceil(group);
        for (part, dtypes, wanted) in [
            ("qweight", &[DType::I32, DType::U32][..], None),
            ("qzeros", &[DType::I32, DType::U32], Some([groups, rows * bits / 32])),
            ("scales", &[DType::F16, DType::BF16, DType::F32], Some([groups, rows])),
        ] {
            let (_, tensor) = self.tensor(stem, part)?;
            if !dtypes.contains(&tensor.dtype) {
                return refused(part, format!("its elements are {}", tensor.dtype));
            }
            if wanted.is_some_and(|wanted| tensor.shape != wanted) {
                let wanted = wanted.unwrap_or_default();
                return refused(
                    part,
                    format!("{:?}; {wanted:?} fits the codes, {bits} bits, groups of {group}", tensor.shape),
                );
            }
        }
        Ok(Layer { stem: stem.to_owned(), rows, columns, group })
    }

    /// # Errors
    /// `Corrupt` for a tensor that is missing.
    fn tensor(&self, stem: &str, part: &str) -> Result<&(usize, PlacedTensor)> {
        let name = format!("{stem}.{part}");
        let path = self.files.first().map(TensorFile::path).unwrap_or(Path::new(""));
        self.tensors.get(&name).ok_or_else(|| Error::corrupt("the tensor is missing").in_field(name).in_file(path))
    }

    fn bytes(&self, stem: &str, part: &str) -> Result<(DType, Vec<u8>)> {
        let (file, tensor) = self.tensor(stem, part)?;
        let bytes = self.files[*file].read(tensor.offset, tensor.size_bytes);
        Ok((tensor.dtype, bytes.map_err(|error| error.in_field(tensor.name.as_str()))?))
    }

    /// # Errors
    /// As [`TensorFile::check_unchanged`].
    pub(super) fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(TensorFile::check_unchanged)
    }

    /// The codes of a layer.
    ///
    /// # Errors
    /// As [`GptqLinear::matrix`] and [`AwqLinear::matrix`], with the layer as the field; `Unsupported` for columns in another order.
    pub(super) fn matrix(&self, number: usize) -> Result<RepackedMatrix> {
        let Layer { stem, rows, columns, group } = &self.layers[number];
        let (rows, columns, group) = (*rows, *columns, *group);
        let path = self.files[self.tensor(stem, "qweight")?.0].path();
        let (_, codes) = self.bytes(stem, "qweight")?;
        let (_, zeros) = self.bytes(stem, "qzeros")?;
        let (dtype, scales) = self.bytes(stem, "scales")?;
        let scales = to_f32(dtype, &scales);
        let found = match self.config.method {
            Method::Gptq { is_less_one } => {
                self.check_order(stem, columns, group).map_err(|error| error.in_file(path))?;
                let width = self.config.width;
                GptqLinear { width, rows, columns, group, codes: &codes, zeros: &zeros, scales: &scales, is_less_one }
                    .matrix()
            }
            Method::Awq => AwqLinear { rows, columns, group, codes: &codes, zeros: &zeros, scales: &scales }.matrix(),
        };
        found.map_err(|error| of_tensor(stem, &error).in_file(path))
    }

    /// Checks that the columns of a layer are in their order.
    fn check_order(&self, stem: &str, columns: usize, group: usize) -> Result<()> {
        let name = format!("{stem}.g_idx");
        let Some((_, tensor)) = self.tensors.get(&name) else {
            return if self.config.has_order {
                Err(Error::corrupt("desc_act is true, and the order of the columns is missing").in_field(name))
            } else {
                Ok(())
            };
        };
        if tensor.dtype != DType::I32 || tensor.shape != [columns] {
            let message = format!("{} {:?}; int32 [{columns}] is expected", tensor.dtype, tensor.shape);
            return Err(Error::corrupt(message).in_field(name));
        }
        let (_, bytes) = self.bytes(stem, "g_idx")?;
        let is_plain = |(column, index): (usize, &[u8; 4])| i32::from_le_bytes(*index) as usize == column / group;
        if bytes.as_chunks().0.iter().enumerate().all(is_plain) {
            Ok(())
        } else {
            Err(Error::unsupported("groups of columns in another order (act-order, desc_act)").in_field(name))
        }
    }
}

/// The folder and the `.safetensors` files of a checkpoint.
fn files_of(path: &Path) -> Result<(PathBuf, Vec<PathBuf>)> {
    if path.symlink_metadata().is_err() {
        return Err(Error::not_found("no such file or folder").in_file(path));
    }
    if !path.is_dir() {
        let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        return Ok((parent.to_path_buf(), vec![path.to_path_buf()]));
    }
    let one = path.join(ONE_FILE);
    if one.is_file() {
        return Ok((path.to_path_buf(), vec![one]));
    }
    let index = path.join(INDEX);
    if !index.is_file() {
        let message = format!(
            "no {ONE_FILE} and no {INDEX}; a .gguf file, an .onnx file or a checkpoint of GPTQ or AWQ is imported"
        );
        return Err(Error::not_found(message).in_file(path));
    }
    let corrupt = |message: String| Error::corrupt(message).in_file(&index);
    let parsed: Index =
        serde_json::from_slice(&read_bounded(&index, INDEX_BYTES_MAX)?).map_err(|error| corrupt(error.to_string()))?;
    let names: BTreeSet<&String> = parsed.weight_map.values().collect();
    if names.is_empty() || names.len() > FILES_MAX {
        return Err(corrupt(format!("{} files", names.len())).in_field("weight_map"));
    }
    let file = |name: &String| {
        let is_plain = Path::new(name).components().count() == 1 && Path::new(name).file_name().is_some();
        let wrong = || corrupt(format!("{name:?} is not a file of the folder")).in_field("weight_map");
        if is_plain { Ok(path.join(name)) } else { Err(wrong()) }
    };
    Ok((path.to_path_buf(), names.into_iter().map(file).collect::<Result<_>>()?))
}
