//! Which weight of a graph is which parameter.

use super::parameter::{Parameter, of_node, of_weight};
use super::source::Source;
use crate::graph::{Graph, Matrix};
use crate::quantize::graph::rows_of;
use crate::quantize::measure::Difference;
use cotensor_core::{Error, Result};
use cotensor_quant::{RepackedMatrix, Width};
use std::collections::HashMap;

/// The most rows of a matrix that are compared to find its parameter.
const SAMPLE_ROWS: usize = 8;

/// The largest relative error in the L2 norm between a weight and its codes. Codes of another weight have one of 1 or more: the two have no
/// direction in common. Common quantizers have about 0.1 with 4 bits, 0.2 with 3 bits, 0.4 to 0.6 with 2 bits, and 0.01 with 8 bits.
pub(super) fn error_max(width: Width) -> f64 {
    match width {
        Width::Two => 0.9,
        Width::Three => 0.7,
        Width::Four => 0.5,
        Width::Eight => 0.1,
    }
}

/// Finds the parameters of graphs.
pub(super) struct Matcher<'s> {
    source: &'s Source,
    /// Rows of parameters, and the largest error.
    samples: HashMap<usize, (Vec<f32>, f64)>,
    /// Whether some weight of a graph is the parameter.
    found: Vec<bool>,
}

impl<'s> Matcher<'s> {
    pub(super) fn new(source: &'s Source) -> Self {
        Self { source, samples: HashMap::new(), found: vec![false; source.parameters.len()] }
    }

    /// The parameters of the matrices of a graph that have one, by the number of the first weight. They are found by the name of the weight or
    /// the path of the module in the name of a node that reads it, where only one parameter fits, else by the elements.
    ///
    /// # Errors
    /// `Invalid`, with the parameter as the field, for one of another shape than the weight of its name; as [`Source::matrix`]; the errors of
    /// reading weights.
    pub(super) fn of_graph(&mut self, graph: &Graph) -> Result<HashMap<usize, usize>> {
        let readers = graph.readers();
        let mut found = HashMap::new();
        let matrices = graph.matrices();
        for matrix in &matrices {
            let weights = matrix.weights.iter().map(|&weight| graph.weights()[weight].name.as_str());
            let nodes = weights.clone().filter_map(|name| readers.get(name)).flatten();
            let names: Vec<String> = weights.map(of_weight).chain(nodes.filter_map(|node| of_node(node))).collect();
            let mut parameter = named(&self.source.parameters, &names);
            if let Some(number) = parameter {
                self.check_shape(number, graph, matrix)?;
            } else if self.source.parameters.iter().any(|one| one.has_shape_of(matrix)) {
                parameter = self.by_elements(&sample(&rows_of(graph.weights(), matrix)?, matrix), matrix)?;
            }
            if let Some(number) = parameter {
                self.found[number] = true;
                found.insert(matrix.weights[0], number);
            }
        }
        self.mark_tied(graph, &matrices)?;
        Ok(found)
    }

    /// Parameters without a weight of a graph.
    pub(super) fn missing(&self) -> impl Iterator<Item = &'s Parameter> {
        self.source.parameters.iter().zip(&self.found).filter(|(_, is_found)| !**is_found).map(|(one, _)| one)
    }

    fn check_shape(&self, number: usize, graph: &Graph, matrix: &Matrix) -> Result<()> {
        let one = &self.source.parameters[number];
        if one.has_shape_of(matrix) {
            return Ok(());
        }
        let weight = &graph.weights()[matrix.weights[0]].name;
        let message = format!(
            "{} × {} elements in the tensor {:?} and {} × {} in the weight {weight:?} of the graph",
            one.rows, one.columns, one.source, matrix.rows, matrix.columns
        );
        Err(Error::invalid(message).in_field(one.name()))
    }

    /// The parameter with the elements that are closest to those of a matrix.
    fn by_elements(&mut self, rows: &[f32], matrix: &Matrix) -> Result<Option<usize>> {
        let mut best: Option<(f64, usize)> = None;
        for number in 0..self.source.parameters.len() {
            if let Some(error) = self.error(number, rows, matrix)?
                && best.is_none_or(|(least, _)| error < least)
            {
                best = Some((error, number));
            }
        }
        Ok(best.map(|(_, number)| number))
    }

    /// The error of a parameter for rows of a matrix; `None` if it is another one.
    fn error(&mut self, number: usize, rows: &[f32], matrix: &Matrix) -> Result<Option<f64>> {
        let one = &self.source.parameters[number];
        if !one.has_shape_of(matrix) {
            return Ok(None);
        }
        if !self.samples.contains_key(&number) {
            let codes = self.source.matrix(number)?;
            let mut values = vec![0.0; one.columns * one.rows.min(SAMPLE_ROWS)];
            for (row, out) in sample_rows(one.rows).zip(values.chunks_exact_mut(one.columns)) {
                codes.dequantize_row(row, out);
            }
            self.samples.insert(number, (values, error_max(codes.width())));
        }
        let (values, most) = &self.samples[&number];
        let mut difference = Difference::default();
        difference.add(rows, values);
        let error = difference.relative();
        Ok((error <= *most).then_some(error))
    }

    /// Finds parameters that share a weight with another one, such as a head that is the table of its model.
    fn mark_tied(&mut self, graph: &Graph, matrices: &[Matrix]) -> Result<()> {
        for number in 0..self.found.len() {
            let one = &self.source.parameters[number];
            for matrix in matrices.iter().filter(|matrix| one.has_shape_of(matrix)) {
                if !self.found[number] {
                    let rows = sample(&rows_of(graph.weights(), matrix)?, matrix);
                    self.found[number] = self.error(number, &rows, matrix)?.is_some();
                }
            }
        }
        Ok(())
    }
}

