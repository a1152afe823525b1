//! Checks the protobuf of an ONNX file before a parser allocates memory for it: lengths stay inside their message, nesting and counts
//! stay inside limits, and the graph module supports or may ignore each field.
//!
//! Large data of the main graph's initializers stays in the file. The rest, the structure, is copied into a small buffer. The
//! positions of the data are returned, so that it can be read directly into a segment of the store.

use super::limits::{
    DEPTH_MAX, FIELDS_MAX, FILE_BYTES_MAX, INITIALIZERS_MAX, NODES_MAX, SHARED_BYTES_MIN, STRUCTURE_BYTES_MAX,
};
use cotensor_core::{DType, Error, Result};
use std::io::{Read, Seek, SeekFrom};

/// The range of an initializer's elements in the file; they are little-endian and packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The field of the initializer that holds them.
    pub(super) field: DataField,
    /// The offset from the start of the file, in bytes.
    pub(super) offset: u64,
    /// The length in bytes.
    pub(super) length: u64,
}

/// A field of a tensor with packed little-endian elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataField {
    Float,
    Raw,
    Double,
}

impl DataField {
    fn of(number: u64) -> Option<Self> {
        match number {
            4 => Some(Self::Float),
            9 => Some(Self::Raw),
            10 => Some(Self::Double),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Float => "float_data",
            Self::Raw => "raw_data",
            Self::Double => "double_data",
        }
    }

    /// Whether its bytes are elements of `dtype`.
    pub(super) fn holds(self, dtype: DType) -> bool {
        match self {
            Self::Raw => true,
            Self::Float => dtype == DType::F32,
            Self::Double => dtype == DType::F64,
        }
    }
}

/// A model file without its large tensors.
pub(super) struct Structure {
    /// The protobuf message, without large tensor data.
    pub(super) proto: Vec<u8>,
    /// For each initializer of the main graph, in order: the range of its data in the file, if the message does not have it.
    pub(super) spans: Vec<Option<Span>>,
}

/// The messages of the ONNX format in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
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
enum Field {
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
    fn field(self, number: u64) -> Field {
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

/// The encoding of a field's value.
#[derive(Clone, Copy)]
enum Wire {
    Varint,
    Fixed(usize),
    Bytes(u64),
}

/// Reads and checks a whole model file.
///
/// # Errors
/// `Corrupt` for bytes that are not protobuf or exceed a limit, `Unsupported` for unsupported parts of ONNX.
pub(super) fn read_structure(reader: &mut (impl Read + Seek)) -> Result<Structure> {
    let io = |error| Error::io("reading", &error);
    let len = reader.seek(SeekFrom::End(0)).map_err(io)?;
    reader.rewind().map_err(io)?;
    if len > FILE_BYTES_MAX {
        return Err(Error::corrupt(format!("{len} bytes; a protobuf file has at most {FILE_BYTES_MAX}")));
    }
    if len == 0 {
        return Err(Error::corrupt("the file is empty"));
    }
    let mut scan = Scan { reader, position: 0, len, counts: Counts::default(), spans: Vec::new(), kept: 0 };
    let proto = scan.model()?;
    Ok(Structure { proto, spans: scan.spans })
}

#[derive(Default)]
struct Counts {
    nodes: usize,
    initializers: usize,
    fields: usize,
}

impl Counts {
    fn add(&mut self, message: Message, number: u64) -> Result<()> {
        let (count, max, what) = match (message, number) {
            (Message::Graph, 1) => (&mut self.nodes, NODES_MAX, "nodes"),
            (Message::Graph, 5) => (&mut self.initializers, INITIALIZERS_MAX, "initializers"),
            _ => (&mut self.fields, FIELDS_MAX, "fields"),
        };
        *count += 1;
        if *count > max {
            return Err(Error::corrupt(format!("more than {max} {what}")));
        }
        Ok(())
    }
}

/// Reads the outer levels (model, graph, initializer) from the file, field by field.
struct Scan<'a, R> {
    reader: &'a mut R,
    position: u64,
    len: u64,
    counts: Counts,
    spans: Vec<Option<Span>>,
    /// The bytes that were copied so far, on all levels.
    kept: usize,
}

impl<R: Read + Seek> Scan<'_, R> {
    fn model(&mut self) -> Result<Vec<u8>> {
        let mut proto = Vec::new();
        let mut graph = None;
        while self.position < self.len {
            let (number, wire) = self.field(self.len)?;
            if number == 7 {
                let Wire::Bytes(length) = wire else { return Err(wrong_wire(Message::Model, number)) };
                if graph.is_some() {
                    return Err(Error::corrupt("two graphs in one model").in_field("graph"));
                }
                graph = Some(self.graph(self.position + length)?);
            } else {
                self.copy(Message::Model, number, wire, 0, &mut proto)?;
            }
        }
        let graph = graph.ok_or_else(|| Error::corrupt("the file has no graph").in_field("graph"))?;
        put_bytes(&mut proto, 7, &graph);
        Ok(proto)
    }

