//! The messages and fields of the ONNX format.

use cotensor_core::DType;

/// A field of a tensor with packed little-endian elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataField {
    Float,
    Raw,
    Double,
}

impl DataField {
    pub(super) fn of(number: u64) -> Option<Self> {
        match number {
            4 => Some(Self::Float),
            9 => Some(Self::Raw),
            10 => Some(Self::Double),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Float => "float_data",
            Self::Raw => "raw_data",
            Self::Double => "double_data",
        }
    }

    /// Whether its bytes are elements of `dtype`.
    pub(crate) fn holds(self, dtype: DType) -> bool {
        match self {
            Self::Raw => true,
            Self::Float => dtype == DType::F32,
            Self::Double => dtype == DType::F64,
        }
    }
}

/// The messages of the ONNX format in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    /// A message whose fields need a check of their lengths only: a name, a number, a pair of strings.
    Leaf,
    Type,
    TensorType,
    Shape,
    SequenceType,
    ValueInfo,
}

/// How a field is treated.
pub(super) enum Field {
    /// A nested message.
    Nested(Message),
    /// A value that is copied.
    Plain,
    /// Numbers of variable length, single or packed.
    Varints,
    /// Numbers of this many bytes, single or packed.
    Packed(usize),
    /// Documentation and similar fields, which are not part of the fingerprint.
    Ignored,
    /// A field that would change the computation and is not supported.
    Unsupported(&'static str),
}

impl Message {
    /// Field numbers as in onnx.proto.
    pub(super) fn field(self, number: u64) -> Field {
        use Field::{Ignored, Nested, Packed, Plain, Unsupported, Varints};
        match (self, number) {
            (Message::Model, 7) => Nested(Message::Graph),
            (Message::Model, 8 | 14) => Nested(Message::Leaf),
            (Message::Model, 25) => Unsupported("model-local functions"),
            (Message::Graph, 1) => Nested(Message::Node),
            (Message::Graph, 5) => Nested(Message::Tensor),
            (Message::Graph, 11..=13) => Nested(Message::ValueInfo),
            (Message::Graph, 15) => Unsupported("sparse initializers"),
            (Message::Node, 5) => Nested(Message::Attribute),
            (Message::Node, 1..=4 | 7) => Plain,
            (Message::Attribute, 5) => Nested(Message::Tensor),
            (Message::Attribute, 6) => Nested(Message::Graph),
            (Message::Attribute, 7) => Packed(4),
            (Message::Attribute, 8) => Varints,
            (Message::Attribute, 1..=4 | 9 | 20) => Plain,
            (Message::Attribute, 10 | 11 | 14 | 15 | 22 | 23) => {
                Unsupported("lists of tensors, graphs or types in an attribute")
            }
            (Message::Attribute, 21) => Unsupported("references to a function's attributes"),
            (Message::Tensor, 13) => Nested(Message::Leaf),
            (Message::Tensor, 3) => Unsupported("segmented tensors"),
            (Message::Tensor, 6) => Unsupported("string tensors"),
            (Message::Tensor, 11) => Unsupported("64-bit unsigned tensors"),
            (Message::Tensor, 1 | 5 | 7) => Varints,
            (Message::Tensor, 4) => Packed(4),
            (Message::Tensor, 10) => Packed(8),
            (Message::Tensor, 2 | 8 | 9 | 14) => Plain,
            (Message::ValueInfo, 1) => Plain,
            (Message::ValueInfo, 2) => Nested(Message::Type),
            (Message::Type, 1) => Nested(Message::TensorType),
            (Message::TensorType, 1) => Plain,
            (Message::TensorType, 2) => Nested(Message::Shape),
            (Message::Shape, 1) => Nested(Message::Leaf),
            (Message::Type, 4) => Nested(Message::SequenceType),
            (Message::SequenceType, 1) => Nested(Message::Type),
            (Message::Leaf, _) => Plain,
            _ => Ignored,
        }
    }
}
