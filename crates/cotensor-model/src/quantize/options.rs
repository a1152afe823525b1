use super::plan::Form;
use crate::graph::{LowBits, Matrix};
use cotensor_core::{DType, Error, Hasher, Result};
use cotensor_quant::{GROUPS, QuantSpec, Scheme, Width};
use std::str::FromStr;

/// The largest block of a rotation.
const ROTATION_MAX: usize = 128;

/// The type of a product's other factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// `float32` for codes of 3 and 4 bits; 8 bits for codes of 2 and 8 bits, which onnxruntime expands for each run otherwise.
    #[default]
    Auto,
    /// `float32`.
    Float32,
    /// Codes of 8 bits, rounded in groups while a product runs.
    Int8,
}

impl Activations {
    /// The attribute of `MatMulNBits` for codes of a width.
    pub(super) fn accuracy_level(self, width: Width) -> i64 {
        let is_int8 = match self {
            Self::Auto => matches!(width, Width::Two | Width::Eight),
            Self::Float32 => false,
            Self::Int8 => true,
        };
        if is_int8 { 4 } else { 0 }
    }
}

impl FromStr for Activations {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "float32" => Ok(Self::Float32),
            "int8" => Ok(Self::Int8),
            _ => Err(Error::invalid(format!("{name:?}; auto, float32 and int8 are possible")).in_field("activations")),
        }
    }
}

/// How weights are quantized.
#[derive(Clone, Debug)]
pub struct QuantizeOptions {
    /// Bits of a code.
    pub width: Width,
    /// The most elements of a group: 16 to 256. With `mixed_bits`, matrices may have larger ones, up to 128.
    pub group: usize,
    /// How scales are fitted. `TwoLevel` is not possible: see [`check_scheme`].
    pub scheme: Scheme,
    /// Whether the rows of each matrix are rotated in blocks of at most 128 by Hadamard's matrix, which spreads outliers. Products rotate
    /// their other factor, too.
    pub rotates: bool,
    /// The type of the other factor.
    pub activations: Activations,
    /// Weights whose names contain one of these texts stay as they are.
    pub keep: Vec<String>,
    /// Each matrix has a width and groups of its own, so that all have at most this number of bits for a weight, with scales. Needs samples.
    pub mixed_bits: Option<f64>,
    /// In place of `width`, the smallest one for which the outputs of each graph have at most this relative error on held-out samples. Needs samples.
    pub max_error: Option<f64>,
}

impl QuantizeOptions {
    /// # Errors
    /// `Invalid`, with the field, for a group, a scheme, a number of bits or an error that is not possible, and for an empty text.
    pub fn check(&self) -> Result<()> {
        check_scheme(self.scheme)?;
        if self.mixed_bits.is_some_and(|bits| !(2.0..=16.0).contains(&bits)) {
            return Err(Error::invalid("2 to 16 bits for a weight are possible").in_field("target-bits"));
        }
        if self.max_error.is_some_and(|error| error.is_nan() || error <= 0.0) {
            return Err(Error::invalid("a positive error is needed").in_field("max-error"));
        }
        if self.max_error.is_some() && self.mixed_bits.is_some() {
            return Err(Error::invalid("a number of bits and an error exclude each other").in_field("max-error"));
        }
        if self.keep.iter().any(String::is_empty) {
            return Err(Error::invalid("an empty text is in all names").in_field("keep"));
        }
        QuantSpec::new(self.width, self.group, self.scheme).map(|_| ())
    }

    /// Adds all options to the key of a copy.
    pub(super) fn add_to(&self, hasher: &mut Hasher) {
        let Self { width, group, scheme, rotates, activations, keep, mixed_bits, max_error } = self;
        hasher.number(u64::from(width.bits())).number(*group as u64).field(scheme.name().as_bytes());
        hasher.number(u64::from(*rotates)).number(*activations as u64).number(keep.len() as u64);
        for text in keep {
            hasher.field(text.as_bytes());
        }
        for number in [mixed_bits, max_error] {
            hasher.field(number.map(f64::to_le_bytes).as_ref().map_or(&[][..], |bytes| bytes));
        }
    }

    /// The form of a matrix that has none of its own.
    pub(super) fn form(&self) -> Form {
        Form { width: self.width, group: self.group }
    }

    /// How a matrix is quantized in a form.
    ///
    /// # Errors
    /// The reason why it stays as it is.
    pub(super) fn of_matrix(
        &self,
        names: &[&str],
        matrix: &Matrix,
        form: Form,
    ) -> std::result::Result<QuantSpec, String> {
        if let Some(text) = kept_by(&self.keep, names) {
            return Err(format!("--keep {text}"));
        }
        self.spec(matrix, form).map_err(|error| error.message().to_owned())
    }

    /// The same, also for a matrix to keep.
    ///
    /// # Errors
    /// `Unsupported` for columns without groups, as [`QuantSpec::new`].
    pub(super) fn spec(&self, matrix: &Matrix, form: Form) -> Result<QuantSpec> {
        let group = GROUPS.into_iter().find(|&group| group <= form.group && matrix.columns.is_multiple_of(group));
        let without = || Error::unsupported(format!("{} columns are not a multiple of 16", matrix.columns));
        QuantSpec::new(form.width, group.ok_or_else(without)?, self.scheme)
    }

    /// The reason why a matrix with elements of at most `largest` stays as it is, if the nearest `float16` to each of its scales is zero: the
    /// smallest other one, 2⁻²⁴, is twice as large as the scale or more.
    pub(super) fn too_small(&self, spec: &QuantSpec, largest: f32) -> Option<String> {
        // Any width is possible if each matrix has its own.
        let width = if self.mixed_bits.is_some() { Width::Eight } else { spec.width() };
        let limit = f32::from(width.middle()) * (-25.0f32).exp2();
        (0.0 < largest && largest < limit).then(|| {
            format!(
                "its elements are at most {largest:.1e}: scales in float16 are too coarse for codes of {} bits",
                width.bits()
            )
        })
    }

    /// The block of the rotation of a matrix with these columns, if it is rotated.
    pub(super) fn rotation(&self, columns: usize) -> Option<usize> {
        self.rotates.then(|| 1 << columns.trailing_zeros().min(ROTATION_MAX.trailing_zeros()))
    }

    pub(super) fn low_bits(&self, spec: &QuantSpec, columns: usize) -> LowBits {
        LowBits {
            bits: spec.width().bits(),
            group: spec.group(),
            scales: DType::F16,
            offsets: (spec.scheme() == Scheme::Affine).then_some(DType::F16),
            rotation: self.rotation(columns),
            accuracy_level: self.activations.accuracy_level(spec.width()),
        }
    }
}

/// # Errors
/// `Unsupported` for `two_level`.
pub fn check_scheme(scheme: Scheme) -> Result<()> {
    if scheme == Scheme::TwoLevel {
        let message = "two_level is for programs that read its codes themselves: engines read one scale for each group, so a model would \
                       take the memory of smaller groups; affine, with --group 16 or 32, has the smaller errors for that";
        return Err(Error::unsupported(message).in_field("scheme"));
    }
    Ok(())
}

/// The first text that one of the names contains.
pub(super) fn kept_by<'t>(keep: &'t [String], names: &[&str]) -> Option<&'t str> {
    keep.iter().map(String::as_str).find(|text| names.iter().any(|name| name.contains(text)))
}
