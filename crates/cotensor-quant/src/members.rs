//! A quantized matrix as tensors: the members of one group of the store.

use crate::scales::{Parts, Scales};
use crate::spec::{QuantSpec, SUPER_GROUP, Scheme};
use crate::tensor::QuantTensor;
use cotensor_core::{ContentHash, DType, Error, Result};
use rten_simd::f16;
use std::borrow::Cow;

/// A tensor of a quantized matrix. Its bytes are little-endian.
#[derive(Clone, Debug, PartialEq)]
pub struct Member<'a> {
    /// `codes`, `scales`, `offsets`, `minimums` or `multiples`.
    pub name: &'static str,
    /// `uint8` or `float16`.
    pub dtype: DType,
    /// The dimensions, in elements.
    pub shape: Vec<usize>,
    /// The elements.
    pub bytes: Cow<'a, [u8]>,
}

/// Name, dtype and shape of the tensors of a matrix, `codes` first.
fn shapes(spec: &QuantSpec, rows: usize, columns: usize) -> Vec<(&'static str, DType, Vec<usize>)> {
    let groups = columns / spec.group();
    let mut found = vec![("codes", DType::U8, vec![rows, groups, spec.width().bytes(spec.group())])];
    let mut halves = |name, of_row| found.push((name, DType::F16, vec![rows, of_row]));
    if spec.scheme() == Scheme::TwoLevel {
        let (kind, supers) = (Parts::of(spec), columns / SUPER_GROUP);
        halves("scales", supers);
        if kind.minimums {
            halves("minimums", supers);
        }
        found.push(("multiples", DType::U8, vec![rows, supers, kind.bytes()]));
    } else {
        halves("scales", groups);
        if spec.scheme() == Scheme::Affine {
            halves("offsets", groups);
        }
    }
    found
}

impl QuantTensor {
    /// The tensors of which the matrix consists, `codes` first.
    pub fn members(&self) -> Vec<Member<'_>> {
        let halves = |values: &[f16]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect();
            Cow::Owned(bytes)
        };
        let member = |(name, dtype, shape)| {
            let bytes = match (name, self.scales()) {
                ("scales", Scales::Flat { scales, .. } | Scales::TwoLevel { scales, .. }) => halves(scales),
                ("offsets", Scales::Flat { offsets: Some(values), .. })
                | ("minimums", Scales::TwoLevel { minimums: Some(values), .. }) => halves(values),
                ("multiples", Scales::TwoLevel { parts, .. }) => Cow::Borrowed(&parts[..]),
                _ => Cow::Borrowed(self.codes()),
            };
            Member { name, dtype, shape, bytes }
        };
        shapes(self.spec(), self.rows(), self.columns()).into_iter().map(member).collect()
    }

    /// The matrix of these tensors, in any order.
    ///
    /// # Errors
    /// `Invalid`, with the tensor's name as the field, for one that is missing, unknown, twice there, of another dtype, shape or length, and
    /// for scales that are not finite.
    pub fn from_members(spec: &QuantSpec, rows: usize, columns: usize, members: &[Member<'_>]) -> Result<Self> {
        Self::count(rows, columns, spec)?;
        let wanted = shapes(spec, rows, columns);
        for member in members {
            let Some((_, dtype, shape)) = wanted.iter().find(|(name, ..)| *name == member.name) else {
                return Err(Error::invalid("not a tensor of this matrix").in_field(member.name));
            };
            let is_wanted = member.dtype == *dtype && member.shape == *shape;
            let len = shape.iter().product::<usize>() * dtype.size_bytes();
            if !is_wanted || member.bytes.len() != len {
                let message = format!(
                    "{} {:?} of {} bytes instead of {dtype} {shape:?} of {len}",
                    member.dtype,
                    member.shape,
                    member.bytes.len()
                );
                return Err(Error::invalid(message).in_field(member.name));
            }
        }
        if let Some((name, ..)) =
            wanted.iter().find(|(name, ..)| members.iter().filter(|member| member.name == *name).count() != 1)
        {
            return Err(Error::invalid("expected once").in_field(*name));
        }
        let mut tensor = Self::zeros(rows, columns, spec)?;
        for member in members {
            tensor.fill(member)?;
        }
        Ok(tensor)
    }

    fn fill(&mut self, member: &Member<'_>) -> Result<()> {
        let (codes, scales) = self.parts_mut();
        let halves = match (member.name, scales) {
            ("codes", _) => {
                codes.copy_from_slice(&member.bytes);
                return Ok(());
            }
            ("multiples", Scales::TwoLevel { parts, .. }) => {
                parts.copy_from_slice(&member.bytes);
                return Ok(());
            }
            ("scales", Scales::Flat { scales, .. } | Scales::TwoLevel { scales, .. }) => Some(scales),
            ("offsets", Scales::Flat { offsets: values, .. })
            | ("minimums", Scales::TwoLevel { minimums: values, .. }) => values.as_mut(),
            _ => None,
        };
        for (half, bytes) in halves.into_iter().flatten().zip(member.bytes.as_chunks().0) {
            *half = f16::from_bits(u16::from_le_bytes(*bytes));
            if !half.to_f32().is_finite() {
                return Err(Error::invalid(format!("{half:?} is not finite")).in_field(member.name));
            }
        }
        Ok(())
    }

    /// The hash of width, group, scheme, shape and all bytes.
    pub fn hash(&self) -> ContentHash {
        let spec = self.spec();
        let text =
            format!("{} {} {} {}×{}\n", spec.width().bits(), spec.group(), spec.scheme(), self.rows(), self.columns());
        let members = self.members();
        let parts = std::iter::once(text.as_bytes()).chain(members.iter().map(|member| &*member.bytes));
        let hashes: Vec<u8> = parts.flat_map(|bytes| *ContentHash::of(bytes).as_bytes()).collect();
        ContentHash::of(&hashes)
    }
}
