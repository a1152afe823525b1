/// How the vectors of tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooling {
    /// The vector of the first token.
    Cls,
    /// The largest value of each dimension.
    Max,
    /// The mean.
    Mean,
    /// The sum over the square root of the count.
    MeanSqrtLen,
    /// The weighted mean, with the weights 1, 2, 3 and so on.
    WeightedMean,
    /// The vector of the last token.
    LastToken,
}

/// The names in `pooling_mode` and the older flags. Several poolings are concatenated in this order.
pub(super) const POOLINGS: [(&str, &str, Pooling); 6] = [
    ("cls", "pooling_mode_cls_token", Pooling::Cls),
    ("max", "pooling_mode_max_tokens", Pooling::Max),
    ("mean", "pooling_mode_mean_tokens", Pooling::Mean),
    ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
    ("weightedmean", "pooling_mode_weightedmean_tokens", Pooling::WeightedMean),
    ("lasttoken", "pooling_mode_lasttoken", Pooling::LastToken),
];

/// The pooling of this name.
pub(super) fn pooling_named(name: &str) -> Option<Pooling> {
    POOLINGS.iter().find(|(known, ..)| *known == name).map(|(.., pooling)| *pooling)
}

/// Pools rows; each comes with its position, from 1, for the weighted mean. `None` without rows.
pub(super) fn pool_once(pooling: Pooling, rows: &[(usize, &[f32])], width: usize) -> Option<Vec<f32>> {
    let sum = |weight: fn(usize) -> f32| {
        let mut sum = vec![0f32; width];
        for (position, row) in rows {
            sum.iter_mut().zip(*row).for_each(|(sum, value)| *sum += value * weight(*position));
        }
        let weights: f32 = rows.iter().map(|(position, _)| weight(*position)).sum();
        (sum, weights)
    };
    let over = |(sum, by): (Vec<f32>, f32)| sum.into_iter().map(|value| value / by).collect::<Vec<f32>>();
    let (first, last) = (rows.first()?, rows.last()?);
    Some(match pooling {
        Pooling::Cls => first.1.to_vec(),
        Pooling::LastToken => last.1.to_vec(),
        Pooling::Max => {
            let mut largest = vec![f32::NEG_INFINITY; width];
            for (_, row) in rows {
                largest.iter_mut().zip(*row).for_each(|(largest, value)| *largest = largest.max(*value));
            }
            largest
        }
        Pooling::Mean => over(sum(|_| 1.0)),
        Pooling::MeanSqrtLen => {
            let (sum, count) = sum(|_| 1.0);
            over((sum, count.sqrt()))
        }
        Pooling::WeightedMean => over(sum(|position| position as f32)),
    })
}

/// `vector` scaled to length 1; a zero vector is unchanged.
pub fn normalized(vector: &[f32]) -> Vec<f32> {
    let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if norm == 0.0 { vector.to_vec() } else { vector.iter().map(|value| value / norm).collect() }
}
