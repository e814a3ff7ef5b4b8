//! Sums written out in f64, for heads in fused rows and sequences shorter than the distances. Gradients are tested with attention.

use super::*;
use crate::reference::{alone, random};

#[test]
fn terms_are_the_sums_written_out() {
    // Positions, the most positions, heads, their width, table rows; and columns before and after the heads in a row.
    let cases = [
        ([5, 5, 3, 4, 9], [0, 0]),
        ([1, 1, 1, 1, 1], [0, 0]),
        ([7, 9, 2, 5, 4], [5, 2]),
        ([33, 40, 3, 17, 16], [0, 51]),
    ];
    for ([seq, longest, heads, head_dim, n_rows], [before, after]) in cases {
        let width = before + heads * head_dim + after;
        // One other sequence lies before it.
        let content: Vec<f64> = random((3 + seq) * width, 0.0, 1.0, 1);
        let table: Vec<f64> = random(n_rows * heads * head_dim, 0.0, 1.0, 2);
        let rows: Vec<u32> = (0..2 * longest - 1)
            .map(|distance| distance.min(n_rows - 1) as u32)
            .collect();
        for of in [ContentOf::Queries, ContentOf::Keys] {
            let term = RelativeTerm {
                content: HeadRows {
                    data: f64::slice(&content),
                    seq: 3 + seq,
                    heads,
                    head_dim,
                    row_stride: width,
                    offset: before,
                },
                of,
                table: HeadRows {
                    data: f64::slice(&table),
                    seq: n_rows,
                    heads,
                    head_dim,
                    row_stride: heads * head_dim,
                    offset: 0,
                },
            };
            let scores = RelativeScores {
                terms: &[term, term],
                rows: &rows,
                scale: 0.3,
            };
            scores.check(seq, 3 + seq, heads);
            for head in 0..heads {
                let products = scores.of_head::<f64>(alone(), 3..3 + seq, head);
                for query in 0..seq {
                    let mut found = vec![1.0; seq - seq / 2];
                    products.add_to(query, seq / 2, &mut found);
                    for (key, found) in (seq / 2..).zip(found) {
                        let line = match of {
                            ContentOf::Queries => query,
                            ContentOf::Keys => key,
                        };
                        let content = &content[(3 + line) * width + before + head * head_dim..];
                        let place = rows[query + longest - 1 - key] as usize;
                        let table = &table[(place * heads + head) * head_dim..][..head_dim];
                        let sum: f64 = zip(content, table).map(|(x, y)| x * y).sum();
                        let error = found - 1.0 - 2.0 * 0.3 * sum;
                        assert!(
                            error.abs() < 1e-13 * seq as f64,
                            "{of:?} {head} {query} {key}"
                        );
                    }
                }
            }
        }
    }
}
