//! Scores compared with sums written out in f64, and gradients with the transposed map.

use super::*;
use crate::reference::{alone, random};

fn normal(n: usize, seed: u64) -> Vec<f64> {
    random(n, 0.0, 1.0, seed)
}

/// Sequences, positions, heads, their width, table rows; and columns before and after the heads in a row.
const CASES: [([usize; 5], [usize; 2]); 5] = [
    ([2, 5, 3, 4, 9], [0, 0]),
    ([1, 1, 1, 1, 1], [0, 0]),
    ([3, 7, 2, 5, 4], [5, 2]),
    ([2, 33, 3, 17, 16], [0, 51]),
    ([0, 4, 2, 3, 7], [0, 0]),
];

fn naive(scores: &RelativeScores) -> Vec<f64> {
    let HeadRows {
        seq,
        heads,
        head_dim,
        ..
    } = scores.content;
    let mut all = Vec::new();
    for sequence in 0..scores.batch {
        for head in 0..heads {
            for query in 0..seq {
                for key in 0..seq {
                    let line = match scores.of {
                        ContentOf::Queries => query,
                        ContentOf::Keys => key,
                    };
                    let place = scores.rows[query + seq - 1 - key] as usize;
                    let at = |of: &HeadRows, row: usize, i: usize| {
                        let column = of.offset + head * head_dim + i;
                        f64::of_slice(of.data)[row * of.row_stride + column]
                    };
                    let product = |i| {
                        at(&scores.content, sequence * seq + line, i) * at(&scores.table, place, i)
                    };
                    all.push(scores.scale * (0..head_dim).map(product).sum::<f64>());
                }
            }
        }
    }
    all
}

fn close(found: &[f64], expected: &[f64], allowed: f64, of: &str) {
    assert_eq!(found.len(), expected.len(), "{of}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= allowed, "{of} [{i}]: {a}, expected {b}");
    }
}

#[test]
fn scores_and_gradients_are_the_sums_written_out() {
    for ([batch, seq, heads, head_dim, n_rows], [before, after]) in CASES {
        let width = before + heads * head_dim + after;
        let (content, table) = (
            normal(batch * seq * width, 1),
            normal(n_rows * heads * head_dim, 2),
        );
        let others = [
            normal(batch * seq * heads * head_dim, 4),
            normal(table.len(), 5),
        ];
        let rows: Vec<u32> = (0..2 * seq - 1)
            .map(|d| (d.min(n_rows - 1)) as u32)
            .collect();
        for of in [ContentOf::Queries, ContentOf::Keys] {
            let case = format!("{batch} {seq} {heads} {head_dim} {n_rows} {of:?}");
            let with = |content, table, before, width| RelativeScores {
                batch,
                content: HeadRows {
                    data: content,
                    seq,
                    heads,
                    head_dim,
                    row_stride: width,
                    offset: before,
                },
                of,
                table: HeadRows {
                    data: table,
                    seq: n_rows,
                    heads,
                    head_dim,
                    row_stride: heads * head_dim,
                    offset: 0,
                },
                rows: &rows,
                longest: seq,
                scale: 0.3,
            };
            let scores = with(f64::slice(&content), f64::slice(&table), before, width);
            let expected = naive(&scores);
            for cpu in [alone(), alone().on(3)] {
                let mut found = vec![1.0; expected.len()];
                scores.add_to(cpu, f64::slice_mut(&mut found));
                let added: Vec<f64> = found.iter().map(|x| x - 1.0).collect();
                close(&added, &expected, 1e-13 * seq as f64, &case);

                // The map is linear in either operand: ⟨dy, f(x)⟩ = ⟨f'(dy), x⟩ for every x.
                let dy = normal(expected.len(), 3);
                let mut dcontent = vec![0.0; batch * seq * heads * head_dim];
                let mut dtable = vec![0.0; table.len()];
                let to_content = f64::slice_mut(&mut dcontent);
                scores.backward(
                    cpu,
                    f64::slice(&dy),
                    to_content,
                    f64::slice_mut(&mut dtable),
                );
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                let with_other = with(
                    f64::slice(&others[0]),
                    f64::slice(&table),
                    0,
                    heads * head_dim,
                );
                let moved = dot(&dy, &naive(&with_other));
                let allowed = 1e-12 * (1.0 + expected.len() as f64);
                close(&[dot(&dcontent, &others[0])], &[moved], allowed, &case);
                let with_other = with(f64::slice(&content), f64::slice(&others[1]), before, width);
                let moved = dot(&dy, &naive(&with_other));
                close(&[dot(&dtable, &others[1])], &[moved], allowed, &case);
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_threads() {
    let (batch, seq, heads, head_dim, n_rows) = (2, 40, 4, 16, 79);
    let numbers = |n, seed| random::<f32>(n, 0.0, 1.0, seed);
    let (content, table) = (
        numbers(batch * seq * heads * head_dim, 1),
        numbers(n_rows * heads * head_dim, 2),
    );
    let rows: Vec<u32> = (0..n_rows as u32).collect();
    let heads_of = |data, seq| HeadRows {
        data,
        seq,
        heads,
        head_dim,
        row_stride: heads * head_dim,
        offset: 0,
    };
    let scores = RelativeScores {
        batch,
        content: heads_of(f32::slice(&content), seq),
        of: ContentOf::Keys,
        table: heads_of(f32::slice(&table), n_rows),
        rows: &rows,
        longest: seq,
        scale: 0.3,
    };
    let dy = numbers(batch * heads * seq * seq, 3);
    let results = [alone(), alone().on(4)].map(|cpu| {
        let mut all = vec![
            vec![0f32; dy.len()],
            vec![0f32; content.len()],
            vec![0f32; table.len()],
        ];
        scores.add_to(cpu, f32::slice_mut(&mut all[0]));
        let [_, dcontent, dtable] = &mut all[..] else {
            unreachable!()
        };
        let dcontent = f32::slice_mut(dcontent);
        scores.backward(cpu, f32::slice(&dy), dcontent, f32::slice_mut(dtable));
        all
    });
    assert_eq!(results[0], results[1]);
}

#[test]
fn a_shorter_sequence_does_not_write_the_remaining_scores() {
    let (content, table) = (normal(2 * 6, 1), normal(3 * 6, 2));
    let heads_of = |data, seq| HeadRows {
        data,
        seq,
        heads: 2,
        head_dim: 3,
        row_stride: 6,
        offset: 0,
    };
    let scores = |longest| RelativeScores {
        batch: 1,
        content: heads_of(f64::slice(&content), 2),
        of: ContentOf::Keys,
        table: heads_of(f64::slice(&table), 3),
        rows: &[0, 1, 2],
        longest,
        scale: 1.0,
    };
    let (mut own, mut roomy) = (vec![0.0; 2 * 4], vec![0.0; 2 * 9]);
    scores(2).add_to(alone(), f64::slice_mut(&mut own));
    scores(3).add_to(alone(), f64::slice_mut(&mut roomy));
    for (i, found) in roomy.iter().enumerate() {
        let (head, query, key) = (i / 9, i % 9 / 3, i % 3);
        let expected = match query < 2 && key < 2 {
            true => own[head * 4 + query * 2 + key],
            false => 0.0,
        };
        assert_eq!(*found, expected, "{head} {query} {key}");
    }
}
