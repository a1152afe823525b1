//! Between tensors and the values of rten, which computes with `float32`, `int32`, `int8` and `uint8` only.

use crate::engine::checks::check_shape;
use crate::engine::output::OutputAllocator;
use crate::graph::Port;
use crate::tensor::convert::{from_f32, from_i32, to_f32, to_i32};
use crate::tensor::{Array, TensorRef};
use cotensor_core::{DType, Error, Result};
use rten::{DataType, Value, ValueOrView, ValueView};
use rten_tensor::prelude::*;
use rten_tensor::{Tensor, TensorView};

/// The type in which rten holds elements of `dtype`.
fn rten_type(dtype: DType) -> DataType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => DataType::Float,
        DType::U8 => DataType::UInt8,
        DType::I8 => DataType::Int8,
        _ => DataType::Int32,
    }
}

/// An input for rten, in place if rten computes with its element type, else converted. `wanted` is the type that the
/// loaded graph takes; rten reads it from the file.
///
/// # Errors
/// `Unsupported` for a tensor on a device, `Invalid` for a type or a shape that the graph does not take.
pub(super) fn input<'a>(
    port: &Port,
    wanted: Option<DataType>,
    tensor: &TensorRef<'a>,
    allocator: &dyn OutputAllocator,
) -> Result<ValueOrView<'a>> {
    check_shape(port, tensor.shape())?;
    let given = rten_type(tensor.dtype());
    let wanted = wanted.unwrap_or(given);
    // Narrow integers widen to int32; a float never becomes an integer.
    if given != wanted && (given == DataType::Float || wanted != DataType::Int32) {
        let declared = port.dtype.map_or_else(|| wanted.to_string(), |dtype| dtype.to_string());
        return Err(Error::invalid(format!("{} given, the graph takes {declared}", tensor.dtype())));
    }
    let bytes = tensor
        .bytes()
        .ok_or_else(|| Error::unsupported(format!("rten runs on the cpu, this tensor is on {}", tensor.device())))?;
    let shape = tensor.shape();
    Ok(match tensor.dtype() {
        DType::F32 => ValueOrView::View(view(shape, tensor.typed::<f32>()?)),
        DType::I32 => ValueOrView::View(view(shape, tensor.typed::<i32>()?)),
        DType::U8 if wanted == DataType::UInt8 => ValueOrView::View(view(shape, tensor.typed::<u8>()?)),
        DType::I8 if wanted == DataType::Int8 => ValueOrView::View(view(shape, tensor.typed::<i8>()?)),
        dtype if wanted == DataType::Float => {
            let elements = to_f32(dtype, bytes);
            allocator.record_conversion(&port.name, size_of_val(&*elements));
            ValueOrView::Value(Tensor::from_data(shape, elements).into())
        }
        dtype => {
            let elements = to_i32(dtype, bytes)?;
            allocator.record_conversion(&port.name, size_of_val(&*elements));
            ValueOrView::Value(Tensor::from_data(shape, elements).into())
        }
    })
}

/// The number of elements was checked when the tensor was made.
fn view<'a, T>(shape: &[usize], elements: &'a [T]) -> ValueView<'a>
where
    ValueView<'a>: From<TensorView<'a, T>>,
{
    TensorView::from_data(shape, elements).into()
}

/// An output of rten with the element type that the graph declares. Takes rten's buffer if type and layout allow it.
///
/// # Errors
/// `Unsupported` for an output that is not a tensor, `Engine` for a type that contradicts the declared one.
pub(super) fn output(port: &Port, value: Value, allocator: &dyn OutputAllocator) -> Result<Array> {
    let (array, converted) = match value {
        Value::FloatTensor(tensor) => {
            let shape = tensor.shape().to_vec();
            let dtype = port.dtype.unwrap_or(DType::F32);
            (from_f32(&shape, tensor.into_data(), dtype), dtype != DType::F32)
        }
        Value::Int32Tensor(tensor) => {
            let shape = tensor.shape().to_vec();
            let dtype = port.dtype.unwrap_or(DType::I32);
            (from_i32(&shape, tensor.into_data(), dtype), dtype != DType::I32)
        }
        Value::Int8Tensor(tensor) => (Some(Array::new(DType::I8, tensor.shape().to_vec(), tensor.into_data())), false),
        Value::UInt8Tensor(tensor) => (Some(Array::new(DType::U8, tensor.shape().to_vec(), tensor.into_data())), false),
        _ => return Err(Error::unsupported("this output is not a tensor")),
    };
    let array = array.ok_or_else(|| {
        let declared = port.dtype.map_or_else(String::new, |dtype| dtype.to_string());
        Error::new(
            cotensor_core::ErrorKind::Engine,
            format!("the graph declares {declared}, the engine gives another type"),
        )
    })??;
    if converted {
        allocator.record_conversion(&port.name, array.bytes().len());
    }
    Ok(array)
}
