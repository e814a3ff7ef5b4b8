//! Which experts a position uses.

/// The experts that rows have chosen.
pub(crate) struct Routing {
    /// `[rows, top_k]`: of each row, the most probable first.
    pub chosen: Vec<u32>,
    /// For each expert the places in `chosen` where it stands, in the order of rows.
    pub places: Vec<Vec<usize>>,
}

/// Chooses for each row of probabilities `[rows, n_experts]` the `top_k` largest, and of equals the first, as transformers'
/// `topk` on the CPU.
pub(crate) fn choose_experts<T: Copy + Into<f64>>(
    probabilities: &[T],
    n_experts: usize,
    top_k: usize,
) -> Routing {
    let mut chosen = Vec::with_capacity(probabilities.len() / n_experts * top_k);
    let mut places = vec![Vec::new(); n_experts];
    let mut order: Vec<usize> = Vec::new();
    for probabilities in probabilities.chunks_exact(n_experts) {
        order.clear();
        order.extend(0..n_experts);
        let probability = |expert: usize| -> f64 { probabilities[expert].into() };
        order.sort_by(|&a, &b| probability(b).total_cmp(&probability(a)));
        for &expert in &order[..top_k] {
            places[expert].push(chosen.len());
            chosen.push(expert as u32);
        }
    }
    Routing { chosen, places }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_chooses_its_most_probable_experts_and_of_equals_the_first() {
        let probabilities = [0.1, 0.5, 0.4, 0.25, 0.5, 0.25];
        let routing = choose_experts(&probabilities, 3, 2);
        assert_eq!(routing.chosen, [1, 2, 1, 0]);
        assert_eq!(routing.places, [vec![3], vec![0, 2], vec![1]]);
    }
}
