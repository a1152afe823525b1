//! Dense layers and layer normalization, in float32.

use cotensor_core::{ContentHash, Error, Result};
use std::fmt;
use std::sync::Arc;

/// What PyTorch's LayerNorm adds to the variance.
const EPSILON: f32 = 1e-5;
/// The number of partial sums of a scalar product, so that the compiler uses vector instructions.
const LANES: usize = 8;

/// The weights of a module. Their hash stands for them where settings are hashed.
#[derive(Clone)]
pub(super) struct Weights {
    pub(super) values: Arc<[f32]>,
    hash: ContentHash,
}

impl Weights {
    pub(super) fn of(values: Vec<f32>) -> Self {
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { hash: ContentHash::of(&raw), values: values.into() }
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.values.len(), self.hash)
    }
}

/// `activation(weight x + bias)`.
#[derive(Clone, Debug)]
pub(super) struct Dense {
    /// The module's folder, for error messages.
    pub(super) folder: String,
    /// The width of the vectors that it reads.
    pub(super) reads: usize,
    /// A row of `reads` numbers for each number that it gives.
    pub(super) weight: Weights,
    pub(super) bias: Option<Weights>,
    pub(super) activation: Activation,
}

/// `(x - mean) / sqrt(variance + EPSILON) * weight + bias`.
#[derive(Clone, Debug)]
pub(super) struct LayerNorm {
    /// The module's folder, for error messages.
    pub(super) folder: String,
    pub(super) weight: Weights,
    pub(super) bias: Weights,
}

/// A function of single numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    Identity,
    Tanh,
    Relu,
    Sigmoid,
    Silu,
}

/// The classes of PyTorch, as `activation_function` names them.
const ACTIVATIONS: [(&str, Activation); 5] = [
    ("torch.nn.modules.linear.Identity", Activation::Identity),
    ("torch.nn.modules.activation.Tanh", Activation::Tanh),
    ("torch.nn.modules.activation.ReLU", Activation::Relu),
    ("torch.nn.modules.activation.Sigmoid", Activation::Sigmoid),
    ("torch.nn.modules.activation.SiLU", Activation::Silu),
];

impl Activation {
    /// The function of this class: the full name, or `torch.nn` and the last part.
    pub(super) fn named(class: &str) -> Option<Self> {
        let last = |name: &str| name.rsplit('.').next().map(str::to_owned);
        let is_named = |(known, _): &&(&str, Self)| {
            *known == class
                || class.strip_prefix("torch.nn.").is_some_and(|short| last(known).as_deref() == Some(short))
        };
        ACTIVATIONS.iter().find(is_named).map(|(_, function)| *function)
    }

    /// The known classes, for error messages.
    pub(super) fn names() -> String {
        ACTIVATIONS.map(|(name, _)| name).join(", ")
    }

    fn of(self, value: f32) -> f32 {
        let sigmoid = |value: f32| 1.0 / (1.0 + (-value).exp());
        match self {
            Self::Identity => value,
            Self::Tanh => value.tanh(),
            Self::Relu => value.max(0.0),
            Self::Sigmoid => sigmoid(value),
            Self::Silu => value * sigmoid(value),
        }
    }
}

impl Dense {
    pub(super) fn apply(&self, vector: &[f32]) -> Result<Vec<f32>> {
        check_width(&self.folder, "in_features", self.reads, vector)?;
        let rows = self.weight.values.chunks_exact(self.reads).map(|row| dot(row, vector));
        let bias = |at: usize| self.bias.as_ref().map_or(0.0, |bias| bias.values[at]);
        Ok(rows.enumerate().map(|(at, sum)| self.activation.of(sum + bias(at))).collect())
    }
}

impl LayerNorm {
    pub(super) fn apply(&self, vector: &[f32]) -> Result<Vec<f32>> {
        check_width(&self.folder, "dimension", self.weight.values.len(), vector)?;
        let count = vector.len() as f32;
        let mean = vector.iter().sum::<f32>() / count;
        let variance = vector.iter().map(|value| (value - mean) * (value - mean)).sum::<f32>() / count;
        let scale = 1.0 / (variance + EPSILON).sqrt();
        let parameters = self.weight.values.iter().zip(&*self.bias.values);
        Ok(vector
            .iter()
            .zip(parameters)
            .map(|(value, (weight, bias))| (value - mean) * scale * weight + bias)
            .collect())
    }
}

fn check_width(folder: &str, field: &str, width: usize, vector: &[f32]) -> Result<()> {
    if vector.len() == width {
        return Ok(());
    }
    Err(Error::invalid(format!("{folder} reads vectors of {width} numbers, and these have {}", vector.len()))
        .in_field(field))
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (rows, ends) = (a.chunks_exact(LANES).zip(b.chunks_exact(LANES)), a.len() / LANES * LANES);
    let mut sums = [0f32; LANES];
    for (a, b) in rows {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + a[ends..].iter().zip(&b[ends..]).map(|(a, b)| a * b).sum::<f32>()
}
