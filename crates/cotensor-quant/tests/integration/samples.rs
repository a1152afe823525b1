//! Seeded weights.

/// Numbers of a seeded sequence (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From 0 (excluded) to 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ bits >> 31) >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (2.0 * std::f64::consts::PI * self.unit()).cos()
    }
}

/// Normally distributed weights of mean 0 and variance 1.
pub(crate) fn normal(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.normal() as f32).collect()
}

/// Weights of Student's t distribution with four degrees of freedom, which has outliers.
pub(crate) fn student(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut one = || {
        let chi: f64 = (0..4).map(|_| random.normal().powi(2)).sum();
        (random.normal() / (chi / 4.0).sqrt()) as f32
    };
    (0..count).map(|_| one()).collect()
}
