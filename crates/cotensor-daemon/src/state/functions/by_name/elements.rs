//! The elements of a tensor as lists of numbers.

use cotensor_core::{DType, Error, Result};
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Number, Value};
use std::fmt;

/// The most dimensions of lists.
const DIMENSIONS_MAX: usize = 32;
/// The most bytes of an element in an error.
const SHOWN_BYTES_MAX: usize = 64;

/// Reads a number or lists of equal lengths: their dtype, their shape and their bytes, row-major. Without a dtype, whole
/// numbers are `int64`, other numbers `float32`, and truth values `bool`.
///
/// # Errors
/// `Invalid` for lists of different lengths, for something other than numbers and for numbers beyond the dtype.
pub(super) fn parse(data: &RawValue, dtype: Option<DType>) -> Result<(DType, Vec<usize>, Vec<u8>)> {
    let dtype = match dtype {
        Some(dtype) => dtype,
        // The dtype depends on all elements. Numbers are not kept meanwhile.
        None => match Elements::read(data, None)? {
            Elements { count: 0, .. } => DType::F32,
            Elements { are_truths: true, .. } => DType::Bool,
            Elements { are_whole: true, .. } => DType::I64,
            _ => DType::F32,
        },
    };
    let Elements { shape, bytes, .. } = Elements::read(data, Some(dtype))?;
    Ok((dtype, shape.into_iter().flatten().collect(), bytes))
}

/// What is known of the elements while they are read.
struct Elements {
    /// The bytes are written if there is a dtype.
    dtype: Option<DType>,
    bytes: Vec<u8>,
    /// The lengths of the lists by depth; none until the first list of a depth has ended.
    shape: Vec<Option<usize>>,
    count: usize,
    are_truths: bool,
    are_whole: bool,
    error: Option<Error>,
}

impl Elements {
    fn read(data: &RawValue, dtype: Option<DType>) -> Result<Self> {
        let (bytes, shape) = (Vec::new(), Vec::new());
        let mut elements = Self { dtype, bytes, shape, count: 0, are_truths: true, are_whole: true, error: None };
        let read =
            Next { elements: &mut elements, depth: 0 }.deserialize(&mut serde_json::Deserializer::from_str(data.get()));
        let wrong = |error: serde_json::Error| Error::invalid(error.to_string()).in_field("data");
        read.map_err(|error| elements.error.take().unwrap_or_else(|| wrong(error)))?;
        Ok(elements)
    }

    fn fail<E: serde::de::Error>(&mut self, error: Error) -> Result<(), E> {
        self.error = Some(error);
        Err(E::custom("the data is wrong"))
    }
}

/// The next list or element.
struct Next<'e> {
    elements: &'e mut Elements,
    depth: usize,
}

impl Next<'_> {
    fn element<E: serde::de::Error>(self, element: &Value) -> Result<(), E> {
        let Self { elements, depth } = self;
        if elements.shape.len() != depth {
            return elements.fail(different_lengths());
        }
        elements.count += 1;
        elements.are_truths &= element.is_boolean();
        elements.are_whole &= element.is_i64();
        match elements.dtype.map(|dtype| write(element, dtype, &mut elements.bytes)) {
            Some(Err(error)) => elements.fail(error),
            _ => Ok(()),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Next<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Next<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a number, or lists of numbers")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.element(&Value::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.element(&value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.element(&value.into())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.element(&value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.element(&value.into())
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.element(&value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { elements, depth } = self;
        if depth == DIMENSIONS_MAX {
            return elements.fail(Error::invalid("too many dimensions").in_field("data"));
        }
        if depth == elements.shape.len() {
            if elements.count > 0 {
                return elements.fail(different_lengths());
            }
            elements.shape.push(None);
        }
        let mut len = 0;
        while list.next_element_seed(Next { elements, depth: depth + 1 })?.is_some() {
            len += 1;
        }
        if *elements.shape[depth].get_or_insert(len) == len { Ok(()) } else { elements.fail(different_lengths()) }
    }
}

fn different_lengths() -> Error {
    Error::invalid("the lists have different lengths").in_field("data")
}

macro_rules! numbers {
    ($($variant:ident $type:ty: $read:ident;)*) => {
        fn write(element: &Value, dtype: DType, bytes: &mut Vec<u8>) -> Result<()> {
            let wrong = || {
                let mut shown = element.to_string();
                shown.truncate(shown.floor_char_boundary(SHOWN_BYTES_MAX));
                Error::invalid(format!("{shown} does not fit {}", dtype.name())).in_field("data")
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

    fn raw(data: &Value) -> Box<RawValue> {
        RawValue::from_string(data.to_string()).unwrap()
    }

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
            let (dtype, parsed, bytes) = parse(&raw(&data), dtype).unwrap();
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
            (json!([[], 1]), None, "data"),
            (json!([1, []]), None, "data"),
            (json!([[], [[]]]), None, "data"),
            (json!([[[]], []]), None, "data"),
            (json!([{"x": 1}]), None, "data"),
            (json!([null]), None, "data"),
            (json!(["a"]), None, "data"),
            (json!([256]), Some(DType::U8), "data"),
            (json!([-1]), Some(DType::U32), "data"),
            (json!([1.5]), Some(DType::I32), "data"),
            (json!([2]), Some(DType::Bool), "data"),
            (json!([1e300]), None, "data"),
            (json!([1]), Some(DType::F16), "dtype"),
            (deep, None, "data"),
        ] {
            assert_eq!(parse(&raw(&data), dtype).unwrap_err().field(), Some(field), "{data}");
        }
    }
}
