//! Groups of sequences. If there are enough groups, each thread computes attention for whole groups.
//!
//! Projection, scores and output need several times as much memory as the input rows. For one group, these values
//! stay in the second-level cache of its thread.

use std::ops::Range;

use candle_blocks_kernels::{attention::Sequences, threads};

/// The least number of rows in a group, so that reading the weights once per group costs little. Measured with
/// BERT-base, int8, 8 sequences with 128 tokens, on 2 Zen 5 cores, relative to groups with at least 112 rows: at
/// least 256 rows take 1.04, no groups 1.04 to 1.07.
const LEAST_ROWS: usize = 112;

/// The most work that a thread may have beyond its share, as a part of that share. Measured with the same model and
/// sequences of different lengths, relative to this bound: no bound takes 1.04, a bound of 0 takes 1.00.
const UNFAIR: f64 = 0.03;

/// Consecutive sequences in a pass.
pub(super) struct SequenceGroup<'a> {
    pub sequences: Range<usize>,
    /// The group's rows among all rows.
    pub rows: Range<usize>,
    /// The group's sequences, with rows counted from its own first row.
    pub queries: Sequences<'a>,
    /// The number of threads for the group.
    pub threads: usize,
}

/// Calls `work` for each group with its rows of `y`. A group belongs to one thread, or to all threads.
pub(super) fn for_groups<'a>(
    queries: Sequences<'a>,
    n_threads: usize,
    y: &mut [f32],
    work: impl Fn(SequenceGroup<'a>, &mut [f32]) + Sync,
) {
    let group = |sequences: Range<usize>, threads| {
        let (first, last) = (sequences.start, sequences.end - 1);
        SequenceGroup {
            rows: queries.rows(first).start..queries.rows(last).end,
            queries: queries.part(sequences.clone()),
            sequences,
            threads,
        }
    };
    let batch = queries.batch();
    if batch == 0 || queries.n_rows() == 0 {
        return;
    }
    let width = y.len() / queries.n_rows();
    let own = own_groups(&queries, n_threads);
    let rest = own.last().map_or(0, |last| last.end)..batch;
    let lengths: Vec<usize> = own
        .iter()
        .map(|sequences| group(sequences.clone(), 1).rows.len() * width)
        .collect();
    let (own_part, rest_part) = y.split_at_mut(lengths.iter().sum());
    threads::for_pieces_of(n_threads, own_part, &lengths, |i, y| {
        work(group(own[i].clone(), 1), y);
    });
    if !rest.is_empty() {
        work(group(rest, n_threads), rest_part);
    }
}

/// Returns the groups that single threads compute, from the first sequence on. Returns none if that would leave a
/// thread idle.
fn own_groups(queries: &Sequences, threads: usize) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut start, mut rows) = (0, 0);
    let mut sizes = Vec::new();
    for sequence in 0..queries.batch() {
        rows += queries.rows(sequence).len();
        if rows >= LEAST_ROWS {
            groups.push(start..sequence + 1);
            sizes.push(rows);
            (start, rows) = (sequence + 1, 0);
        }
    }
    let n_own = groups.len() / threads * threads;
    groups.truncate(n_own);
    sizes.truncate(n_own);
    if is_fair(&sizes, threads) {
        groups
    } else {
        Vec::new()
    }
}

/// Returns true if all threads have about the same work. In reality each thread begins with its share and then takes
/// groups from other threads. This model gives the next group to the thread that is free first.
fn is_fair(sizes: &[usize], threads: usize) -> bool {
    let mut busy = vec![0; threads];
    for size in sizes {
        if let Some(least) = busy.iter_mut().min() {
            *least += size;
        }
    }
    let (all, longest) = (busy.iter().sum::<usize>(), busy.into_iter().max());
    longest.unwrap_or(0) as f64 * threads as f64 <= (1.0 + UNFAIR) * all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(batch: usize, seq: usize) -> Sequences<'static> {
        Sequences::Equal { batch, seq }
    }

    #[test]
    fn groups_have_rows_enough_and_every_thread_as_many() {
        assert_eq!(own_groups(&equal(8, 128), 2).len(), 8);
        assert_eq!(own_groups(&equal(9, 128), 2).len(), 8);
        assert_eq!(
            own_groups(&equal(32, 32), 2),
            [0..4, 4..8, 8..12, 12..16, 16..20, 20..24, 24..28, 28..32]
        );
        assert_eq!(own_groups(&equal(2, 512), 1), [0..1, 1..2]);
        assert!(own_groups(&equal(1, 512), 2).is_empty());
        assert!(own_groups(&equal(3, 16), 1).is_empty());
        assert!(own_groups(&equal(4, 0), 2).is_empty());
    }

    #[test]
    fn sequences_of_unequal_lengths_are_grouped_where_no_thread_waits_long() {
        let offsets = |lengths: &[usize]| {
            let ends = lengths.iter().scan(0, |end, length| {
                *end += length;
                Some(*end)
            });
            [0].into_iter().chain(ends).collect::<Vec<_>>()
        };
        let uneven = offsets(&[120, 500]);
        assert!(own_groups(&Sequences::Ragged { starts: &uneven }, 2).is_empty());
        let even = offsets(&[120, 60, 60, 30, 10, 70, 5, 112]);
        let groups = own_groups(&Sequences::Ragged { starts: &even }, 2);
        assert_eq!(groups, [0..1, 1..3, 3..7, 7..8]);
    }

    #[test]
    fn every_row_is_in_one_group() {
        for threads in [1, 2, 3] {
            for (batch, seq) in [(0, 4), (5, 0), (1, 7), (9, 100), (7, 130), (40, 33)] {
                let mut y = vec![0.0; batch * seq * 2];
                for_groups(equal(batch, seq), threads, &mut y, |group, y| {
                    assert_eq!(y.len(), group.rows.len() * 2);
                    assert_eq!(group.queries.n_rows(), group.rows.len());
                    assert_eq!(group.sequences.len() * seq, group.rows.len());
                    for (i, y) in y.iter_mut().enumerate() {
                        *y += (2 * group.rows.start + i) as f32;
                    }
                });
                let expected: Vec<f32> = (0..batch * seq * 2).map(|i| i as f32).collect();
                assert_eq!(y, expected);
            }
        }
    }
}