    fn graph(&mut self, end: u64) -> Result<Vec<u8>> {
        let mut proto = Vec::new();
        while self.position < end {
            let (number, wire) = self.field(end)?;
            match (number, wire) {
                (5, Wire::Bytes(length)) => {
                    self.counts.add(Message::Graph, 5)?;
                    let tensor = self.initializer(self.position + length)?;
                    put_bytes(&mut proto, 5, &tensor);
                }
                _ => self.copy(Message::Graph, number, wire, 1, &mut proto)?,
            }
        }
        Ok(proto)
    }

    fn initializer(&mut self, end: u64) -> Result<Vec<u8>> {
        let mut proto = Vec::new();
        let mut span = None;
        let mut data_fields = 0;
        while self.position < end {
            let (number, wire) = self.field(end)?;
            let data = DataField::of(number);
            data_fields += usize::from(data.is_some());
            match (data, wire) {
                (Some(field), Wire::Bytes(length)) if length >= SHARED_BYTES_MIN && data_fields == 1 => {
                    span = Some(Span { field, offset: self.position, length });
                    self.skip(length)?;
                }
                _ => self.copy(Message::Tensor, number, wire, 2, &mut proto)?,
            }
        }
        if data_fields > 1 && span.is_some() {
            return Err(Error::corrupt("an initializer's data is given twice").in_field("initializer"));
        }
        self.spans.push(span);
        Ok(proto)
    }

    /// Reads the tag of a field; its value must end at `end` or before.
    fn field(&mut self, end: u64) -> Result<(u64, Wire)> {
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Varint,
            1 => Wire::Fixed(8),
            2 => Wire::Bytes(self.varint()?),
            5 => Wire::Fixed(4),
            other => return Err(Error::corrupt(format!("protobuf wire type {other} at byte {}", self.position))),
        };
        let needed = match wire {
            Wire::Varint => 1,
            Wire::Fixed(bytes) => bytes as u64,
            Wire::Bytes(length) => length,
        };
        if self.position.checked_add(needed).is_none_or(|reached| reached > end) {
            return Err(Error::corrupt(format!("a field at byte {} is longer than its message", self.position)));
        }
        Ok((tag >> 3, wire))
    }

    /// Checks a field and copies it into `proto`, or skips it if it is ignored.
    fn copy(&mut self, message: Message, number: u64, wire: Wire, depth: usize, proto: &mut Vec<u8>) -> Result<()> {
        self.counts.add(message, number)?;
        let field = message.field(number);
        if let Field::Unsupported(what) = field {
            return Err(unsupported(what));
        }
        match wire {
            Wire::Varint => {
                let value = self.varint()?;
                put_varint(proto, number << 3);
                put_varint(proto, value);
            }
            Wire::Fixed(bytes) => {
                put_varint(proto, number << 3 | if bytes == 8 { 1 } else { 5 });
                let start = proto.len();
                proto.resize(start + bytes, 0);
                self.read(&mut proto[start..])?;
            }
            Wire::Bytes(length) if matches!(field, Field::Ignored) => self.skip(length)?,
            Wire::Bytes(length) => {
                let length = usize::try_from(length).map_err(|_| too_much_structure())?;
                self.kept = self.kept.saturating_add(length);
                if self.kept > STRUCTURE_BYTES_MAX {
                    return Err(too_much_structure());
                }
                put_varint(proto, number << 3 | 2);
                put_varint(proto, length as u64);
                let start = proto.len();
                proto.resize(start + length, 0);
                self.read(&mut proto[start..])?;
                check_value(&field, &proto[start..], depth + 1, &mut self.counts)?;
            }
        }
        Ok(())
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let mut byte = [0];
            self.read(&mut byte)?;
            if shift == 63 && byte[0] > 1 {
                break;
            }
            value |= u64::from(byte[0] & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(Error::corrupt(format!("a number at byte {} is too long", self.position)))
    }

    fn read(&mut self, target: &mut [u8]) -> Result<()> {
        self.reader.read_exact(target).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                Error::corrupt(format!("the file ends at byte {}, inside a field", self.len))
            }
            _ => Error::io("reading", &error),
        })?;
        self.position += target.len() as u64;
        Ok(())
    }

    fn skip(&mut self, length: u64) -> Result<()> {
        // The length is at most the length of the file, which fits.
        self.reader.seek_relative(length as i64).map_err(|error| Error::io("reading", &error))?;
        self.position += length;
        Ok(())
    }
}

