//! The elements of a tensor as lists of numbers.

use cotensor_core::{DType, Error, Result};
use serde_json::{Number, Value};

/// The most dimensions of lists.
const DIMENSIONS_MAX: usize = 32;
/// The most bytes of an element in an error.
const SHOWN_BYTES_MAX: usize = 64;

/// Reads a number or lists of equal lengths: their dtype, their shape and their bytes, row-major. Without a dtype, whole
/// numbers are `int64`, other numbers `float32`, and truth values `bool`.
///
/// # Errors
/// `Invalid` for lists of different lengths, for something other than numbers and for numbers beyond the dtype.
pub(super) fn parse(data: &Value, dtype: Option<DType>) -> Result<(DType, Vec<usize>, Vec<u8>)> {
    let wrong = |message: &str| Error::invalid(message).in_field("data");
    let (mut shape, mut first) = (Vec::new(), data);
    while let Value::Array(list) = first {
        shape.push(list.len());
        if shape.len() > DIMENSIONS_MAX {
            return Err(wrong("too many dimensions"));
        }
        match list.first() {
            Some(value) => first = value,
            None => break,
        }
    }
    let mut elements = Vec::new();
    flatten(data, &shape, &mut elements)?;
    let dtype = dtype.unwrap_or_else(|| {
        match elements.as_slice() {
            [first, ..] if elements.iter().all(|element| element.is_boolean()) => {
                first.is_boolean().then_some(DType::Bool)
            }
            [_, ..] if elements.iter().all(|element| element.is_i64()) => Some(DType::I64),
            _ => None,
        }
        .unwrap_or(DType::F32)
    });
    let mut bytes = Vec::with_capacity(elements.len() * dtype.size_bytes());
    for element in elements {
        write(element, dtype, &mut bytes)?;
    }
    Ok((dtype, shape, bytes))
}

fn flatten<'v>(value: &'v Value, shape: &[usize], elements: &mut Vec<&'v Value>) -> Result<()> {
    match (value, shape) {
        (Value::Array(list), [len, rest @ ..]) if list.len() == *len => {
            list.iter().try_for_each(|value| flatten(value, rest, elements))
        }
        (Value::Array(_), _) | (_, [_, ..]) => Err(Error::invalid("the lists have different lengths").in_field("data")),
        (value, []) => {
            elements.push(value);
            Ok(())
        }
    }
}

macro_rules! numbers {
    ($($variant:ident $type:ty: $read:ident;)*) => {
        fn write(element: &Value, dtype: DType, bytes: &mut Vec<u8>) -> Result<()> {
            let wrong = || {
                let mut shown = element.to_string();
                shown.truncate(shown.floor_char_boundary(SHOWN_BYTES_MAX));
                Error::invalid(format!("{shown} is no {}", dtype.name())).in_field("data")
            };
            match (dtype, element) {
                (DType::Bool, Value::Bool(truth)) => bytes.push(u8::from(*truth)),
                (DType::F32, _) => {
                    let number = element.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
                    bytes.extend_from_slice(&number.ok_or_else(wrong)?.to_ne_bytes());
                }
                (DType::F64, _) => bytes.extend_from_slice(&element.as_f64().ok_or_else(wrong)?.to_ne_bytes()),
                $((DType::$variant, _) => {
                    let number = element.$read().and_then(|number| <$type>::try_from(number).ok());
                    bytes.extend_from_slice(&number.ok_or_else(wrong)?.to_ne_bytes());
                })*
                (DType::Bool, _) => return Err(wrong()),
                _ => {
                    let message = format!("{} cannot be written as numbers: use base64", dtype.name());
                    return Err(Error::unsupported(message).in_field("dtype"));
                }
            }
            Ok(())
        }

        /// One element as a number; none for a dtype or a value without a JSON number.
        fn read(dtype: DType, bytes: &[u8]) -> Option<Value> {
            Some(match dtype {
                DType::Bool => Value::Bool(*bytes.first()? != 0),
                DType::F32 => Value::Number(Number::from_f64(f64::from(f32::from_ne_bytes(bytes.try_into().ok()?)))?),
                DType::F64 => Value::Number(Number::from_f64(f64::from_ne_bytes(bytes.try_into().ok()?))?),
                $(DType::$variant => Value::Number(<$type>::from_ne_bytes(bytes.try_into().ok()?).into()),)*
                _ => return None,
            })
        }
    };
}

numbers! {
    U8 u8: as_u64;
    I8 i8: as_i64;
    U16 u16: as_u64;
    I16 i16: as_i64;
    U32 u32: as_u64;
    I32 i32: as_i64;
    U64 u64: as_u64;
    I64 i64: as_i64;
}

/// The elements as lists in the form of the shape; none for a dtype without numbers in JSON, and for values such as infinity.
pub(super) fn to_lists(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<Value> {
    let Some((&len, rest)) = shape.split_first() else { return read(dtype, bytes) };
    if len == 0 {
        return Some(Value::Array(Vec::new()));
    }
    let part = bytes.len() / len;
    if part == 0 {
        return Some(Value::Array((0..len).map(|_| to_lists(dtype, rest, &[])).collect::<Option<_>>()?));
    }
    bytes.chunks_exact(part).map(|part| to_lists(dtype, rest, part)).collect::<Option<Vec<_>>>().map(Value::Array)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_are_read_and_written_back() {
        for (data, dtype, found, shape) in [
            (json!([[1, 2, 3], [4, 5, 6]]), None, DType::I64, &[2, 3][..]),
            (json!([1.5, 2]), None, DType::F32, &[2]),
            (json!(7), Some(DType::U8), DType::U8, &[]),
            (json!([true, false]), None, DType::Bool, &[2]),
            (json!([]), None, DType::F32, &[0]),
            (json!([[], []]), Some(DType::I32), DType::I32, &[2, 0]),
            (json!([0.25, -3.0]), Some(DType::F64), DType::F64, &[2]),
        ] {
            let (dtype, parsed, bytes) = parse(&data, dtype).unwrap();
            assert_eq!((dtype, &parsed[..]), (found, shape), "{data}");
            let back = to_lists(dtype, shape, &bytes).unwrap();
            assert_eq!(back.to_string().replace(".0", ""), data.to_string().replace(".0", ""));
        }
        assert_eq!(to_lists(DType::F32, &[1], &f32::INFINITY.to_ne_bytes()), None);
        assert_eq!(to_lists(DType::F16, &[1], &[0, 0]), None);
    }

    #[test]
    fn wrong_lists_name_the_field() {
        let deep = (0..40).fold(json!(1), |inner, _| json!([inner]));
        for (data, dtype, field) in [
            (json!([[1], [2, 3]]), None, "data"),
            (json!([1, [2]]), None, "data"),
            (json!([[1], 2]), None, "data"),
            (json!(["a"]), None, "data"),
            (json!([256]), Some(DType::U8), "data"),
            (json!([-1]), Some(DType::U32), "data"),
            (json!([1.5]), Some(DType::I32), "data"),
            (json!([2]), Some(DType::Bool), "data"),
            (json!([1e300]), None, "data"),
            (json!([1]), Some(DType::F16), "dtype"),
            (deep, None, "data"),
        ] {
            assert_eq!(parse(&data, dtype).unwrap_err().field(), Some(field), "{data}");
        }
    }
}
