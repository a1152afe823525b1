use super::repack::Repack;
use cotensor_core::DType;
use std::path::PathBuf;

/// An initializer that is large enough to be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// The name of the initializer.
    pub name: String,
    /// Element type in the store. Engines use it in place.
    pub dtype: DType,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// The source of the elements.
    pub source: WeightSource,
}

/// Row-major, little-endian elements in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSource {
    /// The path of the file, without symbolic links.
    pub file: PathBuf,
    /// The offset from the start of the file, in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub length: u64,
    /// Element type in the file. Loading converts elements of another type than the weight's.
    pub dtype: DType,
    /// For a weight that is transposed while loading: the dimension in the file of each dimension of the weight.
    pub permutation: Option<Vec<usize>>,
    /// The steps by which loading makes the elements of those in the file, if they are not these. Without a permutation.
    pub repacks: Vec<Repack>,
}

impl WeightSource {
    /// Whether elements of the weight lie in another order than in the file, so that it cannot be read in parts.
    pub fn is_rearranged(&self) -> bool {
        self.permutation.is_some() || !self.repacks.is_empty()
    }
}

/// Where a graph that is written to a file has a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightPlace {
    /// The file with external data, relative to the graph.
    pub location: String,
    /// The offset from the start of the file, in bytes.
    pub offset: u64,
}

/// An input or output of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The name.
    pub name: String,
    /// The element type, if the graph declares it.
    pub dtype: Option<DType>,
    /// The dimensions, if the graph declares them; `None` for a dimension that varies.
    pub dims: Option<Vec<Option<usize>>>,
}

impl Weight {
    /// The size in the store, in bytes.
    pub fn size_bytes(&self) -> usize {
        // The graph checked it against TENSOR_BYTES_MAX when it was opened.
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }
}
