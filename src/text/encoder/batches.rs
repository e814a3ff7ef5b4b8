//! Groups texts into batches.

/// How many tokens a batch has: enough to keep two threads busy, with hidden states that fit the caches.
const MAX_TOKENS: usize = 2048;

/// The lengths that one batch may mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchLengths {
    /// Any lengths: padding is not computed.
    Any,
    /// Equal lengths only: padding would be computed, or would change the sums' order.
    Equal,
}

/// Groups texts by length in tokens, the longest first, so that the largest memory is allocated first.
pub(crate) fn batches(n_tokens: &[usize], lengths: BatchLengths) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..n_tokens.len()).collect();
    order.sort_by_key(|&text| std::cmp::Reverse(n_tokens[text]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for text in order {
        let fits = |batch: &Vec<usize>| {
            let longest = n_tokens[batch[0]];
            let may_join = lengths == BatchLengths::Any || longest == n_tokens[text];
            may_join && longest * (batch.len() + 1) <= MAX_TOKENS
        };
        match batches.last_mut() {
            Some(batch) if fits(batch) => batch.push(text),
            _ => batches.push(vec![text]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_in_one_batch_of_bounded_size() {
        let n_tokens = [3, 900, 5, 3, 1200, 900, 3, 5000];
        for lengths in [BatchLengths::Any, BatchLengths::Equal] {
            let batches = batches(&n_tokens, lengths);
            let mut all: Vec<usize> = batches.concat();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7]);
            for batch in &batches {
                let longest = batch.iter().map(|&text| n_tokens[text]).max().unwrap();
                assert!(batch.len() == 1 || longest * batch.len() <= MAX_TOKENS);
                let is_equal = |&text: &usize| n_tokens[text] == longest;
                assert!(lengths == BatchLengths::Any || batch.iter().all(is_equal));
            }
        }
        assert_eq!(batches(&[2, 2, 1], BatchLengths::Any), [[0, 1, 2]]);
        assert_eq!(
            batches(&[2, 2, 1], BatchLengths::Equal),
            [vec![0, 1], vec![2]]
        );
    }
}