/// Checks that codes are those of a weight.
///
/// # Errors
/// `Invalid`, with the parameter as the field, for a relative error beyond [`error_max`], and for zero points that are off by one.
pub(super) fn check(parameter: &Parameter, codes: &RepackedMatrix, weight: &str, errors: &Errors) -> Result<()> {
    let error = errors.own;
    if errors.shifted < SHIFTED_SHARE * error {
        let message = format!(
            "the tensor {:?} fits the weight {weight:?} of the graph with zero points that are one larger or smaller: a relative error of {:.4} instead \
             of {error:.4}. Is checkpoint_format right (gptq stores them less one, gptq_v2 as they are)?",
            parameter.source, errors.shifted
        );
        return Err(Error::invalid(message).in_field(parameter.name()));
    }
    if error <= error_max(codes.width()) {
        return Ok(());
    }
    let scaled = match parameter.format.as_str() {
        "awq" => "; AWQ scales columns of weights, so that only a graph of the scaled model has its weights",
        _ => "",
    };
    let message = format!(
        "the tensor {:?} has other elements than the weight {weight:?} of the graph: a relative error of {error:.2}. It is of another model{scaled}",
        parameter.source
    );
    Err(Error::invalid(message).in_field(parameter.name()))
}

/// Codes whose zero points are off by one fit with an error below this share of theirs: they have an error of a step beside it.
const SHIFTED_SHARE: f64 = 0.6;

/// Relative errors of codes in the L2 norm, for the elements of the weight.
pub(super) struct Errors {
    pub(super) own: f64,
    /// The smaller error of the codes with zero points that are one larger, and one smaller.
    pub(super) shifted: f64,
}

pub(super) fn errors_of(codes: &RepackedMatrix, weights: &[f32]) -> Errors {
    let mut found = vec![0.0; codes.columns()];
    let mut differences: [Difference; 3] = Default::default();
    for (row, weights) in weights.chunks_exact(codes.columns()).enumerate() {
        codes.dequantize_row(row, &mut found);
        differences[0].add(weights, &found);
        for (difference, steps) in differences[1..].iter_mut().zip([1.0, -2.0]) {
            for (group, scale) in found.chunks_exact_mut(codes.group()).zip(codes.row_scales(row)) {
                group.iter_mut().for_each(|element| *element += steps * scale);
            }
            difference.add(weights, &found);
        }
    }
    let [own, above, below] = differences.map(|difference| difference.relative());
    Errors { own, shifted: above.min(below) }
}

/// The one parameter with one of these names: whole, else without the first modules of either.
fn named(parameters: &[Parameter], names: &[String]) -> Option<usize> {
    let only = |fits: &dyn Fn(&str, &str) -> bool| {
        let is_named = |(_, one): &(usize, &Parameter)| names.iter().any(|name| fits(&one.stem, name));
        let mut found = parameters.iter().enumerate().filter(is_named);
        match (found.next(), found.next()) {
            (Some((number, _)), None) => Some(number),
            _ => None,
        }
    };
    let ends = |whole: &str, end: &str| whole.strip_suffix(end).is_some_and(|rest| rest.ends_with('.'));
    only(&|stem, name| stem == name).or_else(|| only(&|stem, name| ends(stem, name) || ends(name, stem)))
}

fn sample_rows(rows: usize) -> impl Iterator<Item = usize> {
    let count = rows.min(SAMPLE_ROWS);
    (0..count).map(move |number| number * rows / count)
}

fn sample(values: &[f32], matrix: &Matrix) -> Vec<f32> {
    let row = |row: usize| &values[row * matrix.columns..(row + 1) * matrix.columns];
    sample_rows(matrix.rows).flat_map(row).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(stems: &[&str]) -> Vec<Parameter> {
        let one = |stem: &&str| Parameter {
            stem: (*stem).to_owned(),
            source: String::new(),
            format: String::new(),
            rows: 1,
            columns: 1,
        };
        stems.iter().map(one).collect()
    }

    #[test]
    fn names_fit_one_parameter_or_none() {
        let all = parameters(&[
            "model.layers.0.mlp.up_proj",
            "model.layers.1.mlp.up_proj",
            "lm_head",
            "encoder.layer.0.output.dense",
        ]);
        let find = |names: &[&str]| named(&all, &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(find(&["model.layers.1.mlp.up_proj"]), Some(1));
        assert_eq!(find(&["layers.1.mlp.up_proj"]), Some(1));
        assert_eq!(find(&["base.model.layers.1.mlp.up_proj"]), Some(1));
        assert_eq!(find(&["up_proj"]), None);
        assert_eq!(find(&["xmodel.layers.1.mlp.up_proj", "head"]), None);
        assert_eq!(find(&["encoder.layer.0.attention.output.dense"]), None);
        assert_eq!(find(&["val_7", "lm_head"]), Some(2));
        // A weight that two modules read.
        assert_eq!(find(&["model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"]), None);
    }

    #[test]
    fn modules_are_found_in_names() {
        assert_eq!(of_weight("transformer.wte.weight::T"), "transformer.wte");
        assert_eq!(of_node("/model/layers.0/mlp/up_proj/MatMul").as_deref(), Some("model.layers.0.mlp.up_proj"));
        assert_eq!(of_node("/MatMul"), None);
        assert_eq!(of_node("MatMul_12"), None);
        assert_eq!(sample_rows(20).collect::<Vec<_>>(), [0, 2, 5, 7, 10, 12, 15, 17]);
        assert_eq!(sample_rows(3).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
