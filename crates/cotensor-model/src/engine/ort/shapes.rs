//! Predicts the shapes of outputs from the shapes of inputs, so that memory for outputs is reserved before a run.

use ort::value::Outlet;
use std::collections::HashMap;

/// A dimension as the graph declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Dim {
    Fixed(usize),
    /// Equal names have equal sizes in one run.
    Named(String),
    Unknown,
}

/// The declared shapes of a graph's inputs and outputs, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Shapes {
    inputs: HashMap<String, Vec<Dim>>,
    outputs: HashMap<String, Vec<Dim>>,
}

impl Shapes {
    pub(super) fn of((inputs, outputs): (&[Outlet], &[Outlet])) -> Self {
        let all = |outlets: &[Outlet]| {
            outlets.iter().filter_map(|outlet| Some((outlet.name().to_owned(), dims(outlet)?))).collect()
        };
        Self { inputs: all(inputs), outputs: all(outputs) }
    }

    /// The sizes of the named dimensions in a run.
    pub(super) fn bind<'a>(&self, inputs: impl Iterator<Item = (&'a str, &'a [usize])>) -> Sizes<'_> {
        let mut sizes = HashMap::new();
        for (name, shape) in inputs {
            for (dim, &size) in self.inputs.get(name).into_iter().flatten().zip(shape) {
                if let Dim::Named(symbol) = dim {
                    // Two sizes for one name: the name says nothing.
                    let known = sizes.entry(symbol.as_str()).or_insert(Some(size));
                    *known = known.filter(|&known| known == size);
                }
            }
        }
        Sizes { shapes: self, sizes }
    }
}

/// The sizes of the named dimensions in one run.
pub(super) struct Sizes<'s> {
    shapes: &'s Shapes,
    sizes: HashMap<&'s str, Option<usize>>,
}

impl Sizes<'_> {
    /// The shape of an output; `None` when the inputs do not determine it.
    pub(super) fn output(&self, name: &str) -> Option<Vec<usize>> {
        let size = |dim: &Dim| match dim {
            Dim::Fixed(size) => Some(*size),
            Dim::Named(symbol) => self.sizes.get(symbol.as_str()).copied().flatten(),
            Dim::Unknown => None,
        };
        self.shapes.outputs.get(name)?.iter().map(size).collect()
    }
}

fn dims(outlet: &Outlet) -> Option<Vec<Dim>> {
    let ort::value::ValueType::Tensor { shape, dimension_symbols, .. } = outlet.dtype() else { return None };
    let dim = |(index, &size): (usize, &i64)| match (usize::try_from(size), dimension_symbols.get(index)) {
        (Ok(size), _) => Dim::Fixed(size),
        (Err(_), Some(symbol)) if !symbol.is_empty() => Dim::Named(symbol.clone()),
        _ => Dim::Unknown,
    };
    Some(shape.iter().enumerate().map(dim).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_follow_the_named_dimensions_of_the_inputs() {
        let named = |name: &str| Dim::Named(name.to_owned());
        let shapes = Shapes {
            inputs: HashMap::from([
                ("ids".to_owned(), vec![named("batch"), named("length")]),
                ("past".to_owned(), vec![named("batch"), named("old")]),
            ]),
            outputs: HashMap::from([
                ("hidden".to_owned(), vec![named("batch"), named("length"), Dim::Fixed(8)]),
                ("present".to_owned(), vec![named("batch"), named("total")]),
                ("odd".to_owned(), vec![Dim::Unknown]),
            ]),
        };
        let sizes = shapes.bind([("ids", &[2, 5][..]), ("past", &[2, 7])].into_iter());
        assert_eq!(sizes.output("hidden"), Some(vec![2, 5, 8]));
        assert_eq!((sizes.output("present"), sizes.output("odd"), sizes.output("none")), (None, None, None));
        let contradictory = shapes.bind([("ids", &[2, 5][..]), ("past", &[3, 7])].into_iter());
        assert_eq!(contradictory.output("hidden"), None);
    }
}
