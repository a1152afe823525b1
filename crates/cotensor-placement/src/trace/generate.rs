use super::trace::{Operation, Tensor, Trace};
use crate::random::Random;
use crate::time::Nanos;
use cotensor_core::Result;

/// A trace of `count` operations, each with a tensor of its own of `size_bytes` and `compute_ns` on the device.
///
/// # Errors
/// Those of [`Trace::new`].
pub fn cyclic(count: usize, size_bytes: u64, compute_ns: Nanos) -> Result<Trace> {
    let tensors = (0..count).map(|index| Tensor { id: format!("w{index}"), size_bytes }).collect();
    let operation = |index| Operation {
        name: format!("op{index}"),
        uses: vec![index],
        writes: Vec::new(),
        compute_ns,
        cpu_ns: None,
        workspace_bytes: 0,
    };
    Trace::new(tensors, (0..count).map(operation).collect(), 1)
}

/// The choices of a router of experts, without end.
///
/// Published traces of routers have little popularity and much recency: a list of the hottest tenth of the experts
/// serves about a tenth of the choices, while the half that was used last serves far more than half. So the next expert
/// is found by its age: with the chance `recent`, it is one of the younger half of the experts by their last use, each
/// equally likely; otherwise one of the older half.
#[derive(Clone, Debug)]
pub struct Routing {
    /// Experts, last used first.
    by_age: Vec<usize>,
    recent: f64,
    random: Random,
}

impl Routing {
    /// The choices among `experts` (at least 2) with the seed `seed`.
    pub fn new(experts: usize, recent: f64, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut by_age: Vec<_> = (0..experts.max(2)).collect();
        for last in (1..by_age.len()).rev() {
            by_age.swap(last, random.below(last + 1));
        }
        Self { by_age, recent, random }
    }
}

impl Iterator for Routing {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let half = self.by_age.len() / 2;
        let age = if self.random.chance(self.recent) {
            self.random.below(half)
        } else {
            half + self.random.below(self.by_age.len() - half)
        };
        let expert = self.by_age.remove(age);
        self.by_age.insert(0, expert);
        Some(expert)
    }
}
