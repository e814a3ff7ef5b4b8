//! Selection of experts.

use crate::config::{ExpertGroups, RoutingConfig};

/// Returns true if a parameter has a gradient. The router's correction, the fixed values of an xIELU and a block's
/// output scale have none.
#[doc(hidden)]
pub fn has_gradient(role: &str) -> bool {
    let without = [
        "router.correction.weight",
        "output_scale.weight",
        "xielu.slope.weight",
        "xielu.knee.weight",
    ];
    without.iter().all(|ending| !role.ends_with(ending))
}

/// The experts selected by each row.
pub(crate) struct Routing {
    /// `[rows, top_k]`: each row's experts, the largest score first.
    pub chosen: Vec<u32>,
    /// For each expert, its places in `chosen`, in row order.
    pub places: Vec<Vec<usize>>,
}

/// Selects the `top_k` largest scores in each row of `[rows, n_experts]`, within the best groups if there are groups.
/// The first of equal scores wins, as in transformers' `topk` on the CPU. `correction` is added to each row's scores.
pub(crate) fn choose_experts<T: Copy + Into<f64>>(
    scores: &[T],
    n_experts: usize,
    correction: Option<&[f32]>,
    config: &RoutingConfig,
) -> Routing {
    let added = |expert: usize| correction.map_or(0.0, |all| f64::from(all[expert]));
    let top_k = config.top_k;
    let mut chosen = Vec::with_capacity(scores.len() / n_experts * top_k);
    let mut places = vec![Vec::new(); n_experts];
    for scores in scores.chunks_exact(n_experts) {
        let score = |expert: usize| scores[expert].into() + added(expert);
        let candidates = match config.groups {
            None => (0..n_experts).collect(),
            Some(groups) => of_best_groups(&groups, n_experts, score),
        };
        for &expert in &largest(candidates, score)[..top_k] {
            places[expert].push(chosen.len());
            chosen.push(expert as u32);
        }
    }
    Routing { chosen, places }
}

/// Selects `top_k` experts one after another. For each choice, returns the expert and the scores, with `-inf` for
/// experts already selected and for experts not near the best of the rest, `(best - s) / max(|s|, best) <=
/// tolerance`. `choose` selects an expert from these scores.
pub(crate) fn among_near<E>(
    scores: &[f64],
    top_k: usize,
    tolerance: f64,
    mut choose: impl FnMut(usize, &[f64]) -> Result<usize, E>,
) -> Result<Vec<(usize, Vec<f64>)>, E> {
    let mut rest = scores.to_vec();
    let mut chosen = Vec::with_capacity(top_k);
    for nth in 0..top_k {
        let best = rest.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let near = rest.iter().map(|&s| {
            let is_far = (best - s) / s.abs().max(best) > tolerance;
            if is_far { f64::NEG_INFINITY } else { s }
        });
        let near: Vec<f64> = near.collect();
        let expert = choose(nth, &near)?;
        rest[expert] = f64::NEG_INFINITY;
        chosen.push((expert, near));
    }
    Ok(chosen)
}

/// Returns the index of the largest score, the first of equal scores.
#[doc(hidden)]
pub fn best(scores: &[f64]) -> usize {
    let better = |best: usize, i: usize| if scores[i] > scores[best] { i } else { best };
    (0..scores.len()).fold(0, better)
}

/// Returns the experts of the best groups, in order.
fn of_best_groups(
    groups: &ExpertGroups,
    n_experts: usize,
    score: impl Fn(usize) -> f64,
) -> Vec<usize> {
    let size = n_experts / groups.n_groups;
    let judged = |group: usize| -> f64 {
        let members = largest((group * size..(group + 1) * size).collect(), &score);
        members[..groups.judged_by].iter().map(|&e| score(e)).sum()
    };
    let group_scores: Vec<f64> = (0..groups.n_groups).map(judged).collect();
    let mut best = largest((0..groups.n_groups).collect(), |group| group_scores[group]);
    best.truncate(groups.top_groups);
    best.sort_unstable();
    let members = |group| group * size..(group + 1) * size;
    best.into_iter().flat_map(members).collect()
}

/// Sorts experts by their scores, the largest first.
fn largest(mut of: Vec<usize>, score: impl Fn(usize) -> f64) -> Vec<usize> {
    of.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
    of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_chooses_its_experts_with_the_largest_scores_and_of_equals_the_first() {
        let scores = [0.1, 0.5, 0.4, 0.25, 0.5, 0.25];
        let routing = choose_experts(&scores, 3, None, &RoutingConfig::new(2));
        assert_eq!(routing.chosen, [1, 2, 1, 0]);
        assert_eq!(routing.places, [vec![3], vec![0, 2], vec![1]]);
        let corrected = choose_experts(&scores, 3, Some(&[0.5, 0.0, 0.0]), &RoutingConfig::new(2));
        assert_eq!(corrected.chosen, [0, 1, 0, 1]);
    }

    /// Compares with transformers 5.23's `sparsemixer` in evaluation, with a jitter of 0.1.
    #[test]
    fn experts_are_chosen_one_after_another_among_those_that_are_near() {
        let weighted = |scores: [f64; 4]| {
            let best = |_, near: &[f64]| Ok::<_, std::convert::Infallible>(best(near));
            let Ok(chosen) = among_near(&scores, 2, 0.2, best);
            let share = |(expert, near): (usize, Vec<f64>)| {
                let total: f64 = near.iter().map(|s| s.exp()).sum();
                (expert, (1e4 * near[expert].exp() / total).round() / 1e4)
            };
            chosen.into_iter().map(share).collect::<Vec<_>>()
        };
        assert_eq!(weighted([1.0, 0.9, -0.5, 0.4]), [(0, 0.525), (1, 1.0)]);
        assert_eq!(
            weighted([-1.8, -1.5, -1.6, -4.0]),
            [(1, 0.3780), (2, 0.5498)]
        );
    }

    #[test]
    fn experts_outside_the_best_groups_are_not_chosen() {
        // In groups of two: 1.0, 0.9, 1.1 by both, 0.9, 0.5, 0.6 by the largest.
        let scores = [0.9, 0.1, 0.5, 0.4, 0.5, 0.6];
        let chosen = |judged_by| {
            let groups = ExpertGroups {
                n_groups: 3,
                top_groups: 1,
                judged_by,
            };
            let routing = RoutingConfig {
                groups: Some(groups),
                ..RoutingConfig::new(2)
            };
            choose_experts(&scores, 6, None, &routing).chosen
        };
        assert_eq!((chosen(2), chosen(1)), (vec![5, 4], vec![0, 1]));
    }
}
