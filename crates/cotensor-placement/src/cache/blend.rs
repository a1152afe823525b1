use std::collections::BTreeSet;

/// How long a use counts: after this many uses of any tensor, it counts half. From the last use alone (recency) to all
/// uses alike (frequency).
const HALF_LIVES: [f64; 5] = [1.0, 64.0, 512.0, 4096.0, f64::INFINITY];
/// Uses after which a hit of a trial counts half.
const MEMORY: f64 = 4096.0;
/// The followed trial changes when another one is better by this factor, so that small differences change nothing.
const BETTER: f64 = 1.01;

/// Keeps the tensors with the most valuable recent uses, where programs choose tensors by their data, such as the
/// experts of a mixture.
///
/// Whether recency or frequency predicts the next choice differs between models, so several blends of both run as trials
/// beside the real cache, on names alone, and the cache follows the best one. After LRFU (Lee et al., 2001).
#[derive(Clone, Debug)]
pub struct Blend {
    trials: Vec<Trial>,
    followed: usize,
    /// What is kept, which differs from every trial after a change of the followed one.
    kept: BTreeSet<usize>,
    capacity: usize,
    clock: f64,
}

impl Blend {
    /// A cache with room for `capacity` tensors (at least 1) of equal size.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        let trials = HALF_LIVES.iter().map(|&half_life| Trial::new(half_life)).collect();
        Self { trials, followed: 0, kept: BTreeSet::new(), capacity, clock: 0.0 }
    }

    /// Whether `tensor` is kept.
    pub fn contains(&self, tensor: usize) -> bool {
        self.kept.contains(&tensor)
    }

    /// Notes a use of `tensor`, which is kept from now on. Returns the tensor that gives way, if one does.
    pub fn used(&mut self, tensor: usize) -> Option<usize> {
        self.clock += 1.0;
        for trial in &mut self.trials {
            trial.used(tensor, self.clock, self.capacity);
        }
        let best =
            (0..self.trials.len()).max_by(|&left, &right| self.trials[left].hits.total_cmp(&self.trials[right].hits));
        if let Some(best) = best.filter(|&best| self.trials[best].hits > self.trials[self.followed].hits * BETTER) {
            self.followed = best;
        }
        if !self.kept.insert(tensor) || self.kept.len() <= self.capacity {
            return None;
        }
        let trial = &self.trials[self.followed];
        let others = self.kept.iter().copied().filter(|&kept| kept != tensor);
        let victim = others.min_by(|&left, &right| trial.value(left).total_cmp(&trial.value(right)))?;
        self.kept.remove(&victim);
        Some(victim)
    }
}

/// A cache by one blend of recency and frequency, on names.
#[derive(Clone, Debug)]
struct Trial {
    half_life: f64,
    /// Logarithm of the sum over all uses of 2^(time of use / half-life); for no decay, the number of uses. Comparing it
    /// compares the values of tensors at any one time.
    values: Vec<f64>,
    /// The kept tensors.
    kept: Vec<bool>,
    count: usize,
    /// Hits, those of the past weighted less.
    hits: f64,
}

impl Trial {
    fn new(half_life: f64) -> Self {
        Self { half_life, values: Vec::new(), kept: Vec::new(), count: 0, hits: 0.0 }
    }

    fn value(&self, tensor: usize) -> f64 {
        self.values.get(tensor).copied().unwrap_or(f64::NEG_INFINITY)
    }

    fn used(&mut self, tensor: usize, clock: f64, capacity: usize) {
        if tensor >= self.values.len() {
            self.values.resize(tensor + 1, f64::NEG_INFINITY);
            self.kept.resize(tensor + 1, false);
        }
        let before = self.values[tensor];
        self.values[tensor] = if self.half_life.is_infinite() {
            before.max(0.0) + 1.0
        } else {
            let now = clock / self.half_life;
            now + (1.0 + (before - now).exp2()).log2()
        };
        self.hits *= 1.0 - 1.0 / MEMORY;
        if std::mem::replace(&mut self.kept[tensor], true) {
            self.hits += 1.0;
            return;
        }
        self.count += 1;
        if self.count > capacity {
            let kept = (0..self.kept.len()).filter(|&other| self.kept[other] && other != tensor);
            if let Some(victim) = kept.min_by(|&left, &right| self.values[left].total_cmp(&self.values[right])) {
                self.kept[victim] = false;
                self.count -= 1;
            }
        }
    }
}
