//! Checks that every engine makes before it loads or runs a graph.

use crate::graph::{Graph, Port, Weight};
use cotensor_core::{Error, Result};
use cotensor_store::Lease;

/// The bytes of each weight of `graph`, in place.
///
/// # Errors
/// `Invalid` for another number of leases or a lease of another type or shape, `Unsupported` for a weight that the host
/// cannot address; the error names file and weight.
pub(super) fn weight_bytes<'a>(engine: &str, graph: &Graph, leases: &'a [Lease]) -> Result<Vec<&'a [u8]>> {
    let weights = graph.weights();
    if leases.len() != weights.len() {
        let counts = format!("{} weights given, the graph has {}", leases.len(), weights.len());
        return Err(Error::invalid(counts).in_file(graph.path()));
    }
    let bytes = |(weight, lease): (&Weight, &'a Lease)| {
        bytes_of(engine, weight, lease).map_err(|error| error.in_file(graph.path()).in_field(&weight.name))
    };
    weights.iter().zip(leases).map(bytes).collect()
}

fn bytes_of<'a>(engine: &str, weight: &Weight, lease: &'a Lease) -> Result<&'a [u8]> {
    if lease.dtype() != weight.dtype || lease.shape() != weight.shape || !lease.layout().is_contiguous() {
        let (given, wanted) = ((lease.dtype(), lease.shape()), (weight.dtype, &weight.shape));
        return Err(Error::invalid(format!("the lease holds {given:?}, the graph needs a contiguous {wanted:?}")));
    }
    let on_device =
        || Error::unsupported(format!("{engine} runs on the cpu, this weight is on {}", lease.segment().device()));
    lease.bytes().ok_or_else(on_device)
}

/// # Errors
/// `Unsupported`, with the node as the field, for a graph that has codes of 4 bits in a form that only files have.
pub(super) fn refuse_four_bits(engine: &str, graph: &Graph) -> Result<()> {
    match graph.reader_of_four_bits() {
        Some(node) => {
            let message = format!(
                "{engine} has no tensors of 4 bits, and this node is no product, and no table, with blocks of 16, 32, 48 … elements"
            );
            Err(Error::unsupported(message).in_file(graph.path()).in_field(node))
        }
        None => Ok(()),
    }
}

/// The positions of the inputs in `ports`, in the order of `names`.
///
/// # Errors
/// `Invalid` for an unknown name, a name that is given twice, or a missing input; the error names it.
pub(super) fn input_positions<'n>(ports: &[Port], names: impl ExactSizeIterator<Item = &'n str>) -> Result<Vec<usize>> {
    let mut positions = Vec::with_capacity(names.len());
    for name in names {
        let position = find(ports, name, "input")?;
        if positions.contains(&position) {
            return Err(Error::invalid("given twice").in_field(name));
        }
        positions.push(position);
    }
    match (0..ports.len()).find(|position| !positions.contains(position)) {
        Some(missing) => Err(Error::invalid("this input is missing").in_field(&ports[missing].name)),
        None => Ok(positions),
    }
}

/// The positions of the requested outputs in `ports`, in the order of `names`.
///
/// # Errors
/// `Invalid` for an unknown name or a name that is requested twice; the error names it.
pub(super) fn output_positions(ports: &[Port], names: &[&str]) -> Result<Vec<usize>> {
    let positions = names.iter().map(|name| find(ports, name, "output")).collect::<Result<Vec<_>>>()?;
    match (1..positions.len()).find(|&at| positions[..at].contains(&positions[at])) {
        Some(twice) => Err(Error::invalid("requested twice").in_field(names[twice])),
        None => Ok(positions),
    }
}

fn find(ports: &[Port], name: &str, what: &str) -> Result<usize> {
    ports.iter().position(|port| port.name == name).ok_or_else(|| {
        let known: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
        Error::invalid(format!("the graph has no such {what}; it has {}", known.join(", "))).in_field(name)
    })
}

/// # Errors
/// `Invalid` for a shape that contradicts the declared dimensions of an input.
pub(super) fn check_shape(port: &Port, shape: &[usize]) -> Result<()> {
    let Some(dims) = &port.dims else { return Ok(()) };
    let fits = |(wanted, &given): (&Option<usize>, &usize)| wanted.is_none_or(|wanted| wanted == given);
    if dims.len() == shape.len() && dims.iter().zip(shape).all(fits) {
        return Ok(());
    }
    let dim = |dim: &Option<usize>| dim.map_or("?".to_owned(), |size| size.to_string());
    let wanted: Vec<_> = dims.iter().map(dim).collect();
    Err(Error::invalid(format!("shape {shape:?} given, the graph takes [{}]", wanted.join(", "))))
}
