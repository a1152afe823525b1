//! Values that stay in rten between runs. A run gets a value that it extends as its own, so that rten's Concat appends
//! in place while the value's memory has room.

use crate::engine::state::{Keep, RunState};
use cotensor_core::{Error, Result};
use rten::{NodeId, Value, ValueOrView, ValueView};
use rten_tensor::prelude::*;
use rten_tensor::{Tensor, TensorView};

/// The fewest rows for which memory is reserved.
const ROWS_MIN: usize = 32;

/// A value that a run gets as its own.
pub(super) struct Owned {
    pub(super) id: NodeId,
    pub(super) value: Value,
    pub(super) before: Before,
}

/// Where a value was before the run that got it: if its extension is elsewhere, the run copied it.
pub(super) struct Before {
    input: String,
    elements: *const f32,
    bytes: usize,
}

impl Owned {
    fn new(input: &str, id: NodeId, value: Value) -> Self {
        let elements = match &value {
            Value::FloatTensor(tensor) => tensor.data_ptr(),
            _ => std::ptr::null(),
        };
        let before = Before { input: input.to_owned(), elements, bytes: value.len() * size_of::<f32>() };
        Self { id, value, before }
    }

    /// An input that the run extends, copied into memory with room for further rows.
    pub(super) fn of_input(input: &str, id: NodeId, value: ValueOrView<'_>, rows: usize, state: &mut RunState) -> Self {
        let value = match value {
            ValueOrView::View(ValueView::FloatTensor(view)) => copy_with_room(&view, rows, state).into(),
            value => value.into_owned(),
        };
        Self::new(input, id, value)
    }
}

/// Takes the values that `keep` replaces. `id_of` finds an input of the graph.
///
/// # Errors
/// `Invalid` for a state of another engine.
pub(super) fn take(
    state: &mut RunState,
    keep: &[Keep<'_>],
    id_of: impl Fn(&str) -> Option<NodeId>,
) -> Result<Vec<Owned>> {
    let mut all = Vec::new();
    for keep in keep {
        let (Some(id), Some(value)) = (id_of(keep.input), state.take(keep.input)) else { continue };
        let value = value.downcast::<Value>().map_err(|_| other_engine(keep.input))?;
        all.push(Owned::new(keep.input, id, *value));
    }
    Ok(all)
}

/// Stores an output of a run. Counts the bytes of the value that it extends if the run copied them.
pub(super) fn put(state: &mut RunState, keep: &Keep<'_>, value: Value, before: &[Before]) {
    let value = match (value, keep.rows_max) {
        (Value::FloatTensor(tensor), Some(rows_max)) => {
            let before = before.iter().find(|before| before.input == keep.input);
            if let Some(before) = before.filter(|before| before.elements != tensor.data_ptr()) {
                state.record_copy(before.bytes);
            }
            let full = tensor.ndim() < 2 || tensor.size(tensor.ndim() - 2) >= rows_max;
            if full || tensor.has_capacity(tensor.ndim() - 2, tensor.size(tensor.ndim() - 2) + 1) {
                tensor.into()
            } else {
                copy_with_room(&tensor.view(), rows_max, state).into()
            }
        }
        (value, _) => value,
    };
    state.put(keep.input, Box::new(value));
}

/// A copy with room for at least one more row, up to `rows_max`. Twice the rows bound the bytes that are copied while a
/// value grows by twice its final size.
fn copy_with_room(view: &TensorView<'_, f32>, rows_max: usize, state: &mut RunState) -> Tensor<f32> {
    state.record_copy(view.len() * size_of::<f32>());
    let Some(axis) = view.ndim().checked_sub(2) else { return view.to_tensor() };
    let mut shape = view.shape().to_vec();
    shape[axis] = (2 * shape[axis]).max(ROWS_MIN).min(rows_max).max(shape[axis]);
    let mut copy = Tensor::with_capacity(&shape, axis);
    match copy.append(axis, view) {
        Ok(()) => copy,
        Err(_) => view.to_tensor(),
    }
}

/// The values that a run reads and does not replace.
pub(super) fn views<'s>(
    state: &'s RunState,
    id_of: impl Fn(&str) -> Option<NodeId>,
) -> Result<Vec<(NodeId, ValueOrView<'s>)>> {
    let read = state.values().filter_map(|(name, value)| Some((name, id_of(name)?, value)));
    read.map(|(name, id, value)| {
        let value = value.downcast_ref::<Value>().ok_or_else(|| other_engine(name))?;
        Ok((id, ValueOrView::View(value.as_view())))
    })
    .collect()
}

fn other_engine(input: &str) -> Error {
    Error::invalid("the state is of another engine").in_field(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(rows_max: usize) -> Keep<'static> {
        Keep { output: "present", input: "past", rows_max: Some(rows_max) }
    }

    fn taken(state: &mut RunState) -> Tensor<f32> {
        match *state.take("past").unwrap().downcast::<Value>().unwrap() {
            Value::FloatTensor(tensor) => tensor,
            _ => panic!("float"),
        }
    }

    #[test]
    fn value_gets_room_once_and_is_then_extended_in_place() {
        let elements: Vec<f32> = (0..2 * 40 * 3).map(|i| i as f32).collect();
        let bytes = (elements.len() * 4) as u64;
        let mut state = RunState::new();
        put(&mut state, &keep(1000), Tensor::from_data(&[1, 2, 40, 3], elements.clone()).into(), &[]);
        let mut value = taken(&mut state);
        assert_eq!((value.to_vec(), state.copied_bytes()), (elements, bytes));
        assert!(value.has_capacity(2, 80) && !value.has_capacity(2, 81));
        // A run extends it in place: no copy.
        let before = Owned::new("past", NodeId::from_u32(0), value.clone().into()).before;
        let before = Before { elements: value.data_ptr(), ..before };
        value.append(2, &Tensor::from_data(&[1, 2, 1, 3], vec![7.0; 6]).view()).unwrap();
        put(&mut state, &keep(1000), value.into(), &[before]);
        assert_eq!(state.copied_bytes(), bytes);
        // A run returns other memory: the old elements were copied.
        let value = taken(&mut state);
        assert_eq!(value.size(2), 41);
        let before = Owned::new("past", NodeId::from_u32(0), value.clone().into()).before;
        put(&mut state, &keep(41), value.into(), &[before]);
        assert_eq!(state.copied_bytes(), bytes + 2 * 41 * 3 * 4);
    }

    #[test]
    fn input_without_rows_gets_room() {
        let mut state = RunState::new();
        let empty = Tensor::<f32>::zeros(&[1, 2, 0, 3]);
        let value = ValueOrView::from(empty.view());
        let owned = Owned::of_input("past", NodeId::from_u32(0), value, 500, &mut state);
        let Value::FloatTensor(value) = owned.value else { panic!("float") };
        assert!(value.has_capacity(2, ROWS_MIN) && value.size(2) == 0 && state.copied_bytes() == 0);
    }
}
