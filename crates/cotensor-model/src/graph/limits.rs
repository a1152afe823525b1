//! What a graph file may hold. Real models are far below every one of these.

/// Bytes of a graph file: protobuf's own limit.
pub const FILE_BYTES_MAX: u64 = (1 << 31) - 1;

/// Bytes of a graph file beside the main graph's large initializers.
pub const STRUCTURE_BYTES_MAX: usize = 256 << 20;

/// Nodes, those of subgraphs included.
pub const NODES_MAX: usize = 1_000_000;

/// Initializers, those of subgraphs included.
pub const INITIALIZERS_MAX: usize = 1_000_000;

/// Protobuf fields of all other kinds.
pub const FIELDS_MAX: usize = 16_000_000;

/// How deep subgraphs (and sequence types) may be nested.
pub const DEPTH_MAX: usize = 8;

/// Bytes from which an initializer is a weight that the store shares; a smaller one stays in the graph.
pub const SHARED_BYTES_MIN: u64 = 1 << 10;

/// Bytes of all initializers that no engine can use in place (64-bit integers, booleans) and that therefore stay in the graph.
pub const PRIVATE_BYTES_MAX: u64 = 256 << 20;

/// Elements of a tensor that a node makes from a shape stated in the file.
pub const MADE_ELEMENTS_MAX: u64 = 1 << 28;
