//! Hidden keys and values have no effect, whatever they contain.

use super::{
    case::{Case, Reach},
    *,
};

/// Sets a key and its value to `with`, which spoils every result that uses it.
fn spoil(case: &mut Case, sequence: usize, key: usize, with: f32) {
    for heads in [case.key_heads(), case.value_heads()].map(|h| (h.row_stride, h.offset)) {
        let width = case.n_kv_heads * case.head_dim;
        let start = (sequence * case.keys + key) * heads.0 + heads.1;
        case.key_value[start..start + width].fill(with);
    }
}

#[test]
fn nan_and_infinity_in_unseen_keys_and_values_do_not_change_a_bit() {
    for way in ways() {
        for reach in [
            Reach::All,
            Reach::Causal,
            Reach::CausalWindow(9),
            Reach::Window(4),
        ] {
            for (queries, keys) in [(50, 50), (20, 150), (3, 5)] {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let case = Case::new((2, queries, keys), (2, 1, 20))
                        .reaching(reach)
                        .keeping(|b, key| key % 7 != 3 + b);
                    let before = case.compute(way, 1);
                    let spoiled_key = keys - 2;
                    let mut spoiled = case.clone();
                    spoil(&mut spoiled, 1, spoiled_key, bad);
                    for key in 0..keys {
                        for sequence in 0..2 {
                            if key % 7 == 3 + sequence {
                                spoil(&mut spoiled, sequence, key, bad);
                            }
                        }
                    }
                    let after = spoiled.compute(way, 1);
                    let width = 2 * 20;
                    let rows = before.chunks_exact(width).zip(after.chunks_exact(width));
                    let mut n_spoiled = 0;
                    for (row, (before, after)) in rows.enumerate() {
                        let (sequence, query) = (row / queries, row % queries);
                        if sequence == 1 && spoiled.sees(1, query, spoiled_key) {
                            assert!(after.iter().all(|x| !x.is_finite()), "row {row}");
                            n_spoiled += 1;
                        } else {
                            let what = format!("{way} {reach:?} {bad} row {row}");
                            assert_same(after, before, &what);
                        }
                    }
                    assert!(n_spoiled > 0, "{reach:?} {queries} x {keys}");
                }
            }
        }
    }
}

#[test]
fn a_query_that_sees_nothing_gives_zeros() {
    for way in ways() {
        let case = Case::new((2, 17, 40), (2, 2, 24));
        let nothing_kept = case.clone().keeping(|b, _| b == 1);
        let mut hidden = case.clone();
        hidden.biases.push((
            vec![f32::NEG_INFINITY; 2],
            BiasLayout::strided([1, 0, 0, 0]),
        ));
        hidden.biases[0].0[1] = 0.0;
        for (name, case) in [("keep", nothing_kept), ("-inf", hidden)] {
            let out = case.compute(way, 1);
            let (first, second) = out.split_at(out.len() / 2);
            assert!(first.iter().all(|x| x.to_bits() == 0), "{name}");
            assert!(second.iter().all(|x| x.is_finite() && *x != 0.0), "{name}");
        }
        // Queries after the window's last key, and one in between that sees a hole only.
        let beyond = Case {
            reach: Reach::CausalWindow(3),
            first_query: 30,
            ..case.clone()
        }
        .keeping(|_, key| key != 36 && key != 37 && key != 38);
        let out = beyond.compute(way, 2);
        for (row, out) in out.chunks_exact(48).enumerate() {
            let sees_any = (0..40).any(|key| beyond.sees(row / 17, row % 17, key));
            assert_eq!(out.iter().any(|&x| x != 0.0), sees_any, "row {row}");
            assert!(out.iter().all(|x| x.is_finite()));
        }
    }
}

#[test]
fn a_key_of_minus_infinity_in_a_bias_is_as_if_dropped() {
    for way in ways() {
        let case = Case::new((1, 20, 70), (2, 2, 16));
        let dropped = case.clone().keeping(|_, key| key % 5 != 2);
        let mut hidden = case;
        let bias = |key: usize| if key % 5 == 2 { f32::NEG_INFINITY } else { 0.0 };
        hidden.biases.push((
            (0..70).map(bias).collect(),
            BiasLayout::strided([0, 0, 0, 1]),
        ));
        assert_same(&hidden.compute(way, 1), &dropped.compute(way, 1), way);
    }
}
