//! Products by codes of ONNX graphs, such as `model_q4.onnx` of the hub.

use super::parameter::{Parameter, name_of, of_node, of_tensor, of_weight};
use crate::graph::{CodedProduct, Constants, Graph, open_graph};
use crate::weights::read_weight;
use cotensor_core::elements::to_f32;
use cotensor_core::{DType, Error, ErrorKind, FileStamp, Result};
use cotensor_quant::{OnnxProduct, RepackedMatrix, Width};
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

/// How reports name the format.
const FORMAT: &str = "MatMulNBits";
/// The end of the names of codes that Cotensor writes.
const CODES: &str = ".codes";

/// A graph whose products read codes.
pub(super) struct OnnxFile {
    graph: Graph,
    products: Vec<CodedProduct>,
    /// The files before one was read.
    stamps: Vec<(PathBuf, FileStamp)>,
}

impl OnnxFile {
    /// # Errors
    /// As [`open_graph`].
    pub(super) fn open(path: &Path, is_kept: &dyn Fn(&str) -> bool) -> Result<(Self, Vec<Parameter>)> {
        let stamp = stamp(path)?;
        let graph = open_graph(path)?;
        let files: BTreeSet<&PathBuf> = graph.weights().iter().map(|weight| &weight.source.file).collect();
        let mut stamps = vec![(path.to_path_buf(), stamp)];
        for file in files {
            stamps.push((file.clone(), self::stamp(file)?));
        }
        let (mut products, mut parameters, mut known) = (Vec::new(), Vec::new(), HashSet::new());
        for product in graph.operator_products() {
            let Some(codes) = product.tensors.first().cloned() else { continue };
            let stem = stem(&product, &codes);
            if is_kept(&codes) || is_kept(&name_of(&stem)) || !known.insert(codes.clone()) {
                continue;
            }
            let (rows, columns) = (product.rows, product.columns);
            parameters.push(Parameter { stem, source: codes, format: FORMAT.to_owned(), rows, columns });
            products.push(product);
        }
        Ok((Self { graph, products, stamps }, parameters))
    }

    /// # Errors
    /// `Conflict` for files that changed since they were opened, `Io`.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        for (path, before) in &self.stamps {
            if stamp(path)? != *before {
                let message = "the file changed while its codes were read";
                return Err(Error::new(ErrorKind::Conflict, message).in_file(path));
            }
        }
        Ok(())
    }

    /// The codes of a product.
    ///
    /// # Errors
    /// As [`OnnxProduct::matrix`], with the codes as the field; `Unsupported` for indices of groups, for zero points that are not codes, for 3
    /// bits, and for tensors that are not constants; the errors of reading weights.
    pub(super) fn matrix(&self, number: usize) -> Result<RepackedMatrix> {
        let product = &self.products[number];
        let refused = |error: Error| of_tensor(&product.tensors[0], &error).in_file(self.graph.path());
        self.read(product).map_err(refused)
    }

    fn read(&self, product: &CodedProduct) -> Result<RepackedMatrix> {
        if product.has_order {
            return Err(Error::unsupported("groups of columns in another order").in_field("g_idx"));
        }
        let constants = self.graph.constants();
        let content = |at: usize, part: &'static str| match product.tensors.get(at) {
            Some(name) => self.content(&constants, name).map_err(|error| match error.field() {
                Some(_) => error,
                None => error.in_field(part),
            }),
            None => Err(Error::corrupt("the tensor is missing").in_field(part)),
        };
        let bytes = |at: usize, part: &'static str| match content(at, part)? {
            (DType::U8, bytes) => Ok(bytes),
            (other, _) => Err(Error::unsupported(format!("its elements are {other}")).in_field(part)),
        };
        let codes = bytes(0, "codes")?;
        let (dtype, scales) = content(1, "scales")?;
        if !matches!(dtype, DType::F16 | DType::F32) {
            return Err(Error::unsupported(format!("its elements are {dtype}")).in_field("scales"));
        }
        let zeros = product.tensors.get(2).map(|_| bytes(2, "zero_points")).transpose()?;
        let CodedProduct { rows, columns, group, bits, .. } = *product;
        let width = Width::of(bits).map_err(|error| Error::unsupported(error.message()).in_field("bits"))?;
        let (codes, zeros, scales) = (&codes[..], zeros.as_deref(), &to_f32(dtype, &scales)[..]);
        OnnxProduct { width, rows, columns, group, codes, zeros, scales }.matrix()
    }

    /// The type and the elements of a constant. Scales of Cotensor are converted before a product reads them.
    fn content(&self, constants: &Constants<'_>, name: &str) -> Result<(DType, Vec<u8>)> {
        let source = constants.source(name).unwrap_or(name);
        if let Some(weight) = self.graph.weights().iter().find(|weight| weight.name == source) {
            return Ok((weight.dtype, read_weight(weight)?));
        }
        let found = constants.elements(source).or_else(|| constants.elements(name));
        found.ok_or_else(|| Error::unsupported(format!("{name:?} is not a constant")))
    }
}

/// The name of the parameter of a product: the module in the name of the node, or the name of the codes without what quantizers add.
fn stem(product: &CodedProduct, codes: &str) -> String {
    if let Some(stem) = codes.strip_suffix(CODES) {
        return of_weight(stem);
    }
    if let Some(module) = of_node(&product.node) {
        return module;
    }
    let added = codes.rfind("_Q").filter(|at| codes[at + 2..].chars().all(|c| c.is_ascii_digit() || c == 'G'));
    of_weight(added.map_or(codes, |at| &codes[..at]))
}

fn stamp(path: &Path) -> Result<FileStamp> {
    let found = path.metadata().map_err(|error| Error::io("opening", &error).in_file(path))?;
    Ok(FileStamp::of(&found))
}