/// Checks the content of a field. The parser would loop on a truncated number.
fn check_value(field: &Field, mut bytes: &[u8], depth: usize, counts: &mut Counts) -> Result<()> {
    match field {
        Field::Nested(nested) => check(*nested, bytes, depth, counts)?,
        Field::Varints => {
            while !bytes.is_empty() {
                take_varint(&mut bytes)?;
            }
        }
        Field::Packed(width) if !bytes.len().is_multiple_of(*width) => {
            return Err(Error::corrupt(format!("{} bytes of numbers of {width} bytes each", bytes.len())));
        }
        _ => {}
    }
    Ok(())
}

/// Checks a message in memory, with its nested messages.
fn check(message: Message, bytes: &[u8], depth: usize, counts: &mut Counts) -> Result<()> {
    if depth > DEPTH_MAX * LEVELS_PER_GRAPH {
        return Err(Error::corrupt(format!("graphs or types are nested more than {DEPTH_MAX} deep")));
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        let tag = take_varint(&mut rest)?;
        let number = tag >> 3;
        counts.add(message, number)?;
        let field = message.field(number);
        if let Field::Unsupported(what) = field {
            return Err(unsupported(what));
        }
        match tag & 7 {
            0 => drop(take_varint(&mut rest)?),
            1 => drop(take(&mut rest, 8)?),
            5 => drop(take(&mut rest, 4)?),
            2 => {
                let length = take_varint(&mut rest)?;
                let inner = take(&mut rest, length)?;
                check_value(&field, inner, depth + 1, counts)?;
            }
            other => return Err(Error::corrupt(format!("protobuf wire type {other} in a {message:?}"))),
        }
    }
    Ok(())
}

/// A subgraph is graph, node, attribute: three messages deep.
const LEVELS_PER_GRAPH: usize = 3;

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8]> {
    let (taken, left) = usize::try_from(length)
        .ok()
        .and_then(|length| rest.split_at_checked(length))
        .ok_or_else(|| Error::corrupt("a field is longer than its message"))?;
    *rest = left;
    Ok(taken)
}

fn take_varint(rest: &mut &[u8]) -> Result<u64> {
    let mut value = 0u64;
    for (index, &byte) in rest.iter().take(10).enumerate() {
        // The tenth byte has one bit.
        if index == 9 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f).checked_shl(7 * index as u32).unwrap_or(0);
        if byte < 0x80 {
            *rest = &rest[index + 1..];
            return Ok(value);
        }
    }
    Err(Error::corrupt("a number is truncated or too long"))
}

fn put_varint(proto: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        proto.push(value as u8 | 0x80);
        value >>= 7;
    }
    proto.push(value as u8);
}

fn put_bytes(proto: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_varint(proto, number << 3 | 2);
    put_varint(proto, bytes.len() as u64);
    proto.extend_from_slice(bytes);
}

fn wrong_wire(message: Message, number: u64) -> Error {
    Error::corrupt(format!("field {number} of {message:?} has the wrong wire type"))
}

fn unsupported(what: &str) -> Error {
    Error::unsupported(format!("{what} are not supported")).in_field("graph")
}

fn too_much_structure() -> Error {
    Error::corrupt(format!("more than {STRUCTURE_BYTES_MAX} bytes beside the large tensors"))
}
