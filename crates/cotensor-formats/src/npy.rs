//! The header of a `.npy` file: magic, version, length, and a Python dictionary with `descr`, `fortran_order` and
//! `shape`. Specified by [NEP 1](https://numpy.org/neps/nep-0001-npy-format.html) and NumPy's `format` module.

use crate::entry::FileTensor;
use crate::error::read_error_in;
use cotensor_core::{DType, Error, RANK_MAX, Result};
use std::io::Read;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// The longest header that is read, in bytes.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// The data starts at a multiple of this, as in files that NumPy writes.
const ALIGNMENT: usize = 64;

/// NumPy's type codes. NumPy has no `bfloat16` and no floats of 8 bits.
const CODES: &[(DType, &str)] = &[
    (DType::Bool, "b1"),
    (DType::U8, "u1"),
    (DType::I8, "i1"),
    (DType::U16, "u2"),
    (DType::I16, "i2"),
    (DType::F16, "f2"),
    (DType::U32, "u4"),
    (DType::I32, "i4"),
    (DType::F32, "f4"),
    (DType::U64, "u8"),
    (DType::I64, "i8"),
    (DType::F64, "f8"),
    (DType::C64, "c8"),
    (DType::C128, "c16"),
];

/// Reads a header; the data follows it in `source`.
pub(super) fn read_header(source: &mut impl Read) -> Result<FileTensor> {
    let mut start = [0; 8];
    read(source, &mut start, "magic")?;
    if !start.starts_with(MAGIC) {
        return Err(Error::corrupt("not a .npy file").in_field("magic"));
    }
    let len = match start[6] {
        1 => {
            let mut len = [0; 2];
            read(source, &mut len, "header length")?;
            usize::from(u16::from_le_bytes(len))
        }
        2 | 3 => {
            let mut len = [0; 4];
            read(source, &mut len, "header length")?;
            usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX)
        }
        other => return Err(Error::unsupported(format!("version {other} of the format")).in_field("version")),
    };
    if len > HEADER_BYTES_MAX {
        let message = format!("{len} bytes; at most {HEADER_BYTES_MAX} are read");
        return Err(Error::corrupt(message).in_field("header length"));
    }
    let mut header = vec![0; len];
    read(source, &mut header, "header")?;
    let header = str::from_utf8(&header).map_err(|_| Error::corrupt("not text").in_field("header"))?;
    parse(header)
}

fn read(source: &mut impl Read, target: &mut [u8], field: &str) -> Result<()> {
    source.read_exact(target).map_err(|error| read_error_in(field, &error))
}

/// Parses the dictionary `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`.
fn parse(header: &str) -> Result<FileTensor> {
    let corrupt = |what: &str| Error::corrupt(what.to_owned()).in_field("header");
    let mut rest = header.trim().strip_prefix('{').ok_or_else(|| corrupt("not a dictionary"))?;
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            if !after.trim().is_empty() {
                return Err(corrupt("something follows the dictionary"));
            }
            break;
        }
        let (key, after) = quoted(rest).ok_or_else(|| corrupt("a key in quotes expected"))?;
        let value = after.trim_start().strip_prefix(':').ok_or_else(|| corrupt("a colon expected"))?.trim_start();
        rest = match key {
            "descr" if value.starts_with('[') => {
                return Err(Error::unsupported("records of several fields are not a tensor").in_field("descr"));
            }
            "descr" => {
                let (value, rest) = quoted(value).ok_or_else(|| corrupt("descr is not text"))?;
                descr = Some(value);
                rest
            }
            "fortran_order" => {
                let (value, rest) = match (value.strip_prefix("False"), value.strip_prefix("True")) {
                    (Some(rest), _) => (false, rest),
                    (_, Some(rest)) => (true, rest),
                    _ => return Err(corrupt("fortran_order is neither True nor False")),
                };
                fortran = Some(value);
                rest
            }
            "shape" => {
                let (value, rest) = tuple(value).ok_or_else(|| corrupt("shape is not a tuple of whole numbers"))?;
                shape = Some(value);
                rest
            }
            _ => return Err(corrupt("a key that the format does not have")),
        };
        rest = rest.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    let missing = |field: &str| Error::corrupt("missing").in_field(field);
    let shape = shape.ok_or_else(|| missing("shape"))?;
    let (dtype, big_endian) = dtype(descr.ok_or_else(|| missing("descr"))?)?;
    let fortran = fortran.ok_or_else(|| missing("fortran_order"))?;
    // Both orders are equal unless several dimensions exceed 1.
    let column_major = fortran && shape.iter().filter(|&&dim| dim > 1).count() > 1;
    Ok(FileTensor { name: String::new(), dtype, shape, big_endian, column_major, offset: 0 })
}

fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|&c| c == '\'' || c == '"')?;
    text[1..].split_once(quote)
}

fn tuple(text: &str) -> Option<(Vec<usize>, &str)> {
    let (inside, rest) = text.strip_prefix('(')?.split_once(')')?;
    let mut dims = Vec::new();
    let mut parts = inside.split(',').map(str::trim).peekable();
    while let Some(part) = parts.next() {
        // A trailing comma is allowed.
        if part.is_empty() && parts.peek().is_none() {
            break;
        }
        // Python 2 wrote long integers with a suffix.
        dims.push(part.strip_suffix('L').unwrap_or(part).parse().ok()?);
        if dims.len() > RANK_MAX {
            return None;
        }
    }
    Some((dims, rest))
}

