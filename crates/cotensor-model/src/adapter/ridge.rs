//! Ridge regression from the moments of the data. The moments take the memory of a few matrices for any number of rows.

use super::map::LinearMap;
use cotensor_core::{Error, ErrorKind, Result};
use nalgebra::{Cholesky, DMatrix, DVector};

/// The sums from which a linear map is fitted and its squared error computed: of rows `x` with `inputs` elements, and
/// rows `y` with `outputs` elements.
#[derive(Clone)]
pub(super) struct Moments {
    rows: usize,
    /// The sum of x, `[inputs]`.
    x: DVector<f64>,
    /// The sum of y, `[outputs]`.
    y: DVector<f64>,
    /// The sum of x xᵀ, `[inputs, inputs]`.
    xx: DMatrix<f64>,
    /// The sum of x yᵀ, `[inputs, outputs]`.
    xy: DMatrix<f64>,
    /// The sum of |y|².
    yy: f64,
}

impl Moments {
    pub(super) fn new(inputs: usize, outputs: usize) -> Self {
        Self {
            rows: 0,
            x: DVector::zeros(inputs),
            y: DVector::zeros(outputs),
            xx: DMatrix::zeros(inputs, inputs),
            xy: DMatrix::zeros(inputs, outputs),
            yy: 0.0,
        }
    }

    /// Adds the rows of `x`, `[rows, inputs]`, and `y`, `[rows, outputs]`, both row-major.
    ///
    /// # Panics
    /// When the slices have different numbers of rows.
    pub(super) fn add(&mut self, x: &[f32], y: &[f32]) {
        let (inputs, outputs) = (self.x.len(), self.y.len());
        let rows = x.len() / inputs;
        assert!(x.len() == rows * inputs && y.len() == rows * outputs, "x and y have the same number of rows");
        // A column of these matrices is a row of the data.
        let x = DMatrix::from_iterator(inputs, rows, x.iter().map(|&value| f64::from(value)));
        let y = DMatrix::from_iterator(outputs, rows, y.iter().map(|&value| f64::from(value)));
        self.rows += rows;
        self.x += x.column_sum();
        self.y += y.column_sum();
        self.xx.gemm(1.0, &x, &x.transpose(), 1.0);
        self.xy.gemm(1.0, &x, &y.transpose(), 1.0);
        self.yy += y.norm_squared();
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// The moments of the rows of both.
    pub(super) fn plus(mut self, other: &Self) -> Self {
        self.rows += other.rows;
        self.x += &other.x;
        self.y += &other.y;
        self.xx += &other.xx;
        self.xy += &other.xy;
        self.yy += other.yy;
        self
    }

    /// The mean of y, `[outputs]`.
    pub(super) fn mean(&self) -> DVector<f64> {
        &self.y / self.rows as f64
    }

    /// The map with the least squared error plus `strength` times the mean variance of an input times the squared
    /// weights. The bias is not penalized.
    ///
    /// # Errors
    /// `Invalid` without rows, `Engine` when the matrix is not positive definite: the strength is too small for rows
    /// that are linearly dependent.
    pub(super) fn ridge(&self, strength: f64) -> Result<LinearMap> {
        if self.rows == 0 {
            return Err(Error::invalid("no rows to fit"));
        }
        let rows = self.rows as f64;
        let (mean_x, mean_y) = (&self.x / rows, self.mean());
        let mut covariance = &self.xx - &self.x * mean_x.transpose();
        let cross = &self.xy - &self.x * mean_y.transpose();
        let penalty = strength * (covariance.trace() / self.x.len() as f64).max(f64::MIN_POSITIVE);
        for index in 0..self.x.len() {
            covariance[(index, index)] += penalty;
        }
        let factors = Cholesky::new(covariance).ok_or_else(|| {
            Error::new(ErrorKind::Engine, format!("the regression of strength {strength:e} has no unique solution"))
        })?;
        let weight = factors.solve(&cross);
        let bias = mean_y - weight.transpose() * mean_x;
        LinearMap::new(&weight, &bias)
    }

    /// The sum of |y − map(x)|² over all rows.
    pub(super) fn squared_error(&self, map: &LinearMap) -> f64 {
        let (weight, bias) = map.matrices();
        let rows = self.rows as f64;
        // |y − Wᵀx − b|², with b applied to y.
        let centered_xy = &self.xy - &self.x * bias.transpose();
        let centered_yy = self.yy - 2.0 * bias.dot(&self.y) + rows * bias.norm_squared();
        (centered_yy - 2.0 * weight.dot(&centered_xy) + weight.dot(&(&self.xx * &weight))).max(0.0)
    }

    /// The sum of |y − value|² over all rows.
    pub(super) fn squared_distance(&self, value: &DVector<f64>) -> f64 {
        (self.yy - 2.0 * value.dot(&self.y) + self.rows as f64 * value.norm_squared()).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` rows of `width` elements in -1..1 that look random.
    fn rows(count: usize, width: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count * width).map(|_| next()).collect()
    }

    fn linear(x: &[f32]) -> Vec<f32> {
        x.chunks_exact(3).flat_map(|x| [2.0 * x[0] - x[1] + 0.5, x[2] - 3.0]).collect()
    }

    #[test]
    fn linear_relation_is_recovered() {
        let mut moments = Moments::new(3, 2);
        for seed in 0..4 {
            let x = rows(25, 3, seed);
            moments.add(&x, &linear(&x));
        }
        assert_eq!(moments.rows(), 100);
        let map = moments.ridge(1e-9).unwrap();
        let test = rows(10, 3, 99);
        let (given, expected) = (map.apply(&test), linear(&test));
        for (given, expected) in given.iter().zip(&expected) {
            assert!((given - expected).abs() < 1e-5, "{given} {expected}");
        }
        assert!(moments.squared_error(&map) < 1e-8);
        assert!(moments.squared_distance(&moments.mean()) > 10.0);
    }

    #[test]
    fn squared_error_equals_the_sum_over_rows() {
        let (x, y) = (rows(40, 3, 5), rows(40, 2, 6));
        let mut moments = Moments::new(3, 2);
        moments.add(&x, &y);
        for strength in [1e-6, 0.1, 10.0] {
            let map = moments.ridge(strength).unwrap();
            let direct: f64 = map.apply(&x).iter().zip(&y).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            assert!((moments.squared_error(&map) - direct).abs() < 1e-4 * direct, "{strength}");
        }
        // A stronger penalty gives smaller weights and a larger error on the same rows.
        let error = |strength| moments.squared_error(&moments.ridge(strength).unwrap());
        assert!(error(1e-6) < error(0.1) && error(0.1) < error(10.0));
        let both = moments.clone().plus(&moments);
        assert_eq!(both.rows(), 80);
        assert!((both.squared_error(&moments.ridge(0.1).unwrap()) - 2.0 * error(0.1)).abs() < 1e-6 * error(0.1));
    }

    #[test]
    fn dependent_columns_need_a_penalty() {
        let x: Vec<f32> = rows(50, 1, 1).iter().flat_map(|&value| [value, value]).collect();
        let y: Vec<f32> = x.chunks_exact(2).map(|x| 4.0 * x[0]).collect();
        let mut moments = Moments::new(2, 1);
        moments.add(&x, &y);
        let map = moments.ridge(1e-6).unwrap();
        assert!((map.apply(&[1.0, 1.0])[0] - 4.0).abs() < 1e-3);
        assert!(Moments::new(2, 1).ridge(1.0).is_err());
    }
}
