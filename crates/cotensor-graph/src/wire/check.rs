//! Checks messages in memory.

use super::schema::{Field, Message};
use crate::limits::{DEPTH_MAX, FIELDS_MAX, INITIALIZERS_MAX, NODES_MAX};
use cotensor_core::{Error, Result};

/// Counts of the nodes, initializers and other fields so far.
#[derive(Default)]
pub(super) struct Counts {
    nodes: usize,
    initializers: usize,
    fields: usize,
}

impl Counts {
    /// # Errors
    /// `Corrupt` past a limit.
    pub(super) fn add(&mut self, message: Message, number: u64) -> Result<()> {
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

/// Checks the content of a field. The parser would loop on a truncated number.
pub(super) fn check_value(field: &Field, mut bytes: &[u8], depth: usize, counts: &mut Counts) -> Result<()> {
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

/// The error for an unsupported part of ONNX.
pub(super) fn unsupported(what: &str) -> Error {
    Error::unsupported(format!("{what} are not supported")).in_field("graph")
}
