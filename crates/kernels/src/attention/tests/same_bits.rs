//! A row's bits do not depend on anything around it.

use rayon::prelude::*;

use super::{
    case::{Case, Reach},
    *,
};

const REACHES: [Reach; 4] = [
    Reach::All,
    Reach::Causal,
    Reach::CausalWindow(70),
    Reach::Window(21),
];

const SIZES: [(usize, usize); 4] = if cfg!(miri) {
    [(6, 6), (2, 9), (3, 11), (1, 20)]
} else {
    [(150, 150), (40, 300), (17, 131), (1, 290)]
};

/// Returns some queries in one sequence as a separate case.
fn part(case: &Case, sequence: usize, queries: Range<usize>) -> Case {
    let rows = |heads: Heads, rows: Range<usize>| {
        heads.data[rows.start * heads.row_stride..rows.end * heads.row_stride].to_vec()
    };
    let (all, keys) = (case.queries, case.keys);
    let first = sequence * all;
    let keep = case.keep.as_ref();
    Case {
        batch: 1,
        queries: queries.len(),
        first_query: case.first_query + queries.start,
        keep: keep.map(|keep| keep[sequence * keys..(sequence + 1) * keys].to_vec()),
        query: rows(
            case.query_heads(),
            first + queries.start..first + queries.end,
        ),
        key_value: rows(case.key_heads(), sequence * keys..(sequence + 1) * keys),
        ..case.clone()
    }
}

#[test]
fn the_batch_the_other_queries_and_the_threads_do_not_change_a_bit() {
    for way in ways() {
        for reach in REACHES {
            for (queries, keys) in SIZES {
                let case = Case::new((2, queries, keys), (4, 2, 20)).reaching(reach);
                let width = 4 * 20;
                let all = case.compute(way, 1);
                let what = format!("{way} {reach:?} {queries} x {keys}");
                for threads in [2, 5] {
                    assert_same(&case.compute(way, threads), &all, &what);
                }
                for sequence in 0..2 {
                    let first = sequence * queries;
                    for some in [0..queries, 0..1, queries / 2..queries, queries - 1..queries] {
                        let expected =
                            &all[(first + some.start) * width..(first + some.end) * width];
                        let found = part(&case, sequence, some.clone()).compute(way, 1);
                        assert_same(&found, expected, format!("{what}, queries {some:?}"));
                    }
                }
            }
        }
    }
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "WASI starts no threads")]
fn callers_at_once_and_within_rayon_get_the_same_bits() {
    let way = best();
    let (queries, keys) = SIZES[0];
    let cases: Vec<Case> = (1..7)
        .map(|i| Case::new((2, queries, keys), (4, 2, 9 * i)))
        .collect();
    let alone: Vec<_> = cases.iter().map(|case| case.compute(way, 1)).collect();
    let found: Vec<_> = cases.par_iter().map(|case| case.compute(way, 4)).collect();
    assert_eq!(found.len(), alone.len());
    for (found, alone) in found.iter().zip(&alone) {
        assert_same(found, alone, "within rayon");
    }
    std::thread::scope(|scope| {
        for (case, alone) in cases.iter().zip(&alone) {
            scope.spawn(|| assert_same(&case.compute(way, 3), alone, "from a thread"));
        }
    });
}

/// Longer sequences, whose last keys are masked and hold NaN.
#[test]
fn padding_on_the_right_does_not_change_a_bit() {
    for way in ways() {
        for reach in REACHES {
            for (queries, keys) in SIZES {
                let case = Case::new((1, queries, keys), (2, 1, 33)).reaching(reach);
                let expected = case.compute(way, 1);
                for padding in [1, 2, 31, 200] {
                    let stride = case.key_heads().row_stride;
                    let mut padded = Case {
                        keys: keys + padding,
                        ..case.clone()
                    }
                    .keeping(|_, key| key < keys);
                    padded.key_value.resize((keys + padding) * stride, f32::NAN);
                    let what = format!("{way} {reach:?} {queries} x {keys}");
                    let what = format!("{what} + {padding}");
                    assert_same(&padded.compute(way, 1), &expected, what);
                }
            }
        }
    }
}

/// A shared key/value head gives the same bits as separate heads with equal keys and values.
#[test]
fn a_shared_head_gives_the_bits_of_copies_of_it() {
    for way in ways() {
        let shared = Case::new((2, 40, 40), (6, 1, 12)).reaching(Reach::Causal);
        let mut copied = Case {
            query: shared.query.clone(),
            reach: Reach::Causal,
            ..Case::new((2, 40, 40), (6, 6, 12))
        };
        for sequence in 0..2 {
            for key in 0..40 {
                for column in 0..6 * 12 {
                    let value = |heads| shared.at(heads, sequence, key, column % 12);
                    let key_element = shared.key_value[value(shared.key_heads())];
                    let value_element = shared.key_value[value(shared.value_heads())];
                    let at = copied.at(copied.key_heads(), sequence, key, column);
                    copied.key_value[at] = key_element;
                    let at = copied.at(copied.value_heads(), sequence, key, column);
                    copied.key_value[at] = value_element;
                }
            }
        }
        assert_same(&shared.compute(way, 1), &copied.compute(way, 1), way);
    }
}

/// Sequences with different lengths and no padding, some empty.
#[test]
fn sequences_without_padding_give_the_bits_of_each_alone() {
    let lengths = if cfg!(miri) {
        [3, 0, 9, 1]
    } else {
        [130, 0, 45, 1]
    };
    for way in ways() {
        for reach in REACHES {
            let alone = lengths.map(|seq| {
                let case = Case::new((1, seq, seq), (4, 2, 20)).reaching(reach);
                let mut case = case.reseeded(seq as u64);
                case.first_query = 0;
                case
            });
            let expected: Vec<f32> = alone.iter().flat_map(|case| case.compute(way, 1)).collect();
            let mut all = alone[0].clone();
            all.query = alone.iter().flat_map(|case| case.query.clone()).collect();
            all.key_value = alone
                .iter()
                .flat_map(|case| case.key_value.clone())
                .collect();
            // A sequence's visible range must not end where the longest sequence does.
            all.keys = 1000;
            let starts = [
                0,
                lengths[0],
                lengths[0],
                lengths[0] + lengths[2],
                lengths.iter().sum(),
            ];
            let sequences = Sequences::Ragged { starts: &starts };
            let shape = Shape {
                queries: sequences,
                ..all.shape()
            };
            let key_value = KeyValue::Projected {
                keys: sequences,
                key: all.key_heads(),
                value: all.value_heads(),
            };
            for threads in [1, 3] {
                let found = all.attend_as(way, &shape, key_value, threads);
                assert_same(&found, &expected, format!("{way} {reach:?}"));
            }
        }
    }
}
