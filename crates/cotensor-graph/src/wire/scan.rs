//! Reads a model file field by field, without its large tensor data.

use super::check::{Counts, check_value, unsupported};
use super::schema::{DataField, Field, Message};
use crate::limits::{FILE_BYTES_MAX, SHARED_BYTES_MIN, STRUCTURE_BYTES_MAX};
use cotensor_core::{Error, Result};
use std::io::{Read, Seek, SeekFrom};

/// The range of an initializer's elements in the file; they are little-endian and packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The field of the initializer that holds them.
    pub(crate) field: DataField,
    /// The offset from the start of the file, in bytes.
    pub(crate) offset: u64,
    /// The length in bytes.
    pub(crate) length: u64,
}

/// A model file without its large tensors.
pub(crate) struct Structure {
    /// The protobuf message, without large tensor data.
    pub(crate) proto: Vec<u8>,
    /// For each initializer of the main graph, in order: the range of its data in the file, if the message does not
    /// have it.
    pub(crate) spans: Vec<Option<Span>>,
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
pub(crate) fn read_structure(reader: &mut (impl Read + Seek)) -> Result<Structure> {
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

fn too_much_structure() -> Error {
    Error::corrupt(format!("more than {STRUCTURE_BYTES_MAX} bytes beside the large tensors"))
}
