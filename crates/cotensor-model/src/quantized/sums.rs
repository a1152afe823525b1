//! What is known of the matrices of codes of a stage, in sums.

/// Sums over matrices of codes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CodedSums {
    elements: f64,
    stored_bits: f64,
    /// The bytes in the store.
    pub(crate) run_bytes: f64,
    /// Of each matrix with a known error: its elements, and these times the squared error.
    weights: [f64; 2],
    layers: [f64; 2],
}

impl CodedSums {
    /// Adds a matrix, but for its bytes in the store.
    pub(crate) fn add(&mut self, elements: f64, stored_bits: f64, weights: Option<f64>, layers: Option<f64>) {
        self.elements += elements;
        self.stored_bits += elements * stored_bits;
        for ([count, sum], error) in [(&mut self.weights, weights), (&mut self.layers, layers)] {
            if let Some(error) = error {
                *count += elements;
                *sum += elements * error.powi(2);
            }
        }
    }

    /// The sums of both; `None` if neither has a matrix.
    pub(crate) fn of_both(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (Some(one), Some(other)) = (one, other) else { return one.or(other) };
        let sum = |one: [f64; 2], other: [f64; 2]| [one[0] + other[0], one[1] + other[1]];
        Some(Self {
            elements: one.elements + other.elements,
            stored_bits: one.stored_bits + other.stored_bits,
            run_bytes: one.run_bytes + other.run_bytes,
            weights: sum(one.weights, other.weights),
            layers: sum(one.layers, other.layers),
        })
    }

    /// The mean bits of an element in the file, with its part of scales and offsets.
    pub(crate) fn stored_bits(&self) -> f64 {
        self.stored_bits / self.elements
    }

    /// The same in the store.
    pub(crate) fn run_bits(&self) -> f64 {
        self.run_bytes * 8.0 / self.elements
    }

    /// The root of the mean squared error of weights, and of the results of products; `None` where no error is known.
    pub(crate) fn errors(&self) -> [Option<f64>; 2] {
        [self.weights, self.layers].map(|[elements, sum]| (elements > 0.0).then(|| (sum / elements).sqrt()))
    }
}
