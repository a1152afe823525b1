//! Constants that are made of stored ones: while loading of weights, at once of those that the file of the graph holds.

use crate::build::Builder;
use crate::proto::tensor_bytes;
use crate::repack::Repack;
use crate::types::Weight;
use cotensor_core::DType;
use rten_onnx::onnx::{DataLocation, DataType, GraphProto, TensorProto};
use std::cell::RefCell;
use std::collections::HashMap;

/// The form of a constant that is made of a stored one.
pub(super) struct Form<'f> {
    /// The end of its name.
    pub(super) part: &'f str,
    /// The type of codes: `uint8` or `int8`. `None`: that of the stored constant.
    pub(super) codes: Option<DType>,
    pub(super) dims: Vec<i64>,
    pub(super) steps: Vec<Repack>,
}

/// The constants that are made, each once.
pub(super) struct MadeTensors<'w> {
    weights: &'w mut Vec<Weight>,
    made: HashMap<(String, Vec<i64>, Vec<Repack>), String>,
    tensors: Vec<TensorProto>,
}

impl<'w> MadeTensors<'w> {
    pub(super) fn new(weights: &'w mut Vec<Weight>) -> Self {
        Self { weights, made: HashMap::new(), tensors: Vec::new() }
    }

    /// The names of the constants.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.made.values()
    }

    /// Adds the constants to the graph.
    pub(super) fn finish(self, graph: &mut GraphProto) {
        graph.initializer.extend(self.tensors);
    }

    /// The bytes of an element of a stored constant of `float32` or `float16`.
    pub(super) fn element_bytes(&self, stored: &TensorProto) -> usize {
        let is_half = match self.weight(stored) {
            Some(weight) => weight.source.dtype == DType::F16,
            None => stored.data_type == Some(DataType::FLOAT16),
        };
        if is_half { 2 } else { 4 }
    }

    /// The name of a constant. `None` for a weight that cannot be read in parts.
    pub(super) fn of(&mut self, build: &mut Builder, stored: &TensorProto, form: Form<'_>) -> Option<String> {
        let Form { part, codes, dims, steps } = form;
        let label = stored.name.clone().unwrap_or_default();
        let key = (label, dims, steps);
        if let Some(name) = self.made.get(&key) {
            return Some(name.clone());
        }
        let (label, dims, steps) = &key;
        let name = build.fresh(format!("{label}.{part}"));
        let mut tensor = TensorProto { name: Some(name.clone()), dims: dims.clone(), ..TensorProto::default() };
        if stored.data_location == Some(DataLocation::EXTERNAL) {
            let weight = self.weight(stored).filter(|weight| weight.source.permutation.is_none())?;
            let (mut source, dtype) = (weight.source.clone(), codes.unwrap_or(weight.dtype));
            source.dtype = codes.unwrap_or(source.dtype);
            source.repacks.extend(steps);
            let shape = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<_>>()?;
            self.weights.push(Weight { name: name.clone(), dtype, shape, source });
        } else {
            tensor.raw_data = Some(RefCell::new(Repack::all(steps, &tensor_bytes(stored)).into_owned()));
            tensor.data_type = match codes {
                Some(DType::I8) => Some(DataType::INT8),
                Some(_) => Some(DataType::UINT8),
                None => stored.data_type,
            };
        }
        self.tensors.push(tensor);
        self.made.insert(key, name.clone());
        Some(name)
    }

    fn weight(&self, stored: &TensorProto) -> Option<&Weight> {
        let is_weight = stored.data_location == Some(DataLocation::EXTERNAL);
        self.weights.iter().find(|weight| is_weight && Some(&weight.name) == stored.name.as_ref())
    }
}
