use cotensor_core::DType;
use std::path::PathBuf;

/// An initializer that is large enough to be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// The initializer's name.
    pub name: String,
    /// Element type in the store: one that engines use in place.
    pub dtype: DType,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// Where the elements come from.
    pub source: WeightSource,
}

/// Bytes of a file: row-major, little-endian elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSource {
    /// The graph's own file or one beside it; symbolic links resolved.
    pub file: PathBuf,
    /// From the start of the file, in bytes.
    pub offset: u64,
    /// In bytes.
    pub length: u64,
    /// Element type in the file; where it is not the weight's, the elements are converted once, while filling.
    pub dtype: DType,
    /// Where the weight is a transposed copy of what the file holds: the file's dimension that each dimension of the weight is.
    pub permutation: Option<Vec<usize>>,
}

/// An input or output of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its element type, where the graph says it.
    pub dtype: Option<DType>,
    /// Its dimensions, where the graph says them; `None` for one that may vary.
    pub dims: Option<Vec<Option<usize>>>,
}

impl Weight {
    /// Bytes that the elements fill in the store.
    pub fn size_bytes(&self) -> usize {
        // Checked against TENSOR_BYTES_MAX when the graph was opened.
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }
}
