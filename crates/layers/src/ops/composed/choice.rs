//! Expert selection on the device.

use candle_core::{DType, Device, Result, Tensor, bail};

use super::Array;
use crate::config::{ExpertGroups, RoutingConfig};
use crate::ops::{
    composed::Composed,
    experts::ExpertColumns,
    value::{Routed, Value},
};

/// Constants for expert selection on a device.
#[derive(Clone, Debug)]
pub(crate) struct Chooser {
    /// A mask `[experts, experts]` in u8: whether the column's expert precedes the row's.
    before: Array,
}

impl Chooser {
    /// The maximum expert count, limited by candle's sort.
    pub const MOST: usize = Array::SORTED;

    pub fn new(n_experts: usize, device: &Device) -> Result<Self> {
        let marks = (0..n_experts).flat_map(|i| (0..n_experts).map(move |j| u8::from(j < i)));
        let dims = [n_experts, n_experts];
        Array::upload_ids(marks.collect(), &dims, device).map(|before| Self { before })
    }

    /// Returns, for each row of scores `[rows, experts]`, the `top_k` largest, with the host's tie-breaking
    /// (`layers::routing::choose_experts`): the first among equals, and from the best groups if there are groups.
    pub fn choose(
        &self,
        scores: &Value,
        correction: Option<&Tensor>,
        config: &RoutingConfig,
    ) -> Result<ExpertColumns> {
        let Some(scores) = Composed::of(scores) else {
            bail!("scores on the CPU do not fit a selection on a device");
        };
        let mut scores = scores.view()?;
        if let Some(correction) = correction {
            scores = scores.add(&Array::of(correction).to_dtype(scores.dtype())?)?;
        }
        if let Some(groups) = config.groups {
            scores = self.of_best_groups(&scores, &groups)?;
        }
        let order = self.ranks(&scores)?.argsort()?;
        let chosen = order.narrow(1, 0, config.top_k)?.contiguous()?;
        Ok(ExpertColumns::Device(chosen))
    }

    /// Counts how many elements in the row precede each: larger ones, and equal ones to the left.
    fn ranks(&self, of: &Array) -> Result<Array> {
        let (n, last) = (of.width(), of.dims().len() - 1);
        let (each, other) = (of.unsqueeze(last + 1)?, of.unsqueeze(last)?);
        let (larger, or_equal) = (other.gt(&each)?, other.ge(&each)?);
        let before = self.before.narrow(0, 0, n)?.narrow(1, 0, n)?;
        let before = before
            .broadcast(larger.dims())?
            .select(&or_equal, &larger)?;
        let ranks = before.to_dtype(DType::F32)?.sum(last + 1)?;
        ranks.reshape(of.dims())
    }

    /// Returns the scores, with `-inf` for those outside the best groups.
    fn of_best_groups(&self, scores: &Array, groups: &ExpertGroups) -> Result<Array> {
        let (rows, n) = (scores.dims()[0], scores.width());
        let members = scores.reshape(&[rows, groups.n_groups, n / groups.n_groups])?;
        let first = |of: &Array, n: usize| {
            let ranks = self.ranks(of)?;
            ranks.lt(&ranks.full(n as f64)?)
        };
        let zeros = members.zeros(members.dims())?;
        let judged = first(&members, groups.judged_by)?.select(&members, &zeros)?;
        let judged = judged.sum(2)?.reshape(&[rows, groups.n_groups])?;
        let best = first(&judged, groups.top_groups)?.unsqueeze(2)?;
        let best = best.broadcast(members.dims())?;
        let hidden = members.full(f64::NEG_INFINITY)?;
        best.select(&members, &hidden)?.reshape(&[rows, n])
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::{config::Precision, ops::Route};

    /// Returns the largest elements' indices, the first among equals.
    fn largest(of: &[f32], n: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..of.len()).collect();
        all.sort_by(|&a, &b| of[b].total_cmp(&of[a]));
        all.truncate(n);
        all
    }

    /// Like [`Chooser::choose`], for one row.
    fn expected(scores: &[f32], correction: &[f32], config: &RoutingConfig) -> Vec<u32> {
        let sums = scores.iter().zip(correction).map(|(a, b)| a + b);
        let mut sums: Vec<f32> = sums.collect();
        if let Some(groups) = config.groups {
            let members = sums.len() / groups.n_groups;
            let judged = sums.chunks(members).map(|all| {
                let best = largest(all, groups.judged_by);
                best.into_iter().map(|i| all[i]).sum::<f32>()
            });
            let best = largest(&judged.collect::<Vec<_>>(), groups.top_groups);
            for (group, all) in sums.chunks_mut(members).enumerate() {
                if !best.contains(&group) {
                    all.fill(f32::NEG_INFINITY);
                }
            }
        }
        let chosen = largest(&sums, config.top_k);
        chosen.into_iter().map(|i| i as u32).collect()
    }

    #[test]
    fn the_largest_are_chosen_and_the_first_among_equals() {
        let mut rng = chacha20::ChaCha12Rng::seed_from_u64(14);
        let group = |n_groups, top_groups, judged_by| ExpertGroups {
            n_groups,
            top_groups,
            judged_by,
        };
        let cases = [
            (1, 1, None),
            (6, 2, None),
            (33, 7, None),
            (128, 8, None),
            (12, 3, Some(group(4, 2, 1))),
            (24, 4, Some(group(3, 2, 2))),
            (64, 8, Some(group(8, 4, 2))),
        ];
        for (n, top_k, groups) in cases {
            for levels in [3, 1 << 20] {
                // Eighths, so that sums are exact. With few levels most are equal.
                let rows = 5;
                let mut drawn = |count: usize| -> Vec<f32> {
                    let all = (0..count).map(|_| rng.random_range(0..levels) as f32 / 8.0);
                    all.collect()
                };
                let (scores, correction) = (drawn(rows * n), drawn(n));
                let config = RoutingConfig {
                    groups,
                    ..RoutingConfig::new(top_k)
                };
                let tensor = |of: &[f32], dims: &[usize]| {
                    Tensor::from_slice(of, dims, &Device::Cpu).unwrap()
                };
                let value = tensor(&scores, &[rows, n]);
                let value = Value::on(Route::Composed, Precision::F32, &value).unwrap();
                let chooser = Chooser::new(n, &Device::Cpu).unwrap();
                let correcting = tensor(&correction, &[n]);
                let columns = chooser.choose(&value, Some(&correcting), &config).unwrap();
                let ExpertColumns::Device(found) = columns else {
                    panic!("columns of the host");
                };
                let found = found.tensor().to_vec2::<u32>().unwrap();
                assert_eq!(found.len(), rows);
                for (found, scores) in found.into_iter().zip(scores.chunks(n)) {
                    let expected = expected(scores, &correction, &config);
                    assert_eq!(found, expected, "{n} {top_k} {groups:?} {levels}");
                }
            }
        }
    }
}
