//! Matrices that other programs quantized, with exactly their codes.

mod awq;
mod gguf;
mod gptq;
mod onnx;

pub use awq::AwqLinear;
pub use gguf::GgufBlocks;
pub use gptq::GptqLinear;
pub use onnx::OnnxProduct;

use crate::codes::pack;
use crate::expand::expand_row;
use crate::scales::GroupScale;
use crate::spec::{GROUPS, Width};
use cotensor_core::{DType, Error, Result};
use rten_simd::f16;

/// A matrix of codes whose scales and offsets are `float32`. An element is `(code − middle) · scale + offset`, and the codes lie as those of a
/// [`QuantTensor`](crate::QuantTensor).
#[derive(Clone, Debug, PartialEq)]
pub struct RepackedMatrix {
    width: Width,
    group: usize,
    rows: usize,
    columns: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
    offsets: Option<Vec<f32>>,
}

/// How the scales of a matrix have to be stored so that they stay exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredScales {
    /// `float16` or `float32`.
    pub scales: DType,
    /// The same; `None` without offsets.
    pub offsets: Option<DType>,
}

impl RepackedMatrix {
    /// A matrix of codes with one in each byte, and of scales and offsets with one for `group` codes of a row. Longer groups become several
    /// of at most 256 codes.
    ///
    /// # Errors
    /// `Unsupported`, with the field, for a group that is not a multiple of 16, and for columns that are not whole groups; `Corrupt` for scales
    /// that are not finite.
    fn of(
        width: Width,
        [rows, columns]: [usize; 2],
        group: usize,
        codes: &[u8],
        scales: Vec<f32>,
        offsets: Option<Vec<f32>>,
    ) -> Result<Self> {
        let own = own_group(columns, group)?;
        for (name, values) in [("scales", Some(&scales)), ("offsets", offsets.as_ref())] {
            if let Some(at) = values.and_then(|values| values.iter().position(|value| !value.is_finite())) {
                let (row, number) = (at * group / columns, at % (columns / group));
                let message = format!("group {number} of row {row} has a scale that is not finite");
                return Err(Error::corrupt(message).in_field(name));
            }
        }
        let repeated = |values: Vec<f32>| match group / own {
            1 => values,
            times => values.iter().flat_map(|value| std::iter::repeat_n(*value, times)).collect(),
        };
        let mut packed = vec![0; width.bytes(codes.len())];
        for (codes, bytes) in codes.chunks_exact(own).zip(packed.chunks_exact_mut(width.bytes(own))) {
            pack(width, codes, bytes);
        }
        let (scales, offsets) = (repeated(scales), offsets.map(repeated));
        Ok(Self { width, group: own, rows, columns, codes: packed, scales, offsets })
    }

    /// The width of the codes.
    pub fn width(&self) -> Width {
        self.width
    }

