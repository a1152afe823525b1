//! Names for graphs, which the parser drops. onnxruntime requires those of graphs inside nodes, and checkers that of the main graph.

/// Field 2 of a graph, its name: `inner`.
const NAME: [u8; 7] = [0x12, 5, b'i', b'n', b'n', b'e', b'r'];

/// A message with graphs in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
}

impl Message {
    /// The message of a field, if it may have graphs in it.
    fn of_field(self, field: u64) -> Option<Message> {
        match (self, field) {
            (Message::Model, 7) | (Message::Attribute, 6 | 11) => Some(Message::Graph),
            (Message::Graph, 1) => Some(Message::Node),
            (Message::Node, 5) => Some(Message::Attribute),
            _ => None,
        }
    }
}

/// An encoded model with a name for each graph. `None` for bytes that are not a message.
pub(crate) fn name_graphs(model: &[u8]) -> Option<Vec<u8>> {
    let mut named = Vec::with_capacity(model.len() + 64);
    rewrite(model, Message::Model, &mut named)?;
    Some(named)
}

fn rewrite(mut rest: &[u8], message: Message, out: &mut Vec<u8>) -> Option<()> {
    while !rest.is_empty() {
        let start = rest;
        let key = varint(&mut rest)?;
        match key & 7 {
            0 => drop(varint(&mut rest)?),
            1 => rest = rest.get(8..)?,
            5 => rest = rest.get(4..)?,
            2 => {
                let len = usize::try_from(varint(&mut rest)?).ok()?;
                let payload = rest.get(..len)?;
                rest = &rest[len..];
                if let Some(inner) = message.of_field(key >> 3) {
                    let mut body = if inner == Message::Graph { NAME.to_vec() } else { Vec::new() };
                    rewrite(payload, inner, &mut body)?;
                    put_varint(key, out);
                    put_varint(body.len() as u64, out);
                    out.extend_from_slice(&body);
                    continue;
                }
            }
            _ => return None,
        }
        out.extend_from_slice(&start[..start.len() - rest.len()]);
    }
    Some(())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_varint(number << 3 | 2, &mut bytes);
        put_varint(payload.len() as u64, &mut bytes);
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn every_graph_gets_a_name_and_nothing_else_changes() {
        let model = |inner: &[u8]| {
            let branch = |graph: &[u8]| field(1, &field(5, &field(6, graph)));
            let long = vec![7u8; 300];
            // The version (a number), and the graph: nodes, then an initializer.
            [
                vec![0x08, 0x96, 0x01],
                field(7, &[inner, &branch(&[inner, &branch(inner)].concat()), &field(5, &long)].concat()),
            ]
            .concat()
        };
        assert_eq!(name_graphs(&model(&[])).unwrap(), model(&NAME));
        assert_eq!(name_graphs(&model(&[])[..9]), None, "a length beyond the message");
        assert_eq!(name_graphs(&[0x0b]), None, "a group");
    }
}
