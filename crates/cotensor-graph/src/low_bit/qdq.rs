//! Matrices that `DequantizeLinear` makes of constants, as the forms that engines multiply. An engine would expand such a matrix: into private
//! memory while loading, or for each run.

use super::dequantized::{Dequantized, Values};
use super::made::MadeTensors;
use super::qdq_product::{self, Grouping};
use super::qdq_reader::Reader;
use super::qdq_table;
use super::rules::CodeRules;
use crate::build::Builder;
use crate::coded_product::MICROSOFT;
use crate::initializer::detach;
use crate::onnx::Graph;
use crate::proto::{has_four_bits, operator, visit_graphs, visit_nodes};
use crate::transpose::drop_unread;
use rten_onnx::onnx::{GraphProto, NodeProto, OperatorSetIdProto};
use std::collections::HashSet;

impl Graph {
    /// Puts codes in the place of such matrices, where products and tables read them: `MatMulInteger` if the other factor has codes, too, else
    /// `MatMulNBits`; of a table, entries of the codes and arithmetic. The elements are the same. Other readers keep the matrix.
    pub(super) fn without_dequantized(&mut self, rules: &CodeRules) {
        let Some(values) = Values::of(self.graph()) else { return };
        let mut build = Builder::new(&self.model);
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        let mut made = MadeTensors::new(&mut self.weights);
        let mut has_products = false;
        build.replace(graph, &mut |build, node| {
            let table = node.output.first().and_then(|output| values.tables.get(output));
            if let Some(table) = table.filter(|_| !rules.has_coded_tables) {
                return qdq_table::replace(build, &mut made, node, table).is_some();
            }
            let Some(reader) = Reader::of(node, &values) else { return false };
            if reader.used.is_table {
                return qdq_table::replace(build, &mut made, node, reader.matrix).is_some();
            }
            // rten 0.27 gives wrong sums for zero points that differ between columns.
            let is_right = rules.multiplies_int8 && (rules.has_zero_points || reader.matrix.has_zero(0));
            let factor = values.factors.get(&node.input[0]).filter(|_| is_right);
            if let Some(factor) = factor
                && qdq_product::multiply_integers(build, &mut made, node, &reader, factor).is_some()
            {
                return true;
            }
            let is_product = qdq_product::replace(build, &mut made, node, &reader).is_some();
            has_products |= is_product;
            is_product
        });
        let replaced = values.matrices.values().chain(values.tables.values());
        // Of a matrix whose scales have no form, the codes were made before.
        let constants: HashSet<String> = replaced.flat_map(Dequantized::names).chain(made.names()).cloned().collect();
        made.finish(graph);
        drop_nodes(graph, &values, &constants);
        drop_unread(graph, &mut self.weights, constants);
        detach(graph, &self.weights);
        let is_imported = self.model.opset_import.iter().any(|set| set.domain.as_deref() == Some(MICROSOFT));
        if has_products && !is_imported {
            self.model.opset_import.push(OperatorSetIdProto { domain: Some(MICROSOFT.to_owned()), version: Some(1) });
        }
    }

    /// Calls `visit` with each product of numbers for which such a matrix becomes codes, with the matrix, and how its groups lie.
    pub(super) fn visit_dequantized(&self, visit: &mut dyn FnMut(&NodeProto, &Dequantized, &Grouping)) {
        let Some(values) = Values::of(self.graph()) else { return };
        visit_nodes(self.graph(), &mut |node| {
            let reader = Reader::of(node, &values).filter(|reader| !reader.used.is_table);
            let Some((reader, grouping)) = reader.and_then(|reader| Grouping::of(&reader).map(|found| (reader, found)))
            else {
                return;
            };
            let factor = values.factors.get(&node.input[0]);
            if !factor.is_some_and(|factor| qdq_product::is_of_integers(&reader, factor)) {
                visit(node, reader.matrix, &grouping);
            }
        });
    }

    /// A node that reads codes of 4 bits in a form of ONNX that few engines have.
    pub fn reader_of_four_bits(&self) -> Option<String> {
        let codes = self.graph().initializer.iter().filter(|tensor| has_four_bits(tensor));
        let codes: HashSet<&str> = codes.filter_map(|tensor| tensor.name.as_deref()).collect();
        let mut found = None;
        visit_nodes(self.graph(), &mut |node| {
            if found.is_none() && node.input.iter().any(|name| codes.contains(name.as_str())) {
                found = Some(format!("node {:?}", node.name.as_deref().unwrap_or_default()));
            }
        });
        found
    }
}

/// Drops the nodes of matrices, and of `constants` of these, that nothing reads any more.
fn drop_nodes(graph: &mut GraphProto, values: &Values, constants: &HashSet<String>) {
    // A transposition goes before the node whose value it reads, and that before its constants.
    for _ in 0..3 {
        let mut read: HashSet<String> = HashSet::new();
        visit_nodes(graph, &mut |node| read.extend(node.input.iter().cloned()));
        visit_graphs(graph, &mut |scope| read.extend(scope.output.iter().filter_map(|output| output.name.clone())));
        graph.node.retain(|node| {
            let is_part = |output: &String| {
                values.matrices.contains_key(output) || (operator(node) == "Constant" && constants.contains(output))
            };
            !node.output.first().is_some_and(is_part) || node.output.iter().any(|output| read.contains(output))
        });
    }
}