    /// Elements of a group.
    pub fn group(&self) -> usize {
        self.group
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns, in elements.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The packed codes: `[rows, columns / group, width.bytes(group)]`.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The smallest types that hold the scales and the offsets exactly.
    pub fn stored_scales(&self) -> StoredScales {
        let is_half = |values: &Vec<f32>| values.iter().all(|value| f16::from_f32(*value).to_f32() == *value);
        let dtype = |values| if is_half(values) { DType::F16 } else { DType::F32 };
        StoredScales { scales: dtype(&self.scales), offsets: self.offsets.as_ref().map(dtype) }
    }

    /// The scales `[rows, groups]` in a type of [`stored_scales`](Self::stored_scales), little-endian.
    pub fn scale_bytes(&self, dtype: DType) -> Vec<u8> {
        bytes_of(&self.scales, dtype)
    }

    /// The offsets, as [`scale_bytes`](Self::scale_bytes). `None` if all are 0.
    pub fn offset_bytes(&self, dtype: DType) -> Option<Vec<u8>> {
        self.offsets.as_ref().map(|offsets| bytes_of(offsets, dtype))
    }

    /// Bits of an element, with its part of scales and offsets as they are stored.
    pub fn bits_per_weight(&self) -> f64 {
        let stored = self.stored_scales();
        let bytes = stored.scales.size_bytes() + stored.offsets.map_or(0, DType::size_bytes);
        f64::from(self.width.bits()) + 8.0 * bytes as f64 / self.group as f64
    }

    /// The matrix whose row `r` is row `source(r)` of this one.
    ///
    /// # Panics
    /// When `source` gives a row that does not exist.
    #[must_use]
    pub fn with_rows(&self, source: impl Fn(usize) -> usize) -> Self {
        let (bytes, groups) = (self.width.bytes(self.columns), self.columns / self.group);
        let mut found = Self { codes: Vec::new(), scales: Vec::new(), offsets: None, ..*self };
        let mut offsets = Vec::new();
        for row in (0..self.rows).map(source) {
            found.codes.extend_from_slice(&self.codes[row * bytes..(row + 1) * bytes]);
            found.scales.extend_from_slice(&self.scales[row * groups..(row + 1) * groups]);
            offsets
                .extend_from_slice(self.offsets.as_deref().map_or(&[][..], |of| &of[row * groups..(row + 1) * groups]));
        }
        found.offsets = self.offsets.is_some().then_some(offsets);
        found
    }

    /// The scales of a row, one for each [`group`](Self::group).
    ///
    /// # Panics
    /// When the row does not exist.
    pub fn row_scales(&self, row: usize) -> &[f32] {
        let groups = self.columns / self.group;
        &self.scales[row * groups..(row + 1) * groups]
    }

    /// Writes the elements of a row.
    ///
    /// # Panics
    /// When the row does not exist, or `out` has another length than a row.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns, "the elements of a row");
        let (bytes, groups) = (self.width.bytes(self.columns), self.columns / self.group);
        let zero = f32::from(self.width.middle());
        let scale = |at: usize| {
            let offset = self.offsets.as_ref().map_or(0.0, |offsets| offsets[at]);
            GroupScale { scale: self.scales[at], zero, offset }
        };
        let scales: Vec<GroupScale> = (row * groups..(row + 1) * groups).map(scale).collect();
        expand_row(self.width, self.group, &self.codes[row * bytes..(row + 1) * bytes], &scales, out);
    }
}

/// The elements of our groups for groups of another program.
fn own_group(columns: usize, group: usize) -> Result<usize> {
    if group == 0 || columns == 0 || !columns.is_multiple_of(group) {
        return Err(Error::unsupported(format!("groups of {group} in {columns} columns")).in_field("group"));
    }
    let own = GROUPS.into_iter().find(|own| group.is_multiple_of(*own));
    own.ok_or_else(|| Error::unsupported(format!("groups of {group}; multiples of 16 are possible")).in_field("group"))
}

/// The elements of a matrix, if its codes can be addressed one in each byte.
fn elements([rows, columns]: [usize; 2]) -> Result<usize> {
    let elements = rows.checked_mul(columns).filter(|elements| (1..=isize::MAX as usize / 8).contains(elements));
    elements.ok_or_else(|| Error::corrupt(format!("{rows} rows of {columns}")).in_field("rows"))
}

/// # Errors
/// `Corrupt` for another length than the one that shape and width need.
fn check_length(field: &str, found: usize, wanted: usize) -> Result<()> {
    if found == wanted {
        Ok(())
    } else {
        Err(Error::corrupt(format!("{found} instead of {wanted} bytes or numbers")).in_field(field))
    }
}

/// The offset `(middle − zero) · scale` of each group; `None` if all zero points are the middle.
///
/// # Errors
/// `Unsupported` for scales with more digits than elements can keep beside an offset.
fn offsets_of(width: Width, zeros: &[u16], scales: &[f32]) -> Result<Option<Vec<f32>>> {
    let middle = u16::from(width.middle());
    if zeros.iter().all(|zero| *zero == middle) {
        return Ok(None);
    }
    // With 16 binary digits, `(code − middle) · scale`, the offset and their sum have at most the 24 of float32.
    if scales.iter().any(|scale| scale.is_finite() && scale.to_bits() & 0xff != 0) {
        let message = "float32 scales beside zero points: elements would be rounded twice";
        return Err(Error::unsupported(message).in_field("scales"));
    }
    let offset = |(zero, scale): (&u16, &f32)| (f32::from(middle) - f32::from(*zero)) * scale;
    Ok(Some(zeros.iter().zip(scales).map(offset).collect()))
}

fn bytes_of(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_bits().to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// The word number `at` of a tensor of 32-bit words.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.as_chunks::<4>().0[at..].first().map_or(0, |word| u32::from_le_bytes(*word))
}