/// The dtype, and whether its elements are big-endian.
fn dtype(descr: &str) -> Result<(DType, bool)> {
    let (order, code) = match descr.strip_prefix(['<', '>', '|', '=']) {
        Some(code) => (descr.as_bytes()[0], code),
        None => (b'<', descr),
    };
    let known = match code {
        "?" => Some(DType::Bool),
        code => CODES.iter().find(|(_, known)| *known == code).map(|(dtype, _)| *dtype),
    };
    let dtype = known.ok_or_else(|| {
        let known: Vec<&str> = CODES.iter().map(|(_, code)| *code).collect();
        let message = format!("{descr:?} has no counterpart here; known are {}", known.join(", "));
        Error::unsupported(message).in_field("descr")
    })?;
    Ok((dtype, order == b'>' && dtype.size_bytes() > 1))
}

/// A header of version 1, which every numpy reads. The elements follow it, row-major and little-endian.
///
/// # Errors
/// `Unsupported` for a dtype that numpy does not have.
pub fn npy_header(dtype: DType, shape: &[usize]) -> Result<Vec<u8>> {
    let code = CODES.iter().find(|(known, _)| *known == dtype).map(|(_, code)| *code).ok_or_else(|| {
        Error::unsupported(format!("numpy has no {dtype}; write a .safetensors file")).in_field("dtype")
    })?;
    let order = if dtype.size_bytes() > 1 { '<' } else { '|' };
    let dims: String = shape.iter().map(|dim| format!("{dim}, ")).collect();
    // A tuple of one keeps its comma.
    let dims = if shape.len() == 1 { dims.trim_end() } else { dims.trim_end_matches(", ") };
    let header = format!("{{'descr': '{order}{code}', 'fortran_order': False, 'shape': ({dims}), }}");
    // The length counts the line break that ends the header.
    let len = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(ALIGNMENT) - MAGIC.len() - 4;
    let len_bytes = u16::try_from(len).map_err(|_| Error::invalid("too many dimensions").in_field("shape"))?;
    let mut bytes = [&MAGIC[..], &[1, 0], &len_bytes.to_le_bytes()].concat();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(MAGIC.len() + 4 + len - 1, b' ');
    bytes.push(b'\n');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(text: &str) -> Vec<u8> {
        let len = u16::try_from(text.len()).unwrap();
        [&MAGIC[..], &[1, 0], &len.to_le_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn headers_read_back_aligned() {
        for (dtype, _) in CODES {
            for shape in [&[][..], &[7], &[2, 3], &[0, 5, 1], &[123_456_789; 8]] {
                let bytes = npy_header(*dtype, shape).unwrap();
                assert_eq!(bytes.len() % ALIGNMENT, 0);
                let entry = read_header(&mut &bytes[..]).unwrap();
                assert_eq!((entry.dtype, &entry.shape[..], entry.big_endian), (*dtype, shape, false));
            }
        }
        let error = npy_header(DType::BF16, &[1]).unwrap_err();
        assert!(error.message().contains("safetensors"), "{error}");
    }

    #[test]
    fn headers_of_numpy_are_read() {
        for (text, dtype, shape, big) in [
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n", DType::F32, &[2, 3][..], false),
            ("{'descr': '>i8', 'fortran_order': False, 'shape': (), }\n", DType::I64, &[], true),
            ("{'descr': '>c16', 'fortran_order': False, 'shape': (3,), }", DType::C128, &[3], true),
            ("{'descr': '|b1', 'fortran_order': True, 'shape': (4,), }\n", DType::Bool, &[4], false),
            ("{'descr': '>f8', 'fortran_order': True, 'shape': (2, 5), }", DType::F64, &[2, 5], true),
            ("{\"shape\": (3L, 1), \"fortran_order\": True, \"descr\": \"=u2\"}", DType::U16, &[3, 1], false),
        ] {
            let entry = read_header(&mut &header(text)[..]).unwrap();
            assert_eq!((entry.dtype, &entry.shape[..], entry.big_endian), (dtype, shape, big), "{text}");
            assert_eq!(entry.column_major, shape == [2, 5], "{text}");
        }
    }

    #[test]
    fn invalid_headers_name_the_field() {
        for (text, field) in [
            ("{'descr': '<c32', 'fortran_order': False, 'shape': (2,), }", "descr"),
            ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", "descr"),
            ("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", "descr"),
            ("{'descr': '<f4', 'shape': (2, 3), }", "fortran_order"),
            ("{'descr': '<f4', 'fortran_order': False, }", "shape"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", "header"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "header"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,", "header"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } rest", "header"),
            ("{'evil': __import__('os')}", "header"),
            ("{", "header"),
            ("", "header"),
        ] {
            let error = read_header(&mut &header(text)[..]).unwrap_err();
            assert_eq!(error.field(), Some(field), "{text}: {error}");
        }
        let many = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", "1, ".repeat(1000));
        assert!(read_header(&mut &header(&many)[..]).is_err());
        let whole = header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }");
        for end in 0..whole.len() {
            assert!(read_header(&mut &whole[..end]).is_err(), "{end}");
        }
        let huge = [&MAGIC[..], &[2, 0], &u32::MAX.to_le_bytes()].concat();
        assert_eq!(read_header(&mut &huge[..]).unwrap_err().field(), Some("header length"));
    }
}
