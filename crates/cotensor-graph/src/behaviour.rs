//! Operators whose result is more than a function of each row of their input: they join the rows of a batch, or draw random
//! numbers.

use super::Graph;
use super::proto::{given, integer, normal_domain};
use cotensor_core::{Error, Result};
use rten_onnx::onnx::NodeProto;

/// Operators that scale by the range of all their elements, so that each row of the result depends on all rows.
const JOINING: [&str; 3] = ["DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"];
const RANDOM: [&str; 6] =
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"];

impl Graph {
    /// An operator by which a row of a batch depends on the other rows, with the name of its node. The rows of such a graph
    /// have their own numbers only if each runs alone.
    pub fn joins_rows(&self) -> Option<String> {
        self.find(|node, operator| {
            JOINING.contains(&operator) || operator == "BatchNormalization" && integer(node, "training_mode") == Some(1)
        })
    }

    /// # Errors
    /// `Unsupported` for an operator that draws random numbers: two runs on equal inputs give other results, which cannot
    /// be shared. The error names the node.
    pub fn check_repeatable(&self) -> Result<()> {
        let constants = self.constants();
        // A mode that is computed may be true.
        let trains = |node: &NodeProto| given(node, 2).is_some_and(|mode| !constants.is_zero(mode));
        let found = self.find(|node, operator| RANDOM.contains(&operator) || operator == "Dropout" && trains(node));
        found.map_or(Ok(()), |found| {
            let message = "draws random numbers, so that no result could be repeated; export the model for evaluation";
            Err(Error::unsupported(message).in_file(self.path()).in_field(found))
        })
    }

    /// The operator and the node that `wanted` finds first.
    fn find(&self, wanted: impl Fn(&NodeProto, &str) -> bool) -> Option<String> {
        let mut found = None;
        self.visit_nodes(&mut |node| {
            let operator = node.op_type.as_deref().unwrap_or_default();
            let known = matches!(normal_domain(node.domain.as_deref()), "" | "com.microsoft");
            if found.is_none() && known && wanted(node, operator) {
                found = Some(format!("{operator} {:?}", node.name.as_deref().unwrap_or_default()));
            }
        });
        found
    }
}
