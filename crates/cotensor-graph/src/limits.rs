//! Limits of graph files. Real models are far below each limit.

/// The most bytes of a graph file: the limit of protobuf.
pub const FILE_BYTES_MAX: u64 = (1 << 31) - 1;

/// The most bytes of a graph file without the large initializers of the main graph.
pub const STRUCTURE_BYTES_MAX: usize = 256 << 20;

/// The most nodes, including the nodes of subgraphs.
pub const NODES_MAX: usize = 1_000_000;

/// The most initializers, including the initializers of subgraphs.
pub const INITIALIZERS_MAX: usize = 1_000_000;

/// The most protobuf fields of all other kinds.
pub const FIELDS_MAX: usize = 16_000_000;

/// The most levels of nested subgraphs or sequence types.
pub const DEPTH_MAX: usize = 8;

/// The fewest bytes of an initializer that is a shared weight. A smaller initializer stays in the graph.
pub const SHARED_BYTES_MIN: u64 = 1 << 10;

/// The most bytes of all initializers that engines cannot use in place (64-bit integers, booleans). They stay in the
/// graph.
pub const PRIVATE_BYTES_MAX: u64 = 256 << 20;

/// The most elements of a tensor that a node makes from a shape in the file.
pub const MADE_ELEMENTS_MAX: u64 = 1 << 28;
