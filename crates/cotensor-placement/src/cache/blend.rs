use crate::trace::TensorIndex;

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
    kept: Kept,
    capacity_bytes: u64,
    clock: f64,
}

impl Blend {
    /// A cache for `capacity_bytes`. It keeps a tensor that is larger alone, while it is the last one used.
    pub fn new(capacity_bytes: u64) -> Self {
        let trials = HALF_LIVES.iter().map(|&half_life| Trial::new(half_life)).collect();
        Self { trials, followed: 0, kept: Kept::default(), capacity_bytes, clock: 0.0 }
    }

    /// Whether `tensor` is kept.
    pub fn contains(&self, tensor: TensorIndex) -> bool {
        self.kept.contains(tensor)
    }

    /// Notes a use of `tensor` of `size_bytes`, which is kept from now on. Returns the tensors that give way.
    pub fn used(&mut self, tensor: TensorIndex, size_bytes: u64) -> Vec<TensorIndex> {
        self.clock += 1.0;
        for trial in &mut self.trials {
            trial.used(tensor, size_bytes, self.clock, self.capacity_bytes);
        }
        let best =
            (0..self.trials.len()).max_by(|&left, &right| self.trials[left].hits.total_cmp(&self.trials[right].hits));
        if let Some(best) = best.filter(|&best| self.trials[best].hits > self.trials[self.followed].hits * BETTER) {
            self.followed = best;
        }
        let values = &self.trials[self.followed].values;
        self.kept.keep(tensor, size_bytes, self.capacity_bytes, values)
    }

    /// The least valuable of `tensors`; those that are not kept come first.
    pub(crate) fn least(&self, tensors: impl Iterator<Item = TensorIndex>) -> Option<TensorIndex> {
        let values = &self.trials[self.followed].values;
        tensors.min_by(|&left, &right| {
            let kept = self.contains(left).cmp(&self.contains(right));
            kept.then_with(|| value(values, left).total_cmp(&value(values, right)))
        })
    }
}

/// The value of a tensor; the least for one that was never used.
fn value(values: &[f64], tensor: TensorIndex) -> f64 {
    values.get(tensor).copied().unwrap_or(f64::NEG_INFINITY)
}

/// The tensors of a cache.
#[derive(Clone, Debug, Default)]
struct Kept {
    /// Size of each tensor that is kept.
    sizes: Vec<Option<u64>>,
    bytes: u64,
}

impl Kept {
    fn contains(&self, tensor: TensorIndex) -> bool {
        self.sizes.get(tensor).is_some_and(Option::is_some)
    }

    /// Keeps `tensor`, and removes those of the least value until the others fit beside it. Returns these.
    fn keep(&mut self, tensor: TensorIndex, size_bytes: u64, capacity: u64, values: &[f64]) -> Vec<TensorIndex> {
        if tensor >= self.sizes.len() {
            self.sizes.resize(tensor + 1, None);
        }
        if self.sizes[tensor].replace(size_bytes).is_none() {
            self.bytes += size_bytes;
        }
        let mut gone = Vec::new();
        while self.bytes > capacity {
            let others = (0..self.sizes.len()).filter(|&other| self.contains(other) && other != tensor);
            let least = others.min_by(|&left, &right| value(values, left).total_cmp(&value(values, right)));
            let Some(least) = least else { break };
            self.bytes -= self.sizes[least].take().unwrap_or(0);
            gone.push(least);
        }
        gone
    }
}

/// A cache by one blend of recency and frequency, on names.
#[derive(Clone, Debug)]
struct Trial {
    half_life: f64,
    /// Logarithm of the sum over all uses of 2^(time of use / half-life); for no decay, the number of uses. Comparing it
    /// compares the values of tensors at any one time.
    values: Vec<f64>,
    kept: Kept,
    /// Hits, those of the past weighted less.
    hits: f64,
}

impl Trial {
    fn new(half_life: f64) -> Self {
        Self { half_life, values: Vec::new(), kept: Kept::default(), hits: 0.0 }
    }

    fn used(&mut self, tensor: TensorIndex, size_bytes: u64, clock: f64, capacity: u64) {
        if tensor >= self.values.len() {
            self.values.resize(tensor + 1, f64::NEG_INFINITY);
        }
        let before = self.values[tensor];
        self.values[tensor] = if self.half_life.is_infinite() {
            before.max(0.0) + 1.0
        } else {
            let now = clock / self.half_life;
            now + (1.0 + (before - now).exp2()).log2()
        };
        self.hits *= 1.0 - 1.0 / MEMORY;
        if self.kept.contains(tensor) {
            self.hits += 1.0;
            return;
        }
        self.kept.keep(tensor, size_bytes, capacity, &self.values);
    }
}
